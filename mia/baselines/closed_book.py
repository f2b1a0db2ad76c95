"""Closed book: the model answers from the question alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia.baselines.single_turn import SingleTurn
from mia.prompts import fill
from mia.text import disarm
from mia.types import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.executor.react import Budget
    from mia.protocols import Listener, Models
    from mia.types import Key, Question, Step


class ClosedBookExecutor:
    """An Executor without tools."""

    def __init__(self, models: Models, budget: Budget, listener: Listener) -> None:
        self._models = models
        self._budget = budget
        self._listener = listener

    def start(self, question: Question, key: Key) -> SingleTurn:
        """Open the dialogue of one question."""
        return self.resume(question, (), key)

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> SingleTurn:
        """Go on with a dialogue held elsewhere."""

        async def compose(_steps: list[Step], _seconds: float) -> Message:
            return Message(
                role="user", text=fill("closed_book", question=disarm(question.text)), images=question.images
            )

        conversation = self._models.open("executor", fill("answer_system"), messages)
        return SingleTurn(conversation, compose, key, self._budget, self._listener)
