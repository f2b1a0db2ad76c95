"""What every HTTP service has around its routes: request ids, one shape of error, limits, health, metrics, drain."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import uuid
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response

from mia import __version__
from mia.errors import ConfigError, MiaError
from mia.runtime import problems
from mia.runtime.http import is_loopback
from mia.runtime.limits import Queue, SizeLimit, Slots, TokenGate
from mia.runtime.logging import request_id
from mia.runtime.metrics import Measure, Metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fastapi import APIRouter
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mia.runtime.settings import ServiceSettings

    Check = Callable[[], Awaitable[None]]
    Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

CHECK_SECONDS = 5.0
# A client that keeps connections for longer than the service does sends requests into closed ones: aiohttp keeps them
# for 15 s, proxies for a minute.
KEEP_ALIVE_SECONDS = 75
NOTICE_SECONDS = 1.0  # time for readiness checks to see that the service drains, before it closes its port

_log = logging.getLogger(__name__)


def create_service(
    name: str,
    settings: ServiceSettings,
    *,
    routers: Sequence[APIRouter],
    lifespan: Lifespan | None = None,
    checks: Mapping[str, Check] | None = None,
) -> FastAPI:
    """Build the app of one service; a check raises MiaError when the dependency it is named for is not usable."""
    slots = Slots(settings.max_running, settings.max_waiting)
    metrics = Metrics(slots)
    middleware = [Middleware(Frame), Middleware(Measure, metrics=metrics)]
    if settings.token is not None:
        middleware.append(Middleware(TokenGate, token=settings.token))
    middleware += [Middleware(SizeLimit, megabytes=settings.max_request_mb), Middleware(Queue, slots=slots)]
    app = FastAPI(title=name, version=__version__, lifespan=lifespan, middleware=middleware, responses=problems.ANSWERS)
    app.state.draining = False
    app.state.metrics = metrics  # whose registry takes a service's own numbers
    problems.install(app)
    _add_operational_routes(app, name, checks or {}, metrics)
    for router in routers:
        app.include_router(router)
    return app


def serve(app: FastAPI, settings: ServiceSettings) -> None:
    """Serve until a signal comes, then turn unready and let requests in flight finish for `drain_seconds`.

    Raises:
        ConfigError: the address cannot be bound.
        MiaError: whatever the app's lifespan raises at start.
    """
    if settings.token is None and not is_loopback(settings.host):
        _log.warning(
            "listening on %s without a token: anyone who reaches this port can use it; set MIA_TOKEN", settings.host
        )
    notice = min(NOTICE_SECONDS, settings.drain_seconds)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds - notice),
    )
    with _bind(settings.host, settings.port) as listener, suppress(KeyboardInterrupt):
        Server(config, app, notice).run(sockets=[listener])


class Server(uvicorn.Server):
    """Uvicorn, which tells machines when it is ready, and readiness checks when it is not any more.

    It enters the app's lifespan itself, so that what goes wrong there reaches the caller as the error it is.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, notice: float) -> None:
        super().__init__(config)
        self.app = app
        self.notice = notice
        self.entered = AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, then listen, then say so."""
        await self.entered.enter_async_context(self.app.router.lifespan_context(self.app))
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            _log.info("ready", extra={"service": self.app.title, "host": host, "port": port})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Turn unready, serve on for `notice` seconds, let requests in flight finish, stop the app."""
        self.app.state.draining = True
        async with self.entered:
            await asyncio.sleep(self.notice)
            await super().shutdown(sockets)


class Frame:
    """The outermost layer: gives every request its id, and an answer to whatever nobody foresaw."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on under its id; answer 500 if it fails before it answers."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        current = given if 0 < len(given) <= 128 and given.isascii() and given.isprintable() else uuid.uuid4().hex
        answered = False

        async def marked(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                MutableHeaders(scope=message)["X-Request-ID"] = current
            await send(message)

        outer = request_id.set(current)
        try:
            await self.app(scope, receive, marked)
        except Exception:  # the one place of a service that catches everything: it logs and answers
            if answered:
                raise
            _log.exception("a request failed")
            await problems.problem(
                500, "Something went wrong in the service.", remedy="Its log has the details under this request's id."
            )(scope, receive, marked)
        finally:
            request_id.reset(outer)


def _add_operational_routes(app: FastAPI, name: str, checks: Mapping[str, Check], metrics: Metrics) -> None:
    @app.get("/healthz", tags=["operation"])
    async def healthz() -> dict[str, str]:
        """Say that the process is alive."""
        return {"status": "ok", "service": name}

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "Not ready; the body tells for what."}})
    async def readyz() -> JSONResponse:
        """Say whether requests can be served, dependency by dependency."""
        states = await asyncio.gather(*(_state(check) for check in checks.values()))
        draining = bool(app.state.draining)
        ready = not draining and all(state == "ok" for state in states)
        body = {"ready": ready, "draining": draining, "dependencies": dict(zip(checks, states, strict=True))}
        return JSONResponse(body, 200 if ready else 503)

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        """Show the service's numbers in Prometheus' text format."""
        return metrics.render()


async def _state(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except MiaError as error:
        return str(error)
    except TimeoutError:
        return f"did not answer within {CHECK_SECONDS:g} s"
    return "ok"


def _bind(host: str, port: int) -> socket.socket:
    """Take the address without listening yet: until the app is ready, connections are refused and not left hanging."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it a reply in two pieces waits some 40 ms for the other side's receipt.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
    except OSError as cause:
        listener.close()
        message = f"Cannot listen on {host}:{port}: {cause.strerror or cause}."
        raise ConfigError(message, remedy="Another process may have the port; set HOST or PORT.") from cause
    return listener
