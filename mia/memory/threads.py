"""Calls in threads, which nothing waits for without a deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mia.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from typing import TypeVar

    T = TypeVar("T")

SECONDS = 120.0  # several times what SQLite waits for another process to have written


async def waited(threads: Executor | None, call: Callable[..., T], *arguments: object) -> T:
    """Return what a call in a thread brings; without `threads`, one of the event loop's own.

    Raises:
        StorageError: it took longer than two minutes. No thread can be ended, so it may still be done later.
    """
    try:
        async with asyncio.timeout(SECONDS):
            return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)
    except TimeoutError as error:
        raise StorageError(
            f"The memory bank did not answer in {SECONDS:g} seconds.",
            remedy="Check the disk that it lies on, and whether the encoder is fast enough for so many questions.",
        ) from error
