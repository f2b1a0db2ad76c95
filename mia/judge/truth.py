"""Grading against known answers: exact match first, then a model's letter in a closed grammar."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mia.errors import OutOfRoom
from mia.judge.match import matches
from mia.prompts import fill
from mia.text import disarm
from mia.types import Label, Message, StopReason, Verdict, Want

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mia.protocols import Models
    from mia.types import Attempt, Question, Truth

_LETTER = re.compile(r"\(?([ABC])\)?\.?", re.IGNORECASE)
_LABELS = {"A": Label.CORRECT, "B": Label.INCORRECT, "C": Label.NOT_ATTEMPTED}
_MAX_ANSWER = 2000


class TruthJudge:
    """Holds the answer key. Without `models` the exact match is the whole verdict."""

    def __init__(
        self,
        answer_key: Mapping[str, Truth],
        models: Models | None = None,
        *,
        max_tokens: int = 1024,
        seconds: float = 120.0,
    ) -> None:
        self._answer_key = answer_key
        self._models = models
        self._max_tokens = max_tokens
        self._seconds = seconds

    async def judge(self, question: Question, attempt: Attempt) -> Verdict:
        """Grade one attempt. What cannot be graded is a judge error, never a wrong answer."""
        truth = self._answer_key.get(question.id)
        if truth is None or attempt.trajectory.stop is StopReason.INFRA_ERROR:
            return Verdict(label=Label.JUDGE_ERROR, judge="none", reason="There is nothing to grade against.")
        answer = attempt.trajectory.answer
        if answer is None:
            return Verdict(label=Label.NOT_ATTEMPTED, judge="exact", reason=attempt.trajectory.stop.value)
        if matches(answer, truth):
            return Verdict(label=Label.CORRECT, judge="exact")
        if self._models is None:
            return Verdict(label=Label.INCORRECT, judge="exact")
        return await self._ask(self._models, question, answer, truth)

    async def _ask(self, models: Models, question: Question, answer: str, truth: Truth) -> Verdict:
        reference = " | ".join(truth.answers) or "(no answer exists; saying so is right)"
        prompt = fill("judge", question=question.text, reference=reference, answer=disarm(answer[:_MAX_ANSWER]))
        said = None
        for _ in range(2):
            conversation = models.open("judge", fill("judge_system"))
            want = Want(max_tokens=self._max_tokens, deadline=self._seconds)
            try:
                said = await conversation.say(Message(role="user", text=prompt), want)
            except OutOfRoom as error:
                return Verdict(label=Label.JUDGE_ERROR, judge="", reason=error.message)
            label = parse_letter(said.text)
            if label is not None:
                return Verdict(label=label, judge=said.model)
        reply = said.text[:200] if said else ""
        return Verdict(label=Label.JUDGE_ERROR, judge=said.model if said else "", reason=f"Not a grade: {reply!r}")


def parse_letter(text: str) -> Label | None:
    """Read a grade: one letter and nothing else. A sentence that holds one is no grade."""
    match = _LETTER.fullmatch(text.strip())
    return _LABELS[match.group(1).upper()] if match else None
