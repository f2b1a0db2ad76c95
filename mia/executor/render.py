"""The one renderer of Executor dialogues, in named formats: what is served is what is trained (DESIGN 2)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mia.errors import ConfigError
from mia.prompts import fill
from mia.text import disarm
from mia.types import IMAGE_MARK, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.types import Observation, Plan, Question, ToolSpec


@dataclass(frozen=True)
class Format:
    """How a dialogue is put: prompts by name, and what stands around an observation.

    `text` and `image` open a dialogue; images stand where the prompt marks one, else after the text. With `apart` the
    instructions are a system message, without it they begin the first user message and there is no system message.
    `declared` lists a tool as {"type": "function", "function": {...}}, as chat templates do.
    """

    system: str = "executor_system"
    text: str = "executor_text"
    image: str = "executor_image"
    revise: str = "executor_revise"
    apart: bool = True
    declared: bool = False
    before: str = "<tool_response>\n"
    after: str = "\n</tool_response>"


_AS_ONE_MESSAGE = Format(
    system="executor_release_system",
    text="executor_release_text",
    image="executor_release_image",
    revise="executor_release_revise",
    apart=False,
    declared=True,
)

# The released code puts its dialogues in three ways, and so its weights may expect any of them. Its tags, roles and
# newlines are here, its wording is not.
FORMATS = {
    "mia": Format(),
    # A message of the role `tool` reaches a model as this very user message: the chat template wraps it in the tags.
    "release-train": Format(
        system="executor_release_system",
        text="executor_release_train_text",
        image="executor_release_train_image",
        revise="executor_release_revise",
        declared=True,
    ),
    "release-inference": _AS_ONE_MESSAGE,
    # A backslash for the first newline and a second opening tag for the closing one: so its service does it.
    "release-serve": replace(_AS_ONE_MESSAGE, before="<tool_response>\\", after="\n<tool_response>"),
}


class Renderer:
    """Writes the messages of a dialogue with these tools in one of the named formats."""

    def __init__(self, tools: Sequence[ToolSpec], format: str = "mia") -> None:  # noqa: A002
        if format not in FORMATS:
            raise ConfigError(f"There is no format {format!r}.", remedy=f"Choose one of: {', '.join(FORMATS)}.")
        self._format = FORMATS[format]
        self.instructions = fill(self._format.system, tools="\n".join(map(self._declaration, tools)))

    @property
    def system(self) -> str:
        """The system message: how to work and what can be called. Empty in a format without one."""
        return self.instructions if self._format.apart else ""

    def opening(self, question: Question, plan: Plan) -> Message:
        """Return the first user message: the question, its images, the plan as guidance."""
        name = self._format.image if question.images else self._format.text
        text = fill(name, question=disarm(question.text), plan=disarm(plan.text))
        text = text.replace(IMAGE_MARK, IMAGE_MARK * len(question.images))
        if not self._format.apart:
            text = f"{self.instructions}\n\n{text}"
        return Message(role="user", text=text, images=question.images)

    def revision(self, plan: Plan) -> Message:
        """Return the user message that withdraws the answer so far and brings a revised plan."""
        return Message(role="user", text=fill(self._format.revise, plan=disarm(plan.text)))

    def observation(self, seen: Observation) -> Message:
        """Return what a tool answered, or what to mend, as the user message that all training data use.

        Text from outside is disarmed where it comes in (`ReactExecutor`), since what to mend does speak in tags.
        """
        text = f"{self._format.before}{seen.text}{self._format.after}"
        return Message(role="user", text=text, images=seen.images)

    def _declaration(self, tool: ToolSpec) -> str:
        shown = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        declared = {"type": "function", "function": shown} if self._format.declared else shown
        return json.dumps(declared, ensure_ascii=False)


def mend(reason: str) -> str:
    """Return the observation text for a turn that could not be read; what a reason quotes of it is disarmed already."""
    return fill("executor_mend", reason=reason)


def forced(message: Message) -> Message:
    """Return the message with the demand to answer now: the last turn a budget allows."""
    return message.model_copy(update={"text": f"{message.text}\n\n{fill('executor_force')}"})
