"""The native API: the roles of one process for trainers and agents elsewhere, under /v1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from mia.memory.threads import waited
from mia.types import Recall  # noqa: TC001  (FastAPI reads the annotations)
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
    RestoreRequest,
    SnapshotRequest,
    State,
)

if TYPE_CHECKING:
    from mia.memory.manager import Manager
    from mia.protocols import Executor, Planner


def native_router(
    *, memory: Manager | None = None, planner: Planner | None = None, executor: Executor | None = None
) -> APIRouter:
    """Mount the roles that are given. The service keeps no dialogue: each request brings it, each answer returns it."""
    router = APIRouter(prefix="/v1", tags=["native"])
    if memory is not None:
        _mount_memory(router, memory)
    if planner is not None:
        _mount_planner(router, planner)
    if executor is not None:
        _mount_executor(router, executor)
    return router


def _mount_memory(router: APIRouter, memory: Manager) -> None:
    storage = memory.bank.storage

    @router.post("/memory/recall")
    async def recall(request: RecallRequest) -> Recall:
        """Return the memories that may help with a question."""
        return await memory.recall(request.question)

    @router.post("/memory/remember")
    async def remember(request: EpisodeRequest) -> Done:
        """Keep a graded episode, once per key."""
        await memory.remember(request.episode)
        return Done()

    @router.post("/memory/explore")
    async def explore(request: EpisodeRequest) -> Done:
        """Keep a graded rollout until its group is complete, once per key."""
        await memory.explore(request.episode)
        return Done()

    @router.post("/memory/commit")
    async def commit(request: CommitRequest) -> Committed:
        """Keep what the complete groups of a step leave behind, once per group."""
        done = await memory.commit(request.run, request.step, request.rollouts)
        return Committed.model_validate(done._asdict())

    @router.post("/memory/snapshot")
    async def snapshot(request: SnapshotRequest) -> State:
        """Return the number of the present state, which has this name from now on."""
        return State(sequence=await waited(None, storage.snapshot, request.name))

    @router.post("/memory/restore")
    async def restore(request: RestoreRequest) -> State:
        """Bring back a state; return the number of the change that did, by which it can be told from the next."""
        return State(sequence=await waited(None, storage.restore, request.sequence))


def _mount_planner(router: APIRouter, planner: Planner) -> None:
    @router.post("/plan")
    async def plan(request: PlanRequest) -> Planned:
        """Write the plan that opens a dialogue."""
        planning = planner.start(request.question, request.recall, request.key)
        return Planned(plan=await planning.plan(), messages=planning.messages)

    @router.post("/reflect")
    async def reflect(request: AttemptRequest) -> Reflected:
        """Decide whether an attempt calls for another plan."""
        planning = planner.resume(request.question, request.messages, request.key)
        return Reflected(reflection=await planning.reflect(request.attempt), messages=planning.messages)

    @router.post("/replan")
    async def replan(request: AttemptRequest) -> Planned:
        """Write the plan that goes on from an attempt."""
        planning = planner.resume(request.question, request.messages, request.key)
        return Planned(plan=await planning.replan(request.attempt), messages=planning.messages)


def _mount_executor(router: APIRouter, executor: Executor) -> None:
    @router.post("/execute")
    async def execute(request: ExecuteRequest) -> Executed:
        """Carry a plan out. What ended it is data, a tool or a model that is down included."""
        execution = executor.resume(request.question, request.messages, request.key)
        return Executed(trajectory=await execution.carry_out(request.plan), messages=execution.messages)
