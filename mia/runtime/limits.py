"""What a service refuses before any route sees it: callers without the token, bodies too large, work beyond its queue.

Each is a plain ASGI middleware, so that bodies and answers stream through untouched.
"""

from __future__ import annotations

import asyncio
import hmac
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from mia.runtime.problems import RETRY_AFTER, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic import SecretStr
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPERATIONAL = frozenset({"/healthz", "/readyz", "/metrics"})
WAIT_SECONDS = 600.0  # the longest deadline that a caller has
BODY_SECONDS = 60.0  # for a body to arrive, as its request holds a slot meanwhile


class TokenGate:
    """Lets in who shows the bearer token; the operational routes stay open."""

    def __init__(self, app: ASGIApp, token: SecretStr) -> None:
        self.app = app
        self.expected = f"Bearer {token.get_secret_value()}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or hand the request on."""
        if scope["type"] == "lifespan" or scope["path"] in OPERATIONAL:
            return await self.app(scope, receive, send)
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self.expected):
            return await self.app(scope, receive, send)
        refusal = problem(
            401,
            "This service asks for a bearer token, and the request shows none or another.",
            remedy="Send `Authorization: Bearer <token>` with the value of MIA_TOKEN.",
            headers={"WWW-Authenticate": "Bearer"},
        )
        return await refusal(scope, receive, send)


class SizeLimit:
    """Refuses bodies above a number of bytes, announced or streamed, and those that do not arrive in time."""

    def __init__(self, app: ASGIApp, megabytes: float, seconds: float = BODY_SECONDS) -> None:
        self.app = app
        self.seconds = seconds
        self.limit = int(megabytes * 1024 * 1024)
        self.message = f"The request is larger than {megabytes:g} MB."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 413, or hand the request on, count what it streams and answer 408 when it stops streaming."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self.limit:
            return await problem(413, self.message, kind="TooLarge")(scope, receive, send)
        received = 0
        whole = False
        due: float | None = None

        async def counted() -> Message:
            nonlocal received, whole, due
            if whole:
                return await receive()
            due = due or asyncio.get_running_loop().time() + self.seconds
            try:
                async with asyncio.timeout_at(due):
                    message = await receive()
            except TimeoutError as cause:
                late = f"The request did not arrive whole within {self.seconds:g} s."
                raise HTTPException(408, late, {"Connection": "close"}) from cause
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self.limit:
                raise HTTPException(413, self.message)
            return message

        return await self.app(scope, counted, send)


class Busy(Exception):  # noqa: N818 - a state of the queue, not a fault
    """No slot is free and the waiting room is full."""


class Slots:
    """How many requests run, and how many may wait for their turn (in order of arrival)."""

    def __init__(self, running: int, waiting: int) -> None:
        self.running = 0
        self.waiting = 0
        self._most_waiting = waiting
        self._free = asyncio.Semaphore(running)

    @asynccontextmanager
    async def take(self, deadline: float = WAIT_SECONDS) -> AsyncIterator[None]:
        """Hold a slot. Raises Busy when too many wait already, or none came free within `deadline` seconds."""
        if self._free.locked() and self.waiting >= self._most_waiting:
            raise Busy
        self.waiting += 1
        try:
            async with asyncio.timeout(deadline):
                await self._free.acquire()
        except TimeoutError as cause:
            raise Busy from cause
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()


class Queue:
    """Runs a bounded number of requests, lets a bounded number wait, and turns the rest away."""

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self.app = app
        self.slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 429, or hand the request on once it has a slot."""
        if scope["type"] != "http" or scope["path"] in OPERATIONAL:
            return await self.app(scope, receive, send)
        try:
            async with self.slots.take():
                return await self.app(scope, receive, send)
        except Busy:
            refusal = problem(
                429,
                "The service has as much work as it can take.",
                kind="Busy",
                remedy="Try again after the seconds in Retry-After, or raise MIA_MAX_RUNNING or MIA_MAX_WAITING.",
                headers=RETRY_AFTER,
            )
            return await refusal(scope, receive, send)
