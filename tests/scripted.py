"""A stand-in for language models: replies come from a script, so a test says what the model says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mia.errors import OutOfRoom
from mia.text import ByteCounter, close, split_thoughts, stop_at
from mia.types import Message, Observation, Said, Source, ToolSpec, Want

Script = dict[str, list[Any]]


class ScriptedConversation:
    def __init__(self, models: ScriptedModels, role: str, messages: list[Message]) -> None:
        self._models = models
        self._role = role
        self._messages = messages
        self.wants: list[Want] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    @property
    def room(self) -> int:
        return self._models.window - sum(ByteCounter().count(message.text) for message in self._messages)

    async def say(self, message: Message, want: Want) -> Said:
        if ByteCounter().count(message.text) > self.room:
            raise OutOfRoom("full")
        self._models.asked.append((self._role, message.text))
        self._models.wants.append(want)
        reply = self._models.next(self._role)
        if isinstance(reply, Exception):
            raise reply
        said = reply if isinstance(reply, Said) else say(reply)
        self._messages += [message, Message(role="assistant", text=said.raw)]
        return said


class ScriptedModels:
    """Opens conversations whose replies are taken from `script[role]` in order; the last one repeats."""

    def __init__(self, window: int = 100_000, **script: list[Any]) -> None:
        self.window = window
        self.script = script
        self.asked: list[tuple[str, str]] = []
        self.wants: list[Want] = []
        self.opened: list[ScriptedConversation] = []

    def next(self, role: str) -> Any:
        replies = self.script[role]
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def open(self, role: str, system: str, history: Sequence[Message] = ()) -> ScriptedConversation:
        conversation = ScriptedConversation(self, role, [Message(role="system", text=system), *history])
        self.opened.append(conversation)
        return conversation


class ScriptedTool:
    """Answers each call with what `reply` returns for its arguments."""

    def __init__(
        self, reply: Callable[[dict[str, Any]], str] = str, name: str = "search", max_calls: int | None = None
    ) -> None:
        self.spec = ToolSpec(name=name, description="Searches.", parameters={"type": "object"}, max_calls=max_calls)
        self.calls: list[dict[str, Any]] = []
        self._reply = reply

    async def call(self, arguments: dict[str, Any], deadline: float) -> Observation:
        self.calls.append(arguments)
        return Observation(text=self._reply(arguments), sources=(Source(id="d1", title="Title"),))


class Heard:
    """A Listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on(self, event: Any) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]


def say(raw: str, finish: str = "stop") -> Said:
    raw = close(stop_at(raw, ("</tool_call>", "</answer>", "<tool_response>"))) if finish == "stop" else raw
    thoughts, text = split_thoughts(raw)
    return Said(raw=raw, text=text, thoughts=thoughts, finish=finish, prompt_tokens=10, new_tokens=5, model="scripted")


def call(*queries: str) -> str:
    arguments = {"name": "search", "arguments": {"query_list": list(queries)}}
    return f"I search.\n<tool_call>{json.dumps(arguments, ensure_ascii=False)}</tool_call>"
