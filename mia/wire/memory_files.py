"""The released code's memory files: workflows and plan pairs, nested by modality and category."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mia.errors import InputError
from mia.text import clean
from mia.types import CATEGORIES, OTHERS, PlanPair, Workflow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MODALITIES = ("text-only", "text-image")
_COUNTS = ("usage_count", "success_count", "win_rate")
_MOST = 2**53  # the largest count that every reader of JSON keeps exact
_SPACE = re.compile(r"[ \t\r\n]*")
_FORMS = (
    'A memory file is one JSON object {"text-only": {category: [record, ...]}, "text-image": {...}}, '
    "a JSON list of records, or one record per line."
)
_FIELDS = (
    'Mend the record or remove it. A record has "question", "workflow_summary" and "judgement", or "question", '
    '"correct_plan" and "incorrect_plan"; counts are whole numbers from 1, and success_count is at most usage_count.'
)


class Released(NamedTuple):
    """What a memory file holds. `dropped` counts the records that had a field for which there is no place here."""

    workflows: tuple[Workflow, ...]
    pairs: tuple[PlanPair, ...]
    dropped: Counter[str]


def read(text: str, source: str, now: float) -> Released:
    """Read a memory file, or JSON lines, or a list, of records of any variant of the released code.

    The same file read again gives the same `episode`s, by which what is known already is recognised; records that a
    file holds more than once are numbered. `source` names the file, `now` becomes `created` (seconds since 1970).

    Raises:
        InputError: the text is no memory file, or a record of it cannot be used. No record is skipped.
    """
    source = clean(source)
    workflows: list[Workflow] = []
    pairs: list[PlanPair] = []
    dropped: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    try:
        for where, category, fields in _records(text, source):
            if isinstance(fields, dict) and ("correct_plan" in fields or "incorrect_plan" in fields):
                pair = _parse(_Pair, fields, category, f"Record {where} of {source}")
                pairs.append(pair.noun(source, now))
                dropped.update(pair.dropped)
            else:
                workflow = _parse(_Workflow, fields, category, f"Record {where} of {source}")
                digest = _digest(fields)
                workflows.append(workflow.noun(f"import/{source}/{digest}/{copies[digest]}", source, now))
                dropped.update(workflow.dropped)
                copies[digest] += 1
    except RecursionError as error:
        raise InputError(f"{source} is nested too deep to be read.", remedy=_FORMS) from error
    return Released(tuple(workflows), tuple(pairs), dropped)


def workflow_file(workflows: Iterable[Workflow]) -> str:
    """Return a memory file that the released code loads.

    It has no place for `id`, `episode`, `source`, `model` and `created`; a category that it does not know is others.
    """
    return _nested(
        (
            workflow.caption,
            workflow.category,
            {
                "data_id": workflow.question_id,
                "question": workflow.question,
                "image_caption": workflow.caption,
                "workflow_summary": workflow.summary,
                "plan": workflow.plan,
                "judgement": "correct" if workflow.correct else "incorrect",
                **{f"evaluator_{n}_feedback": feedback for n, feedback in enumerate(workflow.feedback, 1)},
                "usage_count": workflow.uses + 1,
                "success_count": workflow.wins + 1,
                "win_rate": round((workflow.wins + 1) / (workflow.uses + 1), 4),
            },
        )
        for workflow in workflows
    )


def plan_file(pairs: Iterable[PlanPair]) -> str:
    """Return a plan memory file that the released code loads. It has no place for `id`, `source` and `created`."""
    return _nested(
        (
            pair.caption,
            OTHERS,
            {
                "data_id": pair.question_id,
                "question": pair.question,
                "image_caption": pair.caption,
                "correct_plan": pair.correct_plan,
                "incorrect_plan": pair.incorrect_plan,
                "usage_count": 1,
                "success_count": 1,
                "win_rate": 1.0,
            },
        )
        for pair in pairs
    )


def _nested(records: Iterable[tuple[str, str, dict[str, Any]]]) -> str:
    """Put records, each with its caption and category, in their cells; empty cells are written too, as released."""
    cells: dict[str, dict[str, list[dict[str, Any]]]]
    cells = {modality: {category: [] for category in CATEGORIES} for modality in _MODALITIES}
    for caption, category, record in records:
        modality = _MODALITIES[bool(caption.strip())]
        cells[modality][_known(category)].append(record)
    return json.dumps(cells, ensure_ascii=False, indent=4)


def _known(category: str) -> str:
    return category if category in CATEGORIES else OTHERS


def _cleaned(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value


def _identifier(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, int | float) else _cleaned(value)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "is blank")
    return text


def _blank_as_empty(text: str) -> str:
    return text if text.strip() else ""


Text = Annotated[str, BeforeValidator(_cleaned)]
Count = Annotated[int, Field(strict=True, ge=1, le=_MOST)]


class _Fields(BaseModel):
    """An object of a file: null is as good as missing, and what is not declared is kept aside."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            raise PydanticCustomError("object", "is not a JSON object")
        return {clean(name): value for name, value in fields.items() if value is not None}

    @property
    def undeclared(self) -> list[str]:
        """Names of the fields that say something and are not declared."""
        return [name for name, value in (self.model_extra or {}).items() if value not in ("", [], {})]


class _Reviews(_Fields):
    evaluator_1_feedback: Text | None = None
    evaluator_2_feedback: Text | None = None
    evaluator_3_feedback: Text | None = None

    @property
    def feedback(self) -> tuple[str, ...]:
        """What the reviewers said, in their order."""
        said = (self.evaluator_1_feedback, self.evaluator_2_feedback, self.evaluator_3_feedback)
        return tuple(feedback for feedback in said if feedback is not None)


