"""Making an index: one pass over the corpus, then the weights of its terms."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from array import array
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import bm25s  # type: ignore[import-untyped]
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from local_search.corpus import Lines, Report, find_corpus, parse, stamp
from local_search.index import (
    FORMAT,
    MANIFEST,
    OFFSETS,
    UNPACKED,
    Index,
    Manifest,
    digest,
    locked,
    read_manifest,
    stale,
)
from local_search.terms import terms, whole
from mia.errors import InputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mia.runtime.settings import SearchServiceSettings

TITLE_WEIGHT = 3  # a term of the title counts this often, which puts a thing's own page before pages that mention it
LOG_SECONDS = 10.0
PREFIX = "index-"

_log = logging.getLogger(__name__)


def prepare(settings: SearchServiceSettings) -> Index:
    """Open the index, built first unless the one there fits the corpus and the settings; errors as for `build`."""
    try:
        return Index.open(settings)
    except StorageError as error:
        _log.info("building the index: %s", error.message)
    with locked(settings.index, alone=True):
        if stale(settings):  # else another process has built it meanwhile
            _build(settings)
        return Index.load(settings)


def build(settings: SearchServiceSettings) -> Manifest:
    """Make the index anew and return its manifest; lines that cannot be used are reported once and keep their rows.

    Raises:
        InputError: the corpus is missing, cannot be read, has no usable line or changes meanwhile.
        StorageError: the index folder cannot be written or is locked.
    """
    find_corpus(settings.corpus)
    with locked(settings.index, alone=True):
        return _build(settings)


def _build(settings: SearchServiceSettings) -> Manifest:
    corpus = settings.corpus
    started = time.perf_counter()
    _sweep(settings.index)  # a build that was killed could not
    with ExitStack() as after:
        after.callback(_sweep, settings.index)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=settings.index))
        manifest = _write(settings, corpus, folder)
        fresh = folder / MANIFEST
        fresh.write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
        fresh.replace(settings.index / MANIFEST)
    _log.info("indexed %d documents of %s in %.1f s", manifest.usable, corpus, time.perf_counter() - started)
    return manifest


class Scan:
    """What one pass over the lines gathers: terms by row, where lines begin, and what was wrong."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}
        self.rows: list[array[int]] = []
        self.offsets = array("q", [0])
        self.report = Report()
        self._ids: set[str | int] = set()

    def take(self, line: bytes) -> None:
        """Add one line; one that cannot be used becomes a row without terms, which no query finds."""
        self.report.lines += 1
        self.offsets.append(self.offsets[-1] + len(line))
        try:
            document = parse(line)
            title = terms(document["title"])
            found = [*title * TITLE_WEIGHT, *terms(document["text"])]
            if not found:
                raise ValueError("without a word")  # noqa: TRY301 - the same fate as a line that parse refuses
        except ValueError as error:
            self.report.unusable.setdefault(str(error), []).append(self.report.lines)
            self.rows.append(array("I"))
            return
        self.rows.append(self._number([*found, whole(title)]))
        key = document.get("id")
        if key in self._ids:
            self.report.duplicates.append(self.report.lines)
        elif key is not None:
            self._ids.add(key)

    def _number(self, found: Iterable[str]) -> array[int]:
        return array("I", [self.vocabulary.setdefault(term, len(self.vocabulary)) for term in found])


def _write(settings: SearchServiceSettings, corpus: Path, folder: Path) -> Manifest:
    size, mtime_ns = stamp(corpus)
    lines = Lines(corpus, folder / UNPACKED)
    scan = Scan()
    with _progress(f"reading {corpus.name}", size) as show:
        for line in lines:
            scan.take(line)
            show(lines.position)
    if stamp(corpus) != (size, mtime_ns):
        raise InputError(f"The corpus {corpus} changed while it was read.", remedy="Build again once it is whole.")
    report = scan.report
    if report.usable == 0:
        raise InputError(
            f"The corpus {corpus} has no line that can be found. {report}".strip(),
            remedy='Every line is one JSON object: {"id": "1", "contents": "\\"Title\\"\\nText"}.',
        )
    if str(report):
        _log.warning("%s: %s", corpus, report)
    _log.info("weighing %d terms", len(scan.vocabulary))
    weights = bm25s.BM25(k1=settings.k1, b=settings.b)
    weights.index((scan.rows, scan.vocabulary), create_empty_token=False, show_progress=False)
    weights.save(folder, show_progress=False)
    np.save(folder / OFFSETS, np.asarray(scan.offsets, dtype=np.int64))
    return Manifest(
        format=FORMAT,
        corpus=str(corpus),
        size=size,
        mtime_ns=mtime_ns,
        sha256=lines.sha256,
        k1=settings.k1,
        b=settings.b,
        rows=report.lines,
        usable=report.usable,
        folder=folder.name,
        files={file.name: digest(file) for file in sorted(folder.iterdir())},
    )


def _sweep(index: Path) -> None:
    """Remove every folder but the published one; a service that still reads one keeps its open files."""
    try:
        published = read_manifest(index).folder
    except StorageError:
        published = ""
    for folder in index.glob(f"{PREFIX}*"):
        if folder.name != published:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield what shows how many bytes are done: a bar on a terminal, else a log line now and then."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    due = time.monotonic() + LOG_SECONDS

    def log(done: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + LOG_SECONDS
            _log.info("%s: %d of %d MB", title, done >> 20, total >> 20)

    yield log
