import asyncio
import json
import threading

import httpx
import pytest
from served import served

from mia.clients.remote import ExecutorClient, MemoryClient, PlannerClient
from mia.errors import (
    ConfigError,
    ExecutorUnavailable,
    InputError,
    JudgeUnavailable,
    MemoryUnavailable,
    ModelUnavailable,
    OutOfRoom,
    SearchUnavailable,
    StorageError,
    UpstreamError,
)
from mia.runtime import problems
from mia.runtime.http import Service
from mia.types import Attempt, Key, Message, Plan, Question, Recall, Said, StopReason, Trajectory

QUESTION = Question(id="q", text="Which?")
KEY = Key(run="r", question_id="q")
PLAN = Plan(said=Said(raw="1. Look.", text="1. Look."))
DONE = Trajectory(steps=(), answer="a", stop=StopReason.ANSWERED)
FACTS = {"service": "behind", "status": 418, "remedy": "Mend it."}


def ask(url, use, error=MemoryUnavailable):
    async def go():
        service = Service("there", url, error=error, attempts=1)
        try:
            return await use(service)
        finally:
            await service.aclose()

    return asyncio.run(go())


def recall(service):
    return MemoryClient(service, 5.0).recall(QUESTION)


def carry_out(service, seconds=5.0):
    return ExecutorClient(service, seconds).start(QUESTION, KEY).carry_out(PLAN)


def answering(status, content):
    return lambda _request: httpx.Response(status, json=content)


@pytest.mark.parametrize(
    "error",
    [
        InputError("Bad.", remedy="Do better."),
        ConfigError("Unset."),
        OutOfRoom("Too long."),
        StorageError("Full.", remedy="Free some space."),
        *(
            kind("Down.", retryable=retryable, **FACTS)
            for kind in (UpstreamError, ModelUnavailable, MemoryUnavailable)
            for retryable in (True, False)
        ),
        *(kind("Down.", **FACTS) for kind in (ExecutorUnavailable, SearchUnavailable, JudgeUnavailable)),
    ],
    ids=str,
)
def test_an_error_of_the_other_side_is_raised_as_what_it_was_there(error):
    told = problems._answer_mia_error(None, error)
    with (
        served(lambda _request: httpx.Response(told.status_code, content=told.body)) as url,
        pytest.raises(type(error)) as raised,
    ):
        ask(url, recall)
    assert type(raised.value) is type(error)
    assert vars(raised.value) == vars(error)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (404, {"error": {"type": "NotFound", "message": "Not Found", "remedy": ""}}),
        (422, {"error": {"type": "InvalidRequest", "message": "No.", "remedy": ""}}),
        (400, {"error": {"type": "SystemExit", "message": "No.", "remedy": ""}}),
        (400, {"error": "No."}),
        (500, ["no"]),
    ],
)
def test_a_refusal_that_tells_of_no_error_of_ours_is_one_of_the_service(status, content):
    with served(answering(status, content)) as url, pytest.raises(MemoryUnavailable) as raised:
        ask(url, recall)
    assert (raised.value.service, raised.value.status) == ("there", status)


@pytest.mark.parametrize("content", [{"successes": "x"}, {"plan": 1}, {"sequence": 1, "more": 2}])
def test_an_answer_that_is_none_is_an_error_and_no_recall(content):
    with served(answering(200, content)) as url, pytest.raises(UpstreamError, match="is no Recall") as raised:
        ask(url, recall)
    assert (raised.value.service, raised.value.retryable) == ("there", False)


def test_an_executor_that_cannot_be_reached_ends_the_trajectory():
    with served(answering(200, {})) as url:
        pass
    done = ask(url, carry_out, ExecutorUnavailable)
    assert (done.stop, done.steps, done.answer) == (StopReason.INFRA_ERROR, (), None)
    assert (done.failure.service, done.failure.retryable) == ("there", True)


def test_an_executor_that_does_not_answer_in_time_ends_the_trajectory():
    over = threading.Event()

    def respond(_request):
        over.wait(10)
        raise ConnectionError

    async def use(service):
        try:
            return await carry_out(service, 0.2)
        finally:
            over.set()

    with served(respond) as url:
        done = ask(url, use, ExecutorUnavailable)
    assert done.stop is StopReason.INFRA_ERROR
    assert "did not answer within 0.2 s" in done.failure.message


def test_a_dialogue_is_held_here_and_goes_with_every_request():
    said = [Message(role=role, text=role) for role in ("user", "assistant")] * 2
    asked = []

    def respond(request):
        asked.append((request.url.path, len(json.loads(request.content).get("messages", ()))))
        held = [message.model_dump() for message in said[: 2 * len(asked)]]
        answer = (
            {"plan": PLAN.model_dump()}
            if request.url.path == "/v1/plan"
            else {"reflection": {"said": None, "replan": False}}
        )
        return httpx.Response(200, json={"messages": held, **answer})

    async def use(service):
        planning = PlannerClient(service, 5.0).start(QUESTION, Recall(), KEY)
        plan = await planning.plan()
        await planning.reflect(Attempt(plan=plan, trajectory=DONE))
        return planning.messages

    with served(respond) as url:
        assert ask(url, use) == tuple(said)
    assert asked == [("/v1/plan", 0), ("/v1/reflect", 2)]


def test_a_dialogue_held_elsewhere_goes_on_here():
    asked = []
    history = (Message(role="user", text="u"), Message(role="assistant", text="a"))

    def respond(request):
        asked.append(json.loads(request.content)["messages"])
        return httpx.Response(200, json={"trajectory": DONE.model_dump(), "messages": asked[-1] * 2})

    async def use(service):
        execution = ExecutorClient(service, 5.0).resume(QUESTION, history, KEY)
        return await execution.carry_out(PLAN), execution.messages

    with served(respond) as url:
        assert ask(url, use) == (DONE, history * 2)
    assert asked == [[message.model_dump(mode="json") for message in history]]
