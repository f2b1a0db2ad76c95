"""A failure that an episode recorded, as the error that ends a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia.errors import MiaError, StorageError, UpstreamError

if TYPE_CHECKING:
    from mia.types import Failure


def failed(failure: Failure) -> MiaError:
    """Return the error that a failure was, with its remedy and its exit code."""
    if failure.service == "storage":
        return StorageError(failure.message, remedy=failure.remedy)
    return UpstreamError(failure.message, service=failure.service, status=failure.status, remedy=failure.remedy)
