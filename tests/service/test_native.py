"""The native API: roles afar play as roles near do, over a real socket, and bad input is refused whole."""

import asyncio
import json
import socket
import threading
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
import uvicorn
from episodes import counts, episode, kept, managed, remember
from scripted import Heard, ScriptedModels, ScriptedTool, call

from mia.agent import Agent
from mia.clients.remote import ExecutorClient, MemoryClient, PlannerClient
from mia.errors import ExecutorUnavailable, MemoryUnavailable, ModelUnavailable, SearchUnavailable, StorageError
from mia.executor.react import Budget, ReactExecutor
from mia.judge.truth import TruthJudge
from mia.planner.dialogue import DialoguePlanner, PlanBudget, PlannerReflector
from mia.rewards.planner import planner_reward
from mia.runtime.app import Server, create_service
from mia.runtime.http import Service
from mia.runtime.settings import ServiceSettings, load
from mia.services.native import native_router
from mia.text import ByteCounter
from mia.types import Key, Label, Question, StopReason, Truth

QUESTION = Question(id="q", text="Which city is 巴黎?")
KEY = Key(run="r", step=3, question_id="q", rollout=2)
TIMES = {"started", "seconds", "created"}


class Roles:
    """The three roles over a script and a bank with two memories."""

    def __init__(self, path, *, planner, executor, search=str, format="mia"):
        self.models = ScriptedModels(planner=planner, executor=executor)
        self.tool = ScriptedTool(search)
        self.memory = managed(path)
        remember(self.memory, episode("Which city is Lyon?"), episode("Which city is Bonn?", Label.INCORRECT))
        self.planner = DialoguePlanner(self.models, [self.tool.spec], PlanBudget(), ByteCounter())
        self.executor = ReactExecutor(self.models, [self.tool], Budget(), ByteCounter(), Heard(), format)

    def app(self, **settings):
        router = native_router(memory=self.memory, planner=self.planner, executor=self.executor)
        return create_service("native", load(ServiceSettings, **settings), routers=[router])


