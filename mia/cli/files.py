"""Files that the user names: read and written whole, and named when that goes wrong."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mia.errors import InputError
from mia.runtime.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def usable(path: Path, done: str) -> Iterator[None]:
    """Raise what goes wrong with a file as the user's to mend; `done` is what cannot be done to it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be {done}: {error.strerror}.", remedy="Name another file.") from error


def read_text(file: Path) -> str:
    """Return the text of a UTF-8 file. Raises InputError if it cannot be read."""
    try:
        with usable(file, "read"):
            return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text.", remedy="Save it as UTF-8; `iconv` converts.") from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises InputError if it cannot be written."""
    with usable(path, "written"):
        write_whole(path, text)
