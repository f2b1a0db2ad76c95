"""The memory store of the released code, written anew to be compared with: lists, grown arrays and one JSON file.

It does what that code does, with numpy in the place of torch: an insert copies both matrices, a query normalises all
rows and walks all records, a save rewrites the file, and a load has to encode everything again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Record = dict[str, Any]
Scored = list[tuple[float, int, Record]]


class ListStore:
    """Records of one bucket, with the vectors of their questions and captions as rows of two matrices."""

    def __init__(self, records: list[Record], questions: NDArray[np.float32], captions: NDArray[np.float32]) -> None:
        self.records = records
        self._questions = questions
        self._captions = captions

    def insert(self, record: Record, question: NDArray[np.float32], caption: NDArray[np.float32]) -> None:
        """Append a record."""
        self._questions = np.concatenate([self._questions, question[None]])
        self._captions = np.concatenate([self._captions, caption[None]])
        self.records.append(record)

    def recall(
        self, question: NDArray[np.float32], caption: NDArray[np.float32], each: int = 2
    ) -> tuple[Scored, Scored]:
        """Return the best successes and the best failures."""
        similarity = _cosine(self._questions, question)
        if caption.any():
            similarity = 0.8 * similarity + 0.2 * _cosine(self._captions, caption)
        low, high = similarity.min(), similarity.max()
        scores = 0.7 * (similarity - low) / (high - low + 1e-8)
        rates = np.array([record["win_rate"] for record in self.records])
        successes: Scored = []
        failures: Scored = []
        for number, (score, record) in enumerate(zip((scores + 0.3 * rates).tolist(), self.records, strict=True)):
            (successes if record["judgement"] == "correct" else failures).append((score, number, record))
        for some in (successes, failures):
            some.sort(key=lambda scored: scored[0], reverse=True)
        return successes[:each], failures[:each]

    def save(self, path: Path) -> None:
        """Write the whole file, as it is done after every item."""
        path.write_text(json.dumps({"text-only": {"others": self.records}}, ensure_ascii=False, indent=4))

    @staticmethod
    def load(path: Path) -> list[Record]:
        """Read the records; their vectors are not in the file."""
        records: list[Record] = json.loads(path.read_text())["text-only"]["others"]
        return records


def _cosine(matrix: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix)) * np.linalg.norm(vector)
    cosine: NDArray[np.float32] = matrix @ vector / np.maximum(lengths, 1e-8)
    return cosine
