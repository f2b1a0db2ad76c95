"""What the services' own documents promise, held against them: made-up requests, and good ones with a part spoilt."""

import asyncio
import json
import math
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from served import served

from local_search.build import build
from local_search.service import create_app as create_search_app
from mia.memory.storage import Storage
from mia.runtime.settings import AgentServiceSettings, MemoryServiceSettings, SearchServiceSettings, load
from mia.services.agent import create_app as create_agent_app
from mia.services.memory import create_app as create_memory_app

EXAMPLES = 16  # for each route: half of them fit the document
MEGABYTES = 1.0
GOLDEN = Path(__file__).parent / "golden"
CALL = '<tool_call>{"name": "search", "arguments": {"query_list": ["Aba"]}}</tool_call>'
PASSAGE = {"id": "d1", "contents": '"Aba"\nAba is a city in Nigeria.'}

load_all_checks()
# Not held to: that all is refused which a document does not describe, for the released contract passes over other
# fields, and that all is taken which it does describe, for no document can say which ids there are.
CHECKED = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
]


def respond(request):
    """Play model and search."""
    if request.url.path == "/models":
        return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "x", "max_model_len": 32768}]})
    if request.url.path == "/retrieve":
        return httpx.Response(200, json={"result": [[PASSAGE]]})
    if request.url.path != "/chat/completions":
        return httpx.Response(404)
    first, *_, last = (str(message["content"]) for message in json.loads(request.content)["messages"])
    if first.startswith(("You are the planner", "You choose", "You write")):
        text = "1. Look."
    else:
        text = "<answer>a</answer>" if "<tool_response>" in last else CALL
    message = {"role": "assistant", "content": text}
    return httpx.Response(200, json={"choices": [{"message": message, "finish_reason": "stop"}]})


class Service:
    """A service in process, and its bank, if it has one."""

    def __init__(self, app, run, bank):
        self.app = app
        self._run = run
        self._bank = bank
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")

    def send(self, **request):
        return self._run(self.client.request(**request))

    def post(self, route, text):
        headers = {"Content-Type": "application/json"}
        return self.send(method="POST", url=route, content=text, headers=headers)

    def changes(self):
        return self._bank.sequence() if self._bank else 0


def app_of(name, folder, url):
    limit = {"max_request_mb": MEGABYTES}
    if name == "search":
        corpus = folder / "corpus.jsonl"
        corpus.write_text(json.dumps(PASSAGE), encoding="utf-8")
        chosen = load(SearchServiceSettings, corpus=corpus, index=folder / "index", **limit)
        build(chosen)
        return create_search_app(chosen)
    limit |= {"model": url, "search_url": url, "encoder": "hashed", "recall_floor": -1.0}
    limit |= {"home": folder, "memory_path": folder / "memory.sqlite"}
    if name == "memory":
        return create_memory_app(load(MemoryServiceSettings, memory_folder=folder / "files", **limit))
    return create_agent_app(load(AgentServiceSettings, mode=name, output=folder / "ttrl", **limit))


@contextmanager
def serving(name, folder):
    with served(respond) as url, asyncio.Runner() as runner, ExitStack() as stack:
        app = app_of(name, folder, url)
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        stack.callback(lambda: runner.run(lifespan.__aexit__(None, None, None)))
        path = folder / "memory.sqlite"
        service = Service(app, runner.run, stack.enter_context(closing(Storage(path))) if path.exists() else None)
        stack.callback(lambda: runner.run(service.client.aclose()))
        yield service


@pytest.mark.parametrize("name", ["search", "memory", "train", "streaming"])
def test_a_service_answers_made_up_requests_as_its_document_says(name, tmp_path):
    with serving(name, tmp_path) as service:
        document = schemathesis.openapi.from_dict(service.app.openapi())
        for operation in (found.ok() for found in document.get_all_operations()):
            cases, examples = operation.as_strategy(), 1
            if operation.body:
                cases, examples = cases | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), EXAMPLES
            hold(service, cases, examples)


def hold(service, cases, examples):
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def ask(case):
        request = case.as_transport_kwargs(base_url="http://test")
        del request["cookies"]
        request["content"] = request.pop("data", None)
        case.validate_response(service.send(**request), checks=CHECKED)

    ask()


