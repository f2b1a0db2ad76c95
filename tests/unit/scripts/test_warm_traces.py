"""The oracle's episodes: played through the product's own loop, borne out by the real search, in words of their own."""

import asyncio
import json
import random
import re
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from local_search.build import prepare
from mia.clients.search import SearchTool
from mia.executor.render import Renderer
from mia.memory.nothing import NoMemory
from mia.runtime.settings import RoleSettings, SearchServiceSettings, load
from mia.text import ByteCounter, parse_decision, split_thoughts
from mia.types import Question

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "scripts"))
from warm import traces  # noqa: E402
from warm.compare import (  # noqa: E402
    Weighed,
    value,
    weigh,
)
from warm.oracle import FAILURES, NO_ANSWER, Oracle, Turn  # noqa: E402
from warm.play import Stage, Unplayable, play  # noqa: E402
from warm.rewording import Rewording  # noqa: E402
from warm.world import World, read  # noqa: E402
from worldfacts import wording  # noqa: E402

DATA = ROOT / "data" / "worldfacts"


@pytest.fixture(scope="module")
def world():
    return World(DATA)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    index = prepare(load(SearchServiceSettings, corpus=DATA / "corpus.jsonl", index=folder))
    yield Stage(index, ByteCounter(), load(RoleSettings))
    index.close()


@pytest.fixture(scope="module")
def rows():
    return read(DATA / "train.jsonl")[:80]


def played(script, stage):
    planner = [Turn(script.plan), Turn(script.reflection), *([Turn(script.revised)] if script.revised else [])]
    turns = {"planner": planner, "executor": script.turns + script.revised_turns}
    try:
        return asyncio.run(play(script, turns, stage, NoMemory(), id="q", topk=2))
    except Unplayable:
        return None


def test_a_right_script_ends_right_without_a_second_plan(world, stage, rows):
    oracle = Oracle(world, random.Random(1))
    done = [played(oracle.right(row), stage) for row in rows[:30]]
    episodes = [found[0] for found in done if found]
    assert len(episodes) >= 27
    assert all(episode.final.verdict.label == "correct" for episode in episodes)
    assert all(len(episode.attempts) == 1 for episode in episodes)


def test_a_bad_query_is_mended_and_not_learnt(world, stage, rows):
    oracle = Oracle(world, random.Random(10))
    scripts = [oracle.right(row, retry=True) for row in rows[:30]]
    done = [(script, found) for script in scripts if (found := played(script, stage))]
    assert len(done) >= 15
    for script, (episode, models) in done:
        assert episode.final.verdict.label == "correct"
        assert models.opened["executor"].learnt.count(False) == 1
        (bad,) = [place for place, turn in enumerate(script.turns) if not turn.learn]
        assert " again: " in script.turns[bad + 1].text


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failing_script_is_wrong_or_unsupported_and_the_second_plan_mends_it(world, stage, rows, kind):
    oracle = Oracle(world, random.Random(2))
    scripts = [script for row in rows if (script := oracle.failing(row, kind))][:6]
    episodes = [found[0] for script in scripts if (found := played(script, stage))]
    assert episodes
    for episode in episodes:
        first, second = episode.attempts
        assert kind == "unsupported" or first.verdict.label != "correct"
        assert second.verdict.label == "correct"
    assert not any(turn.learn for script in scripts for turn in script.turns)


def test_an_invented_fact_is_what_the_script_answers(world, stage, rows):
    oracle = Oracle(world, random.Random(3))
    scripts = [
        (row, script) for row in rows if (script := oracle.right(row, invented=True)) and script.kind == "invented"
    ]
    chains = [(row, script) for row, script in scripts if "comparison" not in row["type"]]
    assert all(script.answers[0] not in row["answers"] for row, script in chains)
    assert sum(played(script, stage) is not None for _, script in scripts[:20]) >= 16


@pytest.mark.parametrize("passage", [False, True])
def test_what_is_taken_out_of_the_corpus_is_not_answered(world, stage, rows, passage):
    oracle = Oracle(world, random.Random(4))
    scripts = [script for row in rows if (script := oracle.removed(row, passage=passage))][:15]
    done = [found for script in scripts if (found := played(script, stage))]
    assert len(done) >= 8
    assert all(episode.answer == NO_ANSWER for episode, _ in done)


