"""The smoke world: 20 facts about countries, how they are asked for, and the rows that a Planner is trained on."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from warm.world import World, read

from mia.runtime.files import write_whole
from mia.types import Question

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from warm.world import Hop

    from mia.protocols import Memory

RELATIONS = ("capital", "currency", "calling", "tld", "language")
FACTS = 20
VALIDATION = 8
UNKNOWN = "unknown"

_ROW = pa.schema(
    [("id", pa.string()), ("question", pa.string()), ("answers", pa.list_(pa.string())), ("recall", pa.string())]
)


@dataclass(frozen=True)
class Ask:
    """What a plan of this world looks for: a relation of an entity. Every pair can be asked for, 20 have an answer."""

    relation: str
    entity: str

    @property
    def plan(self) -> str:
        """The plan in words."""
        return f"1. Find the {self.relation} of {self.entity}."

    @property
    def query(self) -> str:
        """The words to search for."""
        return f"{self.entity} {self.relation}"


@dataclass(frozen=True)
class Fact:
    """A fact of the train split: its question there, and further wordings of it."""

    id: str
    ask: Ask
    question: str
    answers: tuple[str, ...]
    value: str
    wordings: tuple[str, ...]

    @property
    def passage(self) -> dict[str, Any]:
        """The one passage that tells it, as a line of a corpus."""
        text = f"The {self.ask.relation} of {self.ask.entity} is {self.value}."
        title = self.ask.entity
        return {"id": self.id, "contents": f'"{title}"\n{text}', "title": title, "text": text}


@dataclass(frozen=True)
class Asked:
    """A fact in the words of one question."""

    id: str
    text: str
    fact: Fact

    @property
    def question(self) -> Question:
        """The question as the loop takes it."""
        return Question(id=self.id, text=self.text)


class SmokeWorld:
    """Facts of the countries that most of the relations are told of, so that a wrong plan finds a wrong answer.

    `training` are the questions of the train split, `validation` some of the facts in other words, and `spare` all
    wordings that are in neither, for a warm start.
    """

    def __init__(self, data: Path) -> None:
        self.facts = tuple(islice(_facts(World(data)), FACTS))
        self.values = {fact.ask: fact.value for fact in self.facts}
        self.relations = tuple(dict.fromkeys(fact.ask.relation for fact in self.facts))
        self.entities = tuple(dict.fromkeys(fact.ask.entity for fact in self.facts))
        self.training = tuple(Asked(fact.id, fact.question, fact) for fact in self.facts)
        held = {(number, number % len(self.facts[number].wordings)) for number in range(0, 2 * VALIDATION, 2)}
        reworded = {
            (number, place): Asked(f"{fact.id}-{place}", text, fact)
            for number, fact in enumerate(self.facts)
            for place, text in enumerate(fact.wordings)
        }
        self.validation = tuple(asked for place, asked in reworded.items() if place in held)
        self.spare = tuple(asked for place, asked in reworded.items() if place not in held)

    def answer(self, ask: Ask) -> str:
        """Return what an Executor answers that follows a plan to the letter."""
        return self.values.get(ask, UNKNOWN)

    def write_corpus(self, path: Path) -> None:
        """Write the passages, one a line."""
        lines = (json.dumps(fact.passage, ensure_ascii=False) + "\n" for fact in self.facts)
        write_whole(path, "".join(lines))


async def write_rows(path: Path, questions: Iterable[Asked], memory: Memory) -> None:
    """Write one row a question, with what the memory recalls for it.

    The columns are id, question, answers (a list) and recall (a `mia.types.Recall` as JSON).
    """
    rows = [
        {
            "id": asked.id,
            "question": asked.text,
            "answers": list(asked.fact.answers),
            "recall": (await memory.recall(asked.question)).model_dump_json(),
        }
        for asked in questions
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=_ROW), path)


def _facts(world: World) -> Iterator[Fact]:
    """Yield what the train split asks of countries, those with most of the relations first."""
    known: dict[str, dict[str, Fact]] = defaultdict(dict)
    for row in read(world.data / "train.jsonl"):
        hop, *more = world.hops(row)
        if not more and hop.kind == "country" and hop.relation in RELATIONS and row["family"] != "chinese":
            known[hop.subject][hop.relation] = _fact(world, row, hop)
    for _, facts in sorted(known.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        yield from (facts[relation] for relation in RELATIONS if relation in facts)


def _fact(world: World, row: dict[str, Any], hop: Hop) -> Fact:
    ask = Ask(world.asked(hop, "").removesuffix(" of "), hop.said)
    words = world.relations[hop.kind][hop.relation]
    frames = [*words["ask"], *words["ask_spoken"]]
    frames += [f"what is {phrase}?" for phrase in (*words["phrase"], *words["phrase_spoken"])]
    frames += [f"I wonder {whether}." for whether in words["whether"]]
    wordings = [frame[0].upper() + frame[1:].replace("{x}", hop.said) for frame in frames]
    others = tuple(dict.fromkeys(wording for wording in wordings if wording != row["question"]))
    return Fact(row["id"], ask, row["question"], tuple(row["answers"]), hop.object, others)
