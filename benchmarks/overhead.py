"""What our own code costs: episodes beside a stand-in model that takes one second per reply.

    python benchmarks/overhead.py [--episodes 32] [--rounds 5] [--delay 1.0] [--lockstep]

Prints, for many episodes at once with live memory: the wall time of an episode beyond that of bare HTTP requests for
the same replies, the CPU time of this process per episode, and the lag of its event loop beside that of an idle loop in
a process of its own, measured in the same seconds. Model and search are real HTTP servers in processes of their own.

Episodes begin spread over one reply's time, as questions do. With --lockstep all begin in the same millisecond and, as
the stand-in always takes equally long, all stay in step: every phase is then a burst of all episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import aiohttp
from rich.console import Console
from rich.table import Table

from mia import wiring
from mia.embedded.process import start
from mia.runtime.settings import RoleSettings, load
from mia.types import Key, Question, Truth

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mia.agent import Agent
    from mia.types import Episode

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
TICK = 0.002


async def lags(seconds: float) -> list[float]:
    """Return how late each tick of an event loop comes, in milliseconds."""
    late: list[float] = []
    ends = time.perf_counter() + seconds
    while (before := time.perf_counter()) < ends:
        await asyncio.sleep(TICK)
        late.append((time.perf_counter() - before - TICK) * 1000)
    return late


def percentile(values: list[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def spread(options: argparse.Namespace, tasks: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run tasks at once, begun as the options say."""

    async def later(number: int) -> T:
        if not options.lockstep:
            await asyncio.sleep(options.delay * number / len(tasks))
        return await tasks[number]()

    return await asyncio.gather(*map(later, range(len(tasks))))


async def episodes(agent: Agent, number: int, options: argparse.Namespace) -> tuple[list[Episode], float]:
    """Run episodes at once; return them and this process's CPU seconds for them."""
    before = time.process_time()
    tasks = [
        partial(agent.run, question, Key(run="overhead", step=number, question_id=question.id))
        for question in questions(options)
    ]
    return await spread(options, tasks), time.process_time() - before


def questions(options: argparse.Namespace) -> list[Question]:
    """Return as many questions as episodes run at once."""
    return [Question(id=str(n), text=f"What is the currency of country {n}?") for n in range(options.episodes)]


async def bare(url: str, replies: int, options: argparse.Namespace) -> list[float]:
    """Return the seconds of as many chains of bare requests to the model, each of so many replies."""
    messages = [{"role": "system", "content": "You are the planner"}, {"role": "user", "content": "word " * 400}]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def chain() -> float:
            started = time.perf_counter()
            for _ in range(replies):
                async with session.post(f"{url}/chat/completions", json={"messages": messages}) as response:
                    await response.read()
            return time.perf_counter() - started

        return await spread(options, [chain] * options.episodes)


async def measure(options: argparse.Namespace, folder: Path) -> None:
    """Start the servers, run the rounds, print the table."""
    async with AsyncExitStack() as stack:
        model = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "tests" / "standin.py"),
            "--delay",
            str(options.delay),
            stdout=asyncio.subprocess.PIPE,
        )
        stack.push_async_callback(_end, model)
        assert model.stdout is not None
        model_url = f"http://127.0.0.1:{int(await model.stdout.readline())}/v1"
        search_url = await _search(stack, folder)
        settings = load(
            RoleSettings, model=model_url, search_url=search_url, home=folder, memory_path=folder / "memory.sqlite"
        )
        answer_key = {question.id: Truth(answers=("unknown",)) for question in questions(options)}
        agent = await stack.enter_async_context(wiring.agent(settings, answer_key=answer_key))
        warm, _ = await episodes(agent, 0, options)
        replies = sum(warm[0].cost.model_calls.values())
        chains = [seconds for _ in range(options.rounds) for seconds in await bare(model_url, replies, options)]
        seconds = options.rounds * (5 * options.delay + 0.2)
        idle = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--idle", str(seconds), stdout=asyncio.subprocess.PIPE
        )
        stack.push_async_callback(_end, idle)
        watching = asyncio.create_task(lags(seconds))
        results = [await episodes(agent, number, options) for number in range(1, options.rounds + 1)]
        busy = await watching
        quiet = json.loads((await idle.communicate())[0])
    show(results, chains, busy, quiet)


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.kill()
    await child.wait()


async def _search(stack: AsyncExitStack, folder: Path) -> str:
    log = folder / "search.log"
    command = [sys.executable, "-m", "local_search", "serve", "--port", "0", "--index", str(folder / "index")]
    await stack.enter_async_context(await start(command, name="search", log=log))
    async with asyncio.timeout(60):
        while True:
            for line in log.read_text().splitlines():
                entry = json.loads(line) if line.startswith("{") else {}
                if entry.get("message") == "ready":
                    return f"http://127.0.0.1:{entry['port']}"
            await asyncio.sleep(0.2)


def show(
    results: list[tuple[list[Episode], float]], chains: list[float], busy: list[float], quiet: list[float]
) -> None:
    """Print what was measured, beside what it must reach."""
    done = [episode for found, _ in results for episode in found]
    assert not any(episode.failure for episode in done)
    wall = statistics.mean(episode.cost.seconds["all"] for episode in done)
    base = statistics.mean(chains)
    cpu = sum(used for _, used in results) / len(done)
    late, calm = percentile(busy, 0.999), percentile(quiet, 0.999)
    table = Table("measure", "value", "must be", title=f"{len(results)} x {len(results[0][0])} episodes at once")
    table.add_row("wall time of an episode, mean", f"{wall:.3f} s", "")
    table.add_row("bare requests for the same replies, mean", f"{base:.3f} s", "")
    table.add_row("share of our own code", f"{(wall - base) / wall:.2%}", "< 2 %")
    table.add_row("CPU time of this process per episode", f"{cpu * 1000:.1f} ms", "")
    table.add_row("CPU time / wall time of an episode", f"{cpu / wall:.2%}", "< 2 %")
    table.add_row("loop lag, p50", f"{percentile(busy, 0.5):.2f} ms", "")
    table.add_row("loop lag, p99.9", f"{late:.2f} ms", "<= 50 ms")
    table.add_row("idle loop beside it, p99.9", f"{calm:.2f} ms", "")
    table.add_row("ratio of the two", f"{late / calm:.2f}", "<= 2")
    Console().print(table)


def main() -> None:
    """Measure, or idle beside the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=32, help="episodes at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=1.0, help="seconds per reply of the stand-in model")
    parser.add_argument("--lockstep", action="store_true", help="begin all episodes in the same millisecond")
    parser.add_argument("--idle", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.idle:
        sys.stdout.write(json.dumps(asyncio.run(lags(options.idle))))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
