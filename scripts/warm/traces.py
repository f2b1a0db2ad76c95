"""Supervised traces from the train split: oracle episodes of the whole loop, and plans for questions in more words."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_search.build import prepare
from mia.baselines.one_shot import OneShotExecutor
from mia.clients.tokens import Tokenizer
from mia.memory.bank import Bank
from mia.memory.compress import ExtractiveCompressor
from mia.memory.manager import Manager
from mia.memory.recall import RecallRule
from mia.planner.dialogue import DialoguePlanner
from mia.runtime.encoder import load_encoder
from mia.runtime.files import write_whole
from mia.runtime.settings import RoleSettings, SearchServiceSettings, load
from mia.types import Key, Plan, Question, Said
from mia.wiring import Silence, budget, plan_budget
from warm.oracle import FAILURES, Oracle, Script, Turn
from warm.play import WINDOW, OracleConversation, OracleModels, SomeRecall, Stage, Unplayable, play
from warm.rewording import Rewording
from warm.world import World, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia.protocols import Memory, Role
    from mia.types import Message

# What becomes of a question, and how often, of a hundred; failures share theirs.
_CHAINS = {"right": 38, "retry": 8, "invented": 24, "removed fact": 4, "removed passage": 3, "failing": 23}
_COMPARISONS = {"right": 25, "invented": 55, "failing": 20}
UNKNOWN = "unknown"  # as the prompt of one-shot retrieval wants it
_SHOWN = 3
_TOPK = (3, 2, 1, 1)  # passages a query; fewer cost less to train on


@dataclass(frozen=True)
class Mix:
    """How many traces of which kind: shares of the questions, and plans for questions in other words."""

    planned: float = 0.5
    """Of the episodes that are not reflected on, the share whose plan is kept."""
    reflected: float = 0.25
    recalled: float = 0.35
    comparisons: int = 3
    untold: int = 2
    reworded: int = 3000
    not_recorded: int = 400
    questions: int = 0
    """The most of either; 0: all."""
    seed: int = 0


def write(
    out: Path,
    data: Path,
    tokens: Callable[[str], int],
    mix: Mix | None = None,
    *,
    split: str = "train",
    method: str = "loop",
) -> Counter[str]:
    """Write the traces of a split to `out`, one a line; return how many there are of each kind.

    Args:
        out: the file to write.
        data: the folder of the world facts.
        tokens: counts the tokens of a text, as the served model's tokenizer does.
        mix: how many of which kind.
        split: `train`, or another split to measure on.
        method: `loop`, or `one-shot` for the same questions answered from one search.
    """
    return asyncio.run(_write(out, data, tokens, mix or Mix(), split, method))


async def _write(
    out: Path, data: Path, tokens: Callable[[str], int], mix: Mix, split: str, method: str
) -> Counter[str]:
    chance = random.Random(mix.seed)  # noqa: S311 - an order, not a secret
    world = World(data)
    settings = load(RoleSettings)
    counts: Counter[str] = Counter()
    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        index = prepare(load(SearchServiceSettings, corpus=data / "corpus.jsonl", index=Path(scratch) / "index"))
        counter = await Tokenizer(_Counted(tokens), "", "content").fit()  # type: ignore[arg-type]
        encoder = load_encoder("static", "cpu")
        bank = Bank.open(Path(scratch) / "memory.sqlite", encoder)
        rule = RecallRule(exclude_same_question=True)
        with closing(index), closing(Manager(bank, encoder, ExtractiveCompressor(), rule)) as manager:
            maker = _Maker(world, Stage(index, counter, settings), manager, mix, chance, counts)
            for row in _rows(world, mix, chance, split):
                made += await (maker.one_shot(row) if method == "one-shot" else maker.traces(row))
            for row in _reworded(world, mix, chance, split):
                made += await (maker.one_shot(row) if method == "one-shot" else maker.planned(row))
    chance.shuffle(made)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, "".join(json.dumps(trace, ensure_ascii=False) + "\n" for trace in made))
    return counts


def _rows(world: World, mix: Mix, chance: random.Random, split: str) -> Iterator[dict[str, Any]]:
    rows = read(world.data / f"{split}.jsonl")
    compared = [row for row in rows if "comparison" in row["type"]]
    file = world.data / f"{split}_unanswerable.jsonl"
    untold = read(file) if file.exists() else []
    rewording = Rewording(world, chance)
    untold += [rewording.not_recorded() for _ in range(mix.not_recorded // mix.untold)]
    everything = rows + compared * (mix.comparisons - 1) + untold * mix.untold
    chance.shuffle(everything)
    yield from everything[: mix.questions or None]


def _reworded(world: World, mix: Mix, chance: random.Random, split: str) -> Iterator[dict[str, Any]]:
    """Yield questions of the split in other words."""
    rewording = Rewording(world, chance)
    rows = read(world.data / f"{split}.jsonl")
    for number in range(min(mix.reworded, mix.questions or mix.reworded)):
        row = chance.choice(rows)
        question = rewording.question(row)
        if question:
            yield row | {"question": question, "id": f"{row['id']}-reworded-{number}"}


class _Maker:
    """Makes the traces of one question after the other; later ones may recall earlier ones."""

    def __init__(
        self, world: World, stage: Stage, memory: Memory, mix: Mix, chance: random.Random, counts: Counter[str]
    ) -> None:
        self._oracle = Oracle(world, chance)
        self._stage = stage
        self._memory = memory
        self._mix = mix
        self._chance = chance
        self._counts = counts
        self._played = 0

    async def traces(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the traces of one episode about a question."""
        script = self._script(row)
        if script is None:
            self._counts["no script"] += 1
            return []
        self._played += 1
        id = f"{row['id']}-{self._played}"  # noqa: A001
        planner = [Turn(script.plan, script.plan_learn), Turn(script.reflection)]
        planner += [Turn(script.revised)] if script.revised else []
        turns: dict[Role, list[Turn]] = {"planner": planner, "executor": script.turns + script.revised_turns}
        memory = SomeRecall(self._memory, shown=self._chance.random() < self._mix.recalled)
        try:
            _, models = await play(script, turns, self._stage, memory, id=id, topk=self._chance.choice(_TOPK))
        except Unplayable:
            self._counts[f"dropped: {script.kind}"] += 1
            return []
        failing = script.kind in FAILURES
        found = []
        if not failing or self._chance.random() < 2 * self._mix.reflected:
            found.append(self._trace("executor", script.kind, id, models.opened["executor"]))
        reflected = failing or self._chance.random() < self._mix.reflected
        if reflected or self._chance.random() < self._mix.planned:
            found.append(self._trace("planner", script.kind, id, models.opened["planner"], None if reflected else 1))
        return found

    async def planned(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the trace of a plan alone."""
        script = self._oracle.right(row)
        if script is None:
            return []
        asked = Question(id=row["id"], text=row["question"])
        memory = SomeRecall(self._memory, shown=self._chance.random() < self._mix.recalled / 2)
        models = OracleModels({"planner": [Turn(script.plan)]}, self._stage.counter)
        spent = plan_budget(self._stage.settings, WINDOW)
        planner = DialoguePlanner(models, [self._stage.tool(1).spec], spent, self._stage.counter)
        await planner.start(asked, await memory.recall(asked), Key(run="warm", question_id=asked.id)).plan()
        return [self._trace("planner", "reworded", asked.id, models.opened["planner"])]

    async def one_shot(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the trace of an answer from one search with the question."""
        answer = row["answers"][0] if row["answers"] else UNKNOWN
        asked = Question(id=row["id"], text=row["question"])
        models = OracleModels({"executor": [Turn(f"<answer>{answer}</answer>")]}, self._stage.counter)
        spent = budget(self._stage.settings, WINDOW)
        executor = OneShotExecutor(models, self._stage.tool(_SHOWN), spent, self._stage.counter, Silence())
        await executor.start(asked, Key(run="warm", question_id=asked.id)).carry_out(Plan(said=Said(raw="", text="")))
        return [self._trace("one-shot", row["type"], asked.id, models.opened["executor"])]

    def _script(self, row: dict[str, Any]) -> Script | None:
        if row.get("unanswerable"):
            return self._oracle.untold(row)
        kinds = _COMPARISONS if "comparison" in row["type"] else _CHAINS
        kind = self._chance.choices(list(kinds), list(kinds.values()))[0]
        if kind == "failing":
            return self._oracle.failing(row, self._chance.choice(FAILURES)) or self._oracle.right(row)
        if kind.startswith("removed"):
            return self._oracle.removed(row, passage="passage" in kind) or self._oracle.right(row)
        return self._oracle.right(row, retry=kind == "retry", invented=kind == "invented") or self._oracle.right(row)

    def _trace(
        self,
        role: str,
        kind: str,
        id: str,  # noqa: A002
        spoken: OracleConversation,
        replies: int | None = None,
    ) -> dict[str, Any]:
        """Return the line of a dialogue, of its first `replies` if given."""
        self._counts[f"{role}: {kind}"] += 1
        learnt = iter(spoken.learnt)
        messages = [_line(message, message.role == "assistant" and next(learnt)) for message in spoken.messages]
        if replies is not None:
            messages = messages[: 1 + 2 * replies]
        return {"id": id, "role": role, "kind": kind, "weight": 1.0, "messages": messages}


def _line(message: Message, learn: bool) -> dict[str, Any]:  # noqa: FBT001
    return {"role": message.role, "content": message.text, "learn": learn}


class _Counted:
    """Stands where a served model's /tokenize would be."""

    url = "local"

    def __init__(self, tokens: Callable[[str], int]) -> None:
        self._tokens = tokens

    async def post(self, path: str, body: dict[str, Any], *, deadline: float) -> dict[str, Any]:  # noqa: ARG002
        """Answer as /tokenize does."""
        return {"tokens": [0] * self._tokens(body["content"])}
