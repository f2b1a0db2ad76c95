"""The index: term weights of every row, byte offsets of every line, and a manifest that says what they were made from.

A build writes a fresh folder inside the index folder; replacing `manifest.json`, which names it, is what makes it the
index. So there is a whole index or the one before, at every moment. A build removes the folder named before, so it
holds the lock of the index folder alone, and whoever opens an index holds it with others.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from local_search.corpus import Documents, find_corpus, is_packed, reading, stamp
from local_search.parts import FORMAT, digest
from local_search.postings import Postings
from local_search.terms import Analyzer, whole
from mia.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from mia.runtime.settings import SearchServiceSettings

MANIFEST = "manifest.json"
LOCK = "lock"
UNPACKED = "corpus.jsonl"
OFFSETS = "offsets.npy"
AUTO = "auto"
QUERY_CHARACTERS = 4000
LOCK_SECONDS = 600.0
POLL_SECONDS = 0.1
REBUILD = "Run `python -m local_search build`."

_log = logging.getLogger(__name__)


class FileStamp(BaseModel):
    """A file as the build left it."""

    model_config = ConfigDict(frozen=True)

    size: int
    mtime_ns: int
    sha256: str


class Manifest(BaseModel):
    """What an index was made from, and where its files are."""

    model_config = ConfigDict(frozen=True)

    format: int
    corpus: str
    size: int
    mtime_ns: int
    sha256: str
    language: str
    k1: float
    b: float
    rows: int
    usable: int
    folder: str
    files: dict[str, FileStamp]


class Index:
    """A built index, open for search. Its methods block and may run in many threads."""

    def __init__(self, manifest: Manifest, folder: Path, corpus: Path) -> None:
        self.manifest = manifest
        self._postings = Postings(folder)
        self._documents = Documents(corpus, np.load(folder / OFFSETS, mmap_mode="r"))
        self._own = threading.local()  # what a search writes to

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
        return self.read(self.find(query, limit))

    def find(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Return rows as `search` returns documents."""
        if not hasattr(self._own, "analyzer"):
            self._own.analyzer = Analyzer(self.manifest.language)
        terms = self._own.analyzer.terms(query[:QUERY_CHARACTERS])
        if not terms:
            return []
        # Put back only after a search that came to its end: what another left would count in the next.
        scores = self._own.__dict__.pop("scores", None)
        if scores is None:
            scores = np.zeros(self.manifest.rows, np.float32)
        found = self._postings.best([*terms, whole(terms)], limit, scores)
        self._own.scores = scores
        return found

    def read(self, found: Sequence[tuple[int, float]]) -> list[tuple[dict[str, Any], float]]:
        """Read the documents of rows. Raises StorageError when the corpus is not what was indexed."""
        return [(self._documents[row], score) for row, score in found]

    def check(self) -> None:
        """Raise StorageError when the corpus was changed since the index was opened."""
        self._documents.check()

    def close(self) -> None:
        """Let go of the corpus file."""
        self._documents.close()


def stale(settings: SearchServiceSettings, *, thorough: bool = False) -> str:
    """Return why the index does not fit the corpus and the settings, or nothing when it does.

    A file of the size and time that the build noted is taken for that file, and others are read and compared;
    `thorough` reads all.

    Raises:
        InputError: the corpus cannot be read.
    """
    found = find_corpus(settings.corpus)
    try:
        manifest = read_manifest(settings.index)
    except StorageError as error:
        return error.message
    return (
        _misfit(manifest, settings)
        or _changed(manifest, found, thorough=thorough)
        or _damaged(manifest, settings, thorough=thorough)
    )


def _misfit(manifest: Manifest, settings: SearchServiceSettings) -> str:
    if manifest.format != FORMAT:
        return "another version of the program made it"
    if settings.language not in (AUTO, manifest.language):
        return f"it was made for another language ({manifest.language})"
    if (manifest.k1, manifest.b) != (settings.k1, settings.b):
        return "it was made with other values of k1 and b"
    return ""


def _changed(manifest: Manifest, corpus: Path, *, thorough: bool) -> str:
    if not thorough and (manifest.size, manifest.mtime_ns) == stamp(corpus):
        return ""
    with reading(corpus):
        same = digest(corpus) == manifest.sha256
    return "" if same else f"the corpus {corpus} is not the one that was indexed"


def _damaged(manifest: Manifest, settings: SearchServiceSettings, *, thorough: bool) -> str:
    for name, noted in manifest.files.items():
        file = settings.index / manifest.folder / name
        if not file.is_file() or file.stat().st_size != noted.size:
            return f"its file {name} is damaged or gone"
        if (thorough or file.stat().st_mtime_ns != noted.mtime_ns) and digest(file) != noted.sha256:
            return f"its file {name} is damaged"
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
