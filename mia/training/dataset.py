"""Questions for training: rows of parquet, ours or the released ones, as verl takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pydantic import ValidationError
from torch.utils.data import Dataset

from mia.errors import InputError
from mia.text import clean
from mia.types import Question, Recall, Truth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AGENT = "planner"  # of loops.yaml
_IDS, _QUESTIONS, _ANSWERS = ("id", "data_id"), ("question", "prompt"), ("answers", "reward_model")


class Questions(Dataset):
    """All rows of some files, read at once: a row without a question or an answer is found before the model is loaded.

    Columns: `id` (or `data_id`), `question` (or `prompt`, messages whose first is the question), `answers` (or
    `reward_model` with `ground_truth`); optional `recall` (a `mia.types.Recall` as JSON) or `memories_context` (text),
    `caption` (or `image_caption`), `data_source`.
    """

    def __init__(
        self,
        data_files: str | Iterable[str],
        tokenizer: Any = None,  # noqa: ARG002 - verl's signature
        config: Any = None,  # noqa: ARG002
        processor: Any = None,  # noqa: ARG002
        max_samples: int = -1,
        **_: Any,
    ) -> None:
        files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.rows = [row for file in files for row in _read(Path(file))]
        if max_samples > 0:
            self.rows = self.rows[:max_samples]

    def __len__(self) -> int:
        """Return the number of questions."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one row: our nouns as JSON beside the keys that verl needs."""
        row = self.rows[index]
        return row | {"index": index, "extra_info": {"index": index}, "dummy_tensor": torch.zeros(1, dtype=torch.uint8)}


def _read(file: Path) -> list[dict[str, Any]]:
    remedy = "See Planner-Train/README.md for the columns, or correct DATASET_TRAIN and DATASET_VAL."
    try:
        table = pq.read_table(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as parquet: {error}.", remedy=remedy) from error
    for names in (_IDS, _QUESTIONS, _ANSWERS):
        if not set(names) & set(table.column_names):
            raise InputError(f"{file} has no column {' or '.join(names)}.", remedy=remedy)
    rows = []
    for number, row in enumerate(table.to_pylist(), 1):
        try:
            rows.append(_row(row))
        except (KeyError, TypeError, IndexError, ValueError, ValidationError) as error:
            raise InputError(f"Row {number} of {file} cannot be used: {error!r}.", remedy=remedy) from error
    if not rows:
        raise InputError(f"{file} has no rows.", remedy=remedy)
    return rows


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    text = row["question"] if row.get("question") else row["prompt"][0]["content"]
    answers = row["answers"] if row.get("answers") else row["reward_model"]["ground_truth"]
    answers = tuple([answers] if isinstance(answers, str) else map(str, answers))
    caption = row.get("caption") or row.get("image_caption") or ""
    if not answers or not clean(text).strip():
        raise ValueError("it has no question or no answer")
    question = Question(
        id=str(next(row[name] for name in _IDS if row.get(name) is not None)),
        text=clean(text).strip(),
        caption=caption if isinstance(caption, str) else " ".join(map(str, caption)),
    )
    recall = Recall(told=row.get("memories_context") or "")
    if row.get("recall"):
        recall = Recall.model_validate_json(row["recall"])
    return {
        "agent_name": AGENT,
        "raw_prompt": [{"role": "user", "content": question.text}],
        "data_source": str(row.get("data_source") or "mia"),
        "reward_model": {"style": "rule", "ground_truth": answers[0]},
        "question": question.model_dump_json(),
        "truth": Truth(answers=answers).model_dump_json(),
        "recall": recall.model_dump_json(),
    }


class Order:
    """Which question comes next: a permutation of all in each epoch, settled by the seed; two numbers are its state.

    verl's own loader forgets at the border of an epoch where it was.
    """

    def __init__(self, size: int, seed: int, *, shuffle: bool) -> None:
        self._size, self._seed, self._shuffle = size, seed, shuffle
        self.epoch = self.position = 0

    def next(self) -> int:
        """Return the number of the next question."""
        if self.position == self._size:
            self.epoch, self.position = self.epoch + 1, 0
        self.position += 1
        if not self._shuffle:
            return self.position - 1
        order = np.random.default_rng([self._seed, self.epoch]).permutation(self._size)
        return int(order[self.position - 1])

    def state_dict(self) -> dict[str, int]:
        """Return what a checkpoint keeps."""
        return {"epoch": self.epoch, "position": self.position, "size": self._size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where a checkpoint was.

        Raises:
            InputError: the checkpoint is of another data set.
        """
        if state.get("size") != self._size:
            told = json.dumps(state)
            raise InputError(
                f"The checkpoint is of another data set: {told}, and this one has {self._size} questions.",
                remedy="Name the data of that run, or another SAVE_CHECKPOINT_DIR.",
            )
        self.epoch, self.position = state["epoch"], state["position"]
