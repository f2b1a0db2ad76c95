"""A question with its truth, the splits, and the guards that every question passes."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from worldfacts.world import Entity, World, digest, fold, holds, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from worldfacts.wording import Step

TRAIN, DEV, TEST = "train", "dev", "test"


@dataclass(frozen=True)
class Hop:
    """A line of the decomposition; its query finds the passage."""

    entity: Entity
    relation: str
    object: str
    query: str


@dataclass
class Question:
    """A question as the files carry it."""

    text: str
    answers: tuple[str, ...]
    hops: int
    type: str
    family: str
    relations: tuple[str, ...]
    anchors: tuple[str, ...]
    decomposition: tuple[Hop, ...] = ()
    unanswerable: str = ""
    """Why there is no answer, if there is none."""

    def row(self, ids: dict[str, str], split: str) -> dict[str, Any]:
        """Return the line of the file."""
        supporting = dict.fromkeys(ids[hop.entity.title] for hop in self.decomposition)
        row: dict[str, Any] = {
            "id": f"wfq-{hashlib.sha256(self.text.encode()).hexdigest()[:10]}",
            "question": self.text,
            "answers": list(self.answers),
            "hops": self.hops,
            "type": self.type,
            "split": split,
            "family": self.family,
            "relations": list(self.relations),
            "anchors": list(self.anchors),
            "supporting_ids": list(supporting),
            "decomposition": [
                {
                    "subject": hop.entity.name,
                    "relation": hop.relation,
                    "object": hop.object,
                    "query": hop.query,
                    "id": ids[hop.entity.title],
                }
                for hop in self.decomposition
            ],
        }
        return row | ({"unanswerable": True, "reason": self.unanswerable} if self.unanswerable else {})


@cache
def split_of(anchor: str) -> str:
    """Return the split of everything that starts from a passage title."""
    bucket = digest(anchor) % 100
    return TEST if bucket < 20 else DEV if bucket < 30 else TRAIN


def answers_of(world: World, step: Step, *, chinese: bool = False) -> tuple[str, ...]:
    """Return the answer as its passage writes it, then the other ways to write it."""
    fact = step.fact
    found = {*fact.aliases, plain(fact.text)}
    entity = world.entities.get(fact.entity) if fact.entity else None
    if entity:
        found |= {entity.title, *entity.aliases} if entity.kind == "city" else set(entity.aliases)
        if chinese and entity.chinese:
            found.add(entity.chinese)
    return (fact.text, *sorted(found - {fact.text, ""}))


def gives_itself_away(steps: Sequence[Step], text: str, answers: Sequence[str]) -> bool:
    """Say whether the question tells its answer, or a passage before the last one does."""
    if any(holds(text, answer) for answer in answers):
        return True
    return any(holds(step.subject.text, answers[0]) for step in steps[:-1] if step.subject is not steps[-1].subject)


@dataclass
class Collection:
    """The questions of one file: none twice, and no answer too often."""

    most_of_one_answer: int
    questions: list[Question] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)

    def add(self, question: Question) -> bool:
        """Take a question in, if its answer is not too common by now; say whether it was taken."""
        answer = fold(question.answers[0]) if question.answers else ""
        if question.text in self.texts or (answer and self.answers[answer] >= self.most_of_one_answer):
            return False
        self.texts.add(question.text)
        self.answers[answer] += 1
        self.questions.append(question)
        return True

    def rows(self, ids: dict[str, str], split: str) -> Iterable[dict[str, Any]]:
        """Return the lines of the file, mixed."""
        return sorted((question.row(ids, split) for question in self.questions), key=lambda row: str(row["id"]))
