"""What the memory bank can do, beside the store of the released code (memory_baseline.py) in the same seconds.

    python benchmarks/memory.py [--quick] [--kills 200] [--only PART] [--folder DIR]

Prints recall at several sizes (the whole of `Manager.recall` with vectors known, and ranking alone), durable inserts,
opening, room taken, and what random kills of a writing process leave behind (memory_crash.py). --quick: a tenth of the
records. --folder: where the banks are written; it should be on the disk that is to be measured.

Records are of the size of real ones; two thirds of them pass the floor for every question, so that ranking has all
its work to do. BLAS takes as many threads as OPENBLAS_NUM_THREADS allows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from memory_baseline import ListStore
from memory_crash import crashes
from memory_records import Known, Records, alike, episode, filled, released
from rich.console import Console
from rich.table import Table

from mia.memory.bank import Bank
from mia.memory.compress import ExtractiveCompressor
from mia.memory.manager import Manager
from mia.memory.recall import Query, RecallRule, rank
from mia.memory.storage import Storage
from mia.memory.writing import Credit, Fresh
from mia.runtime.encoder import load_encoder
from mia.types import (
    Question,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from mia.memory.recall import Score, Snapshot
    from mia.memory.writing import Writing

    Matrix = NDArray[np.float32]

CONSOLE = Console(width=110)
DIMENSIONS = 256
TASKS = 64
BLOCK = 20
SCORES: tuple[Score, ...] = ("three_term", "release")


class Counted(Storage):
    """A storage that counts its write transactions, each of which is one commit."""

    commits = 0

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Open a write transaction."""
        self.commits += 1
        with super().writing() as writing:
            yield writing


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Setting(NamedTuple):
    """A bank to recall from, and how slow that may be at p95, in milliseconds."""

    size: int
    dimensions: int
    captioned: bool
    limit: float | None = None


def recalls(folder: Path, records: Records, setting: Setting, rounds: int) -> Path:
    """Make a bank and print how long recalls from it take; return its path."""
    path = folder / f"{setting.size}-{setting.dimensions}-{setting.captioned}.sqlite"
    filled(path, records, setting.size)
    asyncio.run(recall(path, records, setting, rounds))
    return path


async def recall(path: Path, records: Records, setting: Setting, rounds: int) -> None:
    """Print how long recalls take, all variants in turn for some questions: each meets caches of its own making."""
    asked = alike(rounds, setting.dimensions, 3), alike(rounds, setting.dimensions, 4)
    texts = {
        f"{kind} {number}?": row for kind, rows in zip("qc", asked, strict=True) for number, row in enumerate(rows)
    }
    bank, known = Bank.open(path, Known(setting.dimensions, {})), Known(setting.dimensions, texts)
    managers = {score: Manager(bank, known, ExtractiveCompressor(), RecallRule(score)) for score in SCORES}
    store, snapshot = records.store(setting.size), bank.snapshot()
    assert len(snapshot.ids) == setting.size
    gc.collect()
    gc.freeze()  # the other store's records are not the bank's to be walked
    variants: dict[str, Callable[[Question, Query], object]] = {
        **{f"recall, {score}": partial(_recall, manager) for score, manager in managers.items()},
        **{f"rank alone, {score}": partial(_rank, snapshot, RecallRule(score)) for score in SCORES},
        "numpy scan": lambda _, query: scan(snapshot, query),
        "released store": lambda _, query: store.recall(query.question, query.caption),
    }
    questions = [
        Question(id=f"asked {number}", text=f"q {number}?", caption=f"c {number}?" if setting.captioned else "")
        for number in range(rounds)
    ]
    times: dict[str, list[float]] = defaultdict(list)
    for first in range(0, rounds, BLOCK):
        for name in random.sample(list(variants), len(variants)):
            few = BLOCK // 4 if name == "released store" else BLOCK
            for question in questions[first : first + few]:
                query = Query(*known.encode((question.text, question.caption)))
                started = time.perf_counter()
                answer = variants[name](question, query)
                if asyncio.iscoroutine(answer):
                    assert (await answer).ids
                times[name].append(time.perf_counter() - started)
    for manager in managers.values():
        manager.close()
    gc.unfreeze()
    show_recall(setting, times)


