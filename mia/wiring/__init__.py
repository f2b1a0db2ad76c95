"""Settings to objects: the only place that chooses implementations."""

from __future__ import annotations

import hashlib
import unicodedata
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from mia.agent import Agent
from mia.baselines.closed_book import ClosedBookExecutor
from mia.baselines.one_shot import OneShotExecutor
from mia.baselines.unplanned import NoPlanner
from mia.errors import InputError
from mia.judge.truth import TruthJudge
from mia.memory.nothing import NoMemory
from mia.planner.dialogue import PlannerReflector
from mia.rewards.planner import planner_reward
from mia.text import clean
from mia.types import Question
from mia.wiring.budgets import budget, plan_budget
from mia.wiring.dialogues import Silence, loop_roles, search_tool
from mia.wiring.memory import encoder, memory, storage
from mia.wiring.models import images, model_check, model_url, models
from mia.wiring.services import AgentRoles, MemoryRoles, Speaker, agent_service, memory_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

    from mia.clients.chat import ChatModels
    from mia.clients.search import SearchTool
    from mia.protocols import Executor, Listener, Planner, Role
    from mia.runtime.settings import RoleSettings
    from mia.types import Truth

__all__ = [
    "AgentRoles",
    "MemoryRoles",
    "Method",
    "Silence",
    "Speaker",
    "agent",
    "agent_service",
    "budget",
    "encoder",
    "images",
    "memory",
    "memory_service",
    "model_check",
    "model_url",
    "models",
    "plan_budget",
    "question",
    "served",
    "storage",
]

MAX_QUESTION = 8000


class Method(StrEnum):
    """How questions are answered: by the loop, or by a baseline."""

    LOOP = "loop"
    CLOSED_BOOK = "closed-book"
    ONE_SHOT = "one-shot"


def question(settings: RoleSettings, text: str, *, id: str = "", image_files: Iterable[Path] = ()) -> Question:  # noqa: A002
    """Make a question of what a person typed or a data set holds.

    Raises:
        InputError: it is empty, longer than 8,000 characters, or not text; an image is no image.
    """
    text = clean(text).strip()
    if not text:
        raise InputError("The question is empty.", remedy='Ask something: mia ask "Which country is Aba in?"')
    if len(text) > MAX_QUESTION:
        raise InputError(
            f"The question has {len(text):,} characters; {MAX_QUESTION:,} are the most.",
            remedy="Ask the question alone; put long material into the search corpus.",
        )
    odd = sum(char == "\ufffd" or (unicodedata.category(char) == "Cc" and not char.isspace()) for char in text)
    if odd * 10 > len(text):
        raise InputError("The question is not text but binary data.", remedy="Pass the question as UTF-8 text.")
    store = images(settings)
    refs = []
    for path in image_files:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"The image {path} cannot be read: {error.strerror}.", remedy="Check the path.") from error
        refs.append(store.add(data))
    content = "\0".join([text, *(ref.sha256 for ref in refs)])
    return Question(id=id or hashlib.sha256(content.encode()).hexdigest()[:16], text=text, images=tuple(refs))


async def served(settings: RoleSettings, method: Method = Method.LOOP) -> dict[str, str]:
    """Return the model behind each role, by its weights where its server tells them: what a run is made by."""
    roles = _roles(settings, method)
    async with models(settings, roles) as chat:
        return {role: chat.weights(role) for role in roles}


@asynccontextmanager
async def agent(
    settings: RoleSettings,
    *,
    method: Method = Method.LOOP,
    answer_key: Mapping[str, Truth] | None = None,
    listener: Listener | None = None,
) -> AsyncIterator[Agent]:
    """Build the agent of one process and take it down again. Without an answer key nothing is judged.

    Raises:
        ModelUnavailable: no model server answers (SearchUnavailable appears when a search is made).
        StorageError: the memory cannot be opened.
    """
    listener = listener or Silence()
    async with AsyncExitStack() as stack:
        chat = await stack.enter_async_context(models(settings, _roles(settings, method)))
        search = await stack.enter_async_context(search_tool(settings))
        judge = None
        if answer_key is not None and settings.judge != "none":
            judge = TruthJudge(answer_key, chat if settings.judge == "truth" else None)
        planner: Planner
        if method is Method.LOOP:
            planner, executor = loop_roles(settings, chat, search, listener)
            kept = stack.enter_context(memory(settings, chat))
            reflector = PlannerReflector() if settings.max_replans else None
        else:
            planner, executor = NoPlanner(), _baseline(settings, chat, search, listener, method)
            kept, reflector = NoMemory(), None
        reward = planner_reward if judge and reflector else None
        yield Agent(kept, planner, executor, reflector, judge, reward, listener)


def _baseline(
    settings: RoleSettings, chat: ChatModels, search: SearchTool, listener: Listener, method: Method
) -> Executor:
    """Build the Executor that is all of a baseline."""
    turn = budget(settings, chat.window("executor"))
    if method is Method.CLOSED_BOOK:
        return ClosedBookExecutor(chat, turn, listener)
    return OneShotExecutor(chat, search, turn, chat.counter("executor"), listener)


def _roles(settings: RoleSettings, method: Method) -> list[Role]:
    """Name the roles that a model plays by these settings."""
    roles: list[Role] = ["planner", "executor"] if method is Method.LOOP else ["executor"]
    if settings.judge == "truth":
        roles.append("judge")
    if method is Method.LOOP and settings.memory != "none" and "model" in (settings.compression, settings.categories):
        roles.append("manager")
    return roles
