"""Grading against known answers: exact match first, then a model's letter in a closed grammar."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from mia.errors import JudgeUnavailable, ModelUnavailable, OutOfRoom
from mia.judge.match import matches
from mia.prompts import fill
from mia.text import ByteCounter, clean, disarm
from mia.types import Label, Message, StopReason, Verdict, Want

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mia.protocols import Conversation, Models
    from mia.types import Attempt, Question, Said, Truth

_AROUND = r"""[\s*_`'"()\[\]]{0,6}"""  # brackets, quotes, emphasis
# One letter and what belongs to it: a word that announces it, what it stands for.
_GRADE = re.compile(
    rf"{_AROUND}(?:(?:final )?(?:answer|grade|verdict) ?:)?{_AROUND}"
    rf"(?P<letter>[abc])(?:[\s.:()*_-]{{1,4}}(?P<name>correct|incorrect|not[ _]attempted))?{_AROUND}\.?{_AROUND}",
    re.IGNORECASE | re.ASCII,
)
_LABELS = {"A": Label.CORRECT, "B": Label.INCORRECT, "C": Label.NOT_ATTEMPTED}
_MARGIN = 64  # tokens for what a chat template puts around messages
_LEAST = 64  # tokens of an answer below which what is left of it is not the answer
_COUNTER = ByteCounter()


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
        self._want = Want(max_tokens=max_tokens, deadline=seconds)

    async def judge(self, question: Question, attempt: Attempt) -> Verdict:
        """Grade one attempt. What cannot be graded is a judge error, never a wrong answer.

        Raises:
            JudgeUnavailable: the model that grades is down.
        """
        truth = self._answer_key.get(question.id)
        if truth is None or attempt.trajectory.stop is StopReason.INFRA_ERROR:
            return Verdict(label=Label.JUDGE_ERROR, judge="none", reason="There is nothing to grade against.")
        answer = attempt.trajectory.answer
        if answer is None or not answer.strip():
            return Verdict(label=Label.NOT_ATTEMPTED, judge="exact", reason=attempt.trajectory.stop.value)
        if matches(answer, truth):
            return Verdict(label=Label.CORRECT, judge="exact")
        if self._models is None:
            return Verdict(label=Label.INCORRECT, judge="exact")
        try:
            return await self._ask(self._models.open("judge", fill("judge_system")), question, answer, truth)
        except ModelUnavailable as error:
            raise JudgeUnavailable(
                error.message, service="judge", status=error.status, retryable=error.retryable, remedy=error.remedy
            ) from error

    async def _ask(self, conversation: Conversation, question: Question, answer: str, truth: Truth) -> Verdict:
        """Ask for a letter, and once more in the same dialogue: the same question alone would get the same reply."""
        said: Said | None = None
        try:
            said = await self._show(conversation, question, answer, truth)
            label = parse_grade(said)
            if label is None:
                said = await conversation.say(Message(role="user", text=fill("judge_again")), self._want)
                label = parse_grade(said)
        except OutOfRoom as error:
            return Verdict(label=Label.JUDGE_ERROR, judge=said.model if said else "", reason=error.message)
        if label is None:
            reason = f"Not a grade: {_one_line(said.text)[:200]}"
            return Verdict(label=Label.JUDGE_ERROR, judge=said.model, reason=reason)
        return Verdict(label=label, judge=said.model)

    async def _show(self, conversation: Conversation, question: Question, answer: str, truth: Truth) -> Said:
        """Show the whole answer, or as much of both its ends as the window has room for, and return the reply."""
        slots = {
            "question": disarm(clean(question.text)),
            "reference": disarm(_one_line(" | ".join(truth.answers))) or "(no answer exists; saying so is right)",
        }
        replies = min(2 * self._want.max_tokens, conversation.room // 2)
        prompts = _COUNTER.count(fill("judge", answer="", **slots)) + _COUNTER.count(fill("judge_again"))
        tokens = conversation.room - prompts - replies - _MARGIN
        text = disarm(_one_line(answer))
        while True:
            prompt = fill("judge", answer=_both_ends(text, tokens), **slots)
            with suppress(OutOfRoom):  # the server may count more than we do
                return await conversation.say(Message(role="user", text=prompt), self._want)
            tokens = min(tokens, _COUNTER.count(text)) // 2


def parse_grade(said: Said) -> Label | None:
    """Read a grade: a reply that ended by itself and is one letter. A sentence that holds a letter is no grade.

    Around the letter may stand brackets, quotes, emphasis or a full stop, before it "Answer:", "Grade:" or "Verdict:",
    after it what it stands for. Thoughts are no grade, and neither are two letters, nor a letter under another name.
    """
    match = _GRADE.fullmatch(said.text.strip()) if said.finish == "stop" else None
    if match is None:
        return None
    label = _LABELS[match["letter"].upper()]
    name = (match["name"] or label.value).lower().replace(" ", "_")
    return label if name == label.value else None


def _one_line(text: str) -> str:
    """Fold all line breaks, so that nothing in a text can look like a line of the prompt."""
    return " ".join(clean(text).split())


def _both_ends(text: str, tokens: int) -> str:
    """Return a text, or its head and its tail with a note between that says how much is missing.

    Raises:
        OutOfRoom: there is no room for anything that could be called the answer.
    """
    if _COUNTER.count(text) <= tokens:
        return text
    if tokens < _LEAST:
        raise OutOfRoom("The judge's window has no room for the answer.")
    data = text.encode()
    half = tokens * _COUNTER.BYTES_PER_TOKEN // 2 - _MARGIN // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head} …[{len(text) - len(head) - len(tail)} characters left out]… {tail}"
