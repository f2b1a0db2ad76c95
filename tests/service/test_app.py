"""What every service has around its routes, each driven in process or through a real socket."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import aiohttp
import httpx
import pytest
from fastapi import APIRouter, Request
from pydantic import BaseModel

from mia.errors import ConfigError, InputError, ModelUnavailable, OutOfRoom, StorageError, UpstreamError
from mia.runtime import app as runtime_app
from mia.runtime.app import create_service, serve
from mia.runtime.limits import Busy, SizeLimit, Slots
from mia.runtime.logging import request_id
from mia.runtime.settings import ServiceSettings, load

ERRORS = {
    "input": InputError("Bad.", remedy="Do better."),
    "config": ConfigError("Unset."),
    "storage": StorageError("Gone."),
    "room": OutOfRoom("Too long."),
    "down": ModelUnavailable("Down.", service="model", retryable=True),
    "refused": ModelUnavailable("Refused.", service="model", retryable=False),
    "half": InputError("a\ud800b"),
}


class Body(BaseModel):
    number: int


def build(*, checks=None, lifespan=None, gate=None, **settings):
    router = APIRouter()

    @router.get("/errors/{name}")
    async def fail(name: str):
        raise ERRORS.get(name) or RuntimeError("a secret detail")

    @router.get("/slow")
    async def slow():
        await gate.wait()
        return {}

    @router.post("/number")
    async def number(body: Body):
        return {"number": body.number, "request_id": request_id.get()}

    @router.post("/size")
    async def size(request: Request):
        return {"size": len(await request.body())}

    return create_service("test", load(ServiceSettings, **settings), routers=[router], lifespan=lifespan, checks=checks)


def client_of(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


def ask(app, method, path, **options):
    async def go():
        async with client_of(app) as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("name", "status", "kind", "again"),
    [
        ("input", 400, "InputError", None),
        ("config", 500, "ConfigError", None),
        ("storage", 503, "StorageError", None),
        ("room", 413, "OutOfRoom", None),
        ("down", 503, "ModelUnavailable", "1"),
        ("refused", 502, "ModelUnavailable", None),
    ],
)
def test_every_error_has_its_status_and_one_shape(name, status, kind, again):
    response = ask(build(), "GET", f"/errors/{name}")
    error = ERRORS[name]
    facts = error.facts() if isinstance(error, UpstreamError | StorageError) else {}
    assert response.status_code == status
    assert response.headers.get("Retry-After") == again
    assert response.json() == {
        "error": {"type": kind, "message": error.message, "remedy": error.remedy, **facts},
        "request_id": response.headers["X-Request-ID"],
    }


def test_what_nobody_foresaw_is_logged_and_not_shown(caplog):
    response = ask(build(), "GET", "/errors/unknown")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "InternalServerError"
    assert response.json()["request_id"] == response.headers["X-Request-ID"]
    assert "secret" not in response.text
    assert "a secret detail" in caplog.text


def test_half_a_character_in_a_message_does_not_break_the_answer():
    assert ask(build(), "GET", "/errors/half").json()["error"]["message"] == "a?b"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"json": {"number": "x"}}, 422),
        ({"content": b'{"number": ', "headers": {"Content-Type": "application/json"}}, 422),
        ({"content": b'\xff\xfe"', "headers": {"Content-Type": "application/json"}}, 400),
        ({}, 422),
    ],
)
def test_a_request_that_is_not_valid_is_refused_in_the_same_shape(options, status):
    response = ask(build(), "POST", "/number", **options)
    assert response.status_code == status
    assert set(response.json()) == {"error", "request_id"}
    assert set(response.json()["error"]) == {"type", "message", "remedy"}


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_body_that_is_no_json_is_refused_with_what_is_wrong(content):
    error = ask(build(), "POST", "/number", content=content, headers={"Content-Type": "application/json"}).json()[
        "error"
    ]
    assert error["message"].startswith("The body cannot be read: ")
    assert error["remedy"]


def test_the_document_tells_of_errors_in_the_shape_that_they_have():
    told = build().openapi()
    answers = told["paths"]["/number"]["post"]["responses"]
    assert {"400", "413", "422", "429", "503"} <= answers.keys()
    shapes = [answer["content"]["application/json"]["schema"] for code, answer in answers.items() if code >= "400"]
    assert shapes == [{"$ref": "#/components/schemas/Problem"}] * len(shapes)
    assert "HTTPValidationError" not in told["components"]["schemas"]


def test_an_unknown_path_and_a_wrong_method_keep_the_shape():
    assert ask(build(), "GET", "/none").json()["error"]["type"] == "NotFound"
    wrong = ask(build(), "GET", "/number")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "MethodNotAllowed")


def test_a_sane_request_id_is_kept_and_reaches_the_route():
    response = ask(build(), "POST", "/number", json={"number": 1}, headers={"X-Request-ID": "run/0/q-1"})
    assert response.headers["X-Request-ID"] == "run/0/q-1"
    assert response.json() == {"number": 1, "request_id": "run/0/q-1"}


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"a\tb", "é".encode()])
def test_any_other_request_id_is_replaced(given):
    fresh = ask(build(), "GET", "/healthz", headers=[(b"X-Request-ID", given)]).headers["X-Request-ID"]
    assert len(fresh) == 32
    assert fresh.isalnum()


def test_the_token_guards_all_but_the_operational_routes():
    app = build(token="s3cret")
    for path in ("/healthz", "/readyz", "/metrics"):
        assert ask(app, "GET", path).status_code == 200
    refused = ask(app, "GET", "/errors/input")
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "s3cret" not in refused.text
    for wrong in ("Bearer", "Bearer s3cre", "Bearer s3crets", "bearer s3cret"):
        assert ask(app, "GET", "/errors/input", headers={"Authorization": wrong}).status_code == 401
    assert ask(app, "GET", "/errors/input", headers={"Authorization": "Bearer s3cret"}).status_code == 400


def test_a_body_is_refused_above_the_limit_announced_or_streamed():
    app = build(max_request_mb=0.001)

    async def stream(size):
        for _ in range(size):
            yield b"x"

    for body in (b"x" * 1049, stream(1049)):
        refused = ask(app, "POST", "/size", content=body)
        assert refused.status_code == 413
        assert "0.001 MB" in refused.json()["error"]["message"]
    for body in (b"x" * 1048, stream(1048)):
        assert ask(app, "POST", "/size", content=body).json() == {"size": 1048}


def test_a_streamed_json_body_is_refused_above_the_limit():
    async def stream():
        yield b'{"number": '
        yield b"1" * 2000

    response = ask(
        build(max_request_mb=0.001), "POST", "/number", content=stream(), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 413


def test_a_body_that_stops_half_way_gives_its_slot_back():
    async def half():
        yield b'{"number": '
        await asyncio.Event().wait()

    async def go(path):
        app = SizeLimit(build(max_running=1, max_waiting=0), megabytes=1, seconds=0.05)
        async with client_of(app) as client, asyncio.timeout(10):
            late = await client.post(path, content=half(), headers={"Content-Type": "application/json"})
            return late, await client.post("/number", json={"number": 1})

    for path in ("/number", "/size"):
        late, next_one = asyncio.run(go(path))
        assert (late.status_code, late.headers["Connection"]) == (408, "close")
        assert late.json()["error"]["type"] == "RequestTimeout"
        assert "within 0.05 s" in late.json()["error"]["message"]
        assert next_one.status_code == 200


def test_a_route_may_take_longer_than_the_body():
    async def go():
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, gate.set)
        async with client_of(SizeLimit(build(gate=gate), megabytes=1, seconds=0.05)) as client:
            return (await client.get("/slow")).status_code

    assert asyncio.run(go()) == 200


async def settled(client, running, waiting=0):
    """Wait until that many requests run and wait; operational routes answer meanwhile."""
    wanted = {f"mia_requests_in_flight {running:.1f}", f"mia_requests_waiting {waiting:.1f}"}
    async with asyncio.timeout(10):
        while not wanted <= set((await client.get("/metrics")).text.splitlines()):  # noqa: ASYNC110 - seen over HTTP
            await asyncio.sleep(0.01)


def test_requests_run_wait_and_are_turned_away_in_that_order():
    async def go():
        gate = asyncio.Event()
        app = build(gate=gate, max_running=2, max_waiting=3)
        async with client_of(app) as client:
            held = [asyncio.create_task(client.get("/slow")) for _ in range(5)]
            await settled(client, 2, 3)
            refused = await client.get("/slow")
            assert (await client.get("/healthz")).status_code == 200
            gate.set()
            answered = [response.status_code for response in await asyncio.gather(*held)]
            await settled(client, 0, 0)
            return refused, answered, await client.get("/slow")

    refused, answered, later = asyncio.run(go())
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "Busy")
    assert refused.headers["Retry-After"] == "1"
    assert answered == [200] * 5
    assert later.status_code == 200


def test_no_waiting_room_still_lets_requests_run():
    async def go():
        gate = asyncio.Event()
        gate.set()
        async with client_of(build(gate=gate, max_running=1, max_waiting=0)) as client:
            return (await client.get("/slow")).status_code

    assert asyncio.run(go()) == 200


def test_who_waits_too_long_or_gives_up_leaves_no_trace():
    async def go():
        slots = Slots(running=1, waiting=9)
        async with slots.take():
            with pytest.raises(Busy):
                async with slots.take(deadline=0.01):
                    pass
            impatient = asyncio.create_task(slots.take().__aenter__())
            await asyncio.sleep(0)
            impatient.cancel()
            await asyncio.gather(impatient, return_exceptions=True)
            assert (slots.running, slots.waiting) == (1, 0)
        async with slots.take(deadline=1):
            assert (slots.running, slots.waiting) == (1, 0)

    asyncio.run(go())


def test_readiness_names_every_dependency(monkeypatch):
    async def fine():
        pass

    async def broken():
        raise ModelUnavailable("The model is down.", service="model", remedy="Start it.")

    async def stuck():
        await asyncio.sleep(60)

    assert ask(build(checks={"search": fine}), "GET", "/readyz").json() == {
        "ready": True,
        "draining": False,
        "dependencies": {"search": "ok"},
    }
    monkeypatch.setattr(runtime_app, "CHECK_SECONDS", 0.05)
    response = ask(build(checks={"search": fine, "model": broken, "memory": stuck}), "GET", "/readyz")
    assert response.status_code == 503
    assert response.json()["dependencies"] == {
        "search": "ok",
        "model": "The model is down. Start it.",
        "memory": "did not answer within 0.05 s",
    }


def test_metrics_count_by_route_template_and_two_apps_do_not_mix():
    app, other = build(), build()
    for name in ("input", "storage", "unknown"):
        ask(app, "GET", f"/errors/{name}")
    ask(app, "GET", "/no/such/path")
    ask(app, "BREW", "/errors/input")
    ask(app, "POST", "/number", json={"number": 1})
    text = ask(app, "GET", "/metrics").text
    for line in (
        'mia_requests_total{method="GET",route="/errors/{name}",status="400"} 1.0',
        'mia_requests_total{method="GET",route="/errors/{name}",status="500"} 1.0',
        'mia_requests_total{method="GET",route="/errors/{name}",status="503"} 1.0',
        'mia_requests_total{method="GET",route="-",status="404"} 1.0',
        'mia_requests_total{method="other",route="/errors/{name}",status="405"} 1.0',
        'mia_request_seconds_count{method="POST",route="/number"} 1.0',
    ):
        assert line in text
    assert "/no/such/path" not in text
    assert "/errors" not in ask(other, "GET", "/metrics").text


PROGRAM = """
import asyncio, sys
from contextlib import asynccontextmanager
from fastapi import APIRouter, Request
from mia.errors import MiaError, StorageError
from mia.runtime import app as runtime_app
from mia.runtime.app import create_service, serve
from mia.runtime.logging import configure
from mia.runtime.settings import ServiceSettings, load

