import json

import pytest

from mia.errors import InputError
from mia.evaluation.datasets import read_dataset
from mia.runtime.settings import RoleSettings, load

ROW = {"id": "a", "question": "Who?", "answers": ["Ada"]}


def read(tmp_path, *lines, limit=None):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_dataset(path, load(RoleSettings, home=tmp_path), limit)


def test_questions_and_truths_are_kept_apart(tmp_path):
    data = read(tmp_path, ROW, {**ROW, "id": "b", "unanswerable": True, "hops": 3})
    assert [question.id for question in data.questions] == ["a", "b"]
    assert data.answer_key["a"].answers == ("Ada",)
    assert data.answer_key["b"].unanswerable


def test_a_limit_takes_the_first(tmp_path):
    assert len(read(tmp_path, ROW, {**ROW, "id": "b"}, limit=1).questions) == 1


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
