"""The contract of the released Serve: plans carried out, rollouts kept, and what is made of them, step by step."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mia.text import Answer, clean, parse_turn, split_thoughts
from mia.types import (
    IMAGE_MARK,
    Attempt,
    ImageRef,
    Label,
    Message,
    Observation,
    Plan,
    Said,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    Verdict,
)

if TYPE_CHECKING:
    from mia.types import Episode

_MOST = 2**53  # the largest number that every reader of JSON keeps exact
_TAGS = re.compile(r"</?tool_response>\\?")  # around an observation, in all formats

Text = Annotated[str, AfterValidator(clean)]
Asked = Annotated[Text, Field(json_schema_extra={"pattern": r"\S"})]  # the core refuses a blank question
Id = Annotated[str, AfterValidator(clean), Field(min_length=1)]
Number = Annotated[int, Field(ge=0, le=_MOST)]


class Wire(BaseModel):
    """An object of this contract: types as they are named, fields that it does not know passed over."""

    model_config = ConfigDict(strict=True)


class TextPart(Wire):
    """A piece of a message."""

    type: Literal["text"]
    text: Text


class ImagePart(Wire):
    """An image of a message, by content: its bytes stay in the service's image store."""

    type: Literal["image"]
    image: ImageRef


class Turn(Wire):
    """A message; its content is a list where it has images."""

    role: Literal["user", "assistant"]
    content: Text | list[TextPart | ImagePart]

    @classmethod
    def of(cls, message: Message) -> Turn:
        """Put a message as its text, or with each image at the mark of it, or else after the text; no system message.

        Raises:
            ValidationError: it is one.
        """
        role = message.role
        if not message.images:
            return cls.model_validate({"role": role, "content": message.text})
        pieces = message.text.split(IMAGE_MARK)
        if len(pieces) != len(message.images) + 1:
            pieces = [message.text, *[""] * len(message.images)]
        parts: list[TextPart | ImagePart] = [TextPart(type="text", text=pieces[0])]
        for image, piece in zip(message.images, pieces[1:], strict=True):
            parts += [ImagePart(type="image", image=image), TextPart(type="text", text=piece)]
        return cls.model_validate({"role": role, "content": parts})

    @property
    def message(self) -> Message:
        """The message, with a mark in the text for each image."""
        if isinstance(self.content, str):
            return Message(role=self.role, text=self.content)
        text = "".join(part.text if isinstance(part, TextPart) else IMAGE_MARK for part in self.content)
        images = tuple(part.image for part in self.content if isinstance(part, ImagePart))
        return Message(role=self.role, text=text, images=images)


class Place(Wire):
    """Which rollout of which step of which run: ours names it, a released client does not, and all three or none."""

    run: Id | None = None
    step: Number | None = None
    rollout: Number | None = None

    @model_validator(mode="after")
    def _all_or_none(self) -> Place:
        if len({self.run is None, self.step is None, self.rollout is None}) > 1:
            raise ValueError("run, step and rollout come together or not at all")
        return self


class ExecuteRequest(Place):
    """`POST /plan`: carry a plan out."""

    data_id: Id
    question: Asked
    plan: Text = ""


class ContinueRequest(ExecuteRequest):
    """`POST /replan`: go on by a revised plan from `messages`, the `history_messages` of a reply."""

    replan: Text
    messages: list[Turn]


class ExecuteReply(Wire):
    """What came of a plan: asked of the Planner, told alone, and the dialogue without its first user message."""

    prompt: str
    trace: str
    history_messages: list[Turn]


class RecallRequest(Wire):
    """`POST /memory`: what may help with a question."""

    data_id: Id
    question: Asked
    image_caption: Text | list[Text] | None = None

    @property
    def caption(self) -> str:
        """The caption; of a list, the first."""
        if isinstance(self.image_caption, list):
            return self.image_caption[0] if self.image_caption else ""
        return self.image_caption or ""


class RecallReply(Wire):
    """The block for the plan prompt, and the ids of the memories in it, best success first."""

    prompt: str
    indices: list[int]


class Rollout(RecallRequest, Place):
    """`POST /memory_bank_save`: what both forms of it say of a rollout."""

    plan: Text
    used_memory_indices: list[int] = []
    temp_messages: list[Turn]
    model_answer: Text | None = None

    @property
    def digest(self) -> int:
        """A number that is the same for the same plan and dialogue: whoever sends them again is no second rollout."""
        dialogue = [turn.model_dump(mode="json") for turn in self.temp_messages]
        content = json.dumps([self.plan, dialogue], sort_keys=True)
        return int.from_bytes(hashlib.sha256(content.encode()).digest()[:6], "big")

    @property
    def verdict(self) -> Verdict:
        """The grade of the last answer."""
        raise NotImplementedError


class SaveRequest(Rollout):
    """Keep a rollout that was graded by the truth. `slow_plan` is read and not used: which it was, a race decided."""

    judgement: Literal["correct", "incorrect", "not_attempted"]
    slow_plan: Text | None = None

    @property
    def verdict(self) -> Verdict:
        """The grade of the last answer."""
        return Verdict(label=Label(self.judgement), judge="client")


class Panel(Wire):
    """What the reviewers said; `is_correct` and `raw_verdict` are what `judgement_nogt` was read from."""

    is_correct: Text | bool | None = None
    raw_verdict: Text | None = None
    evaluator_1_feedback: Text = ""
    evaluator_2_feedback: Text = ""
    evaluator_3_feedback: Text = ""


