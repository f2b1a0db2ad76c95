"""Many writers, few commits: what arrives while one transaction is made durable goes into the next."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from mia.errors import StorageError
from mia.memory.threads import waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia.memory.storage import Storage
    from mia.memory.writing import Writing

T = TypeVar("T")

BATCH = 64
WINDOW = 0.002  # seconds that a transaction waits for more, while more keeps coming
_LOOK = 0.0002


@dataclass(eq=False)
class _Waiting(Generic[T]):
    record: T
    settled: bool = False
    error: StorageError | None = None


class GroupCommit(Generic[T]):
    """Writes records in batches, each batch one transaction and each record in it apart from its neighbours.

    `write` makes the changes of a batch in an open transaction. Should it fail, every record is tried alone.
    """

    def __init__(self, storage: Storage, write: Callable[[Writing, list[T]], None]) -> None:
        self._storage = storage
        self._write = write
        self._queue: deque[_Waiting[T]] = deque()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="remember")

    def close(self) -> None:
        """Write what waits, and end."""
        self._writer.shutdown()

    async def submit(self, record: T) -> None:
        """Return when a record is on disk.

        Raises:
            StorageError: it cannot be written, and nothing of it was; or not in time, and then it may be later.
        """
        waiting = _Waiting(record)
        self._queue.append(waiting)
        await waited(self._writer, self._until, waiting)
        if waiting.error:
            raise waiting.error

    def _until(self, waiting: _Waiting[T]) -> None:
        """Write batches until a record is settled; it may have been in an earlier one already."""
        while not waiting.settled:
            self._write_batch(self._gather())

    def _gather(self) -> list[_Waiting[T]]:
        deadline, seen = time.monotonic() + WINDOW, 0
        while seen < len(self._queue) < BATCH and time.monotonic() < deadline:
            seen = len(self._queue)
            time.sleep(_LOOK)
        return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def _write_batch(self, batch: list[_Waiting[T]]) -> None:
        for waiting in batch:  # until the commit has gone through
            waiting.error = StorageError("The memory was not written, by a fault of the program.")
            waiting.settled = True
        try:
            with self._storage.writing() as writing:
                failed = self._attempt(writing, batch)
        except StorageError as error:
            failed = {id(waiting): error for waiting in batch}
        for waiting in batch:
            waiting.error = failed.get(id(waiting))

    def _attempt(self, writing: Writing, batch: list[_Waiting[T]]) -> dict[int, StorageError]:
        """Write all at once, or else one by one; return why which of them failed."""
        try:
            with writing.apart():
                self._write(writing, [waiting.record for waiting in batch])
        except StorageError as error:
            if len(batch) == 1:
                return {id(batch[0]): error}
            return {key: each for waiting in batch for key, each in self._attempt(writing, [waiting]).items()}
        return {}
