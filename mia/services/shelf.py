"""The memory of `mia serve memory`: looked up, added to, written to files, read from them, emptied."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mia.errors import InputError, StorageError
from mia.memory.threads import waited
from mia.memory.twins import twin
from mia.memory.writing import Fresh, Vectors
from mia.runtime.files import write_whole
from mia.types import Question, Recall
from mia.wire import memory_files
from mia.wire.memory_serve import ClearResponse, FileResponse, SaveRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.memory.writing import Writing
    from mia.types import PlanPair, Workflow
    from mia.wire.memory_files import Released
    from mia.wiring import MemoryRoles

SUFFIXES = (".json", ".jsonl")
CHUNK = 256  # questions encoded within one deadline

_NAMES = {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.ELOOP, errno.EINVAL}


class Shelf:
    """A bank as the released routes see it, its files in `folder`."""

    def __init__(self, roles: MemoryRoles, folder: Path) -> None:
        self._roles = roles
        self._storage = roles.memory.bank.storage
        self._folder = folder

    async def check(self) -> None:
        """Raise StorageError when the bank cannot be read."""
        await waited(None, self._storage.sequence)

    async def recall(self, question: Question, each: int, skip: int = 0) -> Recall:
        """Return `each` successes and failures after the best `skip` of either."""
        end = skip + each
        found = await self._roles.memory.recall(question, end)
        kept = {"successes": found.successes[skip:end], "failures": found.failures[skip:end]}
        return found.model_copy(update=kept)

    async def save(self, request: SaveRequest) -> list[int]:
        """Remember one question, once however often it is sent; return the ids of memories shown that are not there.

        Those are passed over: a memory may have been cleared between the plan and now, and what was learnt since then
        is not to be lost for it.
        """
        found = await waited(None, self._storage.fetch, request.used_memory_indices)
        shown = [(memory, 0.0) for memory in found.values()]
        successes, failures = (tuple(pair for pair in shown if pair[0].correct is label) for label in (True, False))
        episode = request.episode(Recall(successes=successes, failures=failures))
        await self._roles.memory.remember(episode)
        return [memory_id for memory_id in dict.fromkeys(request.used_memory_indices) if memory_id not in found]

    async def write(self, given: str) -> FileResponse:
        """Write the memories to a file that the released code loads, whole or not at all."""
        path = self._inside(given)
        memories = await waited(None, lambda: self._storage.list(None)[::-1])
        await waited(None, lambda: _write(path, memory_files.workflow_file(memories)))
        return FileResponse(path=str(path), memories=len(memories))

    async def load(self, given: str) -> FileResponse:
        """Put what a file holds in the place of all that is remembered, or change nothing."""
        path = self._inside(given)
        text = await waited(None, _read, path)
        released = await waited(None, memory_files.read, text, path.name, time.time())
        vectors = await self._encode([*released.workflows, *released.pairs])

        def replace() -> None:
            with self._storage.writing() as writing:
                writing.clear()
                _take_in(writing, released, vectors)

        await waited(None, replace)
        return FileResponse(path=str(path), memories=len(released.workflows))

    async def clear(self) -> ClearResponse:
        """Forget everything, and say how to undo it."""
        sequence = await waited(None, self._storage.clear)
        return ClearResponse(
            message=f"The memory is empty. `mia memory restore {sequence}` brings back what was there."
        )

    async def _encode(self, records: Sequence[Workflow | PlanPair]) -> list[Vectors]:
        vectors: list[Vectors] = []
        for start in range(0, len(records), CHUNK):
            texts = [text for each in records[start : start + CHUNK] for text in (each.question, each.caption)]
            flat = await waited(None, self._roles.encoder.encode, texts)
            vectors += [Vectors(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        return vectors

    def _inside(self, given: str) -> Path:
        """Return a path within the folder: the one given, or its name if it leads elsewhere."""
        folder = self._folder.resolve()
        path = (folder / given).resolve()
        if not path.is_relative_to(folder):
            path = (folder / Path(given).name).resolve()
        if path.suffix not in SUFFIXES or not path.is_relative_to(folder):
            raise InputError(f"{given!r:.200} is no memory file.", remedy="Name one that ends in .json or .jsonl.")
        return path


def _take_in(writing: Writing, released: Released, vectors: Sequence[Vectors]) -> None:
    writing.take_in([workflow.episode for workflow in released.workflows])
    count = len(released.workflows)
    fresh = []
    for workflow, each in zip(released.workflows, vectors[:count], strict=True):
        question = Question(id=workflow.question_id, text=workflow.question, caption=workflow.caption)
        fresh.append(Fresh(workflow, twin(question), each))
    writing.add(fresh)
    writing.add_pairs(list(zip(released.pairs, vectors[count:], strict=True)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text.", remedy="Save it as UTF-8; `iconv` converts.") from error
    except OSError as error:
        raise _unusable(path, error) from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> InputError | StorageError:
    """Tell a name that cannot be used, which is the caller's, from a disk that cannot, which is ours."""
    kind = InputError if error.errno in _NAMES else StorageError
    return kind(
        f"{path} cannot be used: {error.strerror}.", remedy="Name another file, or check the folder MEMORY_DIR."
    )
