"""Images by question id, from parquet files or registered by clients; and requests in flight that are one execution."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mia.errors import ConfigError, InputError, StorageError
from mia.text import clean, to_json
from mia.types import IMAGE_MARK, ImageRef

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from mia.runtime.images import ImageStore

T = TypeVar("T")

_BATCH = 64  # rows of a parquet file decoded at once
_DEEPEST = 4  # lists and objects around the bytes of an image


class Registered(NamedTuple):
    """How many questions a call took in, and how many are known."""

    taken: int
    known: int


class Images:
    """The images of questions. What clients register is on disk before the answer; its methods block."""

    def __init__(self, store: ImageStore, file: Path) -> None:
        self._store = store
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, ImageRef | None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._known)

    def load(self, parquets: Iterable[Path]) -> None:
        """Read what clients have registered before, then data sets. With a data set, ids that nobody named are refused.

        Raises:
            ConfigError: a data set cannot be read, or two rows give one id different images.
        """
        for line in self._lines():
            entry = json.loads(line)
            self._known[entry["data_id"]] = entry["image"] and ImageRef(**entry["image"])
        named: dict[str, ImageRef | None] = {}
        for path in parquets:
            self._closed = True
            for data_id, images in _rows(path):
                try:
                    ref = self._first(data_id, images)
                except InputError as error:
                    raise ConfigError(f"{path}: {error.message}", remedy=error.remedy) from error
                if named.setdefault(data_id, ref) != ref:
                    raise ConfigError(
                        f"{path} gives {data_id!r} another image than a row before it.",
                        remedy="Give every question its own data_id.",
                    )
        self._known |= named

    def add(self, entries: Mapping[str, Any]) -> Registered:
        """Take in questions with their images, all or none; the first image of each is kept.

        Raises:
            InputError: an image cannot be read.
            StorageError: nothing could be written.
        """
        refs = {data_id: self._first(data_id, images) for data_id, images in entries.items()}
        with self._lock:
            fresh = {data_id: ref for data_id, ref in refs.items() if self._known.get(data_id, "") != ref}
            lines = [to_json({"data_id": id_, "image": ref and ref.model_dump()}) for id_, ref in fresh.items()]
            if lines:
                self._append("".join(f"{line}\n" for line in lines).encode())
            self._known |= fresh
            return Registered(len(refs), len(self._known))

    def of(self, data_id: str, text: str) -> tuple[ImageRef, ...]:
        """Return the images of a question; one without is a text question.

        Raises:
            InputError: the data set does not know the id, or the text marks an image that is not here.
        """
        if self._closed and data_id not in self._known:
            raise InputError(
                f"The data_id {data_id!r} is neither in PARQUET_PATH nor registered.",
                remedy="Add its file to PARQUET_PATH (several are separated by commas), or register its images.",
            )
        ref = self._known.get(data_id)
        if ref is None and IMAGE_MARK in text:
            raise InputError(
                f"The question {data_id!r} speaks of an image, and none is known for it.",
                remedy="Set PARQUET_PATH to its data set, or POST its images to /streaming/register_images first.",
            )
        return (ref,) if ref else ()

    def _first(self, data_id: str, images: Any) -> ImageRef | None:
        try:
            data = _bytes(images)
            return self._store.add(data) if data else None
        except InputError as error:
            raise InputError(f"The image of {data_id!r} is of no use. {error.message}", remedy=error.remedy) from error

    def _lines(self) -> list[bytes]:
        """Return the file's lines, and cut off what a killed process left of one: it was not acknowledged."""
        if not self._file.exists():
            return []
        try:
            with self._file.open("rb+") as file:
                lines = [line for line in file if line.endswith(b"\n")]
                file.truncate(sum(map(len, lines)))
        except OSError as error:
            raise self._unusable("read", error) from error
        return lines

    def _append(self, lines: bytes) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable("written", error) from error

    def _unusable(self, done: str, error: OSError) -> StorageError:
        return StorageError(f"{self._file} cannot be {done}: {error}.", remedy="Check its rights and the free space.")


class InFlight:
    """Executions by what was asked: who asks the same meanwhile waits for the same, and nobody's leaving ends it."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Any]] = {}

    async def once(self, asked: str, execute: Callable[[], Awaitable[T]]) -> T:
        """Return what the one execution brings, or raise what it raises."""
        if asked not in self._running:
            self._running[asked] = task = asyncio.ensure_future(_run(execute))
            task.add_done_callback(lambda done: self._forget(asked, done))
        answer: T = await asyncio.shield(self._running[asked])
        return answer

    async def close(self) -> None:
        """End what is running still."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _forget(self, asked: str, done: asyncio.Task[Any]) -> None:
        del self._running[asked]
        if not done.cancelled():
            done.exception()  # looked at here, since all who asked may be gone


async def _run(execute: Callable[[], Awaitable[T]]) -> T:
    return await execute()


def _bytes(images: Any, depth: int = 0) -> bytes:
    """Return the bytes of the first image in whatever form data sets hold it, none for none."""
    if images is None or images in ("", b"", [], {}):
        return b""
    if isinstance(images, bytes):
        return images
    if isinstance(images, str):
        _, _, encoded = images.rpartition(",") if images.startswith("data:") else ("", "", images)
        try:
            return base64.b64decode("".join(encoded.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError("It is not base64.", remedy="Send the bytes of the image file as base64.") from error
    if isinstance(images, list) and depth < _DEEPEST:
        return _bytes(images[0], depth + 1)
    if isinstance(images, dict) and "bytes" in images and depth < _DEEPEST:
        return _bytes(images["bytes"], depth + 1)
    raise InputError(
        f"It is a {type(images).__name__} without image bytes.",
        remedy='Send base64, a list of it, or objects {"bytes": base64}; data sets hold the bytes themselves.',
    )


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield id and images of each row; pyarrow is imported only where a data set is named."""
    try:
        from pyarrow import ArrowException  # noqa: PLC0415  (an extra: a service without data sets does without it)
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "PARQUET_PATH is set, and pyarrow, which reads it, is not installed.",
            remedy="Install the extra `eval`, or register the images at /streaming/register_images instead.",
        ) from error
    try:
        with ParquetFile(path) as file:
            columns = [name for name in ("data_id", "images") if name in file.schema_arrow.names]
            if "data_id" not in columns:
                raise ConfigError(f"{path} has no column data_id.", remedy="Name a data set whose rows have ids.")
            for batch in file.iter_batches(_BATCH, columns=columns):
                for row in batch.to_pylist():
                    yield clean(str(row["data_id"])), row.get("images")
    except (OSError, ArrowException) as error:
        raise ConfigError(
            f"The data set {path} cannot be read: {error}.", remedy="Correct PARQUET_PATH, or leave it out."
        ) from error