class _Panel(_Reviews):
    is_correct: Any = None  # the judgement says it


class _Record(_Fields):
    """What both kinds have. Modality follows from the caption and the win rate from the counts, whatever they say."""

    data_id: Annotated[str, BeforeValidator(_identifier)] = ""
    question: Annotated[Text, AfterValidator(_not_blank)]
    image_caption: Annotated[Text, AfterValidator(_blank_as_empty)] = ""
    category: Text = OTHERS
    modality: Any = None
    win_rate: Any = None


class _Workflow(_Record, _Reviews):
    workflow_summary: Text
    plan: Text = ""
    judgement: Text = Field(validation_alias=AliasChoices("judgement", "judgement_nogt"))
    judgement_data: _Panel = _Panel()
    usage_count: Count = 1
    success_count: Count = 1

    @model_validator(mode="after")
    def _wins_within_uses(self) -> _Workflow:
        if self.success_count > self.usage_count:
            counts = {"wins": self.success_count, "uses": self.usage_count}
            raise PydanticCustomError("counts", "success_count {wins} is more than usage_count {uses}", counts)
        return self

    def noun(self, episode: str, source: str, now: float) -> Workflow:
        """Return the memory."""
        return Workflow(
            id=0,
            question=self.question,
            caption=self.image_caption,
            category=_known(self.category),
            summary=self.workflow_summary,
            plan=self.plan,
            correct=self.judgement == "correct",
            feedback=(*self.feedback, *self.judgement_data.feedback),
            uses=self.usage_count - 1,
            wins=self.success_count - 1,
            question_id=self.data_id,
            episode=episode,
            source=source,
            created=now,
        )

    @property
    def dropped(self) -> list[str]:
        """Names of what the memory has no place for."""
        unknown = [] if self.category in CATEGORIES else ["category"]
        return [*unknown, *self.undeclared, *(f"judgement_data.{name}" for name in self.judgement_data.undeclared)]


class _Pair(_Record):
    correct_plan: Text
    incorrect_plan: Text
    usage_count: Any = None  # the released code writes counts here too, and never changes them
    success_count: Any = None

    def noun(self, source: str, now: float) -> PlanPair:
        """Return the pair."""
        return PlanPair(
            id=0,
            question=self.question,
            caption=self.image_caption,
            correct_plan=self.correct_plan,
            incorrect_plan=self.incorrect_plan,
            question_id=self.data_id,
            source=source,
            created=now,
        )

    @property
    def dropped(self) -> list[str]:
        """Names of what the pair has no place for."""
        return [*([] if self.category == OTHERS else ["category"]), *self.undeclared]


_Kind = TypeVar("_Kind", _Workflow, _Pair)


def _parse(kind: type[_Kind], fields: Any, category: str | None, where: str) -> _Kind:
    """Read a record; the category of the cell that it stands in, if it does, is its own."""
    try:
        record = kind.model_validate(fields)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in detail["loc"])
        message = f"{where} cannot be used: {field or 'record'}: {detail['msg']}."
        raise InputError(message, remedy=_FIELDS) from error
    return record if category is None else record.model_copy(update={"category": category})


def _digest(fields: dict[str, Any]) -> str:
    """Return what a record is known by: all but its counts, since it stays the same record when it has been used."""
    named = {name: value for name, value in fields.items() if name not in _COUNTS}
    canonical = json.dumps(named, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _records(text: str, source: str) -> Iterator[tuple[str, str | None, Any]]:
    """Yield each record after where it stands and, if it stands in a cell, the cell's category."""
    documents = list(_documents(text.removeprefix("\ufeff"), source))
    if not documents:
        raise InputError(f"{source} is empty.", remedy=_FORMS)
    _, first = documents[0]
    if len(documents) > 1 or (isinstance(first, dict) and "question" in first):
        for line, record in documents:
            yield f"at line {line}", None, record
    elif isinstance(first, list):
        for index, record in enumerate(first):
            yield str(index), None, record
    elif isinstance(first, dict):
        yield from _cells(first, source)
    else:
        raise InputError(f"{source} is JSON, but no memory file.", remedy=_FORMS)


def _cells(modalities: dict[str, Any], source: str) -> Iterator[tuple[str, str, Any]]:
    for modality, categories in modalities.items():
        if modality not in _MODALITIES:
            raise InputError(f"{source} has the key {modality!r:.80}, which is no modality.", remedy=_FORMS)
        if not isinstance(categories, dict):
            raise InputError(f"{modality} of {source} is not a JSON object of categories.", remedy=_FORMS)
        for category, records in categories.items():
            cell = f"{modality}/{clean(category):.80}"
            if not isinstance(records, list):
                raise InputError(f"{cell} of {source} is not a JSON list of records.", remedy=_FORMS)
            for index, record in enumerate(records):
                yield f"{cell}/{index}", category, record


def _documents(text: str, source: str) -> Iterator[tuple[int, Any]]:
    """Yield the JSON values that stand one after another, each with the number of its first line."""
    decoder = json.JSONDecoder()
    line, end = 1, 0
    while (start := _skip_space(text, end)) < len(text):
        line += text.count("\n", end, start)
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError as error:
            raise InputError(f"{source} cannot be read as JSON from line {line} on: {error}.", remedy=_FORMS) from error
        yield line, value
        line += text.count("\n", start, end)


def _skip_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position
