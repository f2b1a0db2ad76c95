"""`mia serve agent`: carries plans out for trainers elsewhere, and keeps the memory of learning at test time."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fastapi import APIRouter, FastAPI

from mia import wiring
from mia.errors import InputError, UpstreamError
from mia.memory.threads import waited
from mia.prompts import fill
from mia.runtime.app import create_service
from mia.services.native import native_router
from mia.services.registered import Images, InFlight
from mia.services.ttrl import TestTime
from mia.text import disarm
from mia.transcript import fitted, transcript
from mia.types import IMAGE_MARK, Key
from mia.wire.agent_serve import (
    ConsolidateReply,
    ContinueRequest,
    EvaluateReply,
    ExecuteReply,
    ExecuteRequest,
    HealthReply,
    PanelSaveRequest,
    RecallReply,
    RecallRequest,
    RegisterReply,
    RegisterRequest,
    SaveReply,
    SaveRequest,
    StepBody,
    StepRequest,
    Turn,
    plan_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pydantic import BaseModel

    from mia.runtime.settings import AgentServiceSettings
    from mia.types import Message, Question, Trajectory
    from mia.wiring import AgentRoles

    R = TypeVar("R", bound=BaseModel)


class Serve(NamedTuple):
    """What the routes call."""

    settings: AgentServiceSettings
    roles: AgentRoles
    images: Images
    in_flight: InFlight
    learning: TestTime | None = None

    async def question(self, data_id: str, text: str, caption: str = "") -> Question:
        """Return a question with its images. Raises InputError if it is none, or they are not known."""
        images = self.images.of(data_id, text)
        made = partial(wiring.question, self.settings, text.replace(IMAGE_MARK, " "), id=data_id)
        question = await waited(None, made)
        return question.model_copy(update={"images": images, "caption": caption})

    async def execute(self, request: ExecuteRequest) -> ExecuteReply:
        """Carry a plan out.

        Raises:
            UpstreamError: a model or a search was down, so that nothing came of the plan.
        """
        question = await self.question(request.data_id, request.question)
        execution = self.roles.executor.start(question, _key(request))
        trajectory = await execution.carry_out(plan_of(request.plan))
        return self._told(question, trajectory, execution.messages)

    async def go_on(self, request: ContinueRequest) -> ExecuteReply:
        """Go on by a revised plan; a dialogue in which nothing was said yet begins with it."""
        question = await self.question(request.data_id, request.question)
        plan, history = plan_of(request.plan), [turn.message for turn in request.messages]
        if history and history[0].role != "assistant":
            raise InputError(
                "`messages` does not begin with a reply of the assistant.",
                remedy="Send `history_messages` of the reply to /plan as it came.",
            )
        begun = [self.roles.renderer.opening(question, plan), *history] if history else []
        execution = self.roles.executor.resume(question, begun, _key(request))
        trajectory = await execution.carry_out(plan_of(request.replan, plan.text))
        return self._told(question, trajectory, execution.messages)

    def _told(self, question: Question, trajectory: Trajectory, messages: tuple[Message, ...]) -> ExecuteReply:
        """Tell what happened. The trace holds the answer once in tags, at its end: there clients look for it."""
        failure = trajectory.failure
        if failure:
            raise UpstreamError(
                failure.message,
                service=failure.service,
                status=failure.status,
                retryable=failure.retryable,
                remedy=failure.remedy,
            )
        budget, counter = self.roles.speaker
        shown = fitted(
            lambda cut: disarm(transcript(question.text, trajectory, cut)),
            self.settings.trace_tokens,
            each=budget.observation_tokens,
            count=counter.count,
            cut=counter.cut,
        )
        answer = "" if trajectory.answer is None else f"\n\n<answer>{disarm(trajectory.answer)}</answer>"
        said = [message for message in messages if message.role != "system"]
        history = [Turn.of(message) for message in said[1:]]
        return ExecuteReply(prompt=fill("reflect", trace=shown), trace=shown + answer, history_messages=history)

    async def health(self) -> HealthReply:
        """Return how many questions are known, and of how many a rollout waits."""
        waiting = await self.learning.steps.waiting(None) if self.learning else []
        return HealthReply(registered_data_ids=len(self.images), memory_bank_keys=len(waiting))

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Take in images of questions, all or none."""
        done = await waited(None, self.images.add, {entry.data_id: entry.images for entry in request.all})
        return RegisterReply(registered=done.taken, total_data_ids=done.known)

    async def once(self, route: str, body: BaseModel | None, execute: Callable[[], Awaitable[R]]) -> R:
        """Return the reply to a request that all who send the same meanwhile share."""
        content = f"{route}\0{body.model_dump_json() if body else ''}"
        return await self.in_flight.once(hashlib.sha256(content.encode()).hexdigest(), execute)


