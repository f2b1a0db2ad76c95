"""The roles around a policy that learns: everyone but the role it plays, and the agent they form with it."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from mia.agent import Agent
from mia.clients.remote import ExecutorClient
from mia.clients.search import SearchTool
from mia.errors import ExecutorUnavailable
from mia.judge.truth import TruthJudge
from mia.memory.given import GivenMemory
from mia.planner.dialogue import DialoguePlanner, PlannerReflector
from mia.rewards.planner import planner_reward
from mia.runtime.http import Service
from mia.wiring.dialogues import Silence
from mia.wiring.models import models

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mia.planner.dialogue import PlanBudget
    from mia.protocols import Executor, Models, TokenCounter
    from mia.runtime.settings import RoleSettings
    from mia.types import Recall, ToolSpec, Truth

_MARGIN = 60.0  # seconds: the Executor's service ends an episode by its own clock first


def planner_tools() -> list[ToolSpec]:
    """Return what a Planner is told of the Executor's tools, which it does not reach itself."""
    return [SearchTool(Service("search", "http://127.0.0.1")).spec]


class AroundPlanner(NamedTuple):
    """Whom a Planner that learns works with: one Executor and one Judge's model for all its rollouts."""

    executor: Executor
    judges: Models | None

    def agent(
        self, policy: Models, budget: PlanBudget, counter: TokenCounter, recall: Recall, answer_key: dict[str, Truth]
    ) -> Agent:
        """Build the agent of one rollout."""
        return Agent(
            GivenMemory(recall),
            DialoguePlanner(policy, planner_tools(), budget, counter),
            self.executor,
            PlannerReflector(),
            TruthJudge(answer_key, self.judges),
            planner_reward,
            Silence(),
        )


@asynccontextmanager
async def around_planner(settings: RoleSettings, executor_url: str) -> AsyncIterator[AroundPlanner]:
    """Connect to the Executor's service and, where a model judges, to that.

    Raises:
        ModelUnavailable: the Judge's model does not answer.
    """
    service = Service(
        "executor",
        executor_url,
        error=ExecutorUnavailable,
        token=settings.token,
        remedy="Start Serve/agent.sh train, or correct PLAN_URL.",
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.aclose)
        judges = await stack.enter_async_context(models(settings, ["judge"])) if settings.judge == "truth" else None
        yield AroundPlanner(ExecutorClient(service, settings.episode_seconds + _MARGIN), judges)
