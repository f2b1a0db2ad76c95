"""The index: term weights of every row, byte offsets of every line, and a manifest that says what they were made from.

A build writes a fresh folder inside the index folder; replacing `manifest.json`, which names it, is what makes it the
index. So there is a whole index or the one before, at every moment. A build removes the folder named before, so it
holds the lock of the index folder alone, and whoever opens an index holds it with others.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import bm25s  # type: ignore[import-untyped]
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from local_search.corpus import Documents, find_corpus, is_packed, reading, stamp
from local_search.terms import terms, whole
from mia.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from mia.runtime.settings import SearchServiceSettings

FORMAT = 2  # raise it when terms or files change their meaning
MANIFEST = "manifest.json"
LOCK = "lock"
UNPACKED = "corpus.jsonl"
OFFSETS = "offsets.npy"
QUERY_CHARACTERS = 4000
LOCK_SECONDS = 600.0
POLL_SECONDS = 0.1
REBUILD = "Run `python -m local_search build`."

_log = logging.getLogger(__name__)


class Manifest(BaseModel):
    """What an index was made from, and where its files are."""

    model_config = ConfigDict(frozen=True)

    format: int
    corpus: str
    size: int
    mtime_ns: int
    sha256: str
    k1: float
    b: float
    rows: int
    usable: int
    folder: str
    files: dict[str, str]


class Index:
    """A built index, open for search. Its methods block and may run in many threads."""

    def __init__(self, manifest: Manifest, folder: Path, corpus: Path) -> None:
        self.manifest = manifest
        self._weights = bm25s.BM25.load(folder, mmap=True)
        self._documents = Documents(corpus, np.load(folder / OFFSETS, mmap_mode="r"))

    @classmethod
    def open(cls, settings: SearchServiceSettings) -> Index:
        """Open the index of a corpus, checked against it.

        Raises:
            InputError: the corpus is missing or cannot be read.
            StorageError: the index is missing, damaged, locked, or made from anything else.
        """
        find_corpus(settings.corpus)
        with locked(settings.index, alone=False):
            reason = stale(settings)
            if reason:
                raise StorageError(f"The index {settings.index} cannot be used: {reason}.", remedy=REBUILD)
            return cls.load(settings)

    @classmethod
    def load(cls, settings: SearchServiceSettings) -> Index:
        """Open an index that is known to fit; the caller holds its lock. Raises StorageError if there is none."""
        manifest = read_manifest(settings.index)
        folder = settings.index / manifest.folder
        corpus = folder / UNPACKED if is_packed(settings.corpus) else settings.corpus
        return cls(manifest, folder, corpus)

    def search(self, query: str, limit: int) -> list[tuple[dict[str, Any], float]]:
        """Return at most `limit` documents that share a term with the query, best first, each with its score."""
        found = terms(query[:QUERY_CHARACTERS])
        if not found:
            return []
        scores = self._weights.get_scores([*found, whole(found)])
        limit = min(limit, len(scores))
        # All rows of the lowest score that gets in, for a partition alone takes any of those that tie there.
        rows = np.flatnonzero((scores > 0) & (scores >= np.partition(scores, -limit)[-limit]))
        rows = rows[np.lexsort((rows, -scores[rows]))][:limit]
        return [(self._documents[int(row)], float(scores[row])) for row in rows]

    def check(self) -> None:
        """Raise StorageError when the corpus was changed since the index was opened."""
        self._documents.check()

    def close(self) -> None:
        """Let go of the corpus file."""
        self._documents.close()


def stale(settings: SearchServiceSettings) -> str:
    """Return why the index does not fit the corpus and the settings, or nothing when it does.

    Raises:
        InputError: the corpus cannot be read.
    """
    found = find_corpus(settings.corpus)
    try:
        manifest = read_manifest(settings.index)
    except StorageError as error:
        return error.message
    if manifest.format != FORMAT:
        return "another version of the program made it"
    if (manifest.k1, manifest.b) != (settings.k1, settings.b):
        return "it was made with other values of k1 and b"
    if (manifest.size, manifest.mtime_ns) != stamp(found):
        with reading(found):
            same = digest(found) == manifest.sha256
        if not same:
            return f"the corpus {found} is not the one that was indexed"
    for name, expected in manifest.files.items():
        file = settings.index / manifest.folder / name
        if not file.is_file() or digest(file) != expected:
            return f"its file {name} is damaged or gone"
    return ""


@contextmanager
def locked(index: Path, *, alone: bool) -> Iterator[None]:
    """Hold the lock of an index folder: alone to write to it, with others to read it.

    Raises:
        StorageError: there is no index to read, the lock is not free within `LOCK_SECONDS`, or the file system
            refuses something, in here or in the body.
    """
    try:
        if alone:
            index.mkdir(parents=True, exist_ok=True)
        elif not (index / LOCK).exists():  # every build makes one, and never removes it
            raise StorageError(f"The index {index} cannot be used: there is none yet.", remedy=REBUILD)
        with (index / LOCK).open("ab" if alone else "rb") as file:
            _wait(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
    except OSError as cause:
        raise StorageError(
            f"The index cannot be {'written to' if alone else 'read from'} {index}: {cause}.",
            remedy="Check its rights and free space." if alone else f"Check its rights. {REBUILD}",
        ) from cause


def _wait(file: BinaryIO, kind: int) -> None:
    due = time.monotonic() + LOCK_SECONDS
    told = False
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            if time.monotonic() >= due:
                raise StorageError(
                    f"Another process held {file.name} for {LOCK_SECONDS:g} s.", remedy="Wait until its build is done."
                ) from cause
        if not told:
            _log.info("waiting for another process that uses %s", file.name)
            told = True
        time.sleep(POLL_SECONDS)


def read_manifest(index: Path) -> Manifest:
    """Read what an index folder holds. Raises StorageError if it holds none that can be read."""
    try:
        return Manifest.model_validate_json((index / MANIFEST).read_bytes())
    except FileNotFoundError as cause:
        raise StorageError("there is none yet", remedy=REBUILD) from cause
    except (OSError, ValidationError) as cause:
        raise StorageError(f"its {MANIFEST} cannot be read", remedy=REBUILD) from cause


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