SAID = {"raw": "1. Look.", "text": "1. Look."}
VERDICT = {"label": "correct", "judge": "test"}
ATTEMPT = {"plan": {"said": SAID}, "trajectory": {"steps": [], "answer": "a", "stop": "answered"}, "verdict": VERDICT}
ASKED = {"question": {"id": "q", "text": "Where is Aba?"}, "key": {"run": "r", "step": 1, "question_id": "q"}}
TALK = {"messages": [{"role": "user", "text": "u"}, {"role": "assistant", "text": "a"}]}
REMEMBERING = {
    "/v1/memory/recall": {"question": ASKED["question"]},
    "/v1/memory/remember": {"episode": {**ASKED, "attempts": [ATTEMPT]}},
    "/v1/memory/explore": {"episode": {**ASKED, "attempts": [ATTEMPT]}},
    "/v1/memory/commit": {"run": "r", "step": 1, "rollouts": 1},
    "/v1/memory/snapshot": {"name": "now"},
    "/v1/memory/restore": {"sequence": 0},
}
PLANNING = {"/v1/plan": ASKED, "/v1/reflect": {**ASKED, **TALK, "attempt": ATTEMPT}}
PLANNING["/v1/replan"] = PLANNING["/v1/reflect"]
EXECUTING = {"/v1/execute": {**ASKED, **TALK, "plan": {"said": SAID}}}


def golden(folder, *routes):
    """Return requests by route, of all golden files or of those named."""
    paths = [GOLDEN / folder / f"{route}.json" for route in routes] or sorted((GOLDEN / folder).glob("*.json"))
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    return {f"/{stem.partition('.no_')[0].replace('.', '/')}": each.get("request") for stem, each in found.items()}


def requests(name):
    if name == "search":
        return {"/retrieve": {"queries": ["Aba"], "topk": 2, "return_scores": True}}
    if name == "memory":
        return golden("memory") | REMEMBERING | PLANNING
    if name == "train":
        return golden("agent", "plan", "replan", "streaming.register_images") | EXECUTING
    if name == "ttrl-no-truth":
        return golden("agent", "memory_bank_save.no_truth")
    learning = ("memory", "memory_bank_save", "batch_evaluate", "consolidate_memories", "save_memory")
    return golden("agent", *learning) | REMEMBERING


def changed(value, change):
    """Return a JSON value with each of its parts changed."""
    if isinstance(value, dict):
        value = {name: changed(part, change) for name, part in value.items()}
    elif isinstance(value, list):
        value = [changed(part, change) for part in value]
    return change(value)


def swap(kind, new):
    return lambda part: new if type(part) is kind else part


SPOILT = {
    "half a character": lambda part: f"{part}\ud800" if isinstance(part, str) else part,
    "NUL": lambda part: f"\0{part}" if isinstance(part, str) else part,
    "another folder": swap(str, "../../../etc/passwd"),
    "a hidden file": swap(str, "../.jsonl"),
    "no text": swap(str, ""),
    "null": swap(str, None),
    "an endless text": swap(str, "x" * 70_000),
    "not a number": swap(int, math.nan),
    "infinite": swap(int, -math.inf),
    "an id that never was": swap(int, 2**53 - 1),
    "more than any database holds": swap(int, 10**30),
    "less than none": swap(int, -1),
    "a fraction": swap(int, 0.5),
    "empty lists": swap(list, []),
    "empty objects": swap(dict, {}),
    "lists of lists": lambda part: [part] if isinstance(part, list) else part,
}
WRONG = ([], {}, [{}], {"a": [None]}, 7, "x", None, True)
UNREADABLE = {
    "nothing": b"",
    "half": b'{"a": ',
    "no text": b"\xff\xfe\x00",
    "no JSON": b"NaNa",
    "too deep": b"[" * 100_000,
    "too many digits": b"9" * 5000,
    "too large": b'"' + b"x" * int(MEGABYTES * 2**20) + b'"',
}
OPTIONAL = {"/clear_memory", "/batch_evaluate", "/consolidate_memories", "/save_memory"}  # of some services


@pytest.mark.parametrize("name", ["search", "memory", "train", "streaming", "ttrl-no-truth"])
def test_what_is_spoilt_is_refused_or_mended_and_never_half_done(name, tmp_path):
    with serving(name, tmp_path) as service:
        for route, good in requests(name).items():
            for what, change in SPOILT.items():
                told(service, route, what, json.dumps(changed(good, change)))
            inner = good[0] if isinstance(good, list) and good else good
            for field in inner if isinstance(inner, dict) else ():
                for wrong in WRONG:
                    body = inner | {field: wrong}
                    told(service, route, (field, wrong), json.dumps([body] if isinstance(good, list) else body))


@pytest.mark.parametrize("name", ["search", "memory", "train", "streaming", "ttrl-no-truth"])
def test_what_no_reader_takes_is_refused_by_every_route(name, tmp_path):
    with serving(name, tmp_path) as service:
        for route in requests(name):
            for what, content in UNREADABLE.items():
                status = told(service, route, what, content)
                assert status >= 400 or route in OPTIONAL, (route, what)
                assert (status == 413) is (what == "too large"), (route, what)


def told(service, route, what, content):
    """Return the status of an answer that is as it must be; what was refused changed nothing."""
    before = service.changes()
    answer = service.post(route, content)
    place = (route, what, answer.text[:500])
    assert answer.status_code < 500, place
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"], place
        assert service.changes() == before, place
    return answer.status_code