def _recall(manager: Manager, question: Question, _: Query) -> object:
    return manager.recall(question)


def _rank(snapshot: Snapshot, rule: RecallRule, _: Question, query: Query) -> object:
    return rank(snapshot, query, rule)


def scan(snapshot: Snapshot, query: Query) -> None:
    """Multiply the matrices with the vectors, and no more: the least that a full comparison takes."""
    snapshot.questions @ query.question
    if query.captioned:
        snapshot.captions @ query.caption


def show_recall(setting: Setting, times: dict[str, list[float]]) -> None:
    """Print the times of one setting; ratios are of medians."""
    kind = "image bucket with captions" if setting.captioned else "text only"
    table = Table("ms", "p50", "p95", "p99", "p95 must be", "released / this")
    table.title = f"Recall from {setting.size:,} memories, {setting.dimensions}-d, {kind}"
    released = statistics.median(times["released store"])
    for name in sorted(times, reverse=True):
        limit = f"<= {setting.limit:g}" if setting.limit and name.startswith("recall") else ""
        shares = [f"{percentile(times[name], share) * 1000:.2f}" for share in (0.5, 0.95, 0.99)]
        table.add_row(name, *shares, limit, f"{released / statistics.median(times[name]):.1f}")
    CONSOLE.print(table)


async def insert(manager: Manager, some: Sequence[Fresh], tasks: int = TASKS) -> list[float]:
    """Keep memories from many tasks, each awaiting its own commit; return the seconds of each insert."""
    left, seconds = iter(some), list[float]()

    async def task() -> None:
        for fresh in left:
            started = time.perf_counter()
            await manager.insert(fresh)
            seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(task() for _ in range(tasks)))
    return seconds


async def inserts(path: Path, records: Records, sizes: Sequence[int], each: int) -> None:
    """Fill a bank to its size, measuring inserts on the way."""
    table = Table("memories", "inserts/s", "must be", "per commit", "p50 ms", "p95 ms", "CPU", "of the rate at first")
    table.title = f"Durable inserts from {TASKS} tasks in one process, vectors given (median of 3)"
    storage, rates = Counted(path, Known.id), list[float]()
    with closing(
        Manager(Bank(storage, records.dimensions), Known(records.dimensions, {}), ExtractiveCompressor())
    ) as manager:
        for size, after in zip(sizes, [*sizes[1:], sizes[-1] + 3 * each], strict=True):
            rounds = []
            for start in range(size, size + 3 * each, each):
                some = [records.fresh(number) for number in range(start, start + each)]
                commits, used, started = storage.commits, time.process_time(), time.perf_counter()
                seconds = await insert(manager, some)
                wall = time.perf_counter() - started
                cpu = (time.process_time() - used) / wall
                rounds.append((each / wall, each / (storage.commits - commits), cpu, seconds))
            rate, batch, cpu, seconds = sorted(rounds, key=lambda one: one[0])[1]
            rates.append(rate)
            latency = [f"{percentile(seconds, share) * 1000:.1f}" for share in (0.5, 0.95)]
            limit = ">= 1,500"
            table.add_row(
                f"{size:,}", f"{rate:,.0f}", limit, f"{batch:.0f}", *latency, f"{cpu:.0%}", f"{rate / rates[0]:.2f}"
            )
            records.fill(storage, size + 3 * each, after)
        await _beside(manager, records, sizes[-1] + 3 * each, table)
    CONSOLE.print(table)


async def _beside(manager: Manager, records: Records, size: int, table: Table) -> None:
    """Add a row for a lone writer."""
    started = time.perf_counter()
    some = [records.fresh(number) for number in range(size, size + 300)]
    seconds = await insert(manager, some, tasks=1)
    rate = len(seconds) / (time.perf_counter() - started)
    latency = [f"{percentile(seconds, share) * 1000:.1f}" for share in (0.5, 0.95)]
    table.add_row(f"{size:,}, one task", f"{rate:,.0f}", "", "1", *latency, "", "")


