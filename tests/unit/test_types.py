import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted import say

from mia.types import (
    Attempt,
    Cost,
    Episode,
    Key,
    Observation,
    Plan,
    Question,
    Said,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
)


@given(st.text(), st.integers(0, 9), st.integers(0, 9))
def test_a_seed_fits_31_bits_whatever_the_ids_are(question_id, rollout, turn):
    assert 0 <= Key(run="r", question_id=question_id, rollout=rollout).seed(turn) < 2**31


def test_seeds_of_turns_and_rollouts_differ():
    seeds = {Key(run="r", question_id="q", rollout=r).seed(t) for r in range(10) for t in range(10)}
    assert len(seeds) == 100


def test_nouns_are_frozen_and_closed():
    question = Question(id="q", text="?")
    with pytest.raises(ValidationError):
        question.text = "!"
    with pytest.raises(ValidationError):
        Question(id="q", text="?", truth="x")


def attempt(answer, *, begun):
    steps = (Step(said=say("<answer>x</answer>")),) if begun else ()
    return Attempt(
        plan=Plan(said=say("1.")), trajectory=Trajectory(steps=steps, answer=answer, stop=StopReason.ANSWERED)
    )


def test_only_calls_that_were_answered_count_as_tool_calls():
    search = ToolCall(name="search", arguments={})
    steps = (
        Step(said=say("a"), call=search, observation=Observation(text="found")),
        Step(said=say("a"), call=ToolCall(name="python", arguments={}), observation=Observation(text="", error="none")),
        Step(said=say("a"), call=search),
    )
    trajectory = Trajectory(steps=steps, answer=None, stop=StopReason.CALL_LIMIT)
    made_up = Said(raw="", text="", finish="length")
    key, question = Key(run="r", question_id="q"), Question(id="q", text="?")
    tried = Attempt(plan=Plan(said=made_up, drafts=(say("<think>x"),)), trajectory=trajectory)
    cost = Cost.of(Episode(key=key, question=question, attempts=(tried,)), 1.0)
    assert cost.tool_calls == {"search": 1}
    assert cost.model_calls == {"planner": 1, "executor": 3}


@pytest.mark.parametrize(
    ("attempts", "answer"),
    [
        ((), None),
        ((attempt("a", begun=True),), "a"),
        ((attempt("a", begun=True), attempt("b", begun=True)), "b"),
        ((attempt("a", begun=True), attempt(None, begun=True)), None),
        ((attempt("a", begun=True), attempt(None, begun=False)), "a"),
    ],
)
def test_the_answer_is_that_of_the_last_attempt_that_was_begun(attempts, answer):
    episode = Episode(key=Key(run="r", question_id="q"), question=Question(id="q", text="?"), attempts=attempts)
    assert episode.answer == answer
