"""`mia serve memory`: memory and planning for agents elsewhere, by the released routes and by the native ones."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from fastapi import APIRouter, FastAPI

from mia import wiring
from mia.planner.dialogue import DialoguePlanner
from mia.runtime.app import create_service
from mia.services.desk import Desk
from mia.services.native import native_router
from mia.services.shelf import Shelf
from mia.wire.memory_serve import (
    Batch,
    BestPlanResponse,
    ClearResponse,
    FileResponse,
    JudgeReplanRequest,
    JudgeReplanResponse,
    LoadPath,
    MemoryRequest,
    MemoryResponse,
    PlanResponse,
    ReplanRequest,
    ReplanResponse,
    ReplanTrainRequest,
    ReplanTrainResponse,
    SavePath,
    SaveRequest,
    SaveResponse,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from mia.runtime.settings import MemoryServiceSettings
    from mia.wiring import MemoryRoles

    T = TypeVar("T")
    R = TypeVar("R")


def create_app(
    settings: MemoryServiceSettings, roles: AbstractAsyncContextManager[MemoryRoles] | None = None
) -> FastAPI:
    """Build the service; its roles are those of the settings unless they are given."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with roles or wiring.memory_service(settings) as opened:
            budget, counter = opened.speakers["planner"]
            planner = DialoguePlanner(opened.models, opened.tools, budget, counter)
            shelf = app.state.shelf = Shelf(opened, settings.memory_folder)
            desk = Desk(opened, shelf, cold_start=settings.cold_start)
            samples = Samples(settings.max_running)
            app.include_router(_planning_router(desk, samples))
            app.include_router(_memory_router(shelf, samples))
            app.include_router(native_router(memory=opened.memory, planner=planner))
            yield

    async def bank() -> None:
        await app.state.shelf.check()

    models = {"planner": wiring.model_check(settings, "planner"), "manager": wiring.model_check(settings, "manager")}
    app = create_service("memory", settings, routers=[], lifespan=lifespan, checks={"bank": bank, **models})
    return app


class Samples:
    """Answers the samples of a request at once, those of all requests together within a limit."""

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def answer(self, call: Callable[[T], Awaitable[R]], samples: Sequence[T]) -> list[R]:
        """Return the answers in the samples' order, or raise what went wrong with the first that failed."""

        async def one(sample: T) -> R:
            async with self._slots:
                return await call(sample)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(sample)) for sample in samples]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in tasks]


def _planning_router(desk: Desk, samples: Samples) -> APIRouter:
    router = APIRouter(tags=["released"])

    @router.post("/memory")
    async def memory(requests: Batch[MemoryRequest]) -> list[MemoryResponse]:
        """Return the memories that may help with each question, as the Planner is shown them."""
        return await samples.answer(desk.recall, requests)

    @router.post("/plan")
    async def plan(requests: Batch[MemoryRequest]) -> list[PlanResponse]:
        """Write a plan for each question."""
        return await samples.answer(desk.plan, requests)

    @router.post("/best_plan")
    async def best_plan(requests: Batch[MemoryRequest]) -> list[BestPlanResponse]:
        """Write four plans for each question and choose one."""
        return await samples.answer(desk.best_plan, requests)

    @router.post("/judge_replan")
    async def judge_replan(requests: Batch[JudgeReplanRequest]) -> list[JudgeReplanResponse]:
        """Decide for each trace whether it calls for another plan."""
        return await samples.answer(desk.judge, requests)

    @router.post("/replan")
    async def replan(requests: Batch[ReplanRequest]) -> list[ReplanResponse]:
        """Write a revised plan for each question."""
        return await samples.answer(desk.replan, requests)

    @router.post("/replan_train")
    async def replan_train(request: ReplanTrainRequest) -> ReplanTrainResponse:
        """Write the revised plan of an attempt that a verdict calls wrong."""
        return await desk.replan_train(request)

    return router


def _memory_router(shelf: Shelf, samples: Samples) -> APIRouter:
    router = APIRouter(tags=["released"])

    @router.post("/batch_memory_save")
    async def batch_memory_save(requests: Batch[SaveRequest]) -> SaveResponse:
        """Remember each question, once: a request that failed can be repeated."""
        ignored = await samples.answer(shelf.save, requests)
        return SaveResponse(ignored_memory_indices=sorted({memory_id for some in ignored for memory_id in some}))

    @router.post("/save_memory")
    async def save_memory(request: SavePath) -> FileResponse:
        """Write the memory to a file of the service's folder."""
        return await shelf.write(request.save_path)

    @router.post("/load_memory")
    async def load_memory(request: LoadPath) -> FileResponse:
        """Put a file of the service's folder in the place of the memory."""
        return await shelf.load(request.load_path)

    @router.post("/clear_memory")
    async def clear_memory() -> ClearResponse:
        """Empty the memory, which can be undone."""
        return await shelf.clear()

    return router