router = APIRouter()

@router.get("/slow")
async def slow(request: Request):
    while not request.app.state.draining:
        await asyncio.sleep(0.01)
    return {"done": True}

@router.get("/stuck")
async def stuck():
    await asyncio.Event().wait()

@asynccontextmanager
async def lifespan(app):
    if "fail" in sys.argv:
        raise StorageError("No bank.", remedy="Make one.")
    yield
    print("stopped", flush=True)

configure()
if "linger" in sys.argv:
    runtime_app.NOTICE_SECONDS = 60.0
settings = load(ServiceSettings)
try:
    serve(create_service("test", settings, routers=[router], lifespan=lifespan), settings)
except MiaError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


@asynccontextmanager
async def process(*arguments, **environment):
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PORT": "0", **environment},
    )
    try:
        async with asyncio.timeout(60):
            yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


async def ready(running):
    lines = []
    async for line in running.stderr:
        lines.append(json.loads(line))
        if lines[-1]["message"] == "ready":
            return lines
    raise AssertionError(lines)


def test_a_real_process_says_where_it_listens_and_lets_requests_finish_when_told_to_stop():
    async def go():
        async with process() as running:
            line = (await ready(running))[-1]
            assert (line["service"], line["host"]) == ("test", "127.0.0.1")
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{line['port']}") as client:
                held = asyncio.create_task(client.get("/slow"))
                await settled(client, 1)
                running.send_signal(signal.SIGTERM)
                answered = (await held).json()
            output, errors = await running.communicate()
            return answered, output, errors

    answered, output, errors = asyncio.run(go())
    assert answered == {"done": True}
    assert output == b"stopped\n"
    assert all(json.loads(line) for line in errors.splitlines())


