"""An Executor never asks a model server for more than its window holds."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Heard, call, say

from mia.clients.chat import ChatModels, Endpoint
from mia.errors import ModelUnavailable
from mia.executor.react import Budget, ReactExecutor
from mia.text import ByteCounter
from mia.types import ImageRef, Key, Observation, Plan, Question, StopReason, ToolSpec

IMAGE = ImageRef(sha256="0" * 64, mime="image/png", width=448, height=448)
REPLIES = ["<answer>Ada</answer>", "I look on. " * 20, "<tool_call>{</tool_call>", "", *map(call, "abcd")]


class Server:
    """A model server that counts as the product does at most, and refuses with 400 what its window does not hold."""

    url = "http://model"

    def __init__(self, window, replies):
        self.window, self.replies, self.asked = window, replies, []

    async def post(self, path, body, *, deadline):
        texts = [entry["content"] for entry in body["messages"]]
        used = sum(self._tokens(text) + 8 for text in texts)
        self.asked.append(texts[-1])
        if used + body["max_tokens"] > self.window:
            raise ModelUnavailable("this model's maximum context length is exceeded", service="model", status=400)
        reply = self.replies[(len(self.asked) - 1) % len(self.replies)]
        reply = ByteCounter().cut(reply, body["max_tokens"])
        usage = {"prompt_tokens": used, "completion_tokens": ByteCounter().count(reply)}
        return {"choices": [{"message": {"content": reply}, "finish_reason": "stop"}], "usage": usage}

    def _tokens(self, content):
        if isinstance(content, str):
            return ByteCounter().count(content)
        return sum(
            ByteCounter().count(part["text"]) if part["type"] == "text" else 448 * 448 // 784 for part in content
        )


class Results:
    def __init__(self, text, images):
        self.spec = ToolSpec(name="search", description="Searches.", parameters={"type": "object"})
        self.seen = Observation(text=text, images=images)

    async def call(self, arguments, deadline):
        return self.seen


def carry_out(server, tool, question="Who?", **budget):
    endpoint = Endpoint(server, model="m", window=server.window, vision=True)
    models = ChatModels({"executor": endpoint}, lambda image: "data:")
    executor = ReactExecutor(models, [tool], Budget(**budget), ByteCounter(), Heard())
    execution = executor.start(Question(id="q", text=question), Key(run="r", question_id="q"))
    return asyncio.run(execution.carry_out(Plan(said=say("1. Look."))))


@given(
    window=st.integers(300, 6000),
    turn_tokens=st.integers(16, 600),
    observation_tokens=st.integers(16, 800),
    replies=st.lists(st.sampled_from(REPLIES), min_size=1, max_size=6),
    result=st.tuples(st.text(min_size=1, max_size=20), st.integers(1, 300), st.integers(0, 3)),
)
@settings(max_examples=150, deadline=None)
def test_no_request_is_too_long_for_the_window(window, turn_tokens, observation_tokens, replies, result):
    text, times, images = result
    server = Server(window, replies)
    tool = Results(text * times, (IMAGE,) * images)
    trajectory = carry_out(server, tool, turn_tokens=turn_tokens, observation_tokens=observation_tokens)
    assert trajectory.stop is not StopReason.INFRA_ERROR
    assert trajectory.failure is None


@pytest.mark.parametrize("turn_tokens", [32, 64, 400])
@pytest.mark.parametrize("window", range(1200, 4000, 400))
def test_a_full_window_still_has_room_for_the_forced_answer(window, turn_tokens):
    server = Server(window, [call("a")])
    trajectory = carry_out(
        server, Results("fact " * 900, ()), calls=500, turn_tokens=turn_tokens, observation_tokens=200, mistakes=500
    )
    assert trajectory.stop is StopReason.TOKEN_LIMIT
    assert "No more tool calls" in server.asked[-1]


def test_a_result_whose_images_do_not_fit_loses_both_and_says_so():
    server = Server(2000, [call("a"), "<answer>Ada</answer>"])
    trajectory = carry_out(server, Results("a red flag", (IMAGE,) * 3), turn_tokens=200, observation_tokens=200)
    seen = trajectory.steps[0].observation
    assert (seen.images, seen.text) == ((), "[cut: the result and its 3 image(s) do not fit]")
    trajectory = carry_out(Server(9000, [call("a"), "<answer>Ada</answer>"]), Results("a red flag", (IMAGE,) * 3))
    assert trajectory.steps[0].observation.images == (IMAGE,) * 3
