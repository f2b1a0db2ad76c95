"""The roles of our services: `mia serve memory` and `mia serve agent`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from mia.clients.search import SearchTool
from mia.executor.render import Renderer
from mia.runtime.http import Service
from mia.wiring.budgets import plan_budget
from mia.wiring.dialogues import Silence, loop_roles, search_tool
from mia.wiring.memory import encoder, manager
from mia.wiring.models import model_url, models

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from mia.clients.chat import ChatModels
    from mia.memory.manager import Manager
    from mia.planner.dialogue import PlanBudget
    from mia.protocols import Encoder, Executor, Role, TokenCounter
    from mia.runtime.settings import AgentServiceSettings, MemoryServiceSettings
    from mia.types import ToolSpec


class Speaker(NamedTuple):
    """A model that plans: what it may spend, and how it counts."""

    budget: PlanBudget
    counter: TokenCounter


class MemoryRoles(NamedTuple):
    """What `mia serve memory` is made of.

    The Manager's model is a speaker as the Planner's is.
    """

    memory: Manager
    encoder: Encoder
    models: ChatModels
    tools: Sequence[ToolSpec]
    speakers: Mapping[Role, Speaker]


@asynccontextmanager
async def memory_service(settings: MemoryServiceSettings) -> AsyncIterator[MemoryRoles]:
    """Build the roles of `mia serve memory`.

    Raises:
        ModelUnavailable: no model server answers.
        StorageError: the memory cannot be opened.
    """
    roles: tuple[Role, ...] = ("planner", "manager")
    async with models(settings, roles) as chat:
        vectors = await asyncio.to_thread(encoder, settings)
        tools = [SearchTool(Service("search", settings.search_url)).spec]
        speakers = {role: Speaker(plan_budget(settings, chat.window(role)), chat.counter(role)) for role in roles}
        with manager(settings, chat, vectors, captions=False) as kept:
            yield MemoryRoles(kept, vectors, chat, tools, speakers)


class AgentRoles(NamedTuple):
    """What `mia serve agent` is made of; without a memory there is no Router.

    `speaker` stands for the Planner, which the client is: how long what it reads may be.
    """

    models: ChatModels
    executor: Executor
    renderer: Renderer
    speaker: Speaker
    memory: Manager | None = None
    encoder: Encoder | None = None


@asynccontextmanager
async def agent_service(settings: AgentServiceSettings) -> AsyncIterator[AgentRoles]:
    """Build the roles of `mia serve agent`: the memory only in the modes that fill it.

    Raises:
        ModelUnavailable: no model server answers.
        StorageError: the memory cannot be opened.
    """
    learns = settings.mode != "train"
    if not settings.planner_url:
        reads = {"planner_url": model_url(settings, "executor"), "planner_model": settings.executor_model}
        settings = settings.model_copy(update=reads)
    roles: list[Role] = ["planner", "executor", "manager"] if learns else ["planner", "executor"]
    if settings.mode == "ttrl-no-truth" and settings.judge == "truth":
        roles.append("judge")
    async with AsyncExitStack() as stack:
        chat = await stack.enter_async_context(models(settings, roles))
        search = await stack.enter_async_context(search_tool(settings))
        _, executor = loop_roles(settings, chat, search, Silence())
        built = AgentRoles(
            chat,
            executor,
            Renderer([search.spec], settings.format),
            Speaker(plan_budget(settings, chat.window("planner")), chat.counter("planner")),
        )
        if not learns:
            yield built
            return
        vectors = await asyncio.to_thread(encoder, settings)
        captions = settings.caption == "auto" and settings.vision
        with manager(settings, chat, vectors, captions=captions) as kept:
            yield built._replace(memory=kept, encoder=vectors)
