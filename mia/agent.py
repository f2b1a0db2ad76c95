"""THE LOOP: recall, plan, execute, reflect, replan at most once, judge, remember. Start reading here.

Inference, both trainers and test-time learning run this loop; they differ only in who plays each role (DESIGN 1).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mia.errors import StorageError, UpstreamError
from mia.types import Attempt, Cost, Episode, Event, EventKind, Failure, Label

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mia.protocols import Execution, Executor, Judge, Listener, Memory, Planner, Reflector
    from mia.types import Key, Plan, Question, Reward

T = TypeVar("T")


@dataclass(frozen=True)
class Agent:
    """Plays one question through all roles. Without a judge nothing is graded, rewarded or remembered yet."""

    memory: Memory
    planner: Planner
    executor: Executor
    reflector: Reflector | None
    judge: Judge | None
    reward: Callable[[Episode], Reward] | None
    listener: Listener

    async def run(self, question: Question, key: Key) -> Episode:
        """Answer one question. A service that is down fails the episode: it is not judged, not remembered."""
        started, episode = time.monotonic(), Episode(key=key, question=question)
        try:
            async for grown in self._play(episode):
                episode = grown
        except (UpstreamError, StorageError) as error:
            failure = Failure.model_validate(error.facts())
            episode = episode.model_copy(update={"failure": failure, "reward": None})
        if episode.failure:
            self._tell(EventKind.FAILED, key, episode.failure)
        return episode.model_copy(update={"cost": Cost.of(episode, time.monotonic() - started)})

    async def _play(self, episode: Episode) -> AsyncIterator[Episode]:
        """Yield the episode each time it has grown, so that a failure later on loses nothing of it."""
        question, key = episode.question, episode.key
        recall = self._tell(EventKind.RECALLED, key, await self.memory.recall(question))
        if recall.caption:
            question = question.model_copy(update={"caption": recall.caption})
        known = {"question": question, "recall": recall, "memory_sequence": recall.sequence}
        yield (episode := episode.model_copy(update=known))
        planning = self.planner.start(question, recall, key)
        execution = self.executor.start(question, key)
        plan = await planning.plan()
        async for grown in self._attempt(episode, execution, plan):
            yield (episode := grown)
        if self.reflector and not episode.failure:
            first = episode.attempts[0]
            reflection = self._tell(EventKind.REFLECTED, key, await self.reflector.reflect(planning, first))
            yield (episode := episode.model_copy(update={"reflections": (reflection,)}))
            if reflection.replan:
                plan = await planning.replan(first)
                async for grown in self._attempt(episode, execution, plan):
                    yield (episode := grown)
        if self.judge and not episode.failure:
            yield (episode := self._rewarded(episode))
            await self.memory.remember(episode)
            self._tell(EventKind.REMEMBERED, key, episode)

    async def _attempt(self, episode: Episode, execution: Execution, plan: Plan) -> AsyncIterator[Episode]:
        """Yield the episode with one more attempt, then with its verdict."""
        before, key = episode.attempts, episode.key
        self._tell(EventKind.PLANNED, key, plan)
        attempt = Attempt(plan=plan, trajectory=await execution.carry_out(plan))
        failure = attempt.trajectory.failure
        yield (episode := episode.model_copy(update={"attempts": (*before, attempt), "failure": failure}))
        if failure:
            return
        self._tell(EventKind.ANSWERED, key, attempt.trajectory)
        if self.judge:
            verdict = self._tell(EventKind.JUDGED, key, await self.judge.judge(episode.question, attempt))
            judged = attempt.model_copy(update={"verdict": verdict})
            yield episode.model_copy(update={"attempts": (*before, judged)})

    def _rewarded(self, episode: Episode) -> Episode:
        graded = all(attempt.verdict and attempt.verdict.label is not Label.JUDGE_ERROR for attempt in episode.attempts)
        return episode.model_copy(update={"reward": self.reward(episode)}) if self.reward and graded else episode

    def _tell(self, kind: EventKind, key: Key, payload: T) -> T:
        self.listener.on(Event(kind, key, time.time(), payload))
        return payload
