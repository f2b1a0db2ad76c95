"""Logs of every process: one JSON object a line, each with the id of the request it belongs to."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from mia.text import clean

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

# These libraries write whole requests at INFO or DEBUG; bodies and questions stay out of the log.
QUIET = ("httpx", "httpcore", "bm25s", "asyncio", "python_multipart")


class Formatter(JsonFormatter):
    """Writes a record as JSON that UTF-8 can hold."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; half characters would lose it."""
        return clean(super().format(record))


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every logger of the process to `stream` (standard error when None) as JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.addFilter(_add_request_id)
    handler.setFormatter(
        Formatter(
            ["levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger"},
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],
            timestamp="time",
            json_ensure_ascii=False,
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _add_request_id(record: logging.LogRecord) -> bool:
    current = request_id.get()
    if current is not None:
        record.request_id = current
    return True