class PanelSaveRequest(Rollout):
    """Keep a rollout that reviewers graded. `ground_truth` scores the report and nothing else."""

    judgement_nogt: Literal["correct", "incorrect"]
    judgement_data: Panel = Panel()
    ground_truth: Text | list[Text] | None = None

    @property
    def verdict(self) -> Verdict:
        """The grade of the last answer, and what the reviewers said of it."""
        panel = self.judgement_data
        said = (panel.evaluator_1_feedback, panel.evaluator_2_feedback, panel.evaluator_3_feedback)
        return Verdict(label=Label(self.judgement_nogt), judge="panel", feedback=said if any(said) else ())

    @property
    def truth(self) -> tuple[str, ...]:
        """All answers that are right."""
        given = self.ground_truth or ()
        return (given,) if isinstance(given, str) else tuple(given)


class SaveReply(Wire):
    """It is done, and on disk."""

    status: Literal["success"] = "success"


class StepRequest(Wire):
    """Which step is meant, and how many rollouts make a group; a released client names none and means the open one."""

    run: Id | None = None
    step: Number | None = None
    rollouts: Annotated[int, Field(ge=1, le=_MOST)] = 1

    @model_validator(mode="after")
    def _both_or_none(self) -> StepRequest:
        if (self.run is None) != (self.step is None):
            raise ValueError("run and step come together or not at all")
        return self


StepBody = StepRequest | list[Any] | None


class EvaluateReply(SaveReply):
    """`POST /batch_evaluate`: how many choices were made."""

    processed_count: int
    message: str


class ConsolidateReply(SaveReply):
    """`POST /consolidate_memories`: the memories that the step left behind."""

    saved_positives: int
    saved_negatives: int


class Entry(Wire):
    """The images of a question: base64 or `data:` URLs, bare, in a list or in `{"bytes": ...}`; the first is used."""

    data_id: Id
    images: Any = None


class RegisterRequest(Wire):
    """`POST /streaming/register_images`: many entries, or one at the top."""

    entries: list[Entry] | None = None
    data_id: Id | None = None
    images: Any = None

    @model_validator(mode="after")
    def _one_form(self) -> RegisterRequest:
        if (self.entries is None) == (self.data_id is None):
            raise ValueError("give either entries, or data_id and images")
        return self

    @property
    def all(self) -> list[Entry]:
        """The entries in either form."""
        return self.entries if self.entries is not None else [Entry(data_id=self.data_id or "", images=self.images)]


class RegisterReply(Wire):
    """How many entries were taken in, and how many questions are known now."""

    status: Literal["ok"] = "ok"
    registered: int
    total_data_ids: int


class HealthReply(Wire):
    """How many questions are known, and of how many a rollout waits."""

    status: Literal["ok"] = "ok"
    registered_data_ids: int
    memory_bank_keys: int


def plan_of(text: str, revises: str | None = None) -> Plan:
    """Read a plan as a client sends it, thoughts or not: they are no part of it."""
    thoughts, plan = split_thoughts(text)
    return Plan(said=Said(raw=text, text=plan, thoughts=thoughts), revises=revises)


def attempts(rollout: Rollout, revision: tuple[str, str]) -> tuple[Attempt, ...]:
    """Read a dialogue back into what was tried; `revision` is what stands around the plan of a revising message.

    The verdict is that of the last attempt which took a step.
    """
    begun: list[tuple[Plan, list[Step]]] = [(plan_of(rollout.plan), [])]
    before, after = revision
    for message in (turn.message for turn in rollout.temp_messages):
        plan, steps = begun[-1]
        if message.role == "assistant":
            thoughts, text = split_thoughts(message.text)
            turn = parse_turn(text)
            said = Said(raw=message.text, text=text, thoughts=thoughts)
            steps.append(Step(said=said, call=turn if isinstance(turn, ToolCall) else None))
        elif message.text.startswith(before):
            revised = message.text.removeprefix(before).partition(after)[0] if after else message.text[len(before) :]
            begun.append((plan_of(revised, plan.text), []))
        elif steps:
            seen = Observation(text=_TAGS.sub("", message.text).strip(), images=message.images)
            steps[-1] = steps[-1].model_copy(update={"observation": seen})
    tried = [(plan, steps) for plan, steps in begun if steps] or begun[:1]
    return tuple(
        Attempt(
            plan=plan,
            trajectory=_trajectory(steps, rollout.model_answer if last else None),
            verdict=rollout.verdict if last else None,
        )
        for plan, steps, last in ((*each, each is tried[-1]) for each in tried)
    )


def report_line(episode: Episode, trace: str, **more: Any) -> dict[str, Any]:
    """Return a line of the evaluated*.jsonl files; `key` tells a line that is there already."""
    verdict = episode.final.verdict if episode.final else None
    return {
        "key": str(episode.key),
        "data_id": episode.question.id,
        "question": episode.question.text,
        "image_caption": episode.question.caption,
        "plan": episode.attempts[0].plan.text,
        "trace": trace,
        "answer": episode.answer,
        "used_memory_indices": list(episode.recall.ids),
        "judgement": verdict.label.value if verdict else None,
        **more,
    }


def _trajectory(steps: list[Step], answer: str | None) -> Trajectory:
    turn = parse_turn(steps[-1].said.text) if steps else None
    given = answer or (turn.text if isinstance(turn, Answer) else None)
    stop = StopReason.NO_ANSWER if given is None else StopReason.ANSWERED
    return Trajectory(steps=tuple(steps), answer=given, stop=stop)
