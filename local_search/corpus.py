"""A corpus: one JSON object a line, `{id, contents}`, plain or gzipped; row i of everything is line i."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mia.errors import InputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SHOWN = 5


def parse(line: bytes) -> dict[str, Any]:
    """Read one line as a document; `title` and `text` come from `contents` (quoted title, newline, text) and back.

    Raises:
        ValueError: the line is no such document; the message says why.
    """
    try:
        document = json.loads(line.decode("utf-8-sig", "replace"), parse_float=_finite, parse_constant=_finite)
        if b"\\ud" in line.lower():  # an escaped half character, perhaps, which UTF-8 cannot carry
            document = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    except (json.JSONDecodeError, RecursionError) as cause:
        raise ValueError("not JSON") from cause
    except ValueError as cause:
        raise ValueError("with a number that JSON cannot carry") from cause
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one type of error for every unusable line
    if not isinstance(document.get("id"), str | int | None):
        raise ValueError("with an id that is neither text nor a whole number")  # noqa: TRY004
    if not _is_text(document.get("contents")):
        if not _is_text(document.get("text")):
            raise ValueError("without text")
        document["contents"] = f'"{document.get("title") or ""}"\n{document["text"]}'
    title, _, text = document["contents"].partition("\n")
    if not _is_text(document.get("title")):
        document["title"] = title.strip().strip('"')
    if not isinstance(document.get("text"), str):
        document["text"] = text.strip()
    return document


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.strip() != ""


@dataclass
class Report:
    """What a pass over a corpus found wrong: lines that cannot be used, and ids met before; line numbers from 1."""

    lines: int = 0
    unusable: dict[str, list[int]] = field(default_factory=dict)
    duplicates: list[int] = field(default_factory=list)

    @property
    def usable(self) -> int:
        """How many lines can be found."""
        return self.lines - sum(map(len, self.unusable.values()))

    def __str__(self) -> str:
        parts = [f"{len(found)} {reason} ({_name(found)})" for reason, found in self.unusable.items()]
        if parts:
            parts = [f"{self.lines - self.usable} of {self.lines} lines cannot be found: {', '.join(parts)}."]
        if self.duplicates:
            parts.append(f"{len(self.duplicates)} repeat an id, and are kept ({_name(self.duplicates)}).")
        return " ".join(parts)


def _name(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN]))
    return f"line{'s' if len(numbers) > 1 else ''} {shown}{', ...' if len(numbers) > SHOWN else ''}"


class Lines:
    """The lines of a corpus file in one pass: hashes what it reads, and unpacks a gzipped file on the way."""

    def __init__(self, path: Path, unpacked: Path) -> None:
        self.path = path
        self.unpacked = unpacked if is_packed(path) else None
        self.position = 0
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of the file as it lies on disk, once all lines are read."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        """Yield every line with its end. Raises InputError if the file cannot be read, or not unpacked as named."""
        with reading(self.path):
            raw = self.path.open("rb", buffering=0)
        with raw as file, io.BufferedReader(_Tap(file, self), 1 << 20) as tapped:
            if self.unpacked is None:
                yield from tapped
                return
            try:
                with gzip.open(tapped) as lines, self.unpacked.open("wb") as copy:
                    for line in lines:
                        copy.write(line)
                        yield line
            except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
                raise InputError(f"{self.path} is not a whole gzip file: {cause}.", remedy="Fetch it again.") from cause

    def note(self, data: memoryview) -> None:
        """Take account of bytes that were read."""
        self._hash.update(data)
        self.position += len(data)


class _Tap(io.RawIOBase):
    """A raw file that tells what passes through it."""

    def __init__(self, file: io.FileIO, lines: Lines) -> None:
        self._file = file
        self._lines = lines

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with reading(self._lines.path):
            count = self._file.readinto(buffer)
        self._lines.note(memoryview(buffer)[:count])
        return int(count)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Make what the file system refuses an InputError about the corpus."""
    try:
        yield
    except OSError as cause:
        raise InputError(
            f"The corpus {path} cannot be read: {cause.strerror or cause}.",
            remedy="Check its rights and its disk, or name another with --corpus or CORPUS_PATH.",
        ) from cause


def find_corpus(path: Path) -> Path:
    """Return the path of a corpus file that can be opened. Raises InputError if it cannot."""
    with reading(path):
        if not path.is_file():
            raise InputError(f"There is no corpus at {path}.", remedy="Name one with --corpus or CORPUS_PATH.")
        path.open("rb").close()
    return path


def stamp(path: Path) -> tuple[int, int]:
    """Return size and time of the last change in ns of a corpus. Raises InputError if it cannot be read."""
    with reading(path):
        found = path.stat()
    return found.st_size, found.st_mtime_ns


def is_packed(path: Path) -> bool:
    """Say whether a corpus file is gzipped, by its name."""
    return path.suffix == ".gz"


class Documents:
    """Documents by row, read from the plain file by byte offset; the corpus is never held in memory.

    `pread` and not a memory map: it needs no lock either, and a file cut short under a running service makes an error
    where a map would end the process.
    """

    def __init__(self, path: Path, offsets: Sequence[int]) -> None:
        try:
            self._file = path.open("rb")
        except OSError as cause:
            raise StorageError(f"The corpus {path} cannot be read: {cause.strerror}.", remedy="Restore it.") from cause
        self._path = path
        self._offsets = offsets
        self._stamp = self._look()

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Read one document. Raises StorageError when the file is not what was indexed."""
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            return parse(os.pread(self._file.fileno(), end - start, start))
        except (ValueError, OSError) as cause:
            raise self._changed() from cause

    def check(self) -> None:
        """Raise StorageError when the file was written to since it was opened."""
        if self._look() != self._stamp:
            raise self._changed()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _changed(self) -> StorageError:
        return StorageError(
            f"The corpus {self._path} changed under the running service.", remedy="Restart local_search."
        )
