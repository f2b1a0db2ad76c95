"""Talking to a service: what is retried, what is not, and what the reader is told."""

import asyncio
import gc
import json
import socket
from contextlib import asynccontextmanager, closing

import httpx
import pytest
import uvicorn
from pydantic import SecretStr
from served import served

from mia.errors import ConfigError, SearchUnavailable, UpstreamError
from mia.runtime import http
from mia.runtime.http import RefusedError, Service, is_loopback
from mia.runtime.logging import request_id


def ask(*answers, seen=None, deadline=10.0, body=None, **options):
    """Ask a server whose n-th request gets the n-th answer, the last one again and again."""
    calls = [] if seen is None else seen

    def reply(request):
        calls.append(request)
        answer = answers[min(len(calls), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    options.setdefault("remedy", "Start it with `mia serve`.")
    with served(reply) as url:
        return post(Service("search", f"{url}/", error=SearchUnavailable, **options), deadline=deadline, body=body)


def post(service, *, deadline=10.0, body=None):
    async def go():
        try:
            return await service.post("/retrieve", body or {"q": "é"}, deadline=deadline)
        finally:
            await service.aclose()

    return asyncio.run(go())


def busy(status, **headers):
    return httpx.Response(status, headers={"Retry-After": "0", **headers}, text="busy")


OK = httpx.Response(200, json={"ok": True})


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status):
    seen = []
    assert ask(busy(status), busy(status), OK, seen=seen) == {"ok": True}
    assert len(seen) == 3


def test_a_broken_connection_is_tried_again():
    assert ask(ConnectionError("closed"), OK) == {"ok": True}


def test_the_last_failure_is_raised_as_the_given_error_from_its_cause():
    seen = []
    with pytest.raises(SearchUnavailable) as caught:
        ask(busy(503), seen=seen, attempts=2)
    error = caught.value
    assert len(seen) == 2
    assert (error.service, error.status, error.retryable) == ("search", 503, True)
    assert isinstance(error.__cause__, RefusedError)
    assert "/retrieve) answered 503" in error.message
    assert "mia serve" in error.remedy


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_refusal_is_not_tried_again_and_is_quoted(status):
    seen = []
    refusal = httpx.Response(status, json={"error": {"message": "topk is odd" + "x" * 600}})
    with pytest.raises(SearchUnavailable, match="topk is odd") as caught:
        ask(refusal, seen=seen)
    assert len(seen) == 1
    assert not caught.value.retryable
    assert len(caught.value.message) < 600


@pytest.mark.parametrize("text", ["<html>", "[1]", "", '"a"'])
def test_an_answer_that_is_no_json_object_is_an_error(text):
    with pytest.raises(SearchUnavailable, match="not a JSON object") as caught:
        ask(httpx.Response(200, text=text))
    assert (caught.value.status, caught.value.retryable) == (200, False)


def test_a_redirect_is_not_followed():
    seen = []
    with pytest.raises(SearchUnavailable, match=r"redirect to http://else\.test"):
        ask(httpx.Response(307, headers={"Location": "http://else.test"}), seen=seen)
    assert len(seen) == 1


def test_a_wait_that_does_not_fit_the_deadline_is_not_begun():
    with pytest.raises(SearchUnavailable) as caught:
        ask(httpx.Response(429, headers={"Retry-After": "3600"}), deadline=5)
    assert caught.value.status == 429


def test_a_date_to_retry_after_is_understood():
    past = {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert ask(httpx.Response(503, headers=past), OK) == {"ok": True}


def test_a_retry_after_that_is_nonsense_is_passed_over():
    assert ask(httpx.Response(503, headers={"Retry-After": "soon"}), OK) == {"ok": True}


def test_slashes_do_not_double():
    seen = []
    ask(OK, seen=seen)
    assert seen[0].url.path == "/retrieve"


def test_token_request_id_and_plain_utf8_are_sent():
    seen = []
    outer = request_id.set("r-1")
    try:
        ask(OK, seen=seen, token=SecretStr("s3cret"))
    finally:
        request_id.reset(outer)
    assert seen[0].headers["Authorization"] == "Bearer s3cret"
    assert seen[0].headers["X-Request-ID"] == "r-1"
    assert seen[0].content == '{"q": "é"}'.encode()


def test_each_request_without_an_id_gets_a_fresh_one():
    seen = []
    ask(OK, seen=seen)
    ask(OK, seen=seen)
    assert seen[0].headers["X-Request-ID"] != seen[1].headers["X-Request-ID"]


def test_half_a_character_is_sent_as_something_that_can_be_read():
    seen = []
    ask(OK, seen=seen, body={"q": "a\ud800b"})
    assert json.loads(seen[0].content) == {"q": "a?b"}


def test_a_url_that_is_none_is_named_and_not_tried_again():
    for url, reason in (
        ("search.test:80", "not an http"),
        ("ftp://search.test", "not an http"),
        ("http://[::bad", "Invalid IPv6 URL"),
    ):
        with pytest.raises(UpstreamError, match=reason) as caught:
            post(Service("search", url))
        assert not caught.value.retryable


@pytest.mark.parametrize("url", ["http://user:s3cret@host/v1", "user:s3cret@host", "http://user:s3/cret@host"])
def test_a_url_with_a_password_is_refused_and_not_shown(url):
    with pytest.raises(ConfigError, match="search") as caught:
        Service("search", url)
    assert "cret" not in str(caught.value)
    assert "MIA_TOKEN" in caught.value.remedy


def test_a_token_that_no_header_can_carry_is_not_blamed_on_the_url():
    with pytest.raises(SearchUnavailable, match=r"cannot be asked: .*header") as caught:
        ask(OK, token=SecretStr("s3cret\r\nX: y"))
    assert not caught.value.retryable
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("status", [200, 503])
def test_an_answer_that_is_too_large_is_not_read_to_its_end(monkeypatch, status):
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1 << 20)
    seen = []
    with pytest.raises(SearchUnavailable, match=r"more than 1 MB, which is too large") as caught:
        ask(httpx.Response(status, json={"text": "x" * (1 << 20)}), seen=seen)
    assert len(seen) == 1
    assert (caught.value.status, caught.value.retryable) == (status, False)


@asynccontextmanager
async def running(app):
    """The URL of a real server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


async def echo(scope, receive, send):
    await receive()
    body = json.dumps({"path": scope["path"]}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


async def silence(scope, receive, send):
    await asyncio.sleep(60)


def test_a_real_server_is_asked_and_the_client_serves_several_event_loops():
    async def go(service):
        async with running(echo) as url:
            service.url = url
            try:
                return await asyncio.gather(*(service.get(f"/p{number}", deadline=10) for number in range(100)))
            finally:
                await service.aclose()

    service = Service("echo", "http://127.0.0.1")
    for _ in range(2):
        assert asyncio.run(go(service)) == [{"path": f"/p{number}"} for number in range(100)]


def test_a_loop_that_ends_closes_its_connections():
    with served(lambda _: OK) as url:
        service = Service("search", url)
        for _ in range(2):
            assert asyncio.run(service.get("/", deadline=10)) == {"ok": True}
            gc.collect()  # what is left open would warn now


def test_loops_that_run_at_once_leave_each_other_their_connections():
    async def pair():
        return await asyncio.gather(*(asyncio.to_thread(asyncio.run, service.get("/", deadline=10)) for _ in range(4)))

    with served(lambda _: OK) as url:
        service = Service("search", url)
        assert asyncio.run(pair()) == [{"ok": True}] * 4


def test_a_server_that_does_not_answer_is_given_up_at_the_deadline():
    async def go():
        async with running(silence) as url:
            service = Service("model", url)
            with pytest.raises(UpstreamError, match=r"did not answer within 0\.3 s") as caught:
                await service.get("/", deadline=0.3)
            await service.aclose()
            return caught.value

    error = asyncio.run(go())
    assert (error.status, error.retryable) == (None, True)


def test_a_closed_port_is_reported_with_the_url_and_the_remedy():
    with closing(socket.socket()) as bound:  # bound and not listening: refuses, and nobody else can take it
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        service = Service("search", url, error=SearchUnavailable, remedy="Start local_search.")
        with pytest.raises(SearchUnavailable, match="cannot be reached") as caught:
            post(service)
    assert f"{url}/retrieve" in str(caught.value)
    assert "Start local_search." in str(caught.value)


def test_loopback_is_known_by_name_and_number():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
