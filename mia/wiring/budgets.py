"""Budgets: what the roles may spend in a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia.errors import ConfigError
from mia.executor.react import Budget
from mia.planner.dialogue import PlanBudget

if TYPE_CHECKING:
    from mia.runtime.settings import RoleSettings


def check_window(window: int, system: int, plans: PlanBudget, turns: Budget) -> None:
    """Refuse budgets under which the Executor would have to answer at once, without a single search."""
    needed = system + plans.plan_tokens + turns.observation_tokens + 2 * turns.turn_tokens
    if needed > window:
        raise ConfigError(
            f"One search needs up to {needed} tokens by the budgets, and the Executor's window has {window}.",
            remedy="Lower MIA_PLAN_TOKENS, MIA_TURN_TOKENS or MIA_OBSERVATION_TOKENS, or serve a longer window.",
        )


def budget(settings: RoleSettings, window: int) -> Budget:
    """Return what the Executor may spend in a window."""
    return Budget(
        calls=settings.max_calls,
        turn_tokens=settings.turn_tokens or min(window // 8, 4096),
        observation_tokens=settings.observation_tokens or min(window // 8, 2048),
        turn_seconds=settings.turn_seconds,
        seconds=settings.episode_seconds,
        temperature=settings.temperature,
    )


def plan_budget(settings: RoleSettings, window: int) -> PlanBudget:
    """Return what the Planner may spend in a window."""
    return PlanBudget(
        plan_tokens=settings.plan_tokens or min(window // 8, 4096),
        memory_tokens=settings.memory_tokens or min(window // 8, 2048),
        observation_tokens=settings.observation_tokens or min(window // 8, 512),
        seconds=settings.turn_seconds,
        temperature=settings.temperature,
        replan_if_unclear=settings.replan_if_unclear,
    )
