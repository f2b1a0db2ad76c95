"""Memory, Planner and Executor from afar: the native API of other processes, played as if they were here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from mia.errors import (
    ConfigError,
    ExecutorUnavailable,
    InputError,
    JudgeUnavailable,
    MemoryUnavailable,
    MiaError,
    ModelUnavailable,
    OutOfRoom,
    SearchUnavailable,
    StorageError,
    UpstreamError,
)
from mia.runtime.http import RefusedError
from mia.runtime.problems import Problem
from mia.types import Failure, Message, Plan, Recall, Reflection, StopReason, Trajectory
from mia.wire.native import (
    AttemptRequest,
    CommitRequest,
    Committed,
    Done,
    EpisodeRequest,
    Executed,
    ExecuteRequest,
    Planned,
    PlanRequest,
    RecallRequest,
    Reflected,
    Request,
    RestoreRequest,
    SnapshotRequest,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.runtime.http import Service
    from mia.types import Attempt, Episode, Key, Question

T = TypeVar("T", bound=BaseModel)

_OURS = {kind.__name__: kind for kind in (InputError, ConfigError, StorageError, OutOfRoom)}
_BEHIND = {
    kind.__name__: kind
    for kind in (
        *(UpstreamError, ModelUnavailable, MemoryUnavailable),
        *(ExecutorUnavailable, SearchUnavailable, JudgeUnavailable),
    )
}


@dataclass(frozen=True)
class MemoryClient:
    """A Memory behind a service, with what trainers need of it besides; `seconds` is the deadline of one call."""

    service: Service
    seconds: float = 180.0

    async def recall(self, question: Question) -> Recall:
        """Return the memories that may help with a question."""
        return await self._ask("recall", RecallRequest(question=question), Recall)

    async def remember(self, episode: Episode) -> None:
        """Keep a graded episode, once per key; it is on the service's disk when this returns."""
        await self._ask("remember", EpisodeRequest(episode=episode), Done)

    async def explore(self, episode: Episode) -> None:
        """Keep a graded rollout until its group is complete, once per key."""
        await self._ask("explore", EpisodeRequest(episode=episode), Done)

    async def commit(self, run: str, step: int, rollouts: int) -> Committed:
        """Keep what the complete groups of a step leave behind, once per group."""
        return await self._ask("commit", CommitRequest(run=run, step=step, rollouts=rollouts), Committed)

    async def snapshot(self, name: str) -> int:
        """Give the present state a name, and return the sequence number to restore it by (the same name: the same)."""
        return (await self._ask("snapshot", SnapshotRequest(name=name), State)).sequence

    async def restore(self, sequence: int) -> int:
        """Bring back the state at a sequence number exactly; return the number of the latest change."""
        return (await self._ask("restore", RestoreRequest(sequence=sequence), State)).sequence

    async def _ask(self, verb: str, request: Request, answer: type[T]) -> T:
        return await _ask(self.service, f"/v1/memory/{verb}", request, answer, self.seconds)


@dataclass(frozen=True)
class PlannerClient:
    """A Planner behind a service; `seconds` is the deadline of one call, so it covers the replies of a plan."""

    service: Service
    seconds: float = 300.0

    def start(self, question: Question, recall: Recall, key: Key) -> RemotePlanning:
        """Open the dialogue of one question."""
        return RemotePlanning(self, question, recall, key)

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> RemotePlanning:
        """Go on with a dialogue held elsewhere; its first reply is the plan."""
        return RemotePlanning(self, question, Recall(), key, tuple(messages))


@dataclass
class RemotePlanning:
    """One question's dialogue with the Planner, held here."""

    planner: PlannerClient
    question: Question
    recall: Recall
    key: Key
    messages: tuple[Message, ...] = ()

    async def plan(self) -> Plan:
        """Write the plan, which opens the dialogue."""
        request = PlanRequest(question=self.question, recall=self.recall, key=self.key)
        return (await self._go_on("plan", request, Planned)).plan

    async def reflect(self, attempt: Attempt) -> Reflection:
        """Decide whether the attempt calls for another plan."""
        return (await self._go_on("reflect", self._after(attempt), Reflected)).reflection

    async def replan(self, attempt: Attempt) -> Plan:
        """Write the plan that goes on from the attempt."""
        return (await self._go_on("replan", self._after(attempt), Planned)).plan

    def _after(self, attempt: Attempt) -> AttemptRequest:
        return AttemptRequest(question=self.question, messages=self.messages, attempt=attempt, key=self.key)

    async def _go_on(self, verb: str, request: Request, answer: type[P]) -> P:
        found = await _ask(self.planner.service, f"/v1/{verb}", request, answer, self.planner.seconds)
        self.messages = found.messages
        return found


P = TypeVar("P", Planned, Reflected)


@dataclass(frozen=True)
class ExecutorClient:
    """An Executor behind a service; `seconds` is the deadline of one plan, so it exceeds that of an episode there."""

    service: Service
    seconds: float = 660.0

    def start(self, question: Question, key: Key) -> RemoteExecution:
        """Open the dialogue of one question."""
        return RemoteExecution(self, question, key)

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> RemoteExecution:
        """Go on with a dialogue held elsewhere."""
        return RemoteExecution(self, question, key, tuple(messages))


@dataclass
class RemoteExecution:
    """One question's dialogue with the Executor, held here."""

    executor: ExecutorClient
    question: Question
    key: Key
    messages: tuple[Message, ...] = ()

    async def carry_out(self, plan: Plan) -> Trajectory:
        """Carry a plan out. An Executor that is down ends it as a tool does that is down: with an infra error."""
        request = ExecuteRequest(question=self.question, plan=plan, key=self.key, messages=self.messages)
        try:
            found = await _ask(self.executor.service, "/v1/execute", request, Executed, self.executor.seconds)
        except UpstreamError as error:
            failure = Failure.model_validate(error.facts())
            return Trajectory(steps=(), answer=None, stop=StopReason.INFRA_ERROR, failure=failure)
        self.messages = found.messages
        return found.trajectory


async def _ask(service: Service, path: str, request: Request, answer: type[T], seconds: float) -> T:
    """Post a request and read its answer; an error of the other side is raised here as what it was there."""
    try:
        reply = await service.post(path, request.model_dump(mode="json"), deadline=seconds)
    except UpstreamError as error:
        there = _raised_there(error)
        if there is None:
            raise
        raise there from error
    try:
        return answer.model_validate(reply)
    except ValueError as error:
        raise UpstreamError(
            f"{service.url} answered {path} with something that is no {answer.__name__}.",
            service=service.name,
            status=200,
            retryable=False,
            remedy="Check that the URL is that of a MIA service of this version.",
        ) from error


def _raised_there(error: UpstreamError) -> MiaError | None:
    """Return the error that a problem document tells of, None if it tells of none of ours."""
    refused = error.__cause__
    if not isinstance(refused, RefusedError):
        return None
    try:
        told = Problem.model_validate_json(refused.answer.body).error
    except ValueError:
        return None
    if kind := _OURS.get(told.type):
        return kind(told.message, remedy=told.remedy)
    if upstream := _BEHIND.get(told.type):
        behind = told.service or error.service
        return upstream(told.message, service=behind, status=told.status, retryable=told.retryable, remedy=told.remedy)
    return None
