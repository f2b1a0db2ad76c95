"""The error tree: what went wrong, whose fault it is, and the remedy.

Model text that is bad is data (a `StopReason`, a zero format part), never an exception. Exceptions are for
configuration, input, storage and services that are down; they are raised at the boundary `from` their cause.
"""

from __future__ import annotations


class MiaError(Exception):
    """Base of every error that MIA raises on purpose.

    `message` says what happened in one sentence, `remedy` what the reader can do about it.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class InputError(MiaError):
    """What the user handed over cannot be used: an empty question, an image that is none, a broken file."""

    exit_code = 2


class ConfigError(MiaError):
    """A setting is missing, unknown or contradicts another."""

    exit_code = 3


class StorageError(MiaError):
    """Durable state cannot be read or written."""

    exit_code = 4

    def facts(self) -> dict[str, str | int | bool | None]:
        """Return the fields of a `mia.types.Failure`: the error as an episode records it."""
        return {"service": "storage", "message": self.message, "remedy": self.remedy, "retryable": False}


class OutOfRoom(MiaError):
    """A message does not fit the model's window; the dialogue so far is intact."""


class UpstreamError(MiaError):
    """A service that MIA depends on did not give a usable answer.

    `service` names it, `status` is the HTTP status (None when no response came), `retryable` says whether the same
    request may succeed later.
    """

    exit_code = 5

    def __init__(
        self, message: str, *, service: str, status: int | None = None, retryable: bool = True, remedy: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.service = service
        self.status = status
        self.retryable = retryable

    def facts(self) -> dict[str, str | int | bool | None]:
        """Return the fields of a `mia.types.Failure`: the error as an episode records it."""
        return {
            "service": self.service,
            "message": self.message,
            "remedy": self.remedy,
            "status": self.status,
            "retryable": self.retryable,
        }


class ModelUnavailable(UpstreamError):
    """A language model server is down or answers with nothing usable."""


class MemoryUnavailable(UpstreamError):
    """The memory service is down."""


class ExecutorUnavailable(UpstreamError):
    """The executor service is down."""


class SearchUnavailable(UpstreamError):
    """A search service is down."""


class JudgeUnavailable(UpstreamError):
    """The judge cannot be reached."""
