"""`mia serve memory` and `mia serve agent` under load, as the processes that a user starts, and across kills.

    python benchmarks/services.py [--quick] [--encoder static] [--only recall plan kill]

recall: 64 clients at once ask /memory of a bank of 10,000 workflows, one question a request, and in turn a plain
threaded server that scans the same memories. Each client checks that the answer is that to its own question.

plan: 64 episodes of 6 turns at once through /plan, with a model that takes 1 s per reply; beside it chains of as many
bare requests to the model.

kill: 64 clients at once save through /batch_memory_save and repeat what was not acknowledged, while the service is
killed with SIGKILL and started again. In the end all that was acknowledged must be there once, with exact credits.

Servers and clients share two cores. The model is a stand-in. What is lost, doubled, crossed or refused ends it with an
error; --quick does all that on a small scale. Standard error shows how far it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memory_records import PLAN, PORTION, SUMMARY
from rich.console import Console
from rich.table import Table
from services_crash import Killed, Saving
from services_house import HERE, QUICK, House, Load, Scale, asked, cpu_seconds, post, session_of_clients

from mia.memory.storage import Storage
from mia.memory.writing import Fresh, Vectors
from mia.runtime.encoder import load_encoder
from mia.types import Workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mia.protocols import Encoder


def fill(bank: Path, count: int, vectors: Encoder) -> None:
    """Make a bank of so many workflows, a third of them failures, with the vectors of their questions."""
    with closing(Storage(bank, vectors.id)) as storage:
        for first in range(0, count, PORTION):
            numbers = range(first, min(first + PORTION, count))
            rows = vectors.encode([asked(number) for number in numbers])
            caption = 0 * rows[0]
            some = [
                Fresh(_workflow(n), f"{n:032x}", Vectors(row, caption)) for n, row in zip(numbers, rows, strict=True)
            ]
            with storage.writing() as writing:
                writing.take_in(each.workflow.episode for each in some)
                writing.add(some)


def _workflow(number: int) -> Workflow:
    return Workflow(
        id=0,
        question=asked(number),
        summary=SUMMARY,
        plan=PLAN,
        correct=number % 3 > 0,
        question_id=f"q{number}",
        episode=f"benchmark/0/q{number}/0",
        source="benchmark",
        created=float(number),
    )


class Recalled(NamedTuple):
    """A round of one server: what clients saw, and its own CPU seconds."""

    server: str
    load: Load
    cpu: float


async def recall(house: House) -> list[Recalled]:
    """Load the service and the plain server in turn, and return what was measured of each."""
    scale, bank, encoder = house.scale, house.folder / "recalled.sqlite", load_encoder(house.encoder)
    started = time.perf_counter()
    fill(bank, scale.workflows, encoder)
    house.tell(f"a bank of {scale.workflows:,} workflows filled in {time.perf_counter() - started:.1f} s")
    ours, url = await house.serve_memory(bank)
    command = [sys.executable, str(HERE / "services_baseline.py"), str(bank), "--encoder", house.encoder]
    plain, port = await house.start("plain", command)
    servers = {
        "mia serve memory": (ours, url),
        "plain threaded server": (plain, f"http://127.0.0.1:{port}"),
    }
    measured: list[Recalled] = []
    for number in range(scale.rounds + 1):
        for name, (process, url) in servers.items():
            done = house.count(f"{name}, round {number}", scale.clients * scale.requests)
            before = cpu_seconds(process)
            load = await _ask_all(f"{url}/memory", scale, number, done)
            house.tell(f"{name}, {f'round {number}' if number else 'warm-up'}: {load.row[0]} requests/s")
            if number:
                measured.append(Recalled(name, load, cpu_seconds(process) - before))
    before = time.process_time()
    encoder.encode([asked(number) for number in range(1000)])
    house.tell(f"encoding a question takes {time.process_time() - before:.3f} ms of either's CPU time")
    return measured


async def _ask_all(url: str, scale: Scale, seed: int, done: Callable[[], None]) -> Load:
    latencies: list[float] = []
    async with session_of_clients() as session:

        async def client(number: int) -> None:
            chance = random.Random(seed * scale.clients + number)
            for _ in range(scale.requests):
                own = chance.randrange(scale.workflows)
                started = time.perf_counter()
                (answer,) = await post(session, url, [{"data_id": f"a{number}", "question": asked(own)}])
                latencies.append(time.perf_counter() - started)
                best = answer["pos_indices" if own % 3 else "neg_indices"][0]
                assert best == own + 1, f"{url} shows {best} first for the question of {own + 1}"
                assert asked(own) in answer["context"], f"{url} tells of another question than {own}"
                done()

        started = time.perf_counter()
        await asyncio.gather(*map(client, range(scale.clients)))
        return Load(latencies, time.perf_counter() - started)


class Planned(NamedTuple):
    """Seconds of an episode alone, of all at once, and of all chains of bare requests for the same replies at once."""

    alone: float
    chains: float
    episodes: float


async def plan(house: House) -> Planned:
    """Carry plans out at once, and as many chains of bare requests."""
    scale = house.scale
    corpus = house.folder / "corpus.jsonl"
    passages = [{"id": str(n), "contents": f'"{asked(n)}"\n{PLAN}'} for n in range(1000)]
    corpus.write_text("".join(f"{json.dumps(passage)}\n" for passage in passages))
    index = str(house.folder / "index")
    search = ["-m", "local_search", "serve", "--port", "0", "--corpus", str(corpus), "--index", index]
    _, port = await house.start("search", [sys.executable, *search])
    _, url = await house.serve("agent", "agent", "--port", "0", MIA_SEARCH_URL=f"http://127.0.0.1:{port}")
    said = "word " * 400
    bare = {"messages": [{"role": "system", "content": "You are the planner"}, {"role": "user", "content": said}]}
    async with session_of_clients() as session:

        async def chain(_: int) -> None:
            for _ in range(scale.turns):
                await post(session, f"{house.model}/chat/completions", bare)

        async def episode(number: int) -> None:
            body = {"data_id": f"e{number}", "question": f"{asked(number)} ({number})", "plan": "1. Search for it."}
            reply = await post(session, f"{url}/plan", body)
            replies = sum(turn["role"] == "assistant" for turn in reply["history_messages"])
            assert replies == scale.turns, f"episode {number} had {replies} turns"
            assert f"<answer>answer {number}.</answer>" in reply["trace"], f"episode {number} has another's answer"

        async def timed(task: Callable[[int], Awaitable[None]], count: int) -> float:
            started = time.perf_counter()
            await asyncio.gather(*map(task, range(count)))
            seconds = time.perf_counter() - started
            house.tell(f"{count} times {task.__name__} at once: {seconds:.2f} s")
            return seconds

        return Planned(await timed(episode, 1), await timed(chain, scale.clients), await timed(episode, scale.clients))


def _show_recall(console: Console, scale: Scale, measured: list[Recalled]) -> None:
    title = f"/memory, {scale.clients} clients at once, {scale.workflows:,} workflows: nothing failed, lost or crossed"
    table = Table("server", "requests/s", "p50 ms", "p95 ms", "p99 ms", "its CPU ms a request", title=title)
    for each in sorted(measured, key=lambda each: each.server):
        table.add_row(each.server, *each.load.row, f"{each.cpu / len(each.load.latencies) * 1000:.2f}")
    console.print(table)


def _show_plan(console: Console, scale: Scale, done: Planned) -> None:
    table = Table(
        "measure", "value", "must be", title=f"/plan, {scale.clients} episodes of {scale.turns} turns at once"
    )
    table.add_row("an episode alone", f"{done.alone:.2f} s", "")
    table.add_row("longest chain of bare requests for the same replies, all at once", f"{done.chains:.2f} s", "")
    table.add_row("all episodes at once", f"{done.episodes:.2f} s", "")
    table.add_row("ratio to the chain", f"{done.episodes / done.chains:.3f}", "<= 1.15")
    table.add_row("ratio to the model's own time", f"{done.episodes / (scale.turns * scale.delay):.3f}", "")
    console.print(table)


def _show_kill(console: Console, scale: Scale, done: Killed) -> None:
    table = Table("measure", "value", title=f"/batch_memory_save, {scale.clients} clients at once, across kill -9")
    table.add_row("saved and acknowledged; lost, doubled or crossed: none", f"{done.saved}")
    table.add_row("kills; requests that they cut off or that found nobody", f"{done.kills}; {done.cut}")
    table.add_row("longest time until the service was back", f"{done.back:.2f} s")
    table.add_row("saves/s while it ran; p50, p95, p99 in ms", "; ".join(done.load.row))
    console.print(table)


async def measure(scale: Scale, encoder: str, only: Sequence[str]) -> None:
    """Play what is asked for, each with processes of its own, and print the tables."""
    console = Console()
    parts: dict[str, tuple[Callable[[House], Awaitable[Any]], Callable[[Console, Scale, Any], None]]] = {
        "recall": (recall, _show_recall),
        "plan": (plan, _show_plan),
        "kill": (lambda house: Saving(house).run(), _show_kill),
    }
    for name in only:
        play, show = parts[name]
        with tempfile.TemporaryDirectory() as folder:
            async with House(Path(folder), scale, encoder) as house:
                done = await play(house)
        show(console, scale, done)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small scale, to see that it works")
    parser.add_argument("--encoder", default="static", help="static, or hashed, which needs no extra")
    parser.add_argument("--only", nargs="+", choices=["recall", "plan", "kill"], default=["recall", "plan", "kill"])
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    asyncio.run(measure(QUICK if options.quick else Scale(), options.encoder, options.only))


if __name__ == "__main__":
    main()
