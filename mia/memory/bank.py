"""The bank in memory: contiguous arrays that follow the storage's log, seen by readers as immutable snapshots."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from mia.memory.recall import Snapshot
from mia.memory.storage import Storage
from mia.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mia.memory.storage import Entry
    from mia.protocols import Encoder

_SMALLEST = 256
_CHANGING = ("alive", "uses", "wins", "origins", "categories")


class Bank:
    """Arrays over a storage. Whoever writes, this process or another, the bank learns of it from the log."""

    def __init__(self, storage: Storage, dimensions: int) -> None:
        self.storage = storage
        self._lock = threading.Lock()
        self._origins: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._rows: dict[int, int] = {}
        self._columns: dict[str, NDArray[Any]] = {
            "ids": np.zeros(0, np.int64),
            "origins": np.zeros(0, np.int64),
            "categories": np.zeros(0, np.int64),
            "correct": np.zeros(0, np.bool_),
            "captioned": np.zeros(0, np.bool_),
            "alive": np.zeros(0, np.bool_),
            "uses": np.zeros(0),
            "wins": np.zeros(0),
            "questions": np.zeros((0, dimensions), np.float32),
            "captions": np.zeros((0, dimensions), np.float32),
        }
        self._snapshot = self._freeze(0)
        self.snapshot()

    @classmethod
    def open(cls, path: Path, encoder: Encoder) -> Bank:
        """Open or create a bank for an encoder.

        Raises:
            StorageError: the file cannot be used.
            ConfigError: its vectors are another encoder's.
        """
        return cls(Storage(path, encoder.id), encoder.dimensions)

    def close(self) -> None:
        """Close the storage."""
        self.storage.close()

    def origin(self, question_id: str) -> int | None:
        """Return the number of a question in `Snapshot.origins`, None when no memory was made from it."""
        return self._origins.get(clean(question_id))

    def category(self, name: str) -> int | None:
        """Return the number of a category in `Snapshot.categories`, None when no memory is of it."""
        return self._categories.get(clean(name))

    def snapshot(self) -> Snapshot:
        """Return the bank as it is now, having read what any process has changed since the last look."""
        if self.storage.sequence() == self._snapshot.sequence:
            return self._snapshot
        with self._lock:
            changes = self.storage.changes(self._snapshot.sequence)
            fresh = [entry for entry in changes.entries if entry.id not in self._rows]
            known = [entry for entry in changes.entries if entry.id in self._rows]
            gone = set(changes.touched) - {entry.id for entry in changes.entries}
            self._update(known, [self._rows[memory_id] for memory_id in gone if memory_id in self._rows])
            self._append(fresh)
            self._snapshot = self._freeze(changes.sequence)
            return self._snapshot

    def _update(self, known: list[Entry], gone: list[int]) -> None:
        """Change what can change in copies, since readers may hold the arrays; the other columns only ever grow."""
        if not known and not gone:
            return
        for name in _CHANGING:
            self._columns[name] = self._columns[name].copy()
        self._fill([self._rows[entry.id] for entry in known], known)
        self._columns["alive"][gone] = False

    def _fill(self, rows: Any, entries: list[Entry]) -> None:
        columns = self._columns
        columns["alive"][rows] = True
        columns["uses"][rows] = [entry.uses for entry in entries]
        columns["wins"][rows] = [entry.wins for entry in entries]
        columns["origins"][rows] = [self._origins.setdefault(e.question_id, len(self._origins)) for e in entries]
        columns["categories"][rows] = [self._categories.setdefault(e.category, len(self._categories)) for e in entries]

    def _append(self, fresh: list[Entry]) -> None:
        if len(self._rows) + len(fresh) > len(self._columns["ids"]):
            self._grow(len(fresh))
        start = len(self._rows)
        place = slice(start, start + len(fresh))
        columns = self._columns
        columns["ids"][place] = [entry.id for entry in fresh]
        columns["correct"][place] = [entry.correct for entry in fresh]
        columns["captioned"][place] = [entry.caption is not None for entry in fresh]
        self._fill(place, fresh)
        for row, entry in enumerate(fresh, start):
            self._rows[entry.id] = row
            columns["questions"][row] = np.frombuffer(entry.question, np.float32)
            if entry.caption is not None:
                columns["captions"][row] = np.frombuffer(entry.caption, np.float32)

    def _grow(self, wanted: int) -> None:
        """Move to arrays of twice the size, leaving the forgotten behind."""
        alive = np.flatnonzero(self._columns["alive"][: len(self._rows)])
        capacity = max(_SMALLEST, 2 * (len(alive) + wanted))
        for name, column in self._columns.items():
            larger = np.zeros((capacity, *column.shape[1:]), column.dtype)
            larger[: len(alive)] = column[alive]
            self._columns[name] = larger
        self._rows = {int(memory_id): row for row, memory_id in enumerate(self._columns["ids"][: len(alive)])}

    def _freeze(self, sequence: int) -> Snapshot:
        views = {name: column[: len(self._rows)] for name, column in self._columns.items()}
        for view in views.values():
            view.flags.writeable = False
        return Snapshot(sequence=sequence, **views)
