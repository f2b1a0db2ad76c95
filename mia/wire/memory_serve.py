"""Memory-Serve's HTTP contract: the released field names, and how they map to nouns."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from mia.text import Answer, clean, parse_turn, split_thoughts, to_json
from mia.types import (
    Attempt,
    Episode,
    Key,
    Label,
    Message,
    Observation,
    Plan,
    Question,
    Recall,
    Said,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    Verdict,
)

RUN = "memory-serve"  # what memories of this service name as their source
MOST = 8  # memories of a label that may be asked for, and as many that may be skipped
PLANS = 4  # of /best_plan

_LONGEST = 32_768  # characters of a question or a caption
_MOST_TEXT = 1_000_000  # of a message, a plan or a trace
_TOOL_TAG = re.compile(r"</?tool_response>\\?")

T = TypeVar("T")


def _cleaned(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value


def _first(value: Any) -> Any:
    """Return the first of a list of captions; no caption is an empty one."""
    if isinstance(value, list):
        value = value[0] if value else ""
    return "" if value is None else _cleaned(value)


def _flat(content: Any) -> Any:
    """Return the text of a message; of content in parts, the text with a mark for each part that is none."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = "\n".join(part if isinstance(part, str) else "[image]" for part in parts)
    return "" if content is None else _cleaned(content)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank")
    return text


Batch = Annotated[list[T], Field(max_length=1024)]
Text = Annotated[str, BeforeValidator(_cleaned)]
Told = Annotated[Text, Field(max_length=_MOST_TEXT)]
Asked = Annotated[Text, Field(max_length=_LONGEST, json_schema_extra={"pattern": r"\S"}), AfterValidator(_not_blank)]
Caption = Annotated[str, BeforeValidator(_first), Field(max_length=_LONGEST)]
Count = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Id = Annotated[int, Field(strict=True, ge=1)]
FilePath = Annotated[Text, Field(json_schema_extra={"pattern": r"\.jsonl?$"})]


class _Asking(BaseModel):
    data_id: Text = ""
    question: Asked
    image_caption: Caption = ""

    @property
    def noun(self) -> Question:
        """The question; the wire tells of an image by its caption alone."""
        return Question(id=self.data_id, text=self.question, caption=self.image_caption)


class MemoryRequest(_Asking):
    """One question of /memory, /plan or /best_plan: `mem_top_k` of each label after the best `pass_num`."""

    mem_top_k: Count = 2
    pass_num: Count = 0


class MemoryResponse(BaseModel):
    """The memories shown, as text and as ids."""

    context: str
    pos_indices: list[int]
    neg_indices: list[int]


class WireMessage(BaseModel):
    """One turn of a dialogue; content in parts is read as text."""

    role: Text
    content: Annotated[str, BeforeValidator(_flat), Field(max_length=_MOST_TEXT)] = ""


class DialogueMessage(WireMessage):
    """One turn of a dialogue with the Planner."""

    role: Literal["system", "user", "assistant"]

    @classmethod
    def of(cls, message: Message) -> DialogueMessage:
        """Return a turn as the wire has it."""
        return cls(role=message.role, content=message.text)


class PlanResponse(BaseModel):
    """A plan, the dialogue that it came from, and the ids of the memories shown."""

    plan: str
    messages: list[DialogueMessage]
    pos_indices: list[int]
    neg_indices: list[int]


class BestPlanResponse(PlanResponse):
    """The plan that was selected (from 1), and all."""

    selected_plan_number: int
    all_plans: list[str]


class _Continuing(BaseModel):
    past_messages: list[DialogueMessage]

    @property
    def history(self) -> tuple[Message, ...]:
        """The dialogue so far, without the system message, which the Planner brings itself."""
        begin = 1 if self.past_messages and self.past_messages[0].role == "system" else 0
        return tuple(Message(role=said.role, text=said.content) for said in self.past_messages[begin:])


class JudgeReplanRequest(_Continuing):
    """A trace to decide on. Of `memory_indices` only the number counts."""

    workflow: Told
    memory_indices: list[Id] = []


