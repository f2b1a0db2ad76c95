"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put a text in the place of a file, on disk when this returns; a reader meets the old one or the new one.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    draft = path.parent / f".{secrets.token_hex(8)}"
    try:
        with draft.open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):  # it is there only if something went wrong
            draft.unlink()
