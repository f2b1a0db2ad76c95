"""Questions with their truth, read from JSON lines."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mia import wiring
from mia.errors import InputError
from mia.text import clean
from mia.types import Truth

if TYPE_CHECKING:
    from pathlib import Path

    from mia.runtime.settings import RoleSettings
    from mia.types import Question


@dataclass(frozen=True)
class Dataset:
    """Questions in file order, beside them answer key and types by id, and the hash of the file they come from."""

    name: str
    questions: tuple[Question, ...]
    answer_key: dict[str, Truth]
    types: dict[str, str]
    sha256: str


def read_dataset(path: Path, settings: RoleSettings, limit: int | None = None, per_type: int | None = None) -> Dataset:
    """Read `{id, question, answers, unanswerable?, type?}` lines, or a part of them.

    With `per_type` that is a sample of so many of each type, the same whenever it is taken: those whose ids have the
    lowest hashes. With `limit` it is the first so many, of the sample if there is one.

    Raises:
        InputError: the file cannot be read, a line does not fit, or an id appears twice. Nothing is skipped, since a
            skipped line would leave the denominator.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"The data set {path} cannot be read: {error.strerror}.", remedy="Check the path.") from error
    questions: list[Question] = []
    answer_key: dict[str, Truth] = {}
    types: dict[str, str] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if limit is not None and per_type is None and len(questions) >= limit:
            break
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question = wiring.question(settings, row["question"], id=clean(str(row["id"])))
            answer_key_row = _truth(row)
        except (ValueError, KeyError, TypeError, InputError) as error:
            raise InputError(
                f"Line {number} of {path} is not a question: {error}.",
                remedy='Each line must be {"id": ..., "question": ..., "answers": [...]}.',
            ) from error
        if question.id in answer_key:
            raise InputError(f"Line {number} of {path} repeats the id {question.id!r}.", remedy="Give each its own id.")
        questions.append(question)
        answer_key[question.id] = answer_key_row
        types[question.id] = str(row.get("type", ""))
    if not questions:
        raise InputError(f"{path} holds no question.", remedy="Name a file of JSON lines with at least one.")
    chosen = questions if per_type is None else _sample(questions, types, per_type)
    return Dataset(path.stem, tuple(chosen[:limit]), answer_key, types, hashlib.sha256(data).hexdigest())


def _sample(questions: list[Question], types: dict[str, str], each: int) -> list[Question]:
    chosen: dict[str, list[str]] = {}
    for question in sorted(questions, key=lambda question: hashlib.sha256(question.id.encode()).digest()):
        chosen.setdefault(types[question.id], []).append(question.id)
    kept = {name for names in chosen.values() for name in names[:each]}
    return [question for question in questions if question.id in kept]


def _truth(row: dict[str, Any]) -> Truth:
    answers = row["answers"]
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise TypeError("answers must be a list of strings")
    if not answers and not row.get("unanswerable"):
        raise TypeError("there is no answer, and it is not marked as unanswerable")
    return Truth(answers=tuple(map(clean, answers)), unanswerable=bool(row.get("unanswerable", False)))
