"""Offline search over HTTP, in process and as the program a user starts."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import pytest

from local_search.__main__ import main
from local_search.build import build, prepare
from local_search.index import Index
from local_search.service import create_app
from mia.errors import StorageError
from mia.runtime.settings import SearchServiceSettings, load

LINES = [
    {"id": "a", "contents": '"Aba"\nAba is a city in Nigeria.'},
    {"id": 2, "contents": '"Lagos"\nLagos is a city.', "kind": "city", "nested": {"x": [1.5, None]}},
    {"contents": '"巴黎"\n巴黎是法国的首都。', "title": "巴黎", "text": "巴黎是法国的首都。"},
]
ABA = {**LINES[0], "title": "Aba", "text": "Aba is a city in Nigeria."}


def written(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def settings(tmp_path):
    corpus = written(tmp_path / "corpus.jsonl", LINES)
    return load(SearchServiceSettings, corpus=corpus, index=tmp_path / "index", port=0)


@asynccontextmanager
async def client_of(app):
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client,
    ):
        yield client


def retrieve(settings, *bodies):
    build(settings)

    async def go():
        async with client_of(create_app(settings)) as client:
            return [
                await client.post("/retrieve", content=body, headers={"Content-Type": "application/json"})
                if isinstance(body, str)
                else await client.post("/retrieve", json=body)
                for body in bodies
            ]

    return asyncio.run(go())


def test_shapes_with_and_without_scores(settings):
    scored, plain = retrieve(
        settings,
        {"queries": ["Aba", "quantum"], "topk": 1, "return_scores": True},
        {"queries": ["Aba", "quantum"], "topk": 1, "return_scores": False},
    )
    ((hit,), nothing) = scored.json()["result"]
    assert hit["document"] == ABA
    assert hit["score"] > 0
    assert set(hit) == {"document", "score"}
    assert nothing == []
    assert plain.json() == {"result": [[ABA], []]}


def test_scores_are_left_out_unless_asked_for(settings):
    (response,) = retrieve(settings, {"queries": ["Aba"]})
    assert response.json() == {"result": [[ABA]]}


def test_other_keys_pass_through_and_missing_ids_stay_missing(settings):
    (response,) = retrieve(settings, {"queries": ["Lagos", "法国首都"]})
    (lagos, *_), (paris,) = response.json()["result"]
    assert lagos == {**LINES[1], "title": "Lagos", "text": "Lagos is a city."}
    assert paris == LINES[2]
    assert "首都" in response.text


def test_topk_is_three_unless_given_and_fifty_at_most(tmp_path):
    corpus = written(tmp_path / "c.jsonl", [{"id": number, "contents": "same words"} for number in range(60)])
    settings = load(SearchServiceSettings, corpus=corpus, index=tmp_path / "i")
    counts = [
        len(response.json()["result"][0])
        for response in retrieve(
            settings,
            *({"queries": ["words"], "topk": topk} for topk in (None, 0, 1, 50, 10**30)),
            {"queries": ["words"]},
        )
    ]
    assert counts == [3, 3, 1, 50, 50, 3]


def test_no_query_breaks_the_service(settings):
    odd = ["", " \t", "the", "\0", "x" * 1_000_000, "a\u202eb"]
    responses = retrieve(
        settings,
        {"queries": odd},
        {"queries": []},
        '{"queries": ["\\ud800 Aba", "\\udfff"]}',
    )
    assert [response.status_code for response in responses] == [200, 200, 200]
    assert responses[0].json()["result"] == [[]] * len(odd)
    assert responses[1].json() == {"result": []}
    assert responses[2].json()["result"] == [[ABA], []]


@pytest.mark.parametrize(
    "body", [{}, {"queries": "Aba"}, {"queries": [1]}, {"queries": ["a"] * 513}, {"queries": [], "topk": -1}]
)
def test_a_request_that_is_not_valid_is_refused(settings, body):
    (response,) = retrieve(settings, body)
    assert response.status_code == 422


def test_a_corpus_line_with_a_number_that_json_cannot_carry_breaks_no_query(tmp_path):
    corpus = tmp_path / "c.jsonl"
    odd = "".join(f'{{"contents": "Aba", "score": {number}}}\n' for number in ("NaN", "Infinity", "1e999"))
    corpus.write_text(odd + json.dumps(LINES[0]) + "\n")
    settings = load(SearchServiceSettings, corpus=corpus, index=tmp_path / "i")
    (response,) = retrieve(settings, {"queries": ["Aba"], "return_scores": False})
    assert response.status_code == 200
    assert response.json() == {"result": [[ABA]]}


def test_an_open_index_is_served_and_not_opened_again(settings, monkeypatch):
    index = prepare(settings)
    monkeypatch.setattr(Index, "open", None)

    async def go():
        async with client_of(create_app(settings, index)) as client:
            return (await client.post("/retrieve", json={"queries": ["Aba"]})).json()

    assert asyncio.run(go()) == {"result": [[ABA]]}


def test_many_requests_at_once(settings):
    build(settings)

    async def go():
        async with client_of(create_app(settings)) as client:
            return await asyncio.gather(
                *(client.post("/retrieve", json={"queries": ["Aba"] * 8, "topk": 1}) for _ in range(40))
            )

    assert all(response.json() == {"result": [[ABA]] * 8} for response in asyncio.run(go()))


def test_a_stale_index_is_not_served(settings):
    build(settings)
    written(settings.corpus, LINES[:1])

    async def go():
        async with client_of(create_app(settings)):
            pass

    with pytest.raises(StorageError, match="not the one"):
        asyncio.run(go())


def test_a_corpus_changed_under_the_service_makes_it_unready(settings):
    build(settings)

    async def go():
        async with client_of(create_app(settings)) as client:
            before = await client.get("/readyz")
            settings.corpus.write_text("")
            return before, await client.get("/readyz"), await client.post("/retrieve", json={"queries": ["Aba"]})

    before, after, answer = asyncio.run(go())
    assert before.json()["dependencies"] == {"index": "ok"}
    assert after.status_code == answer.status_code == 503
    assert "Restart" in answer.json()["error"]["remedy"]


async def started(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "local_search", *arguments, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "200"}
    )
    lines = []
    async for line in process.stderr:
        lines.append(json.loads(line))
        if lines[-1]["message"] == "ready":
            return process, lines
    raise AssertionError(lines)


def test_the_program_builds_serves_and_rebuilds_when_the_corpus_changed(settings):
    arguments = ["--corpus", str(settings.corpus), "--index", str(settings.index), "--port", "0"]

    async def ask(query):
        process, lines = await started(*arguments)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{lines[-1]['port']}") as client:
            found = (await client.post("/retrieve", json={"queries": [query], "topk": 1})).json()["result"][0]
        process.terminate()
        await process.communicate()
        return found, any("indexed" in line["message"] for line in lines)

    async def go():
        async with asyncio.timeout(60):
            first = await ask("Aba")
            second = await ask("Aba")
            written(settings.corpus, [*LINES, {"id": "k", "contents": "Kano"}])
            return first, second, await ask("Kano")

    first, second, third = asyncio.run(go())
    assert first == ([ABA], True)
    assert second == ([ABA], False)
    assert third[0][0]["id"] == "k"
    assert third[1]


@pytest.mark.parametrize(("command", "code", "words"), [("build", 2, "no corpus"), ("serve", 2, "no corpus")])
def test_the_program_ends_with_one_clear_message(tmp_path, command, code, words):
    ended = subprocess.run(
        [sys.executable, "-m", "local_search", command, "--corpus", str(tmp_path / "none"), "--index", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "curl" in shown
    assert "CORPUS_PATH" in shown
