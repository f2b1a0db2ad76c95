"""Images by content: checked, turned upright and made small once, on entry, so that all drivers see the same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
import struct
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageOps

from mia.errors import InputError, StorageError
from mia.types import ImageRef

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 32 * 1024 * 1024
MAX_AREA = 80_000_000  # pixels decoded at most, below Pillow's own alarm; a small file can unfold into gigabytes
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
SUFFIXES: Mapping[str, str] = {"image/png": "png", "image/jpeg": "jpg"}
UNREADABLE = (  # what Pillow raises for broken pixels and broken EXIF
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    SyntaxError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
REMEDY = "Give a PNG, JPEG, WebP, GIF or BMP image of at most 32 MB and 80 megapixels."


class ImageStore:
    """A folder of images named by their SHA-256. Its methods block and belong in an executor."""

    def __init__(self, folder: Path, max_pixels: int) -> None:
        self.folder = folder
        self.max_pixels = max_pixels

    def add(self, data: bytes) -> ImageRef:
        """Keep an image, resized to at most `max_pixels` of area; adding it again changes nothing.

        Raises:
            InputError: the bytes are no image, or one that is too large.
            StorageError: the folder cannot be written.
        """
        if len(data) > MAX_BYTES:
            raise InputError(f"The image has {len(data) / 2**20:.0f} MB.", remedy=REMEDY)
        image, mime = _decode(data, self.max_pixels)
        encoded = io.BytesIO()
        if mime == "image/jpeg":
            image.save(encoded, "JPEG", quality=90)
        else:
            image.save(encoded, "PNG")
        content = encoded.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        ref = ImageRef(sha256=digest, mime=mime, width=image.width, height=image.height)
        self._write(self._path(ref), content)
        return ref

    def data_url(self, ref: ImageRef) -> str:
        """Return the image as a `data:` URL. Raises StorageError if its bytes are gone."""
        try:
            content = self._path(ref).read_bytes()
        except OSError as cause:
            raise StorageError(
                f"The bytes of image {ref.sha256[:12]} are not in {self.folder}.",
                remedy="Restore the folder or hand the image over again.",
            ) from cause
        return f"data:{ref.mime};base64,{base64.b64encode(content).decode('ascii')}"

    def _path(self, ref: ImageRef) -> Path:
        if re.fullmatch(r"[0-9a-f]{64}", ref.sha256) is None or ref.mime not in SUFFIXES:
            raise InputError("The image reference does not come from an image store.", remedy="Hand the image over.")
        return self.folder / f"{ref.sha256}.{SUFFIXES[ref.mime]}"

    def _write(self, path: Path, content: bytes) -> None:
        if path.exists():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".new-", delete=False) as part:
                part.write(content)
            Path(part.name).replace(path)
        except OSError as cause:
            raise StorageError(
                f"An image cannot be written to {self.folder}: {cause}.", remedy="Check its rights and free space."
            ) from cause


def _decode(data: bytes, max_pixels: int) -> tuple[Image.Image, str]:
    """Return the upright, resized picture and the MIME type to keep it as: JPEG stays JPEG, all else becomes PNG."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_AREA:
                raise InputError(f"The image has {opened.width} x {opened.height} pixels.", remedy=REMEDY)
            mime = "image/jpeg" if opened.format in ("JPEG", "MPO") else "image/png"
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I;16"):  # the one deep mode among FORMATS; conversion would clip it to white
                upright = upright.point(lambda value: value / 256)
            image = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    except UNREADABLE as cause:
        raise InputError("The file is not an image that can be read.", remedy=REMEDY) from cause
    return image.resize(_fit(image.width, image.height, max_pixels), Image.Resampling.LANCZOS), mime


def _fit(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Return the largest size of the same aspect, and at least one pixel wide, with an area of at most `max_pixels`."""
    if width * height <= max_pixels:
        return width, height
    scale = math.sqrt(max_pixels / (width * height))
    short, long = sorted((width, height))
    short = max(int(short * scale), 1)
    long = min(max(int(long * scale), 1), max_pixels // short)
    return (short, long) if width <= height else (long, short)