def test_a_draining_process_tells_new_connections_that_it_is_not_ready():
    async def go():
        async with process("linger", MIA_DRAIN_SECONDS="60") as running:
            base = f"http://127.0.0.1:{(await ready(running))[-1]['port']}"

            async def get(path):
                async with httpx.AsyncClient(base_url=base) as client:
                    return await client.get(path)

            before = await get("/readyz")
            running.send_signal(signal.SIGTERM)
            while (after := await get("/readyz")).status_code == 200:  # noqa: ASYNC110 - seen over HTTP
                await asyncio.sleep(0.01)
            return before, after, await get("/healthz")

    before, after, alive = asyncio.run(go())
    assert (before.status_code, before.json()["draining"]) == (200, False)
    assert (after.status_code, after.json()["draining"]) == (503, True)
    assert alive.status_code == 200


def test_requests_that_outlast_the_drain_are_cut():
    async def go():
        async with process(MIA_DRAIN_SECONDS="0") as running:
            line = (await ready(running))[-1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{line['port']}") as client:
                held = asyncio.create_task(client.get("/stuck"))
                await settled(client, 1)
                running.send_signal(signal.SIGINT)
                (outcome,) = await asyncio.gather(held, return_exceptions=True)
            output, _ = await running.communicate()
            return outcome, output, running.returncode

    outcome, output, code = asyncio.run(go())
    assert isinstance(outcome, httpx.HTTPError) or outcome.status_code == 500
    assert output == b"stopped\n"
    assert code == 0


def test_an_error_at_start_reaches_the_caller_as_itself():
    async def go():
        async with process("fail") as running:
            return await running.communicate(), running.returncode

    (output, errors), code = asyncio.run(go())
    assert (output, code) == (b"No bank. Make one.\n", 4)
    assert b"Traceback" not in errors


def test_a_taken_port_is_a_configuration_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            serve(build(), load(ServiceSettings, port=port))


@pytest.mark.parametrize(("host", "token", "warned"), [("0.0.0.0", "", True), ("0.0.0.0", "t", False), ("", "", False)])
def test_listening_beyond_this_machine_without_a_token_is_warned_of(host, token, warned):
    async def go():
        async with process(HOST=host, MIA_TOKEN=token) as running:
            lines = await ready(running)
            running.terminate()
            await running.communicate()
            return lines

    assert any("without a token" in line["message"] for line in asyncio.run(go())) is warned


def test_an_upload_above_the_limit_is_refused_over_a_real_socket():
    async def go():
        async with process(MIA_MAX_REQUEST_MB="1") as running:
            line = (await ready(running))[-1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{line['port']}") as client:
                refused = await client.post("/slow", content=b"x" * (20 << 20))
                alive = await client.get("/healthz")
            running.terminate()
            await running.communicate()
            return refused, alive

    refused, alive = asyncio.run(go())
    assert refused.status_code == 413
    assert alive.status_code == 200


def test_a_reply_in_two_pieces_is_not_held_back():
    with runtime_app._bind("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_is_kept_for_longer_than_a_client_keeps_it(monkeypatch):
    """Else a client that paused sends its request into a closed one."""
    started = []
    monkeypatch.setattr(runtime_app.Server, "run", lambda self, sockets: started.append(self.config))

    async def pool():
        async with aiohttp.TCPConnector() as connector:
            return connector._keepalive_timeout

    serve(create_service("test", load(ServiceSettings, port=0), routers=[]), load(ServiceSettings, port=0))
    assert started[0].timeout_keep_alive > asyncio.run(pool())
