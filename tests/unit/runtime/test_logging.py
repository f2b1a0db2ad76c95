"""Logs as JSON lines."""

import io
import json
import logging

import pytest
from pydantic import SecretStr

from mia.runtime.logging import configure, request_id


@pytest.fixture
def stream():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    configure("INFO", written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


def last(stream):
    return json.loads(stream.getvalue().splitlines()[-1])


def test_a_line_is_one_json_object_in_plain_utf8(stream):
    logging.getLogger("a.b").warning("法国 %s", "é", extra={"service": "search"})
    assert "法国 é" in stream.getvalue()
    line = last(stream)
    assert line.pop("time")
    assert line == {"level": "WARNING", "logger": "a.b", "message": "法国 é", "service": "search"}


def test_a_line_carries_the_id_of_its_request(stream):
    outer = request_id.set("r-7")
    logging.getLogger("a").info("in")
    request_id.reset(outer)
    assert last(stream)["request_id"] == "r-7"
    logging.getLogger("a").info("out")
    assert "request_id" not in last(stream)


def test_secrets_are_masked(stream):
    logging.getLogger("a").info("token %s", SecretStr("s3cret"), extra={"token": SecretStr("s3cret")})
    assert "s3cret" not in stream.getvalue()


def test_an_exception_stays_on_its_line(stream):
    try:
        int("boom")
    except ValueError:
        logging.getLogger("a").exception("failed")
    assert len(stream.getvalue().splitlines()) == 1
    assert "ValueError: invalid" in last(stream)["exc_info"]


def test_uvicorn_speaks_through_the_same_handler_and_clients_are_quiet(stream):
    logging.getLogger("uvicorn.error").info("started", extra={"color_message": "\x1b"})
    assert last(stream)["logger"] == "uvicorn.error"
    assert "color_message" not in last(stream)
    logging.getLogger("httpx").info("HTTP Request: POST ...")
    assert last(stream)["message"] == "started"
