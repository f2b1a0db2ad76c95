"""The nouns of MIA: what flows from a question to an answer, a verdict, a reward and a memory.

All are frozen pydantic models that forbid unknown fields, so a noun read back from disk or wire is the noun written.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

EPISODE_SCHEMA = 1
OTHERS = "others"
IMAGE_MARK = "<image>"
# What a question asks for, as the released code sorts its memories.
CATEGORIES = ("location", "human", "time", "career", "process", "definition", "event", "function", "property", OTHERS)


class Noun(BaseModel):
    """A value: frozen, comparable, serialisable, closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ImageRef(Noun):
    """An image by content. Bytes live in an image store; drivers inline them when they talk to a model."""

    sha256: str
    mime: str
    width: int
    height: int


class Question(Noun):
    """What is asked. Never holds truth, so it is safe to hand to any component."""

    id: str
    text: str
    images: tuple[ImageRef, ...] = ()
    caption: str = ""


class Truth(Noun):
    """What is right: the answer and its aliases. Held by `TruthJudge` and the report, and by nobody else."""

    answers: tuple[str, ...] = ()
    unanswerable: bool = False


class Message(Noun):
    """One turn of a dialogue as every driver and trainer sees it.

    Images stand where the text marks them if it has a mark for each, else after the text.
    """

    role: Literal["system", "user", "assistant"]
    text: str
    images: tuple[ImageRef, ...] = ()


class Said(Noun):
    """One whole reply of a model. `raw` is `thoughts` and `text` as the model wrote them, stop string included."""

    raw: str
    text: str
    thoughts: str = ""
    finish: Literal["stop", "length", "aborted"] = "stop"
    prompt_tokens: int = 0
    new_tokens: int = 0
    model: str = ""
    version: str = ""
    started: float = 0.0
    seconds: float = 0.0


class ToolCall(Noun):
    """A tool call as the model meant it. `repaired` is true when its text had to be mended to be read."""

    name: str
    arguments: dict[str, Any]
    repaired: bool = False


class Source(Noun):
    """Where an observation comes from: a passage of a corpus or a page."""

    id: str
    title: str
    url: str = ""


class Observation(Noun):
    """What a tool answered. `error` is set when the tool answered with an error, which is data for the model."""

    text: str
    images: tuple[ImageRef, ...] = ()
    error: str | None = None
    seconds: float = 0.0
    sources: tuple[Source, ...] = ()


class Step(Noun):
    """One turn of the Executor: what it said, what it called, what came back."""

    said: Said
    call: ToolCall | None = None
    observation: Observation | None = None


class StopReason(StrEnum):
    """Why an Executor ended. Closed: every trajectory ends for one of these reasons."""

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    CALL_LIMIT = "call_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105
    TIME_LIMIT = "time_limit"
    MALFORMED = "malformed"
    ABORTED = "aborted"
    INFRA_ERROR = "infra_error"


class Failure(Noun):
    """A service that was down after its retries, or storage that failed, as recorded in an episode."""

    service: str
    message: str
    remedy: str = ""
    status: int | None = None
    retryable: bool = True


class Trajectory(Noun):
    """What the Executor did with one plan. `stop` says what ended it; `answer` is there even when a budget ended it."""

    steps: tuple[Step, ...]
    answer: str | None
    stop: StopReason
    failure: Failure | None = None


class Plan(Noun):
    """A plan in the Planner's words; `revises` holds the text of the plan that this one replaces.

    `drafts` are replies before it that held no plan.
    """

    said: Said
    revises: str | None = None
    drafts: tuple[Said, ...] = ()

    @property
    def text(self) -> str:
        """The plan without thoughts. Empty when the model produced none."""
        return self.said.text.strip()


class Reflection(Noun):
    """Whether to plan again. `said` is None when no model was asked (a verdict decided)."""

    said: Said | None
    replan: bool


class Label(StrEnum):
    """The grade of an answer."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NOT_ATTEMPTED = "not_attempted"
    JUDGE_ERROR = "judge_error"


class Verdict(Noun):
    """One grade per attempt, made once and kept. `judge` names who gave it, `feedback` is what each reviewer said."""

    label: Label
    judge: str
    reason: str = ""
    feedback: tuple[str, ...] = ()


class Attempt(Noun):
    """A plan, what came of it, and its grade."""

    plan: Plan
    trajectory: Trajectory
    verdict: Verdict | None = None


class Workflow(Noun):
    """One memory. `id` is an integer that is never reused; `uses` and `wins` start at 0.

    `source` is the run or the file that it came from, `feedback` what reviewers said of the episode, if any did.
    """

    id: int
    question: str
    caption: str = ""
    category: str = OTHERS
    summary: str
    plan: str
    correct: bool
    feedback: tuple[str, ...] = ()
    uses: int = 0
    wins: int = 0
    question_id: str
    episode: str
    source: str = ""
    model: str = ""
    created: float


class PlanPair(Noun):
    """Two first plans for one question, of which one led to the answer and the other did not."""

    id: int
    question: str
    caption: str = ""
    correct_plan: str
    incorrect_plan: str
    question_id: str
    source: str = ""
    created: float


class Recall(Noun):
    """Memories shown for a question, best first, each with its score; `withheld` are ids held back on purpose.

    `sequence` is the number of the memory's latest change when it was asked. `caption` is what the Memory says of the
    images of a question that came without a caption. `told` is shown instead of memories, where a data set brings text.
    """

    successes: tuple[tuple[Workflow, float], ...] = ()
    failures: tuple[tuple[Workflow, float], ...] = ()
    withheld: tuple[int, ...] = ()
    sequence: int = 0
    caption: str = ""
    told: str = ""

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the memories shown, successes first."""
        return tuple(workflow.id for workflow, _ in (*self.successes, *self.failures))


