import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import say

from mia.errors import InputError
from mia.evaluation.report import by_type, comparable, difference, paired, report, wilson
from mia.types import Attempt, Cost, Episode, Failure, Key, Label, Plan, Question, StopReason, Trajectory, Verdict


def episode(label=None, failure=None, name="q", text="?", seconds=2.0):
    verdict = Verdict(label=label, judge="exact") if label else None
    trajectory = Trajectory(steps=(), answer="x", stop=StopReason.ANSWERED)
    attempt = Attempt(plan=Plan(said=say("1.")), trajectory=trajectory, verdict=verdict)
    return Episode(
        key=Key(run="r", question_id="q"),
        question=Question(id=name, text=text),
        attempts=(attempt,),
        failure=failure,
        cost=Cost(
            model_calls={"planner": 2}, tool_calls={"search": 1}, prompt_tokens={"planner": 7}, seconds={"all": seconds}
        ),
    )


def test_every_question_is_counted_once_and_stays_in_the_denominator():
    failed = episode(Label.CORRECT, Failure(service="model", message="down"))
    result = report([episode(Label.CORRECT), episode(Label.INCORRECT), episode(Label.NOT_ATTEMPTED), failed, episode()])
    assert result.outcomes == {"correct": 1, "incorrect": 1, "not_attempted": 1, "failed": 1, "ungraded": 1}
    assert (result.size, result.accuracy) == (5, 0.2)
    assert (result.model_calls, result.searches, result.tokens, result.seconds) == (10, 5, 35, 10.0)


def test_the_pace_is_that_of_the_question_in_the_middle():
    assert report([episode(seconds=seconds) for seconds in (1.0, 2.0, 90.0)]).pace == 2.0
    assert report([]).pace == 0.0


def test_episodes_are_sorted_by_the_type_of_their_question():
    episodes = [episode(name=name) for name in "abc"]
    found = by_type(episodes, {"a": "chain2", "b": "chain1", "c": "chain2", "d": "chain3"})
    assert {name: [each.question.id for each in group] for name, group in found.items()} == {
        "chain1": ["b"],
        "chain2": ["a", "c"],
    }


def test_the_interval_is_wilsons():
    assert wilson(8, 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500), st.data())
def test_the_interval_holds_the_share(size, data):
    hits = data.draw(st.integers(0, size))
    low, high = wilson(hits, size)
    assert 0 <= low <= hits / size + 1e-12
    assert hits / size - 1e-12 <= high <= 1


def test_a_difference_pairs_the_same_questions_and_a_failure_is_wrong():
    ours = [episode(Label.CORRECT, name="a"), episode(Label.CORRECT, name="b"), episode(Label.INCORRECT, name="c")]
    failed = episode(Label.CORRECT, Failure(service="model", message="down"), name="b")
    others = {"a": episode(Label.CORRECT, name="a"), "b": failed, "c": episode(name="c"), "d": episode(name="d")}
    gain = difference(ours, others)
    assert (gain.size, gain.gained, gain.lost, gain.value) == (3, 1, 0, pytest.approx(1 / 3))


@pytest.mark.parametrize("other", [{}, {"a": episode(name="a", text="Another?")}])
def test_runs_that_asked_something_else_are_not_comparable(other):
    with pytest.raises(InputError, match="'a'"):
        comparable([Question(id="a", text="?")], other)


def pairs(both, gained, lost, neither):
    return [(True, True)] * both + [(True, False)] * gained + [(False, True)] * lost + [(False, False)] * neither


def test_the_paired_interval_is_newcombes():
    # Airway reactivity before and after a transplantation, as worked in Fagerland, Lydersen and Laake (2014).
    assert paired(pairs(1, 1, 7, 12)).interval == pytest.approx((-0.507, -0.026), abs=5e-4)


@given(*[st.integers(0, 60)] * 4)
def test_the_paired_interval_holds_the_difference_and_turns_with_it(both, gained, lost, neither):
    gain, loss = paired(pairs(both, gained, lost, neither)), paired(pairs(both, lost, gained, neither))
    low, high = gain.interval
    assert -1 - 1e-9 <= low <= gain.value <= high <= 1 + 1e-9
    assert loss.value == pytest.approx(-gain.value)
    assert loss.interval == pytest.approx((-high, -low))
