import pytest

pytest.importorskip("verl")

import pyarrow as pa
import pyarrow.parquet as pq

from mia.errors import InputError
from mia.training.dataset import Order, Questions
from mia.types import Question, Recall, Truth

OURS = {
    "id": "q1",
    "question": "Capital of Aba?",
    "answers": ["Ola", "Olá"],
    "recall": Recall(sequence=3).model_dump_json(),
}
RELEASED = {
    "data_id": "d1",
    "prompt": [{"role": "user", "content": "What is this?"}],
    "reward_model": {"ground_truth": "a tower"},
    "memories_context": "Positive example 1: ...",
    "image_caption": "A tower.",
    "data_source": "fvqa",
}


def questions(tmp_path, *rows, **more):
    pq.write_table(pa.Table.from_pylist(list(rows)), tmp_path / "rows.parquet")
    return Questions(str(tmp_path / "rows.parquet"), **more)


def test_our_rows_and_the_released_ones_become_the_same_nouns(tmp_path):
    row = questions(tmp_path, OURS)[0]
    assert Question.model_validate_json(row["question"]) == Question(id="q1", text="Capital of Aba?")
    assert Truth.model_validate_json(row["truth"]).answers == ("Ola", "Olá")
    assert Recall.model_validate_json(row["recall"]).sequence == 3
    row = questions(tmp_path, RELEASED)[0]
    assert Question.model_validate_json(row["question"]) == Question(id="d1", text="What is this?", caption="A tower.")
    assert Truth.model_validate_json(row["truth"]).answers == ("a tower",)
    assert Recall.model_validate_json(row["recall"]).told == "Positive example 1: ..."
    assert (row["data_source"], row["agent_name"]) == ("fvqa", "planner")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "?", "answers": ["a"]}, "id or data_id"),
        ({"id": "1", "answers": ["a"]}, "question or prompt"),
        ({"id": "1", "question": "?"}, "answers or reward_model"),
        (OURS | {"answers": []}, "Row 1"),
        (OURS | {"question": " "}, "Row 1"),
        (OURS | {"recall": "{"}, "Row 1"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_loaded(tmp_path, row, told):
    with pytest.raises(InputError, match=told):
        questions(tmp_path, row)


def test_a_file_that_is_none_and_one_without_rows_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        Questions(str(tmp_path / "none.parquet"))
    pq.write_table(pa.Table.from_pylist([OURS]).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="no rows"):
        Questions(str(tmp_path / "empty.parquet"))


def test_only_as_many_rows_as_wanted_are_read(tmp_path):
    assert len(questions(tmp_path, *[OURS | {"id": str(n)} for n in range(5)], max_samples=2)) == 2


@pytest.mark.parametrize("stop", [3, 5, 7, 10])  # 5 and 10: the borders of epochs
def test_a_checkpoint_brings_the_order_back_at_any_place(stop):
    whole = Order(5, 7, shuffle=True)
    expected = [whole.next() for _ in range(15)]
    assert sorted(expected[:5]) == sorted(expected[5:10]) == list(range(5))
    assert expected[:5] != expected[5:10]
    first, second = Order(5, 7, shuffle=True), Order(5, 7, shuffle=True)
    begun = [first.next() for _ in range(stop)]
    second.load_state_dict(first.state_dict())
    assert begun + [second.next() for _ in range(15 - stop)] == expected
    assert [Order(5, 7, shuffle=False).next() for _ in range(3)] == [0, 0, 0]


def test_a_checkpoint_of_other_data_is_refused():
    with pytest.raises(InputError, match="another data set"):
        Order(6, 7, shuffle=True).load_state_dict(Order(5, 7, shuffle=True).state_dict())
