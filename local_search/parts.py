"""Parts of a corpus: some megabytes of lines, counted on their own, each in a folder until a build is done.

A part is named for its bytes and for how they were read: a build that was killed finds what it had done, and several
processes count at once. Terms ascend in every part, so parts are merged a range of terms at a time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from array import array
from collections import defaultdict, deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import numpy as np

from local_search.corpus import Report, parse
from local_search.terms import Analyzer, number, whole
from mia.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = 4  # raise it when terms or files change their meaning
TITLE_WEIGHT = 4  # a term of the title counts this often, which puts a thing's own page before pages that mention it
PART_BYTES = 16 << 20
SUMS = "sums.json"
UNUSABLE = "unusable.json"
POSTING = np.dtype([("row", "<u4"), ("count", "<u4")])


class Part:
    """A counted part, read from its folder.

    Its arrays are `terms` (ascending), `starts` of their `postings`, and of its rows `line_bytes`, `lengths` in terms,
    and `ids` (numbers, 0 where there is none).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Map one of the arrays; nothing stays open but what the caller holds."""
        found: NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return found

    @property
    def unusable(self) -> dict[str, list[int]]:
        """Line numbers, from 1 in this part, by what is wrong with them."""
        found: dict[str, list[int]] = json.loads((self.folder / UNUSABLE).read_bytes())
        return found

    def is_whole(self) -> bool:
        """Say whether the part is there and undamaged."""
        try:
            sums = json.loads((self.folder / SUMS).read_bytes())
            return all(digest(self.folder / name) == expected for name, expected in sums.items())
        except (OSError, ValueError):
            return False


def count(lines: list[bytes], language: str, folder: Path) -> None:
    """Read lines as documents and write the part that they make; a line that cannot be used has no terms."""
    analyzer = Analyzer(language)
    vocabulary: dict[str, int] = defaultdict(itertools.count().__next__)
    tokens, lengths, ids = array("I"), array("I"), array("Q")  # a list would take eight times the memory
    report = Report()
    for line in lines:
        report.lines += 1
        found: list[str] = []
        key = None
        try:
            document = parse(line)
            title = analyzer.terms(document["title"])
            found = [*title * TITLE_WEIGHT, *analyzer.terms(document["text"])]
            if not found:
                raise ValueError("without a word")  # noqa: TRY301 - the same fate as a line that parse refuses
            found.append(whole(title))
            key = document.get("id")
        except ValueError as error:
            report.unusable.setdefault(str(error), []).append(report.lines)
        tokens.extend(map(vocabulary.__getitem__, found))
        lengths.append(len(found))
        ids.append(0 if key is None else number(json.dumps(key)))
    numbers = np.array([number(term) for term in vocabulary], np.uint64)
    arrays = {
        **_postings(numbers, np.array(tokens, np.int64), np.array(lengths, np.int64)),
        "line_bytes": np.array([len(line) for line in lines], np.int64),
        "lengths": np.array(lengths, np.uint32),
        "ids": np.array(ids, np.uint64),
    }
    _save(folder, arrays, report.unusable)


def _postings(numbers: NDArray[Any], tokens: NDArray[Any], lengths: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Turn the tokens of all rows, one after the other, into rows and counts by term."""
    terms, rank = np.unique(numbers, return_inverse=True)
    rows = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    pairs, counts = np.unique(rank.astype(np.uint64)[tokens] << 32 | rows, return_counts=True)
    postings = np.empty(len(pairs), POSTING)
    postings["row"], postings["count"] = pairs & 0xFFFFFFFF, counts
    starts = np.searchsorted(pairs, np.arange(len(terms) + 1, dtype=np.uint64) << 32)
    return {"terms": terms, "starts": starts, "postings": postings}


def _save(folder: Path, arrays: dict[str, NDArray[Any]], unusable: dict[str, list[int]]) -> None:
    fresh = folder.with_suffix(".fresh")
    for former in (fresh, folder):
        if former.exists():
            shutil.rmtree(former)
    fresh.mkdir()
    for name, values in arrays.items():
        np.save(fresh / f"{name}.npy", values)
    (fresh / UNUSABLE).write_text(json.dumps(unusable), encoding="utf-8")
    sums = {file.name: digest(file) for file in fresh.iterdir()}
    (fresh / SUMS).write_text(json.dumps(sums), encoding="utf-8")
    fresh.rename(folder)


def batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lines in lists of about `PART_BYTES`."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= PART_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def name_of(lines: list[bytes], language: str) -> str:
    """Return the name of the part that these lines make."""
    content = hashlib.sha256(f"{FORMAT} {TITLE_WEIGHT} {language}\n".encode())
    for line in lines:
        content.update(line)
    return content.hexdigest()


def count_all(tasks: Iterable[tuple[list[bytes], str, Path]], workers: int) -> None:
    """Count many parts, each in one of so many processes.

    Raises:
        StorageError: a process was ended, most often for want of memory.
    """
    if workers == 1:
        for task in tasks:
            count(*task)
        return
    # Fresh processes, as a fork of one that has threads may hang.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_follow_parent) as pool:
        pending: deque[Future[None]] = deque()
        try:
            for task in tasks:
                pending.append(pool.submit(count, *task))
                if len(pending) > workers:  # one part waits in memory, so that no process does
                    pending.popleft().result()
            for last in pending:
                last.result()
        except BrokenProcessPool as cause:
            raise StorageError(
                "A process that counts terms was ended from outside.",
                remedy="Free some memory, or set MIA_SEARCH_WORKERS=1, and build again: what is done is kept.",
            ) from cause


def _follow_parent() -> None:
    """End with the process that started this one, also when it is killed, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
