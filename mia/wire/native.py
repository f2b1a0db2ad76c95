"""The contract of the native API: our nouns as JSON under /v1, and dialogues that the caller holds."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from mia.text import clean
from mia.types import Attempt, Episode, Key, Message, Plan, Question, Recall, Reflection, Trajectory

DEEPEST = 100  # levels of JSON; an answer of more could not be written
LARGEST = 1 << 63  # the integers that the memory bank can hold are below


def _alternating(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    if len(messages) % 2 or any(message.role != ("user", "assistant")[n % 2] for n, message in enumerate(messages)):
        raise ValueError("the messages must be of user and assistant in turn, and end with the assistant's")
    return messages


Dialogue = Annotated[tuple[Message, ...], AfterValidator(_alternating)]
SnapshotName = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=r"\D")
]  # a number would be taken for a sequence number


class Request(BaseModel):
    """What is asked for: closed to unknown fields, and to values that Python reads from JSON and nothing can keep."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _sound(cls, value: Any) -> Any:
        pending = [(value, 0)]  # not by recursion, which the caller could exhaust
        while pending:
            some, depth = pending.pop()
            if depth > DEEPEST:
                raise ValueError(f"the JSON is nested deeper than {DEEPEST} levels")
            if isinstance(some, dict):
                pending += ((part, depth + 1) for pair in some.items() for part in pair)
            elif isinstance(some, list):
                pending += ((part, depth + 1) for part in some)
            elif fault := _fault(some):
                raise ValueError(fault)
        return value


def _fault(value: object) -> str:
    """Say what is wrong with a single value; nothing, if it is sound."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a number is not finite"
    if isinstance(value, int) and abs(value) >= LARGEST:
        return "a whole number has more than 63 bits"
    if isinstance(value, str) and clean(value) != value:
        return "a text holds NUL or half a surrogate pair"
    return ""


class RecallRequest(Request):
    """Ask for the memories that may help with a question; the answer is a Recall."""

    question: Question


class EpisodeRequest(Request):
    """Hand over an episode, to be remembered or to wait for its group."""

    episode: Episode


class CommitRequest(Request):
    """Ask for what the groups of a step leave behind that have `rollouts` graded rollouts."""

    run: str
    step: int
    rollouts: int = Field(ge=1)


class SnapshotRequest(Request):
    """Give the memory's present state a name that is no number; the same name again is the same state."""

    name: SnapshotName


class RestoreRequest(Request):
    """Bring the memory back to the state at a sequence number."""

    sequence: int = Field(ge=0)


class PlanRequest(Request):
    """Ask for the plan that opens a dialogue."""

    question: Question
    recall: Recall = Recall()
    key: Key


class AttemptRequest(Request):
    """Go on with a Planner's dialogue after an attempt."""

    question: Question
    messages: Dialogue = Field(min_length=2)
    attempt: Attempt
    key: Key


class ExecuteRequest(Request):
    """Have a plan carried out; `messages` of an earlier plan make it a revision."""

    question: Question
    plan: Plan
    key: Key
    messages: Dialogue = ()


class Done(BaseModel):
    """It is done, and on disk."""


class Committed(BaseModel):
    """What became of the groups of a step: memories kept, and groups that lack rollouts or grades still."""

    successes: int
    failures: int
    pairs: int
    incomplete: int


class State(BaseModel):
    """A state of the memory: the number of the change that led to it."""

    sequence: int


class Planned(BaseModel):
    """A plan, and the dialogue up to it."""

    plan: Plan
    messages: Dialogue


class Reflected(BaseModel):
    """A decision, and the dialogue up to it."""

    reflection: Reflection
    messages: Dialogue


class Executed(BaseModel):
    """What came of a plan, and the dialogue up to its end."""

    trajectory: Trajectory
    messages: Dialogue
