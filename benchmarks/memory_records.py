"""Made-up memories and episodes of the size of real ones, for memory.py."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from memory_baseline import ListStore

from mia.memory.storage import Storage
from mia.memory.writing import Fresh, Vectors
from mia.types import (
    Attempt,
    Episode,
    Key,
    Label,
    Observation,
    Plan,
    Question,
    Recall,
    Said,
    Source,
    Step,
    StopReason,
    ToolCall,
    Trajectory,
    Verdict,
    Workflow,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

PORTION = 2000  # records of one transaction when a bank is filled
SUMMARY = "\n".join(
    f"{number}. Look up who wrote it (search -> the author and the year of the book)" for number in range(1, 13)
)
PLAN = "First find the work that is meant, then its author, then where the author was born. " * 6


class Known:
    """An encoder that has seen every text: what is measured is the bank."""

    id = "known"

    def __init__(self, dimensions: int, vectors: dict[str, Matrix]) -> None:
        self.dimensions = dimensions
        self._vectors = vectors

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return what is known of the texts; a KeyError for any other."""
        return np.stack([self._vectors[text] if text else np.zeros(self.dimensions, np.float32) for text in texts])


class Records:
    """Made-up memories: `questions` and `captions` are float32 [count, dimensions], about 0.3 alike on average."""

    def __init__(self, count: int, dimensions: int, *, captioned: bool) -> None:
        self.dimensions = dimensions
        self.questions = alike(count, dimensions, 1)
        self.captions = alike(count, dimensions, 2) if captioned else np.zeros((count, dimensions), np.float32)

    def fresh(self, number: int) -> Fresh:
        """Return a memory as it is inserted."""
        uses = number % 5
        workflow = Workflow(
            id=0,
            question=f"In which town was the author of the {number}th book on the list born?",
            caption=f"A photograph of shelf {number} of a library." if self.captions[number].any() else "",
            summary=SUMMARY,
            plan=PLAN,
            correct=number % 3 > 0,
            uses=uses,
            wins=number % (uses + 1),
            question_id=f"q{number}",
            episode=f"benchmark/0/q{number}/0",
            source="benchmark",
            model="stand-in",
            created=float(number),
        )
        return Fresh(workflow, f"{number:032x}", Vectors(self.questions[number], self.captions[number]))

    def fill(self, storage: Storage, first: int, last: int) -> None:
        """Keep the records of a range, in large transactions."""
        for start in range(first, last, PORTION):
            some = [self.fresh(number) for number in range(start, min(start + PORTION, last))]
            with storage.writing() as writing:
                writing.take_in(each.workflow.episode for each in some)
                writing.add(some)

    def store(self, count: int) -> ListStore:
        """Return the same memories as the released code holds them."""
        records = [released(self.fresh(number).workflow) for number in range(count)]
        return ListStore(records, self.questions[:count], self.captions[:count])


def released(workflow: Workflow) -> dict[str, Any]:
    """Return a memory as the released code writes it down."""
    return {
        "question": workflow.question,
        "caption": workflow.caption,
        "workflow": workflow.summary,
        "plan": workflow.plan,
        "judgement": "correct" if workflow.correct else "incorrect",
        "usage_count": workflow.uses + 1,
        "success_count": workflow.wins + 1,
        "win_rate": round((workflow.wins + 1) / (workflow.uses + 1), 4),
    }


def alike(count: int, dimensions: int, seed: int) -> Matrix:
    """Return unit vectors in clusters around one direction, as vectors of texts of one language are."""
    topics = np.random.default_rng(0).standard_normal((1000, dimensions), np.float32)
    chance = np.random.default_rng(seed)
    rows = chance.standard_normal((count, dimensions), np.float32)
    rows += 0.8 * topics[chance.integers(len(topics), size=count)] + 0.9 * topics[0]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def filled(path: Path, records: Records, size: int) -> None:
    """Make a bank of the first records."""
    with closing(Storage(path, Known.id)) as storage:
        records.fill(storage, 0, size)


def episode(number: int, shown: tuple[int, ...] = ()) -> Episode:
    """Return a graded episode of six searches."""
    said = Said(raw=PLAN, text=PLAN, model="stand-in")
    source = Source(id="1", title="A page about the author", url="https://example.org/author")
    steps = [
        Step(
            said=Said(raw="I search.", text="I search."),
            call=ToolCall(name="search", arguments={"query": f"author of book {number}, part {turn}"}),
            observation=Observation(text="word " * 300, sources=(source, source, source)),
        )
        for turn in range(6)
    ]
    trajectory = Trajectory(steps=tuple(steps), answer="Paris", stop=StopReason.ANSWERED)
    verdict = Verdict(label=Label.CORRECT if number % 3 else Label.INCORRECT, judge="benchmark")
    memories = [
        Workflow(id=id_, question="", summary="", plan="", correct=True, question_id="", episode="", created=0.0)
        for id_ in shown
    ]
    return Episode(
        key=Key(run="remembered", question_id=f"q{number}"),
        question=Question(
            id=f"q{number}", text=f"In which town was the author of the {number}th book on the list born?"
        ),
        recall=Recall(successes=tuple((memory, 1.0) for memory in memories)),
        attempts=(Attempt(plan=Plan(said=said), trajectory=trajectory, verdict=verdict),),
    )
