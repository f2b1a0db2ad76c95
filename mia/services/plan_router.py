"""The Router: of the plans that were written for a question, the model chooses one by what worked for similar ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from mia.errors import OutOfRoom
from mia.memory.threads import waited
from mia.prompts import fill
from mia.text import disarm
from mia.types import Message, Want

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mia.clients.chat import ChatModels
    from mia.memory.storage import Storage
    from mia.protocols import Encoder
    from mia.types import PlanPair, Question

SYSTEM = "You choose between plans of a research agent."
NO_PAIRS = "(none yet)"

_PAIRS = 2
_CAPTION = 0.2  # the share of the caption in how similar two questions are
_MAX_TOKENS = 1024
_CHOICE = re.compile(r'[\s`]*(?:json)?\s*(?:\{\s*"answer"\s*:\s*)?"?([1-9]\d{0,3})"?\s*\}?[\s`]*')


class PlanMemory:
    """The plan pairs of a bank, looked up by question. Its methods block."""

    def __init__(self, storage: Storage, encoder: Encoder, *, exclude_same_question: bool) -> None:
        self._storage = storage
        self._encoder = encoder
        self._exclude = exclude_same_question
        self._vectors: dict[int, NDArray[np.float32]] = {}

    def nearest(self, questions: Sequence[Question]) -> list[list[PlanPair]]:
        """Return for each question the most similar pairs, best first. Raises StorageError."""
        pairs = self._storage.pairs()
        fresh = [pair for pair in pairs if pair.id not in self._vectors]
        self._vectors |= zip((pair.id for pair in fresh), self._encode(fresh), strict=True)
        known = np.array([self._vectors[pair.id] for pair in pairs], np.float32)
        return [self._nearest(question, pairs, known) for question in questions]

    def _nearest(self, question: Question, pairs: Sequence[PlanPair], known: NDArray[np.float32]) -> list[PlanPair]:
        if not pairs:
            return []
        words, caption = self._encoder.encode([question.text, question.caption])
        share = _CAPTION if question.caption.strip() else 0.0
        likeness = (1 - share) * known[:, 0] @ words + share * known[:, 1] @ caption
        ranked = [pairs[row] for row in np.argsort(-likeness, kind="stable")]
        return [pair for pair in ranked if not (self._exclude and pair.question_id == question.id)][:_PAIRS]

    def _encode(self, pairs: Sequence[PlanPair]) -> NDArray[np.float32]:
        """Return float32 [n, 2, dimensions]: of each pair the question and the caption."""
        flat = self._encoder.encode([text for pair in pairs for text in (pair.question, pair.caption)])
        return np.asarray(flat, np.float32).reshape(len(pairs), 2, self._encoder.dimensions)


class PlanRouter:
    """Asks the Memory Manager's model which plan to take (paper, section 3). It sees plans, and never what came."""

    def __init__(self, models: ChatModels, memory: PlanMemory, seconds: float) -> None:
        self._models = models
        self._memory = memory
        self._seconds = seconds

    async def pairs(self, questions: Sequence[Question]) -> list[list[PlanPair]]:
        """Return what the choice for each question is made by."""
        return await waited(None, self._memory.nearest, questions)

    async def choose(self, question: Question, pairs: Sequence[PlanPair], plans: Sequence[str]) -> int | None:
        """Return the place of the chosen plan, None when the model names none of them.

        Raises:
            ModelUnavailable: the model is down.
        """
        if len(plans) == 1:
            return 0
        counter, room = self._models.counter("manager"), self._models.window("manager") - 2 * _MAX_TOKENS
        each = max(room // (2 * (len(plans) + 2 * len(pairs))), 16)  # half of the room is for the question and ours

        def told(text: str) -> str:
            return counter.cut(disarm(text.strip()), each)

        shown = [
            f"Question: {told(pair.question)}\nThis plan worked:\n{told(pair.correct_plan)}\n"
            f"This plan did not:\n{told(pair.incorrect_plan)}"
            for pair in pairs
        ]
        prompt = fill(
            "route",
            question=disarm(question.text),
            pairs="\n\n".join(shown) or NO_PAIRS,
            plans="\n\n".join(f"Plan {number}:\n{told(plan)}" for number, plan in enumerate(plans, 1)),
        )
        names = [str(number) for number in range(1, len(plans) + 1)]
        want = Want(max_tokens=_MAX_TOKENS, deadline=self._seconds, schema_=_schema(names))
        try:
            said = await self._models.open("manager", SYSTEM).say(Message(role="user", text=prompt), want)
        except OutOfRoom:
            return None
        match = _CHOICE.fullmatch(said.text)
        return int(match[1]) - 1 if match and match[1] in names else None


def _schema(names: list[str]) -> dict[str, object]:
    answer = {"type": "string", "enum": names}
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"], "additionalProperties": False}
