"""Making an index: one pass over the corpus that counts terms part by part, then the weights of all terms."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from local_search.corpus import Lines, Report, find_corpus, parse, stamp
from local_search.index import (
    AUTO,
    MANIFEST,
    OFFSETS,
    UNPACKED,
    FileStamp,
    Index,
    Manifest,
    locked,
    read_manifest,
    stale,
)
from local_search.parts import FORMAT, PART_BYTES, Part, batches, count_all, digest, name_of
from local_search.postings import write
from local_search.terms import LANGUAGES, detect
from mia.errors import ConfigError, InputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mia.runtime.settings import SearchServiceSettings

SAMPLE = 2000  # lines from which the language is told
LOG_SECONDS = 10.0
PREFIX = "index-"
PARTS = "parts"

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

    A corpus of more than one part is counted in fresh processes: a script that calls this is run as its main module
    by each of them, so that it needs the guard that multiprocessing asks for.

    Raises:
        ConfigError: the language is not one that is known.
        InputError: the corpus is missing, cannot be read, has no usable line or changes meanwhile.
        StorageError: the index folder cannot be written or is locked, or a process was ended from outside.
    """
    find_corpus(settings.corpus)
    with locked(settings.index, alone=True):
        return _build(settings)


def _build(settings: SearchServiceSettings) -> Manifest:
    if settings.language not in (AUTO, *LANGUAGES):
        raise ConfigError(
            f"{settings.language} is no language that terms can be made in.",
            remedy=f"Set MIA_SEARCH_LANGUAGE to one of {', '.join((AUTO, *LANGUAGES))}.",
        )
    started = time.perf_counter()
    _sweep(settings.index)  # a build that was killed could not
    with ExitStack() as after:
        after.callback(_sweep, settings.index)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=settings.index))
        try:
            manifest = _write(settings, folder)
        except InputError:  # the next build reads another corpus; after any other end it goes on from the parts
            _remove(settings.index / PARTS)
            raise
        fresh = folder / MANIFEST
        fresh.write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
        fresh.replace(settings.index / MANIFEST)
        _remove(settings.index / PARTS)
    seconds = time.perf_counter() - started
    _log.info("indexed %d documents of %s in %.1f s", manifest.usable, settings.corpus, seconds)
    return manifest


def _write(settings: SearchServiceSettings, folder: Path) -> Manifest:
    corpus = settings.corpus
    size, mtime_ns = stamp(corpus)
    lines = Lines(corpus, folder / UNPACKED)
    language, parts = _count(settings, lines, size)
    if stamp(corpus) != (size, mtime_ns):
        raise InputError(f"The corpus {corpus} changed while it was read.", remedy="Build again once it is whole.")
    report = _report(parts)
    if report.usable == 0:
        raise InputError(
            f"The corpus {corpus} has no line that can be found. {report}".strip(),
            remedy='Every line is one JSON object: {"id": "1", "contents": "\\"Title\\"\\nText"}.',
        )
    if str(report):
        _log.warning("%s: %s", corpus, report)
    with _progress("weighing terms") as show:
        write(folder, parts, settings.k1, settings.b, show)
    sizes = np.concatenate([[0], *(part["line_bytes"] for part in parts)])
    np.save(folder / OFFSETS, np.cumsum(sizes))
    return Manifest(
        format=FORMAT,
        corpus=str(corpus),
        size=size,
        mtime_ns=mtime_ns,
        sha256=lines.sha256,
        language=language,
        k1=settings.k1,
        b=settings.b,
        rows=report.lines,
        usable=report.usable,
        folder=folder.name,
        files={file.name: _stamp(file) for file in sorted(folder.iterdir())},
    )


def _count(settings: SearchServiceSettings, lines: Lines, size: int) -> tuple[str, list[Part]]:
    """Count the terms of all lines, part by part; those that a build before this one counted are taken over."""
    language = settings.language
    parts: list[Part] = []
    begun: set[str] = set()  # lines that come again make a part that is there or on its way
    kept = 0

    def tasks(show: Callable[[int, int], None]) -> Iterator[tuple[list[bytes], str, Path]]:
        nonlocal language, kept
        for batch in batches(lines):
            if language == AUTO:
                language = detect(_texts(batch[:SAMPLE]))
            name = name_of(batch, language)
            parts.append(Part(settings.index / PARTS / name))
            if name not in begun and parts[-1].is_whole():
                kept += 1
            elif name not in begun:
                yield batch, language, parts[-1].folder
            begun.add(name)
            show(lines.position, size)

    (settings.index / PARTS).mkdir(exist_ok=True)
    workers = 1 if size <= PART_BYTES else settings.workers  # a process takes longer to start than that to count
    with _progress(f"reading {settings.corpus.name}") as show:
        count_all(tasks(show), workers)
    if kept:
        _log.info("took over %d of %d parts that a build before this one had counted", kept, len(parts))
    return language, parts


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    for line in lines:
        with suppress(ValueError):
            yield parse(line)["contents"]


def _report(parts: Sequence[Part]) -> Report:
    """Gather what is wrong with the lines of all parts."""
    report = Report()
    for part in parts:
        for reason, found in part.unusable.items():
            report.unusable.setdefault(reason, []).extend(report.lines + line for line in found)
        report.lines += len(part["lengths"])
    if parts:
        ids = np.concatenate([part["ids"] for part in parts])
        named = np.flatnonzero(ids)
        _, first = np.unique(ids[named], return_index=True)
        report.duplicates = [int(row) + 1 for row in np.setdiff1d(named, named[first])]
    return report


def _stamp(file: Path) -> FileStamp:
    size, mtime_ns = stamp(file)
    return FileStamp(size=size, mtime_ns=mtime_ns, sha256=digest(file))


def _sweep(index: Path) -> None:
    """Remove every folder but the published one; a service that still reads one keeps its open files."""
    try:
        published = read_manifest(index).folder
    except StorageError:
        published = ""
    for folder in index.glob(f"{PREFIX}*"):
        if folder.name != published:
            _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield what shows how much of how much is done, and when the rest will be: a bar, or a log line now and then."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    began = time.monotonic()
    due = began + LOG_SECONDS

    def log(done: int, total: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + LOG_SECONDS
            _log.info("%s: %d %%, %d s left", title, 100 * done // total, (now - began) * (total - done) / done)

    yield log