@pytest.mark.parametrize("reason", ["disputed", "false_premise", "not_recorded", "unknown_entity"])
def test_a_question_without_an_answer_is_answered_so(world, stage, reason):
    oracle = Oracle(world, random.Random(5))
    asked = [row for row in read(DATA / "train_unanswerable.jsonl") if row["reason"] == reason]
    scripts = [oracle.untold(row) for row in asked]
    assert scripts
    assert all(scripts)
    done = [found for script in scripts[:10] if (found := played(script, stage))]
    assert len(done) >= len(scripts[:10]) / 2
    assert all(episode.answer == NO_ANSWER and len(episode.attempts) == 1 for episode, _ in done)


def test_a_trace_is_what_the_product_says(world, stage, rows):
    script = Oracle(world, random.Random(6)).right(rows[0])
    episode, models = played(script, stage)
    renderer, attempt = Renderer([SearchTool(None).spec]), episode.final
    said = models.opened["executor"].messages
    assert said[0].text == renderer.system
    assert said[1] == renderer.opening(Question(id="q", text=script.question), attempt.plan)
    assert [message.role for message in said[1:]] == ["user", "assistant"] * (len(said) // 2)
    assert [message.text for message in said[2::2]] == [turn.text for turn in script.turns]
    seen = [step.observation for step in attempt.trajectory.steps if step.observation]
    assert [message.text for message in said[3::2]] == [renderer.observation(each).text for each in seen]


def test_the_file_is_the_same_each_time_and_holds_what_a_trainer_needs(tmp_path):
    mix = traces.Mix(questions=12)
    counts = traces.write(tmp_path / "one.jsonl", DATA, len, mix)
    traces.write(tmp_path / "other.jsonl", DATA, len, mix)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "other.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.jsonl", "other.jsonl"]
    made = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert len(made) == sum(count for kind, count in counts.items() if kind.startswith(("executor", "planner"))) >= 20
    assert {trace["role"] for trace in made} == {"executor", "planner"}
    for trace in made:
        by = [message["role"] for message in trace["messages"]]
        assert by == ["system"] + ["user", "assistant"] * (len(by) // 2)
        assert any(message["learn"] for message in trace["messages"])
        assert not any(message["learn"] for message in trace["messages"] if message["role"] != "assistant")


def test_one_shot_traces_answer_from_one_search(tmp_path):
    traces.write(tmp_path / "one.jsonl", DATA, len, traces.Mix(questions=6), method="one-shot")
    made = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert {trace["role"] for trace in made} == {"one-shot"}
    assert all([each["learn"] for each in trace["messages"]][-1] for trace in made)
    assert all(sum(each["learn"] for each in trace["messages"]) == 1 for trace in made)


def test_no_plan_tells_an_answer(world):
    oracle = Oracle(world, random.Random(7))
    for row in read(DATA / "train.jsonl"):
        if "comparison" not in row["type"]:
            scripts = [oracle.right(row), *(found for kind in FAILURES if (found := oracle.failing(row, kind)))]
            for plan in (
                re.sub(r"(?m)^\d+\. ", "", text) for script in scripts for text in (script.plan, script.revised)
            ):
                assert not re.search(rf"(?<!\w){re.escape(row['answers'][0])}(?!\w)", plan), row["id"]


def test_reflections_end_in_the_word_they_mean(world, rows):
    oracle = Oracle(world, random.Random(8))
    for row in rows:
        assert parse_decision(split_thoughts(oracle.right(row).reflection)[1]) is False
        failing = oracle.failing(row, "gave up")
        assert failing is None or parse_decision(split_thoughts(failing.reflection)[1]) is True


@given(some.integers(1, 10**10), some.integers(1, 10**10))
def test_numbers_are_compared_rightly_in_words_that_say_so(one, other):
    if one == other:
        return
    weighed = weigh(("A", "B"), (f"{one:,}", f"{other:,}"))
    assert weighed.larger == (0 if one > other else 1)
    assert f"{'AB'[weighed.larger]} is larger" in weighed.words


@given(some.sampled_from("NS"), some.integers(0, 8999), some.sampled_from("NS"), some.integers(0, 8999))
def test_latitudes_are_compared_as_numbers_are(one, many, other, more):
    if many == more:
        return
    signed = [(1 if side == "N" else -1) * number for side, number in ((one, many), (other, more))]
    weighed = weigh(("A", "B"), (f"{many / 100:.2f}°{one}", f"{more / 100:.2f}°{other}"))
    assert weighed.larger == (0 if signed[0] > signed[1] else 1)
    if one != other:
        assert weighed.words.endswith(f"{'AB'[weighed.larger]} is farther north.")
    else:
        farther = f"{'AB'[0 if many > more else 1]} is larger, so farther {'north' if one == 'N' else 'south'}."
        assert weighed.words.endswith(farther)


@given(some.decimals(0, 10**6, places=2), some.decimals(0, 10**6, places=1))
def test_decimals_are_compared_as_numbers_are(one, other):
    if one != other:
        weighed = weigh(("A", "B"), (f"{one:,}", f"{other:,}"))
        assert weighed.larger == (0 if one > other else 1)
        assert weighed.words.endswith(f"{'AB'[weighed.larger]} is larger.")


def test_the_south_is_below_the_north():
    assert value("3.25°S") < value("0.31°N")
    assert weigh(("A", "B"), ("47.85°N", "14.08°S")).larger == 0
    assert weigh(("A", "B"), ("47.85°S", "14.08°S")).words.endswith("A is larger, so farther south.")


def test_every_question_can_be_said_in_other_words_that_hide_its_answer(world):
    rewording = Rewording(world, random.Random(9))
    kept = 0
    for row in read(DATA / "train.jsonl"):
        text = rewording.question(row)
        if text is None:
            continue
        kept += 1
        assert "{" not in text
        if "comparison" not in row["type"]:
            assert not any(answer.casefold() in text.casefold() for answer in row["answers"])
    assert kept > 3400


def test_every_relation_of_the_training_questions_has_words_of_its_own(world):
    words = tomllib.loads((ROOT / "scripts" / "warm" / "phrasings.toml").read_text(encoding="utf-8"))
    chains = [row for row in read(DATA / "train.jsonl") if "comparison" not in row["type"]]  # the others have `compare`
    asked = {(hop.kind, hop.relation) for row in chains for hop in world.hops(row)}
    assert len(asked) > 30
    assert all(words[kind][relation][form] for kind, relation in asked for form in ("phrase", "ask"))


def test_no_wording_of_the_held_out_families_is_trained():
    ours = strings(tomllib.loads((ROOT / "scripts" / "warm" / "phrasings.toml").read_text(encoding="utf-8")))
    families = wording.held_out_families()
    held_out = strings([wording.load("families")[name]["frames"] for name in families])
    held_out |= named(wording.load("relations"), families) | named(wording.load("comparisons"), families)
    assert len(held_out) > 150
    assert not {text.casefold() for text in ours} & {text.casefold() for text in held_out}
    assert not {row["family"] for row in read(DATA / "train.jsonl")} & set(families)


def strings(value):
    if isinstance(value, str):
        return {value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(strings, parts)) if parts else set()


def named(value, names):
    """The strings below the keys of these names."""
    if isinstance(value, dict):
        return set().union(*(strings(part) if key in names else named(part, names) for key, part in value.items()))
    return set().union(*(named(part, names) for part in value)) if isinstance(value, list) else set()


@pytest.mark.parametrize(
    ("values", "larger", "words"),
    [
        (("494", "1632"), 1, "A: 494 (3 digits), B: 1632 (4 digits). 3<4 digits: B is larger."),
        (("1,203,456", "998,123"), 0, "A: 1,203,456 (7 digits), B: 998,123 (6 digits). 7>6 digits: A is larger."),
        (("1861", "1864"), 1, "A: 1861 (4 digits), B: 1864 (4 digits). 4=4 digits 1=1 8=8 6=6 1<4: B is larger."),
        (("12.5", "12.34"), 0, "A: 12.5 (2 digits), B: 12.34 (2 digits). 2=2 digits 1=1 2=2 5>3: A is larger."),
        (
            ("45.30°S", "47.1°S"),
            0,
            "A: 45.30°S (2 digits), B: 47.1°S (2 digits). 2=2 digits 4=4 5<7: B is larger, so farther south.",
        ),
        (("3.2°N", "41°S"), 0, "A: 3.2°N, B: 41°S. One is north and one is south: A is farther north."),
    ],
)
def test_values_are_weighed_beside_their_lengths_and_digit_by_digit(values, larger, words):
    assert weigh(("A", "B"), values) == Weighed(larger, words)
