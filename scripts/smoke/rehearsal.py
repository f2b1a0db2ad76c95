"""Dialogues of the product's own loop about the smoke world, with real search and a real memory."""

from __future__ import annotations

import json
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from warm.oracle import Script, Turn
from warm.play import Stage, play

from local_search.build import prepare
from mia.memory.bank import Bank
from mia.memory.compress import ExtractiveCompressor
from mia.memory.manager import Manager
from mia.memory.recall import RecallRule
from mia.runtime.encoder import HashedEncoder
from mia.runtime.settings import RoleSettings, SearchServiceSettings, load
from mia.text import ByteCounter
from smoke.world import Ask, Asked, SmokeWorld

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from mia.protocols import Memory, Role
    from mia.types import Episode, Message, Question, Recall

RIGHT = 0.4  # of all plans; the others name one thing wrong
AGAIN = 0.5  # of all decisions, whatever came of the plan: what to make of that is left to be learnt
SHOWN = 1  # memories of each kind
TOPK = 1


class Dialogue(NamedTuple):
    """What the Planner says: a plan, whether another is needed, and the other."""

    first: Ask
    second: Ask | None = None


class Kept:
    """A memory as it is now: what is played before it is not taken in."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def recall(self, question: Question) -> Recall:
        """Recall."""
        return await self._memory.recall(question)

    async def remember(self, episode: Episode) -> None:
        """Let it pass."""


class Rehearsal:
    """Plays dialogues about the smoke world through the product's own loop, with real search and a real memory."""

    def __init__(self, world: SmokeWorld, stage: Stage, manager: Manager) -> None:
        self.world = world
        self.memory: Memory = Kept(manager)
        self._stage = stage
        self._manager = manager

    async def remember(self) -> None:
        """Fill the memory: a success of every other fact, a failure of the rest."""
        spare = {asked.fact: asked for asked in self.world.spare}
        for number, (fact, asked) in enumerate(sorted(spare.items(), key=lambda entry: entry[0].id)):
            wrong = [ask for ask in near(self.world, fact.ask) if self.world.answer(ask) not in fact.answers]
            ask = fact.ask if number % 2 else wrong[number % len(wrong)]
            await self._play(asked, Dialogue(ask), self._manager)

    async def play(self, asked: Asked, dialogue: Dialogue) -> tuple[Message, ...]:
        """Return the dialogue with the Planner."""
        return await self._play(asked, dialogue, self.memory)

    async def _play(self, asked: Asked, dialogue: Dialogue, memory: Memory) -> tuple[Message, ...]:
        first, second = dialogue
        planner = [Turn(first.plan), Turn("yes" if second else "no"), *([Turn(second.plan)] if second else [])]
        executor = [*self._followed(first), *(self._followed(second) if second else [])]
        turns: dict[Role, list[Turn]] = {"planner": planner, "executor": executor}
        script = Script("smoke", asked.text, asked.fact.answers, first.plan, executor, planner[1].text)
        _, models = await play(script, turns, self._stage, memory, id=asked.id, topk=TOPK)
        return models.opened["planner"].messages

    def _followed(self, ask: Ask) -> list[Turn]:
        """Return what an Executor says that follows a plan to the letter."""
        call = json.dumps({"name": "search", "arguments": {"query_list": [ask.query]}}, ensure_ascii=False)
        return [Turn(f"<tool_call>{call}</tool_call>"), Turn(f"<answer>{self.world.answer(ask)}</answer>")]


@contextmanager
def opened(world: SmokeWorld) -> Iterator[Rehearsal]:
    """Open search and memory in a scratch folder."""
    with TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus.jsonl"
        world.write_corpus(corpus)
        index = prepare(load(SearchServiceSettings, corpus=corpus, index=Path(scratch) / "index"))
        encoder = HashedEncoder()
        bank = Bank.open(Path(scratch) / "memory.sqlite", encoder)
        rule = RecallRule(each=SHOWN, exclude_same_question=True)
        with closing(index), closing(Manager(bank, encoder, ExtractiveCompressor(), rule)) as manager:
            yield Rehearsal(world, Stage(index, ByteCounter(), load(RoleSettings, snippet=0)), manager)


def sure(right: Ask, chance: random.Random) -> Dialogue:
    """Return a dialogue whose plans are right, and whose decision is left to chance."""
    return Dialogue(right, right if chance.random() < AGAIN else None)


def mixed(world: SmokeWorld, right: Ask, chance: random.Random) -> Dialogue:
    """Return a dialogue that goes right or wrong by chance in each of its replies."""
    again = chance.random() < AGAIN
    return Dialogue(_guess(world, right, chance), _guess(world, right, chance) if again else None)


def near(world: SmokeWorld, ask: Ask) -> list[Ask]:
    """Return what differs in one thing: another relation of the entity, or the relation of another entity."""
    relations = [Ask(relation, ask.entity) for relation in world.relations if relation != ask.relation]
    return relations + [Ask(ask.relation, entity) for entity in world.entities if entity != ask.entity]


def _guess(world: SmokeWorld, right: Ask, chance: random.Random) -> Ask:
    return right if chance.random() < RIGHT else chance.choice(near(world, right))


class Probe(NamedTuple):
    """Dialogues to measure on: right plan, no; right plan, yes, right plan; wrong plan, yes, right plan."""

    content: tuple[Message, ...]
    doubted: tuple[Message, ...]
    wrong: tuple[Message, ...]


class Plays(NamedTuple):
    """Dialogues to learn from, in which all plans are right or which are mixed, and some to measure on."""

    right: list[tuple[Message, ...]]
    mixed: list[tuple[Message, ...]]
    training: list[Probe]
    validation: list[Probe]


async def plays(stage: Rehearsal, count: int, chance: random.Random) -> Plays:
    """Play every wording but those held out for validation, and `count` mixed dialogues."""
    world = stage.world
    taught = [*world.training, *world.spare]
    right = [await stage.play(asked, sure(asked.fact.ask, chance)) for asked in taught]
    chosen = [taught[number % len(taught)] for number in range(count)]
    some = [await stage.play(asked, mixed(world, asked.fact.ask, chance)) for asked in chosen]
    probes = [await _probe(stage, asked, chance) for asked in (*world.training, *world.validation)]
    known = len(world.training)
    return Plays(right, some, probes[:known], probes[known:])


async def _probe(stage: Rehearsal, asked: Asked, chance: random.Random) -> Probe:
    right = asked.fact.ask
    wrong = chance.choice(near(stage.world, right))
    dialogues = Dialogue(right), Dialogue(right, right), Dialogue(wrong, right)
    return Probe(*[await stage.play(asked, dialogue) for dialogue in dialogues])
