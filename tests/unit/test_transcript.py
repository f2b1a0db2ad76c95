from functools import partial

from scripted import call, say

from mia.text import ByteCounter
from mia.transcript import fitted, record, transcript
from mia.types import Attempt, Episode, Key, Observation, Plan, Question, Step, StopReason, Trajectory


def steps(count, size=1000):
    return tuple(Step(said=say(call(f"q{i}")), observation=Observation(text="fact " * size)) for i in range(count))


def test_a_transcript_shows_each_round_and_the_answer():
    text = transcript("Why?", Trajectory(steps=steps(2, 1), answer="Because", stop=StopReason.ANSWERED))
    assert text.startswith("### Question\nWhy?")
    assert "### Round 2" in text
    assert "q1" in text
    assert text.endswith("### Answer\nBecause")


def test_a_transcript_says_when_there_is_no_answer_and_why():
    text = transcript("Why?", Trajectory(steps=(), answer=None, stop=StopReason.CALL_LIMIT))
    assert "No answer was given (call_limit)" in text


def test_a_long_trajectory_is_shortened_evenly_until_it_fits():
    counter = ByteCounter()
    trajectory = Trajectory(steps=steps(6), answer="x", stop=StopReason.ANSWERED)
    text = fitted(partial(transcript, "Why?", trajectory), 900, each=512, count=counter.count, cut=counter.cut)
    assert counter.count(text) <= 900
    assert all(f"### Round {n}" in text for n in range(1, 7))


def test_a_transcript_that_cannot_fit_is_cut():
    counter = ByteCounter()
    trajectory = Trajectory(steps=steps(50), answer="x", stop=StopReason.ANSWERED)
    text = fitted(partial(transcript, "Why?", trajectory), 100, each=512, count=counter.count, cut=counter.cut)
    assert counter.count(text) <= 100


def test_a_record_shows_every_plan_with_what_came_of_it_and_numbers_the_rounds_through():
    tried = Trajectory(steps=steps(2, 1), answer=None, stop=StopReason.CALL_LIMIT)
    found = Trajectory(steps=steps(1, 1), answer="Because", stop=StopReason.ANSWERED)
    attempts = (
        Attempt(plan=Plan(said=say("1. look")), trajectory=tried),
        Attempt(plan=Plan(said=say("1. look elsewhere"), revises="1. look"), trajectory=found),
    )
    question = Question(id="q", text="Why?")
    lines = record(Episode(key=Key(run="r", question_id="q"), question=question, attempts=attempts)).splitlines()
    assert [line for line in lines if line.startswith("### ")] == [
        "### Question",
        "### Plan",
        "### Round 1",
        "### Round 2",
        "### End",
        "### Revised plan",
        "### Round 3",
        "### Answer",
    ]
    assert "1. look elsewhere" in lines
