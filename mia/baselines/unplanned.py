"""A Planner without plans, for methods that have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from mia.types import Plan, Reflection, Said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.types import Attempt, Key, Message, Question, Recall


class NoPlanner:
    """Planner and dialogue in one, since there is nothing to tell questions apart by."""

    def start(self, question: Question, recall: Recall, key: Key) -> Self:  # noqa: ARG002  (the role's)
        """Open no dialogue."""
        return self

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> Self:  # noqa: ARG002  (the role's)
        """Go on with no dialogue."""
        return self

    @property
    def messages(self) -> tuple[Message, ...]:
        """No dialogue."""
        return ()

    async def plan(self) -> Plan:
        """Return the empty plan."""
        return Plan(said=Said(raw="", text=""))

    async def reflect(self, attempt: Attempt) -> Reflection:  # noqa: ARG002  (the role's)
        """Let every attempt stand."""
        return Reflection(said=None, replan=False)

    async def replan(self, attempt: Attempt) -> Plan:
        """Return the empty plan once more."""
        return (await self.plan()).model_copy(update={"revises": attempt.plan.text})
