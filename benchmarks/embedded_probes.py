"""Two probes of the adapters: whether answers follow the passages, and whether reflections tell good work from bad."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from mia import wiring
from mia.errors import InputError
from mia.evaluation.runner import finished
from mia.judge.match import matches, normalise
from mia.text import parse_decision, split_thoughts
from mia.types import Key, Message, Truth, Want

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from mia.runs.folder import RunFolder
    from mia.runtime.settings import RoleSettings
    from mia.types import Episode

AT_ONCE = 4
_CHAINS = ("chain1", "chain2", "chain3")
_TOLD = ("contents", "title", "text")


@dataclass(frozen=True)
class Fact:
    """What the passages of one question are made to say in place of the truth, save those in `kept`, by their ids."""

    id: str
    question: str
    truth: Truth
    invented: Truth
    kept: frozenset[str]

    def rewrite(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Return an answer of a search service in which the invented answer stands wherever the true one did."""
        for hits in reply["result"]:
            for hit in hits:
                document = hit.get("document", hit)
                if str(document.get("id")) not in self.kept:
                    document.update({name: self._retold(document[name]) for name in _TOLD if name in document})
        return reply

    def _retold(self, text: str) -> str:
        return _whole(self.truth.answers[0]).sub(lambda _: self.invented.answers[0], text)


def invent(data: Path, corpus: Path, size: int) -> list[Fact]:
    """Take questions of one to three hops, each with the answer to another question after the same relation.

    So the invented answer is of the kind of the true one. Left out are questions whose passage tells the truth in a
    second form, such as a height in feet.
    """
    rows = [row for row in _lines(data) if row["type"] in _CHAINS]
    rows.sort(key=lambda row: hashlib.sha256(row["id"].encode()).digest())
    passages = {row["id"]: row["contents"] for row in _lines(corpus)}
    facts = []
    for number, row in enumerate(rows):
        last = row["decomposition"][-1]
        truth = Truth(answers=tuple(row["answers"]))
        after = [*rows[number + 1 :], *rows[:number]]
        others = [other for other in after if other["decomposition"][-1]["relation"] == last["relation"]]
        told = f"{row['question']} {' '.join(str(hop) for hop in row['decomposition'])}"
        other = next((other for other in others if not _whole(other["answers"][0]).search(told)), None)
        retold = _whole(truth.answers[0]).sub("", passages[last["id"]])
        if other is None or any(_whole(alias).search(retold) for alias in truth.answers):
            continue
        invented = Truth(answers=tuple(other["answers"]))
        if {normalise(answer) for answer in truth.answers} & {normalise(answer) for answer in invented.answers}:
            continue
        kept = frozenset(hop["id"] for hop in row["decomposition"][:-1]) - {last["id"]}
        facts.append(Fact(row["id"], row["question"], truth, invented, kept))
    return facts[:size]


async def read(settings: RoleSettings, facts: Sequence[Fact], folder: RunFolder) -> dict[str, Any]:
    """Ask each question of passages that tell the invented answer; return how many answers follow, and how many do not.

    Every question is in the denominator, and is one of followed, recited and other.
    """
    done = finished(folder)
    gate = asyncio.Semaphore(AT_ONCE)
    async with _rewriting(settings.search_url, {fact.id: fact for fact in facts}) as url:

        async def ask(fact: Fact) -> None:
            own = settings.model_copy(update={"search_url": f"{url}/{fact.id}", "memory": "none"})
            question = wiring.question(own, fact.question, id=fact.id)
            async with gate, wiring.agent(own, answer_key={fact.id: fact.invented}) as agent:
                episode = await agent.run(question, Key(run=folder.id, question_id=fact.id))
            folder.append(episode)
            done[fact.id] = episode

        await asyncio.gather(*(ask(fact) for fact in facts if fact.id not in done))
    answers = [_answer(fact, done[fact.id]) for fact in facts]
    counts = {name: sum(answer["is"] == name for answer in answers) for name in ("followed", "recited", "other")}
    return {"size": len(facts), **counts, "answers": answers}


def _answer(fact: Fact, episode: Episode) -> dict[str, Any]:
    said = episode.answer or ""
    kind = "followed" if matches(said, fact.invented) else "recited" if matches(said, fact.truth) else "other"
    return {"id": fact.id, "is": kind, "answer": said, "invented": fact.invented.answers[0], **_shown(fact)}


def _shown(fact: Fact) -> dict[str, str]:
    return {"truth": fact.truth.answers[0], "question": fact.question}


@asynccontextmanager
async def _rewriting(search_url: str, facts: Mapping[str, Fact]) -> AsyncIterator[str]:
    """Serve a search service per fact, `URL/id`, in front of the real one."""
    async with aiohttp.ClientSession() as client:

        async def retrieve(request: web.Request) -> web.Response:
            headers = {name: request.headers[name] for name in ("Authorization",) if name in request.headers}
            async with client.post(f"{search_url}/retrieve", json=await request.json(), headers=headers) as reply:
                if not reply.ok:
                    return web.Response(status=reply.status, body=await reply.read())
                return web.json_response(facts[request.match_info["fact"]].rewrite(await reply.json()))

        app = web.Application()
        app.router.add_post("/{fact}/retrieve", retrieve)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


@dataclass(frozen=True)
class Reflected:
    """What a reflection said of one transcript, and what it ought to have said; True is yes, plan again."""

    id: str
    kind: str
    right: bool
    said: bool
    clear: bool


async def reflect(settings: RoleSettings, transcripts: Path, out: Path) -> list[Reflected]:
    """Put the reflections of a file of traces to the Planner; those that `out` has already are not asked again.

    A line is {"role": "reflection", "messages": [...]}, whose last message of the assistant ends in the right word.
    """
    done = _reflected(out)
    rows = [row for row in _lines(transcripts) if row["role"] == "reflection"]
    gate = asyncio.Semaphore(AT_ONCE)
    async with wiring.models(settings, ["planner"]) as chat:
        want = Want(
            max_tokens=wiring.plan_budget(settings, chat.window("planner")).plan_tokens, deadline=settings.turn_seconds
        )

        async def ask(row: dict[str, Any]) -> None:
            messages, right = _question(row)
            system = [message.text for message in messages if message.role == "system"]
            history = [message for message in messages if message.role != "system"]
            async with gate:
                said = await chat.open("planner", "".join(system), history[:-1]).say(history[-1], want)
            decision = parse_decision(said.text)
            heard = settings.replan_if_unclear if decision is None else decision
            done[row["id"]] = Reflected(row["id"], row.get("kind", ""), right, heard, decision is not None)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(done[row["id"]]), ensure_ascii=False) + "\n")

        await asyncio.gather(*(ask(row) for row in rows if row["id"] not in done))
    return [done[row["id"]] for row in rows]


def _reflected(out: Path) -> dict[str, Reflected]:
    return {row["id"]: Reflected(**row) for row in (_lines(out) if out.exists() else [])}


def _question(row: dict[str, Any]) -> tuple[list[Message], bool]:
    """Return the messages up to the reflection, and the word that it ought to be."""
    messages = [Message(role=message["role"], text=message["content"]) for message in row["messages"]]
    last = max((n for n, message in enumerate(messages) if message.role == "assistant"), default=0)
    right = parse_decision(split_thoughts(messages[last].text)[1])
    if last == 0 or right is None:
        raise InputError(f"The trace {row['id']} does not end in yes or no.", remedy="Build the traces again.")
    return messages[:last], right


def _whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]