class Key(Noun):
    """Identity of an episode everywhere. A GRPO group is all rollouts of one (run, step, question_id)."""

    run: str
    step: int = 0
    question_id: str
    rollout: int = 0

    def __str__(self) -> str:
        return f"{self.run}/{self.step}/{self.question_id}/{self.rollout}"

    def seed(self, turn: int) -> int:
        """Return the 31-bit seed of one request of this episode (DESIGN rule 9)."""
        digest = hashlib.sha256(f"{self}/{turn}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:4], "big") >> 1


class Reward(Noun):
    """Named parts, each (score, weight); the value is their weighted sum."""

    parts: dict[str, tuple[float, float]]

    @property
    def value(self) -> float:
        """Sum of score times weight over all parts, to 12 places: .7 + .2 + .1 is 1, and equal merits are equal."""
        return round(sum(score * weight for score, weight in self.parts.values()), 12)


class Cost(Noun):
    """What an episode took: replies and tokens of Planner and Executor, answered tool calls, seconds by phase."""

    model_calls: dict[str, int] = Field(default_factory=dict)
    prompt_tokens: dict[str, int] = Field(default_factory=dict)
    new_tokens: dict[str, int] = Field(default_factory=dict)
    tool_calls: dict[str, int] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)

    @classmethod
    def of(cls, episode: Episode, seconds: float) -> Cost:
        """Add up what stands in an episode that took `seconds` in all."""
        steps = [step for attempt in episode.attempts for step in attempt.trajectory.steps]
        said = {
            "planner": [
                *(said for attempt in episode.attempts for said in (*attempt.plan.drafts, attempt.plan.said)),
                *(reflection.said for reflection in episode.reflections if reflection.said),
            ],
            "executor": [step.said for step in steps],
        }
        answered = [step for step in steps if step.call and step.observation and step.observation.error is None]
        calls = Counter(step.call.name for step in answered if step.call)
        observing = sum(step.observation.seconds for step in steps if step.observation)
        by_role = {role: sum(reply.seconds for reply in replies) for role, replies in said.items()}
        return cls(
            model_calls={role: sum(bool(reply.model) for reply in replies) for role, replies in said.items()},
            prompt_tokens={role: sum(reply.prompt_tokens for reply in replies) for role, replies in said.items()},
            new_tokens={role: sum(reply.new_tokens for reply in replies) for role, replies in said.items()},
            tool_calls=dict(calls),
            seconds={**by_role, "tools": observing, "all": seconds},
        )


class Episode(Noun):
    """One question's whole road: the trace of record, one line of `episodes.jsonl`.

    `failure` is set when a service was down: such an episode is not judged, not remembered and not rewarded.
    """

    schema_: int = Field(default=EPISODE_SCHEMA, alias="schema")
    key: Key
    question: Question
    recall: Recall = Recall()
    attempts: tuple[Attempt, ...] = ()
    reflections: tuple[Reflection, ...] = ()
    reward: Reward | None = None
    failure: Failure | None = None
    weights_version: str = ""
    memory_sequence: int = 0
    cost: Cost = Cost()

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    @property
    def final(self) -> Attempt | None:
        """The attempt whose answer counts: the last one that took a step.

        A revised plan that no budget was left for withdraws nothing, since the Executor was never told of it.
        """
        begun = tuple(attempt for attempt in self.attempts if attempt.trajectory.steps)
        attempts = begun or self.attempts
        return attempts[-1] if attempts else None

    @property
    def answer(self) -> str | None:
        """The answer that counts, if there is one."""
        return self.final.trajectory.answer if self.final else None


class Want(Noun):
    """How one reply is to be made. `schema_` constrains output: frozen roles only, a policy's driver raises."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    seed: int | None = None
    deadline: float = 600.0

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)


class ToolSpec(Noun):
    """What a model is told of a tool. `parameters` is a JSON schema; `max_calls` caps its use per episode."""

    name: str
    description: str
    parameters: dict[str, Any]
    max_calls: int | None = None


class EventKind(StrEnum):
    """What can happen in an episode."""

    RECALLED = "recalled"
    PLANNED = "planned"
    SAID = "said"
    CALLED = "called"
    OBSERVED = "observed"
    REFLECTED = "reflected"
    ANSWERED = "answered"
    JUDGED = "judged"
    REMEMBERED = "remembered"
    FAILED = "failed"


class Event(NamedTuple):
    """What a Listener sees, as it happens; `payload` is the noun that came into being."""

    kind: EventKind
    key: Key
    at: float
    payload: object
