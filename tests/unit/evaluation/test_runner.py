import asyncio

import pytest

from mia.errors import InputError, StorageError
from mia.evaluation.runner import run, whole
from mia.runs.folder import RunFolder
from mia.types import Episode, Failure, Key, Question

QUESTIONS = [Question(id=str(n), text="?") for n in range(6)]
DOWN = Failure(service="model", message="down")


class CountingAgent:
    """Fails each question of `failing` as often as it says there."""

    def __init__(self, **failing):
        self.failing = failing
        self.asked = []
        self.running = self.most = 0

    async def run(self, question, key):
        self.asked.append(question.id)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        left = self.failing.get(f"q{question.id}", 0)
        self.failing[f"q{question.id}"] = left - 1
        return Episode(key=key, question=question, failure=DOWN if left > 0 else None)


def go(agent, folder, **options):
    return asyncio.run(run(QUESTIONS, agent, folder, **options))


def test_episodes_come_back_in_the_order_of_the_questions(tmp_path):
    agent = CountingAgent()
    episodes = go(agent, RunFolder.create(tmp_path / "r", {}), concurrency=3)
    assert [episode.question.id for episode in episodes] == ["0", "1", "2", "3", "4", "5"]
    assert agent.most == 3


def test_a_resumed_run_asks_only_what_is_not_finished(tmp_path):
    folder = RunFolder.create(tmp_path / "r", {})
    go(CountingAgent(q2=9), folder)
    agent = CountingAgent()
    episodes = go(agent, RunFolder.create(tmp_path / "r", {}))
    assert agent.asked == ["2"]
    assert not any(episode.failure for episode in episodes)


def test_a_failed_question_is_asked_once_more_and_then_reported_as_failed(tmp_path):
    agent = CountingAgent(q1=1, q4=5)
    episodes = go(agent, RunFolder.create(tmp_path / "r", {}))
    assert agent.asked == ["0", "1", "2", "3", "4", "5", "1", "4"]
    assert [bool(episode.failure) for episode in episodes] == [False, False, False, False, True, False]


def test_an_error_of_our_own_ends_the_run_as_itself(tmp_path):
    class BrokenAgent:
        async def run(self, question, key):
            raise StorageError("full")

    with pytest.raises(StorageError, match="full"):
        go(BrokenAgent(), RunFolder.create(tmp_path / "r", {}))


def test_a_run_is_whole_once_every_question_has_an_episode_failed_or_not(tmp_path):
    folder = RunFolder.create(tmp_path / "r", {"data": {"size": 6}})
    folder.append(Episode(key=Key(run="r", question_id="0"), question=QUESTIONS[0]))
    with pytest.raises(InputError, match="1 of 6 questions"):
        whole(folder)
    go(CountingAgent(q2=9), folder)
    assert [bool(whole(folder)[str(n)].failure) for n in range(6)] == [False, False, True, False, False, False]
