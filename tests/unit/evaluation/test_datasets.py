import json

import pytest

from mia.errors import InputError
from mia.evaluation.datasets import read_dataset
from mia.runtime.settings import RoleSettings, load

ROW = {"id": "a", "question": "Who?", "answers": ["Ada"]}


def read(tmp_path, *lines, limit=None, per_type=None):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_dataset(path, load(RoleSettings, home=tmp_path), limit, per_type)


def test_questions_and_truths_are_kept_apart(tmp_path):
    data = read(tmp_path, ROW, {**ROW, "id": "b", "unanswerable": True, "hops": 3})
    assert [question.id for question in data.questions] == ["a", "b"]
    assert data.answer_key["a"].answers == ("Ada",)
    assert data.answer_key["b"].unanswerable


def test_a_limit_takes_the_first(tmp_path):
    assert len(read(tmp_path, ROW, {**ROW, "id": "b"}, limit=1).questions) == 1


def test_a_sample_holds_so_many_of_each_type_in_file_order_whatever_the_order_of_the_file(tmp_path):
    rows = [{**ROW, "id": f"{kind}{n}", "type": kind} for n in range(20) for kind in "xy"]
    sample = read(tmp_path, *rows, ROW, per_type=3)
    ids = [question.id for question in sample.questions]
    assert sorted(sample.types[name] for name in ids) == ["", "x", "x", "x", "y", "y", "y"]
    assert ids == [row["id"] for row in [*rows, ROW] if row["id"] in ids]
    assert {question.id for question in read(tmp_path, ROW, *rows[::-1], per_type=3).questions} == set(ids)
    assert len(read(tmp_path, *rows, limit=2, per_type=3).questions) == 2


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '"x"',
        {"id": "b", "question": "?"},
        {**ROW, "id": "b", "answers": "x"},
        {**ROW, "id": "b", "question": ""},
        {**ROW, "id": "b", "answers": []},
    ],
)
def test_a_broken_line_is_refused_with_its_number_and_never_skipped(tmp_path, line):
    with pytest.raises(InputError, match="Line 2"):
        read(tmp_path, ROW, line)


def test_a_repeated_id_is_refused(tmp_path):
    with pytest.raises(InputError, match="repeats the id 'a'"):
        read(tmp_path, ROW, ROW)


def test_an_empty_or_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no question"):
        read(tmp_path, "")
    with pytest.raises(InputError, match="cannot be read"):
        read_dataset(tmp_path / "none.jsonl", load(RoleSettings))
