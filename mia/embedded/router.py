"""One port for several model servers: a request goes to the one whose model it names, and its answer streams back.

Like llama.cpp's own router: the name is the field `model` of a JSON body, or else the parameter `model` of the URL.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Protocol

import aiohttp
from aiohttp import web

from mia.errors import MiaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from pydantic import SecretStr

logger = logging.getLogger(__name__)

MAX_BODY = 100 * 1024 * 1024  # llama.cpp's own limit
CONNECT_SECONDS = 5.0
HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5)
# What belongs to one connection and not to the request (RFC 9110, 7.6.1), and what aiohttp sets anew: it has unpacked
# the request's body, and does not touch the answer's.
_ONE_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host"}
)
_REPACKED = frozenset({"content-length", "content-encoding", "expect"})


class Upstream(Protocol):
    """A model server behind the router."""

    @property
    def weights(self) -> Path:
        """The file that it serves."""
        ...

    @property
    def running(self) -> bool:
        """Whether it has been asked for yet."""
        ...

    async def address(self) -> str:
        """Return its base URL, starting it if need be. Raises MiaError if it cannot be started."""
        ...


class RefusedError(Exception):
    """A request that no model gets to see."""

    def __init__(
        self, status: HTTPStatus, message: str, kind: str = "invalid_request_error", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code


class Router:
    """Passes requests on by model name; a request that names none goes to the first model."""

    def __init__(self, upstreams: Mapping[str, Upstream], *, window: int, token: SecretStr | None = None) -> None:
        self._upstreams = upstreams
        self._window = window
        self._token = token
        self._client: aiohttp.ClientSession

    def app(self) -> web.Application:
        """Return the application to serve, with `handler_cancellation`: a caller who leaves ends the work for it."""
        app = web.Application(client_max_size=MAX_BODY)
        app.cleanup_ctx.append(self._connected)
        for prefix in ("", "/v1"):
            app.router.add_get(f"{prefix}/health", self._health)
            app.router.add_get(f"{prefix}/models", self._models)
        app.router.add_route("*", "/{path:.*}", self._forward)
        return app

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        # A connection for each request: llama.cpp closes idle ones unasked, and a POST may not be sent twice.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)  # the caller has the deadline
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._client:
            yield

    async def _health(self, _: web.Request) -> web.Response:
        """Answer 200 when every server that runs is well."""
        running = {upstream for upstream in self._upstreams.values() if upstream.running}
        if running and all(await asyncio.gather(*map(self._well, running))):
            return web.json_response({"status": "ok"})
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, "A model does not answer.", "unavailable_error")

    async def _well(self, upstream: Upstream) -> bool:
        try:
            async with self._client.get(f"{await upstream.address()}/health", timeout=HEALTH_TIMEOUT) as answer:
                return answer.status == HTTPStatus.OK
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _models(self, _: web.Request) -> web.Response:
        """List every name as llama.cpp lists its one; `root` is vLLM's name for what stands behind a name."""
        meta = {"n_ctx": self._window}
        data = [
            {"id": name, "object": "model", "owned_by": "llamacpp", "root": upstream.weights.name, "meta": meta}
            for name, upstream in self._upstreams.items()
        ]
        return web.json_response({"object": "list", "data": data}, dumps=_dumps)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """Send a request on as it came, and its answer back as it comes."""
        response = web.StreamResponse()
        try:
            name, body = await self._read(request)
            await self._pass(request, body, self._upstreams[name], response)
        except RefusedError as refused:
            return _error(refused.status, refused.message, refused.kind, refused.code)
        except MiaError as error:
            logger.exception("a model cannot be started")
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), "server_error")
        except aiohttp.ClientError as error:
            if request.transport is None or request.transport.is_closing():
                return response  # the caller has left
            logger.exception("a model does not answer")
            if not response.prepared:
                message = f"The model {name} does not answer: {error or type(error).__name__}."
                return _error(HTTPStatus.BAD_GATEWAY, message, "server_error")
            request.transport.abort()  # a stream without its end tells the caller
        return response

    async def _read(self, request: web.Request) -> tuple[str, bytes]:
        """Return the model that a request is for, and its body."""
        if not self._admits(request):
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED, "The request shows no token, or another.", "authentication_error"
            )
        try:
            body = await request.read()
            name = _asked(body) or request.query.get("model") or next(iter(self._upstreams))
        except web.HTTPRequestEntityTooLarge as error:
            message = f"The request is larger than {MAX_BODY >> 20} MB."
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message) from error
        except (ValueError, RecursionError) as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"The body is no JSON: {error}.") from error
        if name not in self._upstreams:
            message = f"There is no model {name!r} here; there are: {', '.join(self._upstreams)}."
            raise RefusedError(HTTPStatus.NOT_FOUND, message, code="model_not_found")
        return name, body

    def _admits(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self._token.get_secret_value()}".encode())

    async def _pass(self, request: web.Request, body: bytes, upstream: Upstream, response: web.StreamResponse) -> None:
        url = await upstream.address() + request.path_qs
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _ONE_HOP | _REPACKED]
        async with self._client.request(
            request.method, url, data=BytesIO(body) if body else None, headers=headers, allow_redirects=False
        ) as answer:
            response.set_status(answer.status, answer.reason)
            for name, value in answer.headers.items():
                if name.lower() not in _ONE_HOP:
                    response.headers.add(name, value)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()


def _asked(body: bytes) -> str | None:
    """Return the model that a body names, if any. Raises ValueError or RecursionError if it is no JSON."""
    found = json.loads(body) if body else None
    name = found.get("model") if isinstance(found, dict) else None
    return name if name is None or isinstance(name, str) else json.dumps(name)


def _error(status: HTTPStatus, message: str, kind: str, code: str | None = None) -> web.Response:
    """Answer in OpenAI's shape of an error."""
    error = {"message": message, "type": kind, "param": None, "code": code or status.value}
    return web.json_response({"error": error}, status=status.value, dumps=_dumps)


def _dumps(found: object) -> str:
    return json.dumps(found, ensure_ascii=False)
