"""The oracle's episodes: played through the product's own loop, borne out by the real search, in words of their own."""

import asyncio
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

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "scripts"))
from warm import oracle as oracles  # noqa: E402
from warm.compare import value, weigh  # noqa: E402
from warm.oracle import FAILURES, NO_ANSWER, Oracle, Turn  # noqa: E402
from warm.play import Stage, Unplayable, play  # noqa: E402
from warm.rewording import Rewording  # noqa: E402
from warm.world import World, read  # noqa: E402

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


def test_every_question_without_an_answer_has_a_script(world):
    oracle = Oracle(world, random.Random(5))
    assert all(oracle.untold(row) for row in read(DATA / "train_unanswerable.jsonl"))


def test_a_trace_is_what_the_product_says(world, stage, rows):
    script = Oracle(world, random.Random(6)).right(rows[0])
    _, models = played(script, stage)
    said = models.opened["executor"].messages
    assert said[0].text == Renderer([SearchTool(None).spec]).system
    assert [message.role for message in said[1:]] == ["user", "assistant"] * (len(said) // 2)
    assert all(message.text.startswith("<tool_response>") for message in said[3::2])


def test_no_plan_tells_an_answer(world):
    oracle = Oracle(world, random.Random(7))
    for row in read(DATA / "train.jsonl"):
        if "comparison" not in row["type"]:
            plan = re.sub(r"(?m)^\d+\. ", "", oracle.right(row).plan)
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


def test_no_wording_of_the_held_out_families_is_trained():
    folder = ROOT / "scripts"
    ours = strings(tomllib.loads((folder / "warm" / "phrasings.toml").read_text(encoding="utf-8")))
    held_out = set()
    for name in ("relations", "comparisons"):
        held_out |= named(tomllib.loads((folder / "worldfacts" / f"{name}.toml").read_text(encoding="utf-8")))
    assert held_out
    assert not {text.casefold() for text in ours} & {text.casefold() for text in held_out}


def strings(value):
    if isinstance(value, str):
        return {value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(strings, parts)) if parts else set()


def named(value, names=("situation", "gap")):
    if isinstance(value, dict):
        found = [strings(inner) if key in names else named(inner) for key, inner in value.items() if key != "frames"]
    elif isinstance(value, list):
        found = [named(inner) for inner in value]
    else:
        return set()
    return set().union(*found) if found else set()


def test_the_kinds_of_failure_all_have_a_script():
    assert all(hasattr(oracles.Oracle, f"_{kind.replace(' ', '_')}") for kind in FAILURES)
