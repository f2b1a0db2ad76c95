"""How any process talks to a service over HTTP: the one place that retries."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
import uuid
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from mia.errors import ConfigError, UpstreamError
from mia.runtime.logging import request_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from pydantic import SecretStr

    _Holder = AsyncGenerator[aiohttp.ClientSession, None]

RETRIED = frozenset({429, 500, 502, 503, 504})
CONNECT_SECONDS = 5.0
MAX_CONNECTIONS = 256
MAX_ANSWER_BYTES = 64 * 1024 * 1024

_log = logging.getLogger(__name__)
_backoff = wait_exponential(multiplier=0.25, max=8.0) + wait_random(0.0, 0.25)


class Answer(NamedTuple):
    """A response, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class RefusedError(Exception):
    """A response that is no success."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class TooLargeError(Exception):
    """A response with more than `MAX_ANSWER_BYTES`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Service:
    """One HTTP dependency: a name, a base URL, retries, deadlines, typed errors.

    An attempt may take all the time that is left: cutting it short to try again would run slow work twice at once.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        error: type[UpstreamError] = UpstreamError,
        token: SecretStr | None = None,
        attempts: int = 3,
        remedy: str = "",
    ) -> None:
        if "@" in url:  # an error quotes the URL, so it must not hold a secret
            raise ConfigError(
                f"The URL of the {name} service has an @, as if it carried a user name or a password.",
                remedy="Take it out and set MIA_MODEL_KEY for models or MIA_TOKEN for the rest; write %40 in a path.",
            )
        self.name = name
        self.url = url.rstrip("/")
        self._error = error
        self._token = token
        self._attempts = attempts
        self._remedy = remedy
        self._held: dict[asyncio.AbstractEventLoop, tuple[_Holder, aiohttp.ClientSession]] = {}

    async def post(self, path: str, body: Mapping[str, Any], *, deadline: float) -> dict[str, Any]:
        """Send a JSON object, return the JSON object answered, within `deadline` seconds for everything.

        Raises:
            UpstreamError: of the type given at construction, when no usable answer came.
        """
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
        return await self._ask("POST", path, deadline, text.encode("utf-8", "replace"))  # half a character has no UTF-8

    async def get(self, path: str, *, deadline: float) -> dict[str, Any]:
        """Return the JSON object at `path`; deadline and errors as for `post`."""
        return await self._ask("GET", path, deadline)

    async def aclose(self) -> None:
        """Close the connections of the running loop; a later request opens new ones."""
        held = self._held.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held[0].aclose()

    async def _ask(self, method: str, path: str, deadline: float, content: bytes | None = None) -> dict[str, Any]:
        url = f"{self.url}/{path.lstrip('/')}"
        where = f"{self.name} ({method} {url})"
        try:
            async with asyncio.timeout(deadline):
                answer = await self._send(method, url, deadline, content)
        except RefusedError as cause:
            status = cause.answer.status
            message = f"{where} answered {status}: {_detail(cause.answer)}"
            raise self._failure(message, status=status, retryable=status in RETRIED) from cause
        except TooLargeError as cause:
            message = f"{where} answered more than {MAX_ANSWER_BYTES >> 20} MB, which is too large."
            raise self._failure(message, status=cause.status, retryable=False) from cause
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as cause:
            raise self._failure(f"{where} is not an http or https URL.", retryable=False) from cause
        except ValueError as cause:
            reason = str(cause).rstrip(".")
            raise self._failure(f"{where} cannot be asked: {reason}.", retryable=False) from cause
        except aiohttp.ConnectionTimeoutError as cause:
            raise self._failure(f"{where} cannot be reached within {CONNECT_SECONDS:g} s.") from cause
        except TimeoutError as cause:
            raise self._failure(f"{where} did not answer within {deadline:g} s.") from cause
        except (aiohttp.ClientError, OSError) as cause:
            reason = str(cause) or type(cause).__name__
            raise self._failure(f"{where} cannot be reached: {reason}.") from cause
        try:
            found = json.loads(answer.body)
        except (ValueError, RecursionError) as cause:
            raise self._nonsense(where, answer.status) from cause
        if not isinstance(found, dict):
            raise self._nonsense(where, answer.status)
        return found

    async def _send(self, method: str, url: str, deadline: float, content: bytes | None) -> Answer:
        session = await self._open_session()
        headers = {"X-Request-ID": request_id.get() or uuid.uuid4().hex, "Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"

        async def attempt() -> Answer:
            async with session.request(method, url, data=content, headers=headers, allow_redirects=False) as response:
                answer = Answer(response.status, response.headers, await _read(response))
            if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
                raise RefusedError(answer)
            return answer

        return await AsyncRetrying(
            stop=stop_after_attempt(self._attempts) | stop_before_delay(deadline),
            wait=_wait,
            retry=retry_if_exception(_may_pass),
            before_sleep=self._log_retry,
            reraise=True,
        )(attempt)

    async def _open_session(self) -> aiohttp.ClientSession:
        """Return the session of the running loop; connections of another loop are of no use in this one."""
        loop = asyncio.get_running_loop()
        if loop not in self._held:
            self._held = {other: held for other, held in self._held.items() if not other.is_closed()}
            holder = self._hold_session()
            self._held[loop] = holder, await anext(holder)
        return self._held[loop][1]

    async def _hold_session(self) -> _Holder:
        """Yield a session; a loop that ends closes its generators, and so the connections that belong to it."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),
        ) as session:
            yield session

    def _log_retry(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome else None
        extra = {"service": self.name, "attempt": state.attempt_number, "wait_seconds": round(state.upcoming_sleep, 2)}
        _log.warning("retrying: %s", type(reason).__name__, extra=extra)

    def _failure(self, message: str, *, status: int | None = None, retryable: bool = True) -> UpstreamError:
        return self._error(message, service=self.name, status=status, retryable=retryable, remedy=self._remedy)

    def _nonsense(self, where: str, status: int) -> UpstreamError:
        message = f"{where} answered something that is not a JSON object."
        return self._failure(message, status=status, retryable=False)


def is_loopback(host: str) -> bool:
    """Say whether a host name or address is this machine itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise TooLargeError(response.status)
    return bytes(body)


def _may_pass(error: BaseException) -> bool:
    """Say whether the same request may succeed when sent again."""
    if isinstance(error, RefusedError):
        return error.answer.status in RETRIED
    return isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = _retry_after(error.answer.headers) if isinstance(error, RefusedError) else None
    return _backoff(state) if asked is None else asked


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait: RFC 9110 allows a number and a date."""
    value = headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _detail(answer: Answer) -> str:
    """Return what a server says of its refusal, at most 500 characters."""
    if "Location" in answer.headers:
        return f"a redirect to {answer.headers['Location']}, which is not followed"[:500]
    text = answer.body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text[:500]
    for name in ("error", "message", "detail"):
        found = found.get(name, found) if isinstance(found, dict) else found
    return (found if isinstance(found, str) else text)[:500]