def create_app(settings: AgentServiceSettings) -> FastAPI:
    """Build the service: /plan, /replan and images in every mode, memory and rollouts where a Planner learns by it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with wiring.agent_service(settings) as roles:
            images = Images(wiring.images(settings), settings.home / "registered.jsonl")
            files = [Path(name.strip()) for name in settings.parquet.split(",") if name.strip()]
            await asyncio.to_thread(images.load, files)
            learning = None
            if roles.memory is not None and roles.encoder is not None:
                learning = TestTime(settings, roles, roles.memory, roles.encoder)
                await learning.steps.load()
            app.state.serve = Serve(settings, roles, images, InFlight(), learning)
            app.include_router(native_router(memory=roles.memory, executor=roles.executor))
            try:
                yield
            finally:
                await app.state.serve.in_flight.close()

    def serve() -> Serve:
        found: Serve = app.state.serve
        return found

    routers = [_execution(serve), _registration(serve)]
    checks = {"executor": wiring.model_check(settings, "executor")}
    if settings.mode != "train":
        routers.append(_learning(serve, reviewed=settings.mode == "ttrl-no-truth"))
        checks["manager"] = wiring.model_check(settings, "manager")
    app = create_service("agent", settings, routers=routers, lifespan=lifespan, checks=checks)
    return app


def _execution(serve: Callable[[], Serve]) -> APIRouter:
    router = APIRouter(tags=["released"])

    @router.post("/plan")
    async def plan(request: ExecuteRequest) -> ExecuteReply:
        """Carry a plan out."""
        return await serve().once("/plan", request, partial(serve().execute, request))

    @router.post("/replan")
    async def replan(request: ContinueRequest) -> ExecuteReply:
        """Go on by a revised plan."""
        return await serve().once("/replan", request, partial(serve().go_on, request))

    return router


def _registration(serve: Callable[[], Serve]) -> APIRouter:
    router = APIRouter(prefix="/streaming", tags=["released"])

    @router.post("/register_images")
    async def register_images(request: RegisterRequest) -> RegisterReply:
        """Take in images of questions, all or none."""
        return await serve().register(request)

    @router.get("/health")
    async def health() -> HealthReply:
        """Tell how many questions are known."""
        return await serve().health()

    return router


def _learning(serve: Callable[[], Serve], *, reviewed: bool) -> APIRouter:
    router = APIRouter(tags=["released"])

    def learning() -> TestTime:
        found: TestTime = serve().learning  # type: ignore[assignment]  # there is one in the modes that have these routes
        return found

    async def save(request: SaveRequest | PanelSaveRequest) -> SaveReply:
        question = await serve().question(request.data_id, request.question, request.caption)
        return await serve().once("/memory_bank_save", request, partial(learning().save, request, question))

    @router.post("/memory")
    async def memory(request: RecallRequest) -> RecallReply:
        """Show memories of similar questions."""
        question = await serve().question(request.data_id, request.question, request.caption)
        return await learning().recall(question)

    if reviewed:

        @router.post("/memory_bank_save")
        async def save_reviewed(request: PanelSaveRequest) -> SaveReply:
            """Keep a rollout that reviewers graded, once."""
            return await save(request)
    else:

        @router.post("/memory_bank_save")
        async def save_graded(request: SaveRequest) -> SaveReply:
            """Keep a rollout that was graded by the truth, once."""
            return await save(request)

    @router.post("/batch_evaluate")
    async def batch_evaluate(body: StepBody = None) -> EvaluateReply:
        """Choose among the rollouts that wait, question by question."""
        step = _step(body)
        return await serve().once("/batch_evaluate", step, partial(learning().evaluate, step))

    @router.post("/consolidate_memories")
    async def consolidate_memories(body: StepBody = None) -> ConsolidateReply:
        """Make memories of the rollouts that wait, and close the step."""
        step = _step(body)
        return await serve().once("/consolidate_memories", step, partial(learning().consolidate, step))

    @router.post("/save_memory")
    async def save_memory(_: StepBody = None) -> SaveReply:
        """Write the memory files."""
        return await serve().once("/save_memory", None, learning().write_files)

    return router


def _step(body: StepBody) -> StepRequest | None:
    """Return the step that a body names: a list, which released clients send, names none."""
    return body if isinstance(body, StepRequest) and body.run is not None else None


def _key(request: ExecuteRequest) -> Key:
    """Return what seeds the requests of a rollout: its place, or else its plan, so that a retry has the same seeds."""
    if request.run is not None and request.step is not None and request.rollout is not None:
        return Key(run=request.run, step=request.step, question_id=request.data_id, rollout=request.rollout)
    number = int.from_bytes(hashlib.sha256(request.plan.encode()).digest()[:6], "big")
    return Key(run="", question_id=request.data_id, rollout=number)
