"""Errors as HTTP answers, in one shape for every service: `{error: {type, message, remedy}, request_id}`.

An error of storage or of a service behind also tells `service`, `status` and `retryable`: a client can raise it again.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from mia.errors import InputError, MiaError, OutOfRoom, StorageError, UpstreamError
from mia.runtime.logging import request_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request

RETRY_AFTER = {"Retry-After": "1"}
NO_FACTS: Mapping[str, object] = MappingProxyType({})
STATUSES: tuple[tuple[type[MiaError], int], ...] = (
    (InputError, 400),
    (OutOfRoom, 413),
    (StorageError, 503),
    (UpstreamError, 502),
)

_log = logging.getLogger(__name__)


class Trouble(BaseModel):
    """What went wrong; `service`, `status` and `retryable` tell of storage, or of a service behind."""

    type: str
    message: str
    remedy: str = ""
    service: str = ""
    status: int | None = None
    retryable: bool = True


class Problem(BaseModel):
    """What every service answers instead when it cannot do what was asked."""

    error: Trouble
    request_id: str | None = None


ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in (
        (400, "What was sent cannot be used; the message says why."),
        (401, "The request does not show the token that the service asks for."),
        (408, "The request did not arrive in time."),
        (413, "The request, or what it asks of a model, is too large."),
        (422, "The request does not have this form; the message names the fields."),
        (429, "The service has as much work as it can take; try again."),
        (502, "A service behind this one gave no usable answer."),
        (503, "Storage or a service behind this one is out of order; the request can be repeated."),
    )
}


def problem(
    status: int,
    message: str,
    *,
    kind: str = "",
    remedy: str = "",
    headers: Mapping[str, str] | None = None,
    facts: Mapping[str, object] = NO_FACTS,
) -> JSONResponse:
    """Build the answer that tells of an error; `kind` defaults to the name of the status."""
    error = {
        **facts,
        "type": kind or HTTPStatus(status).phrase.replace(" ", ""),
        "message": _encodable(message),
        "remedy": _encodable(remedy),
    }
    return JSONResponse({"error": error, "request_id": request_id.get()}, status, headers)


def install(app: FastAPI) -> None:
    """Make every error that a route raises on purpose come out as a `problem`."""
    app.exception_handler(MiaError)(_answer_mia_error)
    app.exception_handler(RequestValidationError)(_answer_invalid)
    app.exception_handler(HTTPException)(_answer_http)


def _answer_mia_error(_: Request, error: MiaError) -> JSONResponse:
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    headers = None
    if isinstance(error, UpstreamError) and error.retryable:
        status, headers = 503, RETRY_AFTER
    if status >= 500:
        _log.error("%s", error, extra={"type": type(error).__name__})
    facts = error.facts() if isinstance(error, UpstreamError | StorageError) else NO_FACTS
    return problem(status, error.message, kind=type(error).__name__, remedy=error.remedy, headers=headers, facts=facts)


def _answer_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5]]
    return problem(422, f"The request is not valid: {'; '.join(wrong)}.", kind="InvalidRequest", remedy="See /docs.")


def _answer_http(_: Request, error: HTTPException) -> JSONResponse:
    cause = error.__cause__
    if isinstance(cause, ValueError | RecursionError):  # FastAPI, which does not say what it could not read
        return problem(error.status_code, f"The body cannot be read: {cause}.", remedy="Send JSON in UTF-8.")
    return problem(error.status_code, str(error.detail), headers=error.headers)


def _encodable(text: str) -> str:
    """Replace half characters, which JSON escapes can carry in and UTF-8 cannot carry out."""
    return text.encode("utf-8", "replace").decode("utf-8")
