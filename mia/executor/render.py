"""The one renderer of Executor dialogues: what is served is what is trained (DESIGN 2)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mia.prompts import fill
from mia.text import disarm
from mia.types import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.types import Observation, Plan, Question, ToolSpec


def system(tools: Sequence[ToolSpec]) -> str:
    """Return the system message: how to work and what can be called."""
    lines = [
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False
        )
        for tool in tools
    ]
    return fill("executor_system", tools="\n".join(lines))


def opening(question: Question, plan: Plan) -> Message:
    """Return the first user message: the question, its images, the plan as guidance."""
    name = "executor_image" if question.images else "executor_text"
    text = fill(name, question=disarm(question.text), plan=disarm(plan.text))
    return Message(role="user", text=text, images=question.images)


def revision(plan: Plan) -> Message:
    """Return the user message that withdraws the answer so far and brings a revised plan."""
    return Message(role="user", text=fill("executor_revise", plan=disarm(plan.text)))


def observation(seen: Observation) -> Message:
    """Return what a tool answered, or what to mend, as the user message that all training data use.

    Text from outside is disarmed where it comes in (`ReactExecutor`), since what to mend does speak in tags.
    """
    text = f"<tool_response>\n{seen.text}\n</tool_response>"
    return Message(role="user", text=text, images=seen.images)


def mend(reason: str) -> str:
    """Return the observation text for a turn that could not be read."""
    return fill("executor_mend", reason=disarm(reason))


def forced(message: Message) -> Message:
    """Return the message with the demand to answer now: the last turn a budget allows."""
    return message.model_copy(update={"text": f"{message.text}\n\n{fill('executor_force')}"})