class JudgeReplanResponse(BaseModel):
    """The decision, and the dialogue with it."""

    need_replan: Literal["yes", "no"]
    messages: list[DialogueMessage]


class ReplanRequest(_Continuing, _Asking):
    """A question whose plan is to be revised."""

    mem_top_k: Count = 1
    pass_num: Count = 0


class ReplanResponse(BaseModel):
    """The revised plan. No memories are shown for it, so the ids are empty."""

    replan: str
    messages: list[DialogueMessage]
    pos_indices: list[int] = []
    neg_indices: list[int] = []


class ReplanTrainRequest(_Asking):
    """What the Executor's trainer knows of an attempt that its verdict calls wrong."""

    plan: Told
    trace: Told
    mem_context1: Told = ""
    mem_context2: Told = ""

    @property
    def memories(self) -> str:
        """Both memory contexts, once if they are the same."""
        return "\n\n".join(dict.fromkeys(filter(str.strip, (self.mem_context1, self.mem_context2))))


class ReplanTrainResponse(BaseModel):
    """The revised plan; asking for one is the decision to have it."""

    replan: Literal[True] = True
    content: str


class SaveRequest(_Asking):
    """One finished question: the Executor's dialogue without its first user message, and its grade."""

    plan: Told = ""
    messages: list[WireMessage]
    judgement: Literal["correct", "incorrect", "not_attempted"]
    used_memory_indices: list[Id] = []
    evaluator_1_feedback: Told | None = None
    evaluator_2_feedback: Told | None = None
    evaluator_3_feedback: Told | None = None

    @property
    def feedback(self) -> tuple[str, ...]:
        """What the three reviewers said, in their order; empty when none said anything."""
        said = (self.evaluator_1_feedback, self.evaluator_2_feedback, self.evaluator_3_feedback)
        return tuple(feedback or "" for feedback in said) if any(said) else ()

    def episode(self, recall: Recall) -> Episode:
        """Return the episode. The same request gives the same key, by which a retry is known."""
        digest = hashlib.sha256(to_json(self.model_dump()).encode()).hexdigest()
        attempt = Attempt(
            plan=Plan(said=Said(raw=self.plan, text=self.plan)),
            trajectory=_trajectory(self.messages),
            verdict=Verdict(label=Label(self.judgement), judge="client", feedback=self.feedback),
        )
        return Episode(
            key=Key(run=RUN, question_id=self.data_id, rollout=int(digest[:12], 16)),
            question=self.noun,
            recall=recall,
            attempts=(attempt,),
        )


class SaveResponse(BaseModel):
    """All is on disk. Memories that are gone, or never were, get no credit and are named."""

    status: Literal["success"] = "success"
    ignored_memory_indices: list[int] = []


class SavePath(BaseModel):
    """Where the memory is to be written."""

    save_path: FilePath


class LoadPath(BaseModel):
    """Where the memory is to be read."""

    load_path: FilePath


class FileResponse(BaseModel):
    """Which file it was: an outside path is reduced to its name in the service's folder."""

    status: Literal["success"] = "success"
    path: str
    memories: int


class ClearResponse(BaseModel):
    """The memory is empty; the message says how to bring back what was there."""

    status: Literal["success"] = "success"
    message: str


def _trajectory(messages: list[WireMessage]) -> Trajectory:
    """Read a dialogue of any of the released formats; what stands before the first reply is no part of it."""
    steps: list[Step] = []
    answer = None
    for message in messages:
        if message.role == "assistant":
            thoughts, text = split_thoughts(message.content)
            turn = parse_turn(text)
            answer = turn.text if isinstance(turn, Answer) else None
            said = Said(raw=message.content, text=text, thoughts=thoughts)
            steps.append(Step(said=said, call=turn if isinstance(turn, ToolCall) else None))
        elif steps:
            seen = steps[-1].observation
            text = "\n\n".join([*([seen.text] if seen else []), _TOOL_TAG.sub("", message.content).strip()])
            steps[-1] = steps[-1].model_copy(update={"observation": Observation(text=text)})
    stop = StopReason.NO_ANSWER if answer is None else StopReason.ANSWERED
    return Trajectory(steps=tuple(steps), answer=answer, stop=stop)