@contextmanager
def listening(app):
    """Serve an app on a free port; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none"), app, 0.0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def play(memory, planner, executor, services=()):
    judge = TruthJudge({"q": Truth(answers=("Paris",))})
    agent = Agent(memory, planner, executor, PlannerReflector(), judge, planner_reward, Heard())

    async def go():
        try:
            return await agent.run(QUESTION, KEY)
        finally:
            for service in services:
                await service.aclose()

    return asyncio.run(go())


def near(roles):
    return play(roles.memory, roles.planner, roles.executor)


def far(roles):
    with listening(roles.app()) as url:
        memory, planner, executor = (
            Service(name, url, error=error, attempts=1)
            for name, error in (
                ("memory", MemoryUnavailable),
                ("planner", ModelUnavailable),
                ("executor", ExecutorUnavailable),
            )
        )
        return play(MemoryClient(memory), PlannerClient(planner), ExecutorClient(executor), (memory, planner, executor))


def both(tmp_path, change=None, **script):
    """Play the same script with roles near and with roles afar; return the roles and the episodes of each."""
    with ExitStack() as stack:
        played = []
        for place, run in (("near", near), ("far", far)):
            copies = {name: list(value) if isinstance(value, list) else value for name, value in script.items()}
            roles = Roles(tmp_path / f"{place}.sqlite", **copies)
            stack.enter_context(closing(roles.memory))
            if change:
                change(roles)
            played.append((roles, run(roles), kept(roles.memory), counts(roles.memory)))
        return played


def timeless(value):
    if isinstance(value, dict):
        return {name: None if name in TIMES else timeless(part) for name, part in value.items()}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def dumped(episode):
    return timeless(episode.model_dump(mode="json"))


@pytest.mark.parametrize("format", ["mia", "release-train", "release-inference"])
def test_an_agent_with_all_roles_afar_plays_the_same_episode(tmp_path, format):
    (one, at_home, *left), (other, abroad, *left_afar) = both(
        tmp_path,
        planner=["<think>hm</think>", "1. Look.", "yes", "<think>so</think>1. Look again."],
        executor=[
            call("巴黎"),
            "I think.",
            "<answer>Lyon</answer>",
            call("b"),
            "<think>!</think><answer>Paris</answer>",
        ],
        format=format,
    )
    assert dumped(abroad) == dumped(at_home)
    assert abroad.answer == "Paris"
    assert abroad.recall.ids == (1, 2)
    assert abroad.attempts[0].plan.drafts
    assert abroad.attempts[1].plan.revises == "1. Look."
    assert other.models.asked == one.models.asked
    assert [want.seed for want in other.models.wants] == [want.seed for want in one.models.wants]
    assert left == left_afar
    assert len(left[0]) == 3


DOWN = {
    "planner": {"planner": [ModelUnavailable("Down.", service="model", status=500, remedy="Start it.")]},
    "planner, for good": {"planner": [ModelUnavailable("No.", service="model", status=404, retryable=False)]},
    "reflection": {"planner": ["1. Look.", ModelUnavailable("Down.", service="model")]},
    "executor": {"executor": [call("a"), ModelUnavailable("Down.", service="model", status=503)]},
}


def failing(error):
    def fail(_arguments):
        raise error

    return fail


@pytest.mark.parametrize("script", DOWN.values(), ids=DOWN)
def test_a_model_that_is_down_afar_fails_the_episode_as_one_near_does(tmp_path, script):
    played = both(tmp_path, **{"planner": ["1. Look."], "executor": ["<answer>Lyon</answer>"], **script})
    (_, at_home, *_), (_, abroad, *_) = played
    assert abroad.failure.service == "model"
    assert dumped(abroad) == dumped(at_home)


def test_a_search_that_is_down_afar_ends_the_trajectory_with_what_was_done(tmp_path):
    down = failing(SearchUnavailable("Down.", service="search", remedy="Start it."))
    (_, at_home, *_), (_, abroad, *_) = both(tmp_path, planner=["1. Look."], executor=[call("a")], search=down)
    (attempt,) = abroad.attempts
    assert attempt.trajectory.stop is StopReason.INFRA_ERROR
    assert len(attempt.trajectory.steps) == 1
    assert dumped(abroad) == dumped(at_home)


def test_storage_that_fails_afar_fails_the_episode_as_storage_near_does(tmp_path):
    def full(roles):
        async def remember(episode):
            raise StorageError("Full.", remedy="Free some space.")

        roles.memory.remember = remember

    played = both(tmp_path, full, planner=["1. Look.", "no"], executor=["<answer>Paris</answer>"])
    (_, at_home, *_), (_, abroad, *_) = played
    assert (abroad.failure.service, abroad.answer) == ("storage", "Paris")
    assert dumped(abroad) == dumped(at_home)


def test_rollouts_are_committed_once_and_a_state_is_brought_back(tmp_path):
    async def go(url):
        service = Service("memory", url, error=MemoryUnavailable, attempts=1)
        memory = MemoryClient(service)
        try:
            rollouts = [episode("cc"), episode("cc", Label.INCORRECT, number=1), episode("dd")]
            for each in (*rollouts, rollouts[0]):
                await memory.explore(each)
            before = await memory.snapshot("before step 0")
            done = [await memory.commit("run", 0, 2) for _ in range(2)]
            again = await memory.snapshot("before step 0")
            shown = await memory.recall(Question(id="x", text="cc"))
            after = await memory.restore(before)
            left = await memory.recall(Question(id="x", text="cc"))
            return before, again, done, shown, after, left
        finally:
            await service.aclose()

    with closing(managed(tmp_path / "memory.sqlite")) as manager:
        app = create_service("native", load(ServiceSettings), routers=[native_router(memory=manager)])
        with listening(app) as url:
            before, again, done, shown, after, left = asyncio.run(go(url))
        assert before == again
        assert [tuple(each.model_dump().values()) for each in done] == [(1, 1, 1, 1), (0, 0, 0, 1)]
        assert len(shown.ids) == 2
        assert left.ids == ()
        assert after == left.sequence > shown.sequence
        assert manager.bank.storage.stats()["explorations"] == 3


def test_only_the_roles_that_are_given_are_mounted(tmp_path):
    with closing(managed(tmp_path / "memory.sqlite")) as manager:
        mounted = {route.path for route in native_router(memory=manager).routes}
    names = ["recall", "remember", "explore", "commit", "snapshot", "restore"]
    assert mounted == {f"/v1/memory/{name}" for name in names}
    assert native_router().routes == []


def body(**changes):
    return {"question": {"id": "q", "text": "Which?"}, "key": {"run": "r", "question_id": "q"}} | changes


SAID = {"raw": "a", "text": "a"}
ATTEMPT = {"plan": {"said": SAID}, "trajectory": {"steps": [], "answer": None, "stop": "no_answer"}}
USER, ASSISTANT = {"role": "user", "text": "u"}, {"role": "assistant", "text": "a"}


def after(*messages):
    return body(attempt=ATTEMPT, messages=messages)


def remembered(**changes):
    return {"episode": episode("aa").model_dump(mode="json") | changes}


BAD = {
    "malformed JSON": ("plan", '{"question": '),
    "no object": ("plan", "[]"),
    "empty body": ("plan", ""),
    "bytes that are no UTF-8": ("plan", b'{"question": "\xff"}'),
    "a field too many": ("plan", body(truth="Paris")),
    "a field too many inside": ("memory/recall", {"question": {"id": "q", "text": "a", "truth": "b"}}),
    "a field too few": ("memory/recall", {}),
    "a wrong type": ("memory/recall", {"question": {"id": "q", "text": ["a"]}}),
    "not a number": ("memory/remember", remembered(reward={"parts": {"a": [float("nan"), 1]}})),
    "infinite": ("memory/explore", remembered(cost={"seconds": {"all": float("inf")}})),
    "a number that overflows": ("memory/restore", '{"sequence": 1e999}'),
    "a whole number too large": ("memory/explore", remembered(key={"run": "r", "question_id": "q", "step": 1 << 63})),
    "half a character": ("memory/recall", '{"question": {"id": "q", "text": "a\\ud800"}}'),
    "half a character in a name": ("memory/recall", '{"question": {"id": "q", "text": "a", "\\ud800": 1}}'),
    "NUL": ("memory/recall", {"question": {"id": "q", "text": "a\0"}}),
    "nested too deep": ("memory/recall", f'{{"question": {"[" * 300}{"]" * 300}}}'),
    "nested far too deep": ("memory/recall", f'{{"question": {"[" * 100_000}{"]" * 100_000}}}'),
    "a number as a snapshot's name": ("memory/snapshot", {"name": " 12 "}),
    "no snapshot's name": ("memory/snapshot", {"name": "  "}),
    "a state that never was": ("memory/restore", {"sequence": 10_000}),
    "a state before all": ("memory/restore", {"sequence": -1}),
    "groups of none": ("memory/commit", {"run": "r", "step": 0, "rollouts": 0}),
    "a dialogue that was not begun": ("reflect", after()),
    "a dialogue that the assistant begins": ("replan", after(ASSISTANT, USER)),
    "a dialogue that waits for a reply": ("replan", after(USER, ASSISTANT, USER)),
    "a system message": ("reflect", after({"role": "system", "text": "s"}, USER, ASSISTANT)),
    "a role that is none": ("execute", body(plan={"said": SAID}, messages=[USER, {"role": "tool", "text": "t"}])),
    "a body too large": ("plan", body(question={"id": "q", "text": "a" * 2_000_000})),
}


@pytest.mark.parametrize(("path", "content"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_with_a_problem_and_changes_nothing(tmp_path, path, content):
    roles = Roles(tmp_path / "memory.sqlite", planner=["1. Look."], executor=["<answer>a</answer>"])
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    app = roles.app(max_request_mb=1.0)

    async def go():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(f"/v1/{path}", content=text, headers={"Content-Type": "application/json"})

    with closing(roles.memory):
        before = roles.memory.bank.storage.sequence()
        response = asyncio.run(go())
        assert 400 <= response.status_code < 500, response.text
        assert response.json()["error"]["message"]
        assert (roles.models.asked, roles.memory.bank.storage.sequence()) == ([], before)