async def remember(path: Path, count: int) -> None:
    """Print how many whole episodes are kept a second, and how long a recall takes meanwhile."""
    encoder = load_encoder("static")
    shown = [tuple(random.sample(range(1, 65), 4)) for _ in range(count)]
    episodes = [episode(number, shown[number] if number >= TASKS else ()) for number in range(count)]
    with closing(Manager(Bank.open(path, encoder), encoder, ExtractiveCompressor())) as manager:
        for each in episodes[:TASKS]:
            await manager.remember(each)
        left, times = iter(episodes[TASKS:]), list[float]()

        async def task() -> None:
            for each in left:
                await manager.remember(each)

        started = time.perf_counter()
        writing = asyncio.gather(*(task() for _ in range(TASKS)))
        while not writing.done():
            before = time.perf_counter()
            await manager.recall(episodes[random.randrange(count)].question)
            times.append(time.perf_counter() - before)
            await asyncio.sleep(0.01)
        await writing
        rate = (count - TASKS) / (time.perf_counter() - started)
    encoding = [_timed(partial(encoder.encode, [each.question.text, ""])) for each in episodes]
    table = Table(
        "measure", "value", title=f"Whole episodes from {TASKS} tasks: extract, encode, credit 4 memories, commit"
    )
    table.add_row("episodes/s", f"{rate:,.0f}")
    table.add_row("a recall meanwhile, p50 and p95", _both(times))
    table.add_row(f"encoding a question ({encoder.id}), p50 and p95", _both(encoding))
    CONSOLE.print(table)


async def under_load(path: Path, records: Records, size: int, rounds: int) -> None:
    """Print how long a recall takes while memories are inserted and others credited."""
    asked = {f"q {number}?": row for number, row in enumerate(alike(rounds, records.dimensions, 3))}
    known = Known(records.dimensions, asked)
    times, count, ended = list[float](), 0, False
    with closing(Manager(Bank.open(path, known), known, ExtractiveCompressor())) as manager:

        async def writer(first: int) -> None:
            nonlocal count
            for number in range(first, len(records.questions), 8):
                if ended:
                    return
                fresh = records.fresh(number)
                shown = tuple(random.sample(range(1, size), 4))
                await manager.insert(fresh, Credit(fresh.workflow.episode, fresh.workflow.question_id, shown, won=True))
                count += 1
                await asyncio.sleep(0.02)

        started = time.perf_counter()
        writing = asyncio.gather(*(writer(size + task) for task in range(8)))
        for text in asked:
            before = time.perf_counter()
            await manager.recall(Question(id=text, text=text))
            times.append(time.perf_counter() - before)
        ended = True
        rate = count / (time.perf_counter() - started)
        await writing
    CONSOLE.print(
        f"A recall from {size:,} memories beside {rate:.0f} inserts with 4 credits each a second: {_both(times)}"
    )


def released_inserts(folder: Path, records: Records, sizes: Sequence[int]) -> None:
    """Print how long the released store takes to insert and save."""
    table = Table("memories", "ms per insert", "inserts/s", title="The released store: insert and save")
    for size in sizes:
        store, times = records.store(size), []
        for number in range(size, size + 10):
            fresh = records.fresh(number)
            started = time.perf_counter()
            store.insert(released(fresh.workflow), *fresh.vectors)
            store.save(folder / "released.json")
            times.append(time.perf_counter() - started)
        median = statistics.median(times)
        table.add_row(f"{size:,}", f"{median * 1000:.1f}", f"{1 / median:,.0f}")
    CONSOLE.print(table)


