"""Plays scripts through the product's own loop, so that a trace is, byte for byte, what a served model would read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mia.agent import Agent
from mia.clients.search import SearchTool
from mia.errors import OutOfRoom
from mia.executor.react import ReactExecutor
from mia.judge.truth import TruthJudge
from mia.planner.dialogue import DialoguePlanner, PlannerReflector
from mia.text import split_thoughts
from mia.types import Key, Message, Question, Recall, Said, Truth
from mia.wiring import Silence, budget, plan_budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local_search.index import Index
    from mia.protocols import Memory, Role, TokenCounter
    from mia.runtime.settings import RoleSettings
    from mia.types import Episode, Want
    from warm.oracle import Edit, Script, Turn

WINDOW = 8192  # of `mia serve model`: budgets are parts of it


class Unplayable(Exception):  # noqa: N818 - named for what it says
    """A script that the real search does not bear out: what it needs was not found, or what it lacks was."""


class EditedSearch:
    """The search service in this process, with passages changed as a script wants."""

    url = "local"

    def __init__(self, index: Index, edits: Sequence[Edit]) -> None:
        self._index = index
        self._edits = edits

    async def post(self, path: str, body: dict[str, Any], *, deadline: float) -> dict[str, Any]:  # noqa: ARG002
        """Answer as /retrieve does."""
        return {"result": [self._hits(query, body["topk"]) for query in body["queries"]]}

    def _hits(self, query: str, topk: int) -> list[dict[str, Any]]:
        hits = []
        for found, score in self._index.search(query, topk + len(self._edits)):
            document: dict[str, Any] | None = found
            for edit in self._edits:
                document = edit(document) if document else None
            if document:
                hits.append({"document": document, "score": score})
        return hits[:topk]


@dataclass
class OracleConversation:
    """A dialogue in which a script speaks."""

    turns: list[Turn]
    said: list[Message]
    counter: TokenCounter
    learnt: list[bool] = field(default_factory=list)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far."""
        return tuple(self.said)

    @property
    def room(self) -> int:
        """Tokens left in the window."""
        return WINDOW - sum(self.counter.count(message.text) + 8 for message in self.said)

    async def say(self, message: Message, want: Want) -> Said:
        """Return the script's next reply, once what came back bears out the one before it."""
        if self.learnt:
            self._bear_out(self.turns[len(self.learnt) - 1], message.text)
        if len(self.learnt) == len(self.turns):
            raise Unplayable("the script is at its end")
        if self.room < self.counter.count(message.text) + want.max_tokens:
            raise OutOfRoom("the script does not fit the window")
        turn = self.turns[len(self.learnt)]
        self.said += [message, Message(role="assistant", text=turn.text)]
        self.learnt.append(turn.learn)
        thoughts, text = split_thoughts(turn.text)
        return Said(raw=turn.text, text=text, thoughts=thoughts)

    @staticmethod
    def _bear_out(turn: Turn, seen: str) -> None:
        if turn.needs and not _tells(seen, *turn.needs):
            raise Unplayable(f"{turn.needs} was not found")
        if turn.lacks and _tells(seen, *turn.lacks):
            raise Unplayable(f"{turn.lacks} was found")


class OracleModels:
    """Opens the dialogues of one script and keeps them."""

    def __init__(self, turns: dict[Role, list[Turn]], counter: TokenCounter) -> None:
        self._turns = turns
        self._counter = counter
        self.opened: dict[Role, OracleConversation] = {}

    def open(self, role: Role, system: str, history: Sequence[Message] = ()) -> OracleConversation:
        """Start the dialogue of a role."""
        first = [Message(role="system", text=system)] if system else []
        self.opened[role] = OracleConversation(self._turns[role], [*first, *history], self._counter)
        return self.opened[role]


class SomeRecall:
    """A memory that keeps every episode and shows what it has for some of the questions."""

    def __init__(self, memory: Memory, *, shown: bool) -> None:
        self._memory = memory
        self._shown = shown

    async def recall(self, question: Question) -> Recall:
        """Recall, or nothing."""
        return await self._memory.recall(question) if self._shown else Recall()

    async def remember(self, episode: Episode) -> None:
        """Keep the episode."""
        await self._memory.remember(episode)


@dataclass(frozen=True)
class Stage:
    """What every script is played on."""

    index: Index
    counter: TokenCounter
    settings: RoleSettings

    def tool(self, topk: int, edits: Sequence[Edit] = ()) -> SearchTool:
        """Return the search tool as the settings have it, but for the number of passages."""
        return SearchTool(EditedSearch(self.index, edits), topk, self.settings.snippet_words)  # type: ignore[arg-type]


async def play(
    script: Script,
    turns: dict[Role, list[Turn]],
    stage: Stage,
    memory: Memory,
    *,
    id: str,  # noqa: A002
    topk: int,
) -> tuple[Episode, OracleModels]:
    """Run the loop once. Raises Unplayable where search, window or the script's own end stop it."""
    models = OracleModels(turns, stage.counter)
    tools = [stage.tool(topk, script.edits)]
    truth = Truth(answers=script.answers, unanswerable=not script.answers)
    agent = Agent(
        memory,
        DialoguePlanner(models, [tool.spec for tool in tools], plan_budget(stage.settings, WINDOW), stage.counter),
        ReactExecutor(models, tools, budget(stage.settings, WINDOW), stage.counter, Silence()),
        PlannerReflector(),
        TruthJudge({id: truth}, None),
        None,
        Silence(),
    )
    episode = await agent.run(Question(id=id, text=script.question), Key(run="warm", question_id=id))
    asked = turns["executor"]
    spoken = len(models.opened["executor"].learnt) if "executor" in models.opened else -math.inf
    if spoken != len(asked):
        raise Unplayable(f"{spoken} of {len(asked)} turns were taken")
    return episode, models


def _tells(seen: str, title: str, fact: str) -> bool:
    """Tell whether an observation holds a passage of this title that states a fact."""
    for block in seen.split("\n[")[1:]:
        head, _, body = block.partition("\n")
        if head.partition("] ")[2].strip().casefold() == title.casefold() and fact.casefold() in body.casefold():
            return True
    return False
