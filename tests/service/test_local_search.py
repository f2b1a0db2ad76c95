"""Offline search over HTTP, in process and as the program a user starts."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import Request, urlopen

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
    "body", [{}, {"queries": "Aba"}, {"queries": [1]}, {"queries": ["a"] * 4097}, {"queries": [], "topk": -1}]
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


def post(url, body, **headers):
    """Send JSON as the clients below do: no library of ours, no hints about the service."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})  # noqa: S310 - of the test's own server
    with urlopen(request, timeout=30) as response:  # noqa: S310
        return response.read().decode()


def search_r1(url):
    """Ask as Search-R1's trainer does: all questions of a batch, and the text of each made for the prompt."""
    body = {"queries": ["Aba", "Lagos"], "topk": 3, "return_scores": True}
    told = []
    for hits in json.loads(post(url, body))["result"]:
        reference = ""
        for place, hit in enumerate(hits):
            title, *text = hit["document"]["contents"].split("\n")
            reference += f"Doc {place + 1}(Title: {title}) {chr(10).join(text)}\n"
        told.append(reference)
    return told


def search_tool_of_verl(url):
    """Ask as verl's search tool does: one rollout's list of queries, and results counted by list."""
    body = {"queries": ["Aba"], "topk": 3, "return_scores": True}
    raw = json.loads(post(url, body, Accept="application/json")).get("result", [])
    pretty = [
        "".join(
            f"Doc {place + 1} (Title: {hit['document']['contents'].split(chr(10))[0]})"
            for place, hit in enumerate(hits)
        )
        for hits in raw
    ]
    return {"result": pretty, "total_results": sum(len(hits) for hits in raw)}


def local_tool_of_the_release(url):
    """Ask as the released agent's local tool does: topk null, and titles stripped of their quotes."""
    result = json.loads(post(url, {"queries": ["Aba"], "topk": None, "return_scores": True}))["result"]
    return [
        f"Doc {place + 1}(Title: {hit['document']['contents'].split(chr(10))[0].strip(chr(34))})"
        for place, hit in enumerate(result[0])
    ]


def plain_documents(url):
    """Ask without scores, which the released service failed at."""
    return [
        document["id"]
        for document in json.loads(post(url, {"queries": ["Aba"], "topk": 1, "return_scores": False}))["result"][0]
    ]


def test_clients_in_use_work_over_a_port_however_they_write_the_address(settings):
    async def go():
        process, lines = await started("--corpus", str(settings.corpus), "--index", str(settings.index), "--port", "0")
        base = f"http://127.0.0.1:{lines[-1]['port']}"
        clients = (search_r1, search_tool_of_verl, local_tool_of_the_release, plain_documents)
        try:
            for path in ("/retrieve", "/retrieve/", "//retrieve"):
                told = [await asyncio.to_thread(client, base + path) for client in clients]
                assert told == [
                    ['Doc 1(Title: "Aba") Aba is a city in Nigeria.\n', 'Doc 1(Title: "Lagos") Lagos is a city.\n'],
                    {"result": ['Doc 1 (Title: "Aba")'], "total_results": 1},
                    ["Doc 1(Title: Aba)"],
                    ["a"],
                ]
            return await asyncio.to_thread(post, base + "/retrieve", {"queries": ["巴黎"], "return_scores": True})
        finally:
            process.terminate()
            await process.communicate()

    async def within():
        async with asyncio.timeout(60):
            return await go()

    raw = asyncio.run(within())
    head, tail = '{"result":[[{"document":', "}]]}"
    contents = r'{"contents":"\"巴黎\"\n巴黎是法国的首都。","title":"巴黎","text":"巴黎是法国的首都。"},"score":'
    assert raw.startswith(head + contents)
    assert float(raw.removeprefix(head + contents).removesuffix(tail)) > 0


def test_the_same_query_again_is_known_and_counted(settings):
    build(settings)

    async def go():
        async with client_of(create_app(settings)) as client:
            answers = [
                (await client.post("/retrieve", json={"queries": ["Aba"], "topk": topk})).json() for topk in (1, 1, 2)
            ]
            return answers, (await client.get("/metrics")).text

    (first, again, more), metrics = asyncio.run(go())
    assert first == again == more == {"result": [[ABA]]}
    assert 'mia_search_answers_total{known="yes"} 1.0' in metrics
    assert 'mia_search_answers_total{known="no"} 2.0' in metrics


def test_a_known_answer_of_a_corpus_that_changed_is_not_given(settings):
    build(settings)

    async def go():
        async with client_of(create_app(settings)) as client:
            await client.post("/retrieve", json={"queries": ["Aba"]})
            settings.corpus.write_text("")
            return await client.post("/retrieve", json={"queries": ["Aba"]})

    assert asyncio.run(go()).status_code == 503


def test_a_request_that_takes_too_long_ends_at_its_deadline(settings, monkeypatch):
    build(settings)
    answered = threading.Event()
    monkeypatch.setattr(Index, "find", lambda self, query, limit: answered.wait(10) and [])
    settings = settings.model_copy(update={"seconds": 0.05, "threads": 1})

    async def go():
        async with client_of(create_app(settings)) as client:
            response = await client.post("/retrieve", json={"queries": ["Aba"] * 40})
            answered.set()
            return response

    response = asyncio.run(go())
    assert response.status_code == 503
    assert "MIA_SEARCH_SECONDS" in response.json()["error"]["remedy"]


def test_the_check_finds_what_is_not_as_it_was_built(settings, capsys):
    options = ["--corpus", str(settings.corpus), "--index", str(settings.index)]
    assert main(["check", *options]) == 4
    assert main(["build", *options]) == 0
    assert main(["check", *options]) == 0
    before = settings.corpus.stat()
    settings.corpus.write_bytes(settings.corpus.read_bytes().replace(b"Lagos", b"Kanos"))
    os.utime(settings.corpus, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert main(["check", *options]) == 4
    assert "not the one that was indexed" in capsys.readouterr().err


def test_the_launch_script_rehearses_its_command(tmp_path):
    script = Path(__file__).parents[2] / "local_search" / "run.sh"
    environment = {**os.environ, "DRY_RUN": "1", "VENV": str(tmp_path / "none"), "CORPUS_PATH": "my.jsonl.gz"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True)
    assert "-m local_search serve --corpus my.jsonl.gz" in done.stdout


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
