"""The index: term weights of every row, byte offsets of every line, and a manifest that says what they were made from.

A build writes a fresh folder inside the index folder; replacing `manifest.json`, which names it, is what makes it the
index. So there is a whole index or the one before, at every moment.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import bm25s  # type: ignore[import-untyped]
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from local_search.corpus import Documents, is_packed
from local_search.terms import terms, whole
from mia.errors import InputError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from mia.runtime.settings import SearchServiceSettings

FORMAT = 1  # raise it when terms or files change their meaning
MANIFEST = "manifest.json"
UNPACKED = "corpus.jsonl"
OFFSETS = "offsets.npy"
QUERY_CHARACTERS = 4000
REBUILD = "Run `python -m local_search build`."


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
        """Open the index of a corpus. Raises StorageError if it is missing, damaged or made from anything else."""
        reason = stale(settings)
        if reason:
            raise StorageError(f"The index {settings.index} cannot be used: {reason}.", remedy=REBUILD)
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
        rows = np.argpartition(scores, -limit)[-limit:]
        rows = rows[np.lexsort((rows, -scores[rows]))]
        return [(self._documents[row], float(scores[row])) for row in rows if scores[row] > 0]

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
    same_stamp = (manifest.size, manifest.mtime_ns) == (found.stat().st_size, found.stat().st_mtime_ns)
    if not same_stamp and digest(found) != manifest.sha256:
        return f"the corpus {found} is not the one that was indexed"
    for name, expected in manifest.files.items():
        file = settings.index / manifest.folder / name
        if not file.is_file() or digest(file) != expected:
            return f"its file {name} is damaged or gone"
    return ""


def find_corpus(path: Path) -> Path:
    """Return the path of a corpus file that is there. Raises InputError if none is."""
    if not path.is_file():
        raise InputError(f"There is no corpus at {path}.", remedy="Name one with --corpus or CORPUS_PATH.")
    return path


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
