"""A process beside this one: started, waited for until it answers, stopped with all that it started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import aiohttp

from mia.errors import ConfigError, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LOG_LINES = 20
POLL_SECONDS = 0.1
POLL_TIMEOUT = aiohttp.ClientTimeout(total=5)
GRACE_SECONDS = 5.0

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Process:
    """A running command in a session of its own, so that it can be stopped as a whole."""

    def __init__(self, child: asyncio.subprocess.Process, name: str, log: Path) -> None:
        self._child = child
        self.name = name
        self.log = log

    @property
    def id(self) -> int:
        """The process id, which is also that of its group."""
        return self._child.pid

    @property
    def code(self) -> int | None:
        """The exit status, None while it runs."""
        return self._child.returncode

    async def ready(self, url: str, deadline: float) -> None:
        """Wait until `url` answers 200, for at most `deadline` seconds.

        Raises:
            UpstreamError: the process ended, or did not answer in time; shows the end of its log.
        """
        try:
            async with asyncio.timeout(deadline), aiohttp.ClientSession(timeout=POLL_TIMEOUT) as client:
                while self.code is None:
                    if await _answers(client, url):
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise self._failure(f"did not answer at {url} within {deadline:g} s") from error
        raise self._failure(f"ended with status {self.code} before it answered at {url}")

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """End the process and all that it started; what is left after `grace` seconds is killed."""
        try:
            self._signal(signal.SIGTERM)
            async with asyncio.timeout(grace):
                await self._child.wait()
        except TimeoutError:
            pass  # killed below, like the children that a process leaves behind when it ends
        finally:
            self._signal(signal.SIGKILL)
        await self._child.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.id, number)
        except ProcessLookupError:
            return  # nobody is left

    def _failure(self, what: str) -> UpstreamError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "\n".join(lines[-LOG_LINES:])
        return UpstreamError(
            f"{self.name} {what}. Its log ends:\n{shown}\n",
            service=self.name,
            retryable=False,
            remedy=f"The whole log is {self.log}.",
        )


async def start(
    command: Sequence[str],
    *,
    name: str,
    log: Path,
    url: str = "",
    deadline: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start `command` with its output appended to `log`; with a `url`, return once that answers 200.

    The process ends when the thread that started it does, so call this from one that lasts.

    Raises:
        ConfigError: the command does not exist.
        UpstreamError: it ended, or did not answer within `deadline` seconds.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env=environment,
            preexec_fn=_end_with_parent,
        )
    except OSError as error:
        raise ConfigError(f"{name} cannot be started: {error}.", remedy="Run install.sh for its role.") from error
    finally:
        os.close(descriptor)
    process = Process(child, name, log)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.stop)
        if url:
            await process.ready(url, deadline)
        stack.pop_all()  # it answers: from here on the caller stops it
    return process


def _end_with_parent() -> None:
    """Ask the kernel, in the child before it runs its command, for SIGTERM when the parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _answers(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(url) as response:
            return response.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError):
        return False  # not listening yet
