from scripted import call, say

from mia.text import ByteCounter
from mia.transcript import fitted_transcript, transcript
from mia.types import Observation, Step, StopReason, Trajectory


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
    text = fitted_transcript("Why?", trajectory, 900, each=512, count=counter.count, cut=counter.cut)
    assert counter.count(text) <= 900
    assert all(f"### Round {n}" in text for n in range(1, 7))


def test_a_transcript_that_cannot_fit_is_cut():
    counter = ByteCounter()
    trajectory = Trajectory(steps=steps(50), answer="x", stop=StopReason.ANSWERED)
    text = fitted_transcript("Why?", trajectory, 100, each=512, count=counter.count, cut=counter.cut)
    assert counter.count(text) <= 100
