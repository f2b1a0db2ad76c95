"""The roles: what each part of the loop must be able to do. Local objects, clients and trainers all fit these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from mia.types import (
        Attempt,
        Episode,
        Event,
        Key,
        Message,
        Observation,
        Plan,
        Question,
        Recall,
        Reflection,
        Said,
        ToolSpec,
        Trajectory,
        Verdict,
        Want,
    )

Role = Literal["planner", "executor", "judge", "manager"]


class Conversation(Protocol):
    """Append-only dialogue with one model: nothing said is ever edited."""

    @property
    def room(self) -> int:
        """Tokens left in the model's window."""
        ...

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, system message first."""
        ...

    async def say(self, message: Message, want: Want) -> Said:
        """Append `message`, return the reply. Raises OutOfRoom if it does not fit, ModelUnavailable if none came."""
        ...


class Models(Protocol):
    """Where conversations come from."""

    def open(self, role: Role, system: str, history: Sequence[Message] = ()) -> Conversation:
        """Start a dialogue for a role, or go on with one whose earlier turns are `history`."""
        ...


class Memory(Protocol):
    """What the agent remembers."""

    async def recall(self, question: Question) -> Recall:
        """Return the memories that may help with a question."""
        ...

    async def remember(self, episode: Episode) -> None:
        """Keep an episode; idempotent by `episode.key`."""
        ...


class Planning(Protocol):
    """One question's dialogue with the Planner."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, without the system message: what `Planner.resume` goes on from."""
        ...

    async def plan(self) -> Plan:
        """Write the plan."""
        ...

    async def reflect(self, attempt: Attempt) -> Reflection:
        """Decide whether the attempt calls for another plan."""
        ...

    async def replan(self, attempt: Attempt) -> Plan:
        """Write the plan that goes on from the attempt."""
        ...


class Planner(Protocol):
    """Turns a question and what is recalled into a plan."""

    def start(self, question: Question, recall: Recall, key: Key) -> Planning:
        """Open the dialogue of one question; `key` seeds its requests."""
        ...

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> Planning:
        """Go on with a dialogue held elsewhere: `messages` without the system message (the wire is stateless)."""
        ...


class Execution(Protocol):
    """One question's dialogue with the Executor."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, without the system message: what `Executor.resume` goes on from."""
        ...

    async def carry_out(self, plan: Plan) -> Trajectory:
        """Carry a plan out; a second call goes on in the same dialogue."""
        ...


class Executor(Protocol):
    """Carries plans out with tools."""

    def start(self, question: Question, key: Key) -> Execution:
        """Open the dialogue of one question; `key` seeds its requests."""
        ...

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> Execution:
        """Go on with a dialogue held elsewhere: `messages` without the system message."""
        ...


class Judge(Protocol):
    """Grades attempts."""

    async def judge(self, question: Question, attempt: Attempt) -> Verdict:
        """Grade one attempt. Raises JudgeUnavailable if the grader is down."""
        ...


class Reflector(Protocol):
    """Who decides on replanning: the Planner everywhere, the verdict in Executor training."""

    async def reflect(self, planning: Planning, attempt: Attempt) -> Reflection:
        """Return the decision for an attempt."""
        ...


class Tool(Protocol):
    """Something the Executor can call."""

    @property
    def spec(self) -> ToolSpec:
        """What the model is told of it."""
        ...

    async def call(self, arguments: dict[str, Any], deadline: float) -> Observation:
        """Answer a call within `deadline` seconds. Raises SearchUnavailable when the service behind it is down."""
        ...


class Encoder(Protocol):
    """Text to vectors."""

    @property
    def id(self) -> str:
        """Name and version; vectors of different ids do not mix."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [n, dimensions], rows of unit length (zero for blank text)."""
        ...


class TokenCounter(Protocol):
    """How long a text is to a model."""

    def count(self, text: str) -> int:
        """Return the number of tokens, exact or estimated; where it decides, the endpoint is asked."""
        ...

    def cut(self, text: str, tokens: int) -> str:
        """Return at most `tokens` tokens of the text, cut at a character border with a marker."""
        ...


class Listener(Protocol):
    """Feeds the command line, traces and progress. Must not block and must not raise."""

    def on(self, event: Event) -> None:
        """Take notice of an event."""
        ...
