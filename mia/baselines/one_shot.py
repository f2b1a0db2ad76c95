"""One-shot retrieval: one search with the question as its query, then the answer from what it found."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from mia.baselines.single_turn import SingleTurn
from mia.prompts import fill
from mia.text import disarm
from mia.types import Event, EventKind, Message, Said, Step, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.executor.react import Budget
    from mia.protocols import Listener, Models, TokenCounter, Tool
    from mia.types import Key, Question


class OneShotExecutor:
    """An Executor that searches before it asks the model. The search is a step of its own that no model wrote."""

    def __init__(self, models: Models, search: Tool, budget: Budget, counter: TokenCounter, listener: Listener) -> None:
        self._models = models
        self._search = search
        self._budget = budget
        self._counter = counter
        self._listener = listener

    def start(self, question: Question, key: Key) -> SingleTurn:
        """Open the dialogue of one question."""
        return self.resume(question, (), key)

    def resume(self, question: Question, messages: Sequence[Message], key: Key) -> SingleTurn:
        """Go on with a dialogue held elsewhere."""
        conversation = self._models.open("executor", fill("answer_system"), messages)
        return SingleTurn(conversation, partial(self._compose, question, key), key, self._budget, self._listener)

    async def _compose(self, question: Question, key: Key, steps: list[Step], seconds: float) -> Message:
        call = ToolCall(name=self._search.spec.name, arguments={"query_list": [question.text]})
        self._listener.on(Event(EventKind.CALLED, key, time.time(), call))
        started = time.monotonic()
        found = await self._search.call(call.arguments, seconds)
        passages = self._counter.cut(disarm(found.text), self._budget.observation_tokens)
        seen = found.model_copy(update={"text": passages, "images": (), "seconds": time.monotonic() - started})
        self._listener.on(Event(EventKind.OBSERVED, key, time.time(), seen))
        steps.append(Step(said=Said(raw="", text=""), call=call, observation=seen))
        text = fill("one_shot", question=disarm(question.text), passages=passages)
        return Message(role="user", text=text, images=question.images)
