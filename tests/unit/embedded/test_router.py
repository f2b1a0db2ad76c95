"""The router before stand-ins for llama.cpp, over real HTTP."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from functools import partial
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr

from mia.embedded import router
from mia.embedded.router import Router
from mia.errors import InputError


class Instance:
    """An upstream that tells what it was sent."""

    def __init__(self, name, url, fails=None):
        self.weights = Path("models") / f"{name}.gguf"
        self.url = url
        self.fails = fails
        self.asked = 0

    @property
    def running(self):
        return self.asked > 0

    async def address(self):
        self.asked += 1
        if self.fails:
            raise self.fails
        return self.url


class World:
    """Two instances behind a router, and a client of it."""

    def __init__(self, **options):
        self.options = options
        self.seen = []
        self.left = asyncio.Event()
        self.healthy = True

    async def answer(self, name, request):
        body = await request.read()
        self.seen.append((name, request.method, request.path_qs, dict(request.headers), body))
        match request.path:
            case "/health":
                return web.json_response({}, status=200 if self.healthy else 503)
            case "/stream" | "/broken":
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                for piece in (b"data: one\n\n", b"data: [DONE]\n\n"):
                    await response.write(piece)
                    if request.path == "/broken":
                        request.transport.abort()
                    await self.gate.wait()
                return response
            case "/slow":
                try:
                    await asyncio.sleep(600)
                finally:
                    self.left.set()
            case "/packed":
                packed = gzip.compress(b'{"from": "packed"}')
                headers = {"Content-Encoding": "gzip", "Content-Type": "application/json", "X-Kept": "é"}
                return web.Response(body=packed, headers=headers)
        return web.json_response({"from": name}, status=int(request.query.get("status", 200)))

    @asynccontextmanager
    async def served(self, app):
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def stand_in(self, name):
        app = web.Application(client_max_size=router.MAX_BODY)
        app.router.add_route("*", "/{path:.*}", partial(self.answer, name))
        return app

    async def run(self, story):
        self.gate = asyncio.Event()
        async with self.served(self.stand_in("merged")) as merged, self.served(self.stand_in("plain")) as plain:
            both = Instance("merged", merged)
            await both.address()
            self.upstreams = {"executor": both, "planner": both, "smollm2": Instance("plain", plain)}
            self.upstreams["dead"] = Instance("dead", "http://127.0.0.1:9")
            self.upstreams["unloadable"] = Instance("unloadable", "", InputError("It is damaged.", remedy="Fetch it."))
            app = Router(self.upstreams, window=2048, **self.options).app()
            async with self.served(app) as url, aiohttp.ClientSession(url) as client:
                return await story(client)


def told(story, **options):
    world = World(**options)
    return asyncio.run(world.run(lambda client: story(world, client))), world


async def read(answering):
    async with answering as answer:
        return answer.status, await answer.json()


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "path", "where"),
    [
        ({"model": "executor"}, CHAT, "merged"),
        ({"model": "planner"}, "/completion", "merged"),
        ({"model": "smollm2"}, "/tokenize", "plain"),
        ({}, "/tokenize", "merged"),
        ({"model": None}, CHAT, "merged"),
        ({}, "/tokenize?model=smollm2", "plain"),
        ({"model": "planner"}, "/tokenize?model=smollm2", "merged"),
    ],
)
def test_a_request_goes_where_its_model_is_and_one_without_to_the_first(body, path, where):
    async def story(_, client):
        return await read(client.post(path, json=body))

    assert told(story)[0] == (200, {"from": where})


def test_bodies_paths_and_statuses_pass_untouched():
    sent = '{ "model":"smollm2", "text": "日本\\u00e9", "x": 1e3 }'.encode()

    async def story(_, client):
        return await read(client.post("/a%20b?status=418&q=%C3%A9", data=sent, headers={"X-Request-ID": "7"}))

    answer, world = told(story)
    assert answer == (418, {"from": "plain"})
    (_, method, path, headers, body) = world.seen[0]
    assert (method, path, body, headers["X-Request-ID"]) == ("POST", "/a%20b?status=418&q=%C3%A9", sent, "7")


def test_large_bodies_pass_and_larger_ones_are_refused(monkeypatch):
    async def story(_, client):
        body = json.dumps({"model": "smollm2", "text": "x" * 3_000_000}).encode()
        passed = await read(client.post(CHAT, data=BytesIO(body)))
        return passed, await read(client.post(CHAT, data=BytesIO(b"x" * 6_000_000)))

    monkeypatch.setattr(router, "MAX_BODY", 5 << 20)
    (passed, (status, refused)), _ = told(story)
    assert passed == (200, {"from": "plain"})
    assert status == 413
    assert "5 MB" in refused["error"]["message"]


def test_a_packed_body_is_read_and_a_packed_answer_stays_so():
    async def story(_, client):
        packed = gzip.compress(json.dumps({"model": "smollm2"}).encode())
        async with client.post("/packed", data=packed, headers={"Content-Encoding": "gzip"}) as answer:
            return await answer.json(), answer.headers["X-Kept"]

    answer, world = told(story)
    assert answer == ({"from": "packed"}, "é")
    assert world.seen[0][4] == b'{"model": "smollm2"}'


def test_a_stream_comes_piece_by_piece():
    async def story(world, client):
        async with client.post("/stream", json={"model": "planner"}) as answer:
            first = await answer.content.readline()
            world.gate.set()
            return answer.headers["Content-Type"], first, await answer.content.read()

    assert told(story)[0] == ("text/event-stream", b"data: one\n", b"\ndata: [DONE]\n\n")


def test_a_stream_that_breaks_breaks_for_the_caller_too():
    async def story(_, client):
        async with client.post("/broken", json={}) as answer:
            return await answer.read()

    with pytest.raises(aiohttp.ClientError):
        told(story)


def test_a_caller_who_leaves_ends_the_work_for_it():
    async def story(world, client):
        with pytest.raises(TimeoutError):
            await read(client.post("/slow", json={}, timeout=aiohttp.ClientTimeout(total=0.2)))
        async with asyncio.timeout(30):
            await world.left.wait()
        return True

    assert told(story)[0]


@pytest.mark.parametrize("name", ["qwen", 3, ["executor"], {"a": 1}])
def test_an_unknown_model_is_told_as_openai_does_with_the_names_that_there_are(name):
    async def story(_, client):
        return await read(client.post(CHAT, json={"model": name}))

    (status, body), world = told(story)
    assert status == 404
    assert body["error"]["code"] == "model_not_found"
    assert body["error"]["type"] == "invalid_request_error"
    assert "executor, planner, smollm2" in body["error"]["message"]
    assert world.seen == []


@pytest.mark.parametrize("body", [b"{nope", b"\xff\xfe", b"[" * 100_000], ids=["cut", "no text", "deep"])
def test_what_is_no_json_is_the_callers_error(body):
    async def story(_, client):
        return await read(client.post(CHAT, data=body))

    (status, answer), world = told(story)
    assert status == 400
    assert "JSON" in answer["error"]["message"]
    assert world.seen == []


def test_a_model_that_is_dead_or_cannot_be_started_is_an_error_and_the_others_work_on():
    async def story(_, client):
        return [await read(client.post(CHAT, json={"model": name})) for name in ("dead", "unloadable", "smollm2")]

    ((dead, why), (unloadable, reason), well), _ = told(story)
    assert (dead, unloadable) == (502, 500)
    assert "dead does not answer" in why["error"]["message"]
    assert reason["error"]["message"] == "It is damaged. Fetch it."
    assert well == (200, {"from": "plain"})


def test_every_name_is_listed_as_llama_cpp_lists_its_one_with_the_weights_behind_it():
    async def story(world, client):
        listed = [await read(client.get(path)) for path in ("/v1/models", "/models")]
        return listed, [upstream.running for upstream in world.upstreams.values()]

    (listed, running), _ = told(story, token=SecretStr("sesame"))
    assert listed[0] == listed[1]
    assert [entry["id"] for entry in listed[0][1]["data"]] == ["executor", "planner", "smollm2", "dead", "unloadable"]
    entry = listed[0][1]["data"][2]
    assert (entry["owned_by"], entry["root"], entry["meta"]) == ("llamacpp", "plain.gguf", {"n_ctx": 2048})
    assert running == [True, True, False, False, False]


def test_health_is_that_of_every_model_that_runs():
    async def story(world, client):
        async def status():
            return (await read(client.get("/health")))[0]

        found = [await status()]
        world.healthy = False
        found.append(await status())
        world.healthy = True
        await read(client.post(CHAT, json={"model": "dead"}))
        return [*found, await status()]

    assert told(story)[0] == [200, 503, 503]


def test_the_token_is_asked_for_and_handed_on():
    async def story(_, client):
        bearers = [{}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer sésame"}]
        return [await read(client.post(CHAT, json={}, headers=headers)) for headers in bearers]

    ((none, why), (other, _), right), world = told(story, token=SecretStr("sésame"))
    assert (none, other) == (401, 401)
    assert why["error"]["type"] == "authentication_error"
    assert right == (200, {"from": "merged"})
    assert [seen[3]["Authorization"] for seen in world.seen] == ["Bearer sésame"]
