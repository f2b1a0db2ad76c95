import math
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

from mia.training import trainer
from mia.training.config import Alarms
from mia.training.metrics import Collapsed, Watch, facts, summary
from mia.types import (
    Attempt,
    Episode,
    Key,
    Observation,
    Plan,
    Question,
    Reflection,
    Reward,
    Said,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
)


def episode(*, replanned, first, final, stop=StopReason.ANSWERED):
    said = Said(raw="1. Find.", text="1. Find.", new_tokens=6)
    call = Step(said=said, call=ToolCall(name="search", arguments={}), observation=Observation(text="", error="No."))
    attempt = Attempt(plan=Plan(said=said), trajectory=Trajectory(steps=(call,), answer="x", stop=stop))
    cut = Said(raw="yes", text="yes", new_tokens=3, finish="length")
    parts = {"final": (final, 0.7), "first": (first, 0.2), "decision": (1.0, 0.05), "format": (0.0, 0.05)}
    return Episode(
        key=Key(run="r", question_id="q"),
        question=Question(id="q", text="?"),
        attempts=(attempt, attempt) if replanned else (attempt,),
        reflections=(Reflection(said=cut, replan=replanned),),
        reward=Reward(parts=parts),
    )


def test_a_step_tells_what_the_loop_did():
    rows = [
        facts(episode(replanned=True, first=0.0, final=1.0)),
        facts(episode(replanned=True, first=1.0, final=1.0)),
        facts(episode(replanned=False, first=0.0, final=0.0, stop=StopReason.CALL_LIMIT)),
        facts(episode(replanned=False, first=1.0, final=1.0)),
    ]
    told = summary(rows)
    assert told["mia/accuracy/first"] == 0.5
    assert told["mia/accuracy/final"] == 0.75
    assert told["mia/reflection/rate"] == 0.5
    assert told["mia/reflection/precision"] == 0.5
    assert told["mia/format/rate"] == 0.0
    assert told["mia/tools/calls"] == told["mia/tools/failures"] == 1.5
    assert told["mia/replies/at_limit"] == 1.0
    assert (told["mia/stop/answered"], told["mia/stop/call_limit"]) == (0.75, 0.25)
    assert rows[0]["reply_tokens"] == 5.0
    assert summary([]) == {}


@pytest.mark.parametrize(
    "sign",
    [
        {"actor/entropy": 0.001},
        {"mia/format/rate": 0.1},
        {"mia/replies/at_limit": 0.95},
        {"actor/grad_norm": math.nan},
    ],
)
def test_a_sign_of_collapse_counts_when_it_lasts(sign):
    watch, sound = Watch(Alarms()), {"actor/entropy": 1.0, "mia/format/rate": 0.9, "actor/grad_norm": 1.0}
    assert not watch.seen(sound | sign)
    assert not watch.seen(sound)
    assert not watch.seen(sound | sign)
    assert watch.seen(sound | sign)


def test_a_sign_can_be_switched_off():
    watch = Watch(Alarms(format_below=0, entropy_below=0, steps=1))
    assert not watch.seen({"mia/format/rate": 0.0, "actor/entropy": 0.0})


@pytest.mark.parametrize("steps_left", [0, 3])
def test_a_run_that_collapsed_ends_with_an_error_even_at_its_last_step(monkeypatch, steps_left):
    def fit(self, loops):
        self.global_steps, self._collapse = 8 - steps_left, "the entropy is near zero"

    monkeypatch.setattr(trainer.PPOTrainerSync, "fit", fit)
    made = object.__new__(trainer.GroupTrainer)
    made.stage = SimpleNamespace(alarms=Alarms())
    with pytest.raises(Collapsed, match=f"after step {7 - steps_left}, saved.*entropy"):
        made.fit(None)