def opening(path: Path, records: Records, count: int) -> None:
    """Print how long opening takes, each in a process of its own, and the room taken."""
    released = path.with_suffix(".json")
    filled(path, records, count)
    records.store(count).save(released)
    ours, theirs = (
        [_child(option, file) for _ in range(3)] for option, file in (("--open", path), ("--load", released))
    )
    table = Table(
        "store", "seconds", "must be", "memory, MB", "file, bytes per memory", title=f"Opening {count:,} memories"
    )
    for name, limit, runs, file in (
        ("this", "<= 3", ours, path),
        ("released, vectors still to be made", "", theirs, released),
    ):
        seconds = statistics.median(run["seconds"] for run in runs)
        memory = statistics.median(run["bytes"] for run in runs) / 1e6
        table.add_row(name, f"{seconds:.2f}", limit, f"{memory:.0f}", f"{file.stat().st_size / count:,.0f}")
    CONSOLE.print(table)


def _child(option: str, path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, option, str(path)], check=True, capture_output=True)  # noqa: S603  (ours)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def opened(open_: Callable[[], object]) -> dict[str, float]:
    """Return the seconds and the memory that it takes to open something."""
    before, started = _resident(), time.perf_counter()
    kept = open_()
    seconds, after = time.perf_counter() - started, _resident()
    assert kept
    return {"seconds": seconds, "bytes": after - before}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _both(times: Sequence[float]) -> str:
    return " / ".join(f"{percentile(times, share) * 1000:.2f} ms" for share in (0.5, 0.95))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Take the measurements, one after the other."""
    scale, rounds = (10, 60) if options.quick else (1, 300)
    small, medium, large = 10_000 // scale, 50_000 // scale, 100_000 // scale
    np.ones((2000, 2000)) @ np.ones((2000, 2000))
    threads, load = len(list(Path("/proc/self/task").iterdir())), os.getloadavg()[0]
    CONSOLE.print(f"{os.cpu_count()} CPUs, load {load:.1f} before; BLAS runs on {threads} threads")
    if options.only in (None, "recall", "open", "inserts"):
        records = Records(large + 30_000 // scale, DIMENSIONS, captioned=False)
    if options.only in (None, "recall"):
        recalls(folder, records, Setting(small, DIMENSIONS, captioned=False, limit=5), rounds)
        text = recalls(folder, records, Setting(large, DIMENSIONS, captioned=False, limit=12), rounds)
        asyncio.run(under_load(text, records, large, rounds))
        for dimensions, captioned, limit in ((DIMENSIONS, True, 20), (768, False, None), (768, True, None)):
            others = Records(large, dimensions, captioned=captioned)
            recalls(folder, others, Setting(large, dimensions, captioned, limit), rounds).unlink()
    if options.only in (None, "open"):
        opening(folder / "open.sqlite", records, large)
    if options.only in (None, "inserts"):
        asyncio.run(inserts(folder / "inserts.sqlite", records, [0, small, medium, large], 3200 // scale))
        asyncio.run(remember(folder / "remember.sqlite", 50 * TASKS // scale))
        released_inserts(folder, records, [size // scale for size in (1000, 5000, 20_000)])
    if options.only in (None, "crash"):
        crash(options.kills)


def crash(kills: int) -> None:
    """Print what random kills left behind; an AssertionError if it was not exactly what had to be there."""
    tally = asyncio.run(crashes(kills, 10, random.randrange(2**32)))
    table = Table("measure", "value", title="SIGKILL while 64 writers keep episodes and others recall")
    table.add_row("kills", f"{tally.kills}")
    table.add_row("acknowledged episodes lost, episodes doubled, wrong credits, errors", "0")
    table.add_row("episodes in flight at the kills", f"{tally.in_flight:,}")
    table.add_row("of these kept, each whole", f"{tally.kept_unacknowledged:,}")
    table.add_row("recalls beside, in the process that lived on", f"{tally.recalls:,}")
    CONSOLE.print(table)


def main() -> None:
    """Measure, or open a file beside the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", choices=("recall", "open", "inserts", "crash"), help="measure nothing else")
    parser.add_argument("--folder", type=Path, help="where the banks are written")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        known = Known(DIMENSIONS, {})  # knows no text, so that an encoding would be an error
        sys.stdout.write(json.dumps(opened(lambda: Bank.open(options.open, known))))
    elif options.load:
        sys.stdout.write(json.dumps(opened(lambda: ListStore.load(options.load))))
    else:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measure(options, Path(folder))


if __name__ == "__main__":
    main()
