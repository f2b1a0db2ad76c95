import asyncio

import pytest
from scripted import Heard, ScriptedModels, ScriptedTool, call

from mia.agent import Agent
from mia.errors import JudgeUnavailable, MemoryUnavailable, ModelUnavailable, StorageError
from mia.executor.react import Budget, ReactExecutor
from mia.judge.truth import TruthJudge
from mia.planner.dialogue import DialoguePlanner, PlanBudget, PlannerReflector
from mia.rewards.planner import planner_reward
from mia.text import ByteCounter
from mia.types import ImageRef, Key, Label, Question, Recall, StopReason, Truth

QUESTION = Question(id="q", text="Which city?")
KEY = Key(run="r", question_id="q")
IMAGE = ImageRef(sha256="0" * 64, mime="image/png", width=1, height=1)


class KeptMemory:
    def __init__(self, down=False, caption=""):
        self.kept = []
        self._down = down
        self._caption = caption

    async def recall(self, question):
        return Recall(caption=self._caption)

    async def remember(self, episode):
        if self._down:
            raise MemoryUnavailable("down", service="memory")
        self.kept.append(episode)


class DownJudge:
    async def judge(self, question, attempt):
        raise JudgeUnavailable("down", service="judge")


class Heeded:
    """A Planner or an Executor; notes the questions that it is started with."""

    def __init__(self, role, questions):
        self._role = role
        self._questions = questions

    def start(self, question, *more):
        self._questions.append(question)
        return self._role.start(question, *more)


def play(planner, executor, *, memory=None, judge=True, reflect=True):
    models = ScriptedModels(planner=planner, executor=executor)
    heard, memory, tool = Heard(), memory or KeptMemory(), ScriptedTool()
    if judge is True:
        judge = TruthJudge({"q": Truth(answers=("Paris",))})
    agent = Agent(
        memory,
        DialoguePlanner(models, [tool.spec], PlanBudget(), ByteCounter()),
        ReactExecutor(models, [tool], Budget(), ByteCounter(), heard),
        PlannerReflector() if reflect else None,
        judge or None,
        planner_reward if judge else None,
        heard,
    )
    return asyncio.run(agent.run(QUESTION, KEY)), heard, memory


def test_a_question_goes_through_all_roles_in_order():
    episode, heard, memory = play(
        ["1. Look.", "yes", "1. Look again."],
        [call("a"), "<answer>Lyon</answer>", call("b"), "<answer>Paris</answer>"],
    )
    assert heard.kinds == [
        *["recalled", "planned", "said", "called", "observed", "said", "answered", "judged", "reflected"],
        *["planned", "said", "called", "observed", "said", "answered", "judged", "remembered"],
    ]
    assert episode.answer == "Paris"
    assert [attempt.verdict.label for attempt in episode.attempts] == [Label.INCORRECT, Label.CORRECT]
    assert abs(episode.reward.value - 0.8) < 1e-9
    assert memory.kept[0].attempts == episode.attempts
    assert episode.cost.model_calls == {"planner": 3, "executor": 4}
    assert episode.cost.tool_calls == {"search": 2}


@pytest.mark.parametrize(("found", "caption"), [("a red tower", "a red tower"), ("", "given")])
def test_a_caption_that_the_memory_found_is_part_of_the_question_from_then_on(found, caption):
    asked = Question(id="q", text="Which city?", images=(IMAGE,), caption="" if found else "given")
    models = ScriptedModels(planner=["1. Look."], executor=["<answer>Paris</answer>"])
    memory, questions, heard = KeptMemory(caption=found), [], Heard()
    agent = Agent(
        memory,
        Heeded(DialoguePlanner(models, [], PlanBudget(), ByteCounter()), questions),
        Heeded(ReactExecutor(models, [], Budget(), ByteCounter(), heard), questions),
        None,
        TruthJudge({"q": Truth(answers=("Paris",))}),
        None,
        heard,
    )
    episode = asyncio.run(agent.run(asked, KEY))
    known = asked.model_copy(update={"caption": caption})
    assert questions == [known, known]
    assert f"Caption of the image: {caption}" in models.asked[0][1]
    assert episode.question == memory.kept[0].question == known
    assert episode.recall.caption == found


def test_there_is_one_revision_at_most():
    episode, _, _ = play(["1. Look.", "yes", "1. Again.", "yes"], ["<answer>Lyon</answer>"])
    assert len(episode.attempts) == 2
    assert len(episode.reflections) == 1


def test_without_a_judge_nothing_is_graded_rewarded_or_remembered():
    episode, heard, memory = play(["1. Look.", "no"], ["<answer>Paris</answer>"], judge=False)
    assert (episode.attempts[0].verdict, episode.reward, memory.kept) == (None, None, [])
    assert "judged" not in heard.kinds


def test_without_a_reflector_the_first_answer_stands():
    episode, heard, _ = play(["1. Look."], ["<answer>Paris</answer>"], reflect=False)
    assert (episode.answer, episode.reflections) == ("Paris", ())
    assert "reflected" not in heard.kinds


def test_a_model_that_is_down_fails_the_episode_and_keeps_what_was_done():
    down = ModelUnavailable("down", service="model")
    episode, heard, memory = play(["1. Look.", down], [call("a"), "<answer>Paris</answer>"])
    assert episode.failure.service == "model"
    assert episode.attempts[0].trajectory.answer == "Paris"
    assert (episode.reward, memory.kept) == (None, [])
    assert heard.kinds[-1] == "failed"


def test_an_executor_that_failed_is_not_judged_and_not_reflected_on():
    episode, heard, memory = play(["1. Look.", "yes"], [ModelUnavailable("down", service="model")])
    assert episode.attempts[0].trajectory.stop is StopReason.INFRA_ERROR
    assert episode.failure.service == "model"
    assert memory.kept == []
    assert not {"judged", "reflected", "answered"} & set(heard.kinds)


def test_a_judge_that_is_down_fails_the_episode():
    episode, _, memory = play(["1. Look.", "no"], ["<answer>Paris</answer>"], judge=DownJudge())
    assert (episode.failure.service, memory.kept) == ("judge", [])
    assert episode.answer == "Paris"


def test_a_memory_that_is_down_fails_the_episode_but_loses_no_answer():
    episode, heard, _ = play(["1. Look.", "no"], ["<answer>Paris</answer>"], memory=KeptMemory(down=True))
    assert (episode.failure.service, episode.answer, episode.reward) == ("memory", "Paris", None)
    assert "remembered" not in heard.kinds


def test_a_memory_that_cannot_be_written_fails_the_episode_but_loses_no_answer():
    class FullMemory(KeptMemory):
        async def remember(self, episode):
            raise StorageError("full", remedy="Free some disk space.")

    episode, heard, _ = play(["1. Look.", "no"], ["<answer>Paris</answer>"], memory=FullMemory())
    assert (episode.failure.service, episode.failure.remedy) == ("storage", "Free some disk space.")
    assert (episode.answer, episode.reward, heard.kinds[-1]) == ("Paris", None, "failed")


def test_an_answer_that_cannot_be_graded_is_not_rewarded():
    episode, _, _ = play(["1. Look.", "no"], ["<answer>Paris</answer>"], judge=TruthJudge({}))
    assert (episode.attempts[0].verdict.label, episode.reward) == (Label.JUDGE_ERROR, None)


def test_an_episode_reads_back_as_it_was_written():
    episode, _, _ = play(["1. Look.", "no"], [call("東京"), "<answer>Paris</answer>"])
    line = episode.model_dump_json()
    assert "東京" in line
    assert type(episode).model_validate_json(line) == episode
