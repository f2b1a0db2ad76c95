import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import say

from mia.evaluation.report import report, wilson
from mia.types import Attempt, Cost, Episode, Failure, Key, Label, Plan, Question, StopReason, Trajectory, Verdict


def episode(label=None, failure=None):
    verdict = Verdict(label=label, judge="exact") if label else None
    trajectory = Trajectory(steps=(), answer="x", stop=StopReason.ANSWERED)
    attempt = Attempt(plan=Plan(said=say("1.")), trajectory=trajectory, verdict=verdict)
    return Episode(
        key=Key(run="r", question_id="q"),
        question=Question(id="q", text="?"),
        attempts=(attempt,),
        failure=failure,
        cost=Cost(
            model_calls={"planner": 2}, tool_calls={"search": 1}, prompt_tokens={"planner": 7}, seconds={"all": 2.0}
        ),
    )


def test_every_question_is_counted_once_and_stays_in_the_denominator():
    failed = episode(Label.CORRECT, Failure(service="model", message="down"))
    result = report([episode(Label.CORRECT), episode(Label.INCORRECT), episode(Label.NOT_ATTEMPTED), failed, episode()])
    assert result.outcomes == {"correct": 1, "incorrect": 1, "not_attempted": 1, "failed": 1, "ungraded": 1}
    assert (result.size, result.accuracy) == (5, 0.2)
    assert (result.model_calls, result.searches, result.tokens, result.seconds) == (10, 5, 35, 10.0)


def test_the_interval_is_wilsons():
    assert wilson(8, 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500), st.data())
def test_the_interval_holds_the_share(size, data):
    hits = data.draw(st.integers(0, size))
    low, high = wilson(hits, size)
    assert 0 <= low <= hits / size + 1e-12
    assert hits / size - 1e-12 <= high <= 1
