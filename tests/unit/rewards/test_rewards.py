"""The hand-checked vectors of the reward formulas: each value to the last bit."""

import pytest
from scripted import call, say

from mia.rewards.executor import executor_reward
from mia.rewards.planner import planner_reward, reviewed_reward
from mia.text import parse_turn
from mia.types import (
    Attempt,
    Episode,
    Key,
    Label,
    Observation,
    Plan,
    Question,
    Reflection,
    Reward,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    Verdict,
)

RIGHT, WRONG = Label.CORRECT, Label.INCORRECT


def attempt(label, *, replies=(call("a"), "<answer>x</answer>"), answer="x", plan="1. Look."):
    steps = []
    for raw in replies:
        observation = Observation(text="found") if "<tool_call>" in raw else None
        turn = parse_turn(say(raw).text)
        steps.append(Step(said=say(raw), call=turn if isinstance(turn, ToolCall) else None, observation=observation))
    trajectory = Trajectory(steps=tuple(steps), answer=answer, stop=StopReason.ANSWERED)
    return Attempt(plan=Plan(said=say(plan)), trajectory=trajectory, verdict=Verdict(label=label, judge="exact"))


def episode(*attempts, reflection=None):
    reflections = () if reflection is None else (Reflection(said=say(reflection), replan="yes" in reflection.lower()),)
    key = Key(run="r", question_id="q")
    return Episode(key=key, question=Question(id="q", text="?"), attempts=attempts, reflections=reflections)


@pytest.mark.parametrize(
    ("attempts", "reflection", "value"),
    [
        ([attempt(WRONG), attempt(RIGHT)], "yes", 0.80),
        ([attempt(RIGHT)], "no", 1.00),
        ([attempt(RIGHT), attempt(WRONG)], "yes", 0.25),
        ([attempt(WRONG)], "no", 0.05),
        ([attempt(RIGHT)], None, 0.00),
        ([attempt(RIGHT)], "yes", 0.00),
        ([attempt(RIGHT), attempt(RIGHT)], "no", 0.00),
        ([], "no", 0.00),
        ([attempt(RIGHT)], "<think>fine</think>No", 1.00),
        ([attempt(RIGHT)], "no, it is fine", 0.95),
        ([attempt(RIGHT, plan="thoughts</think>1. Look.")], "no", 0.95),
        ([attempt(WRONG), attempt(RIGHT, plan="<think>only thoughts")], "yes", 0.00),
    ],
)
def test_planner_reward_by_hand(attempts, reflection, value):
    assert planner_reward(episode(*attempts, reflection=reflection)).value == value


@pytest.mark.parametrize(
    ("attempts", "reflection", "value"),
    [
        ([attempt(RIGHT)], "no", 1.0),
        ([attempt(RIGHT)], "no, it is fine", 0.9),
        ([attempt(WRONG)], "no", 0.1),
        ([attempt(WRONG)], "it is fine", 0.0),
        ([attempt(WRONG), attempt(RIGHT)], "yes", 1.0),
        ([attempt(RIGHT), attempt(WRONG)], "yes", 0.1),
        ([attempt(RIGHT, plan="thoughts</think>1. Look.")], "no", 0.9),
        ([attempt(RIGHT)], "yes", 0.0),
        ([attempt(RIGHT)], None, 0.0),
    ],
)
def test_reviewed_reward_by_hand(attempts, reflection, value):
    assert reviewed_reward(episode(*attempts, reflection=reflection)).value == value


def test_equal_merits_are_equal_whatever_they_are_made_of():
    tenths = Reward(parts={"a": (0.7, 1.0), "b": (0.2, 1.0), "c": (0.1, 1.0)})
    assert tenths.value == Reward(parts={"a": (1.0, 1.0)}).value == 1.0


@pytest.mark.parametrize("said", ["it depends", "not", "I do not know", "none", "yesterday", "yes and no"])
def test_a_decision_that_was_not_said_earns_nothing(said):
    for label in (RIGHT, WRONG):
        unclear = episode(attempt(label), attempt(label), reflection="yes").model_copy(
            update={"reflections": (Reflection(said=say(said), replan=True),)}
        )
        assert planner_reward(unclear).parts["decision"][0] == 0


def test_a_decision_that_nobody_was_asked_for_earns_nothing():
    unasked = episode(attempt(RIGHT)).model_copy(update={"reflections": (Reflection(said=None, replan=False),)})
    assert planner_reward(unasked).parts["decision"][0] == 0


NO_CALL = ("<answer>x</answer>",)
LONG = "x" * 101


@pytest.mark.parametrize(
    ("attempts", "preset", "value"),
    [
        ([attempt(RIGHT)], "release", 1.14),
        ([attempt(RIGHT)], "paper", 1.00),
        ([attempt(WRONG), attempt(RIGHT)], "paper", 1.00),
        ([attempt(WRONG), attempt(RIGHT)], "release", 1.00),
        ([attempt(WRONG), attempt(RIGHT, replies=NO_CALL)], "paper", 0.90),
        ([attempt(WRONG, replies=NO_CALL)], "paper", 0.10),
        ([attempt(RIGHT, answer=LONG)], "paper", 0.30),
        ([attempt(WRONG), attempt(RIGHT, answer=LONG)], "release", 0.30),
        ([attempt(RIGHT, replies=("<think>a" + call("a"), "<answer>x</answer>"))], "paper", 0.70),
        ([], "paper", 0.0),
    ],
)
def test_executor_reward_by_hand(attempts, preset, value):
    assert executor_reward(episode(*attempts), preset).value == value


@pytest.mark.parametrize(
    "arguments",
    [
        '{"query": "a"}',
        '{"query_list": []}',
        '{"query_list": [" "]}',
        '{"query_list": ["a"], "k": 1}',
        '{"query_list": "a"}',
    ],
)
def test_a_call_with_other_arguments_earns_the_tool_part_and_not_the_format(arguments):
    replies = (f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>', "<answer>x</answer>")
    reward = executor_reward(episode(attempt(RIGHT, replies=replies)))
    assert reward.parts["tool"][0] == 1
    assert reward.parts["format"][0] == 0


def test_a_second_image_search_costs_the_format():
    image = '<tool_call>{"name": "web_image_to_image_search", "arguments": {"img_idx": "0"}}</tool_call>'
    once = executor_reward(episode(attempt(RIGHT, replies=(image, "<answer>x</answer>"))))
    twice = executor_reward(episode(attempt(RIGHT, replies=(image, image, "<answer>x</answer>"))))
    assert (once.value, twice.value) == (1.0, 0.9)
