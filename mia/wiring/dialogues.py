"""Planner and Executor as models play them, with their tool."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mia.clients.search import SearchTool
from mia.errors import SearchUnavailable
from mia.executor.react import ReactExecutor
from mia.executor.render import Renderer
from mia.planner.dialogue import DialoguePlanner
from mia.runtime.http import Service
from mia.wiring.budgets import budget, check_window, plan_budget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mia.clients.chat import ChatModels
    from mia.protocols import Executor, Listener, Planner
    from mia.runtime.settings import RoleSettings
    from mia.types import Event


class Silence:
    """A Listener for runs that nobody watches."""

    def on(self, event: Event) -> None:
        """Let it pass."""


@asynccontextmanager
async def search_tool(settings: RoleSettings) -> AsyncIterator[SearchTool]:
    """Open the search tool; SearchUnavailable appears when a search is made."""
    service = Service(
        "search",
        settings.search_url,
        error=SearchUnavailable,
        token=settings.token,
        remedy="Start it with `mia serve search`, or set MIA_SEARCH_URL.",
    )
    try:
        yield SearchTool(service, settings.topk, settings.snippet_words)
    finally:
        await service.aclose()


def loop_roles(
    settings: RoleSettings, chat: ChatModels, search: SearchTool, listener: Listener
) -> tuple[Planner, Executor]:
    """Build the roles that models play in the loop, or refuse budgets that they cannot work within."""
    plans, turns = plan_budget(settings, chat.window("planner")), budget(settings, chat.window("executor"))
    instructions = Renderer([search.spec], settings.format).instructions
    check_window(chat.window("executor"), chat.counter("executor").count(instructions), plans, turns)
    return (
        DialoguePlanner(chat, [search.spec], plans, chat.counter("planner")),
        ReactExecutor(chat, [search], turns, chat.counter("executor"), listener, settings.format),
    )
