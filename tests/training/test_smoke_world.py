"""The smoke world as its Executor finds it: right plans lead to right answers, and rows hold what a memory recalled."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the packages of the extra `train` are not installed")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
from planned import Policy  # noqa: E402
from smoke import rehearsal  # noqa: E402
from smoke.rehearsal import Dialogue, mixed, near  # noqa: E402
from smoke.world import UNKNOWN, SmokeWorld, write_rows  # noqa: E402
from warm.play import EditedSearch  # noqa: E402

from mia.clients.chat import ChatModels, Endpoint  # noqa: E402
from mia.clients.search import SearchTool  # noqa: E402
from mia.errors import ModelUnavailable  # noqa: E402
from mia.executor.react import Budget, ReactExecutor  # noqa: E402
from mia.runtime.http import Service  # noqa: E402
from mia.text import ByteCounter  # noqa: E402
from mia.types import Key, Message, Plan, Recall, Said, StopReason  # noqa: E402
from mia.wiring import Silence  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # those of other packages are theirs


@pytest.fixture(scope="module")
def world():
    return SmokeWorld(ROOT / "data" / "worldfacts")


@pytest.fixture(scope="module")
def stage(world):
    with rehearsal.opened(world) as stage:
        asyncio.run(stage.remember())
        yield stage


@pytest.fixture
def planned():
    started = []

    def start(*options):
        command = [sys.executable, str(ROOT / "tests" / "planned.py"), *options]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return f"http://127.0.0.1:{int(started[-1].stdout.readline())}/v1"

    yield start
    for process in started:
        process.terminate()
        process.communicate()


def carried_out(url, stage, *plans):
    """Carry plans out, each in a dialogue of its own, over real HTTP; a list is a plan and its revision."""

    async def one(executor, number, plan):
        execution = executor.start(stage.world.training[0].question, Key(run="test", question_id=str(number)))
        revisions = plan if isinstance(plan, list) else [plan]
        for text in revisions:
            trajectory = await execution.carry_out(Plan(said=Said(raw=text, text=text)))
        return trajectory

    async def everything():
        service = Service("model", url, error=ModelUnavailable)
        endpoint = Endpoint(service)
        await endpoint.connect()
        models = ChatModels({"executor": endpoint}, str)
        tool = SearchTool(EditedSearch(stage._stage.index, ()), rehearsal.TOPK)
        executor = ReactExecutor(models, [tool], Budget(), ByteCounter(), Silence())
        try:
            return await asyncio.gather(*(one(executor, *entry) for entry in enumerate(plans)))
        finally:
            await service.aclose()

    return asyncio.run(everything())


def test_the_facts_are_twenty_of_the_train_split(world):
    lines = (world_line for world_line in (ROOT / "data/worldfacts/train.jsonl").read_text("utf-8").splitlines())
    rows = {row["id"]: row for row in map(json.loads, lines)}
    assert len(world.facts) == len({fact.ask for fact in world.facts}) == 20
    assert 4 <= len(world.relations) <= 5
    for fact in world.facts:
        row = rows[fact.id]
        assert (row["question"], tuple(row["answers"]), row["hops"]) == (fact.question, fact.answers, 1)
        assert fact.value in fact.answers


def test_validation_asks_in_words_that_nothing_else_uses(world):
    taught = {asked.text for asked in (*world.training, *world.spare)}
    assert len(world.training) == 20
    assert len({asked.text for asked in world.validation}) == 8
    assert not taught & {asked.text for asked in world.validation}
    ids = [asked.id for asked in (*world.training, *world.validation, *world.spare)]
    assert len(ids) == len(set(ids))


def test_only_the_right_plan_finds_the_right_answer(world, stage, planned):
    rights = [fact.ask for fact in world.facts]
    wrongs = [ask for right in rights for ask in near(world, right)]
    found = carried_out(planned(), stage, *(ask.plan for ask in rights + wrongs))
    assert [each.answer for each in found[:20]] == [fact.value for fact in world.facts]
    answers = [fact.answers for fact in world.facts for _ in near(world, fact.ask)]
    assert not any(each.answer in right for each, right in zip(found[20:], answers, strict=True))


def test_what_the_executor_says_is_what_the_warm_start_has_it_say(world, stage, planned):
    asks = [world.facts[0].ask, near(world, world.facts[0].ask)[0]]
    for ask, trajectory in zip(asks, carried_out(planned(), stage, *(ask.plan for ask in asks)), strict=True):
        assert [step.said.raw for step in trajectory.steps] == [turn.text for turn in stage._followed(ask)]


def test_a_revised_plan_is_followed_and_what_is_no_plan_is_not(world, stage, planned):
    right = world.facts[0]
    wrong = near(world, right.ask)[0]
    revised, nothing, elsewhere = carried_out(
        planned(), stage, [wrong.plan, right.ask.plan], "no", "1. Find the capital of Atlantis."
    )
    assert revised.answer == right.value
    assert (nothing.answer, len(nothing.steps)) == (UNKNOWN, 1)
    assert (elsewhere.answer, len(elsewhere.steps)) == (UNKNOWN, 2)


def test_a_refused_request_stays_refused_and_its_plan_fails(world, stage, planned):
    found = carried_out(planned("--fail", "0.3"), stage, *[world.facts[0].ask.plan] * 40)
    failed = [each for each in found if each.stop is StopReason.INFRA_ERROR]
    assert 0 < len(failed) < 40
    assert {each.failure.status for each in failed} == {503}
    assert {each.answer for each in found if each not in failed} == {world.facts[0].value}
    policy = Policy(fail_judge=0.1)
    graded = {"messages": [{"content": "Given answer:\n> Oslo\n"}]}
    refused = [policy.refuses(str(number), graded) for number in range(2000)]
    assert 0.08 < sum(refused) / 2000 < 0.12
    assert [policy.refuses(str(number), graded) for number in range(2000)] == refused
    assert not any(policy.refuses(str(number), {"messages": [{"content": "Question: ?"}]}) for number in range(2000))


def test_rows_hold_what_a_memory_recalled_for_them(world, stage, tmp_path):
    asyncio.run(write_rows(tmp_path / "rows.parquet", world.validation, stage.memory))
    rows = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["id"] for row in rows] == [asked.id for asked in world.validation]
    recalls = [Recall.model_validate_json(row["recall"]) for row in rows]
    assert all(recall.successes and recall.failures for recall in recalls)
    for row, recall, asked in zip(rows, recalls, world.validation, strict=True):
        assert (row["question"], tuple(row["answers"])) == (asked.text, asked.fact.answers)
        assert row["question"] not in {memory.question for memory, _ in recall.successes + recall.failures}


def test_the_dialogues_are_of_the_products_prompts_and_remember_nothing_themselves(world, stage):
    fact = world.facts[3]
    before = asyncio.run(stage.memory.recall(world.training[3].question)).sequence
    said = asyncio.run(stage.play(world.training[3], Dialogue(near(world, fact.ask)[0], fact.ask)))
    assert [message.role for message in said] == ["system", *["user", "assistant"] * 3]
    assert [message.text for message in said if message.role == "assistant"][1:] == ["yes", fact.ask.plan]
    assert isinstance(said[1], Message)
    assert fact.question in said[1].text
    assert f"‹answer›{world.answer(near(world, fact.ask)[0])}‹/answer›" in said[3].text
    assert asyncio.run(stage.memory.recall(world.training[3].question)).sequence == before


def test_two_of_five_mixed_plans_are_right(world):
    chance = random.Random(0)
    right = world.facts[0].ask
    dialogues = [mixed(world, right, chance) for _ in range(2000)]
    assert 0.35 < sum(each.first == right for each in dialogues) / 2000 < 0.45
    assert 0.45 < sum(each.second is None for each in dialogues) / 2000 < 0.55
    assert {each.first for each in dialogues} == {right, *near(world, right)}
