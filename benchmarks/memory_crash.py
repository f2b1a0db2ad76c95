"""Kill a process at random moments while it writes to a memory bank, and count what is left.

    python benchmarks/memory_crash.py [--kills 20] [--each 10] [--seed 1]

64 writers keep 50 episodes each, all crediting the same few memories: a fifth ask what others ask, some are the very
episode of another writer. Readers look on throughout, in that process and in one of their own. SIGKILL comes at a
random moment; the bank is opened again and must hold all that was acknowledged and nothing that was not submitted, with
exact credits. Then the writers go on with what was not acknowledged. After `each` kills of one bank they begin again
from the first episode and come to the end, and the bank must hold exactly everything.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mia.memory.bank import Bank
from mia.memory.compress import Summary
from mia.memory.manager import Manager
from mia.memory.recall import RecallRule
from mia.memory.writing import episode_key
from mia.types import (
    Attempt,
    Episode,
    Key,
    Label,
    Plan,
    Question,
    Recall,
    Said,
    Step,
    StopReason,
    Trajectory,
    Verdict,
    Workflow,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

WRITERS, EACH = 64, 50
READERS = 2  # in each process
COMMON = 32  # questions that many ask
ASKS_COMMON, IS_COPY = 0.2, 0.05  # shares of the episodes
SECONDS = 300.0  # after which a scenario counts as hung


class Tally(NamedTuple):
    """What a scenario went through: kills, episodes in flight at them, how many of those were kept, recalls beside."""

    kills: int = 0
    in_flight: int = 0
    kept_unacknowledged: int = 0
    recalls: int = 0


class Digests:
    """Encodes a text as its digest: another text is another vector, and no model is needed."""

    id = "digests"
    dimensions = 32

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [n, 32], rows of unit length (zero for blank text)."""
        rows = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(rows, texts, strict=True):
            if text.strip():
                row[:] = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
        return rows


class FirstPlan:
    """Compresses every episode to its first plan."""

    async def compress(self, episode: Episode) -> Summary:
        """Return the plan."""
        return Summary(episode.attempts[0].plan.text)


class Task(NamedTuple):
    """An episode to be kept, before it is built."""

    key: Key
    text: str
    correct: bool
    summary: str
    shown: tuple[int, ...] = ()

    @property
    def question(self) -> Question:
        """What it asks."""
        return Question(id=self.key.question_id, text=self.text)

    def episode(self) -> Episode:
        """Build it."""
        said = Said(raw=self.summary, text=self.summary, model="m")
        verdict = Verdict(label=Label.CORRECT if self.correct else Label.INCORRECT, judge="scenario")
        trajectory = Trajectory(steps=(Step(said=said),), answer="a", stop=StopReason.ANSWERED)
        memories = [
            Workflow(id=id_, question="", summary="", plan="", correct=True, question_id="", episode="", created=0.0)
            for id_ in self.shown
        ]
        return Episode(
            key=self.key,
            question=self.question,
            recall=Recall(successes=tuple((memory, 1.0) for memory in memories)),
            attempts=(Attempt(plan=Plan(said=said), trajectory=trajectory, verdict=verdict),),
        )


class Workload:
    """What is written, drawn from a seed: `old` by a process that is not killed, `new` by each writer."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.old = [
            Task(Key(run="old", question_id=f"c{number}", rollout=turn), f"common {number}", correct, "look " * 40)
            for number in range(COMMON)
            for turn, correct in enumerate((True, False))
        ]
        new: list[Task] = []
        for number in range(WRITERS * EACH):
            if new and chance.random() < IS_COPY:
                new.append(chance.choice(new))
                continue
            common = chance.random() < ASKS_COMMON
            text = f"common {chance.randrange(COMMON)}" if common else f"question {number} of {seed}"
            shown = chance.sample(range(1, len(self.old) + 1), chance.randrange(5))
            key, summary = Key(run="new", question_id=f"q{number}"), "look " * chance.randint(1, 39)
            new.append(Task(key, text, chance.random() < 0.5, summary, tuple(shown)))
        chance.shuffle(new)
        self.new = [new[first : first + EACH] for first in range(0, len(new), EACH)]
        self.tasks = {episode_key(task.key): task for task in (*self.old, *new)}


def manager(path: Path) -> Manager:
    """Open a bank that shows something for every question."""
    return Manager(Bank.open(path, Digests()), Digests(), FirstPlan(), RecallRule(floor=-1.0))


async def write(path: Path, seed: int) -> None:
    """Keep the episodes of all writers but for those that the standard input names, by key.

    Says `+key` before and `=key` once an episode is acknowledged.
    """
    workload, done = Workload(seed), set(sys.stdin.read().splitlines())
    with closing(manager(path)) as memory:

        async def writer(tasks: Sequence[Task]) -> None:
            for key, task in ((episode_key(task.key), task) for task in tasks):
                if key in done:
                    continue
                os.write(sys.stdout.fileno(), f"+{key}\n".encode())  # past all buffers: it must survive a kill
                await memory.remember(task.episode())
                os.write(sys.stdout.fileno(), f"={key}\n".encode())

        async with asyncio.TaskGroup() as group:
            writing = asyncio.gather(*map(writer, workload.new))
            for _ in range(READERS):
                group.create_task(look_on(memory, workload, writing.done))
            await writing


async def read(path: Path, seed: int) -> None:
    """Recall until the standard input ends; then tell how often."""
    workload = Workload(seed)
    with closing(manager(path)) as memory:
        end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        counts = await asyncio.gather(*(look_on(memory, workload, end.done) for _ in range(READERS)))
    sys.stdout.write(str(sum(counts)))


async def look_on(memory: Manager, workload: Workload, ended: Callable[[], bool]) -> int:
    """Recall until it ends; what is seen must be whole, and never older than what was seen before."""
    chance, tasks, sequence, count = random.Random(), list(workload.tasks.values()), 0, 0
    while not ended():
        recall = await memory.recall(chance.choice(tasks).question)
        assert recall.sequence >= sequence, f"change {recall.sequence} was seen after {sequence}"
        assert len(recall.successes) == len(recall.failures) == 2, f"{len(recall.ids)} memories were shown, not 4"
        sequence, count = recall.sequence, count + 1
        await asyncio.sleep(0.01)
    return count


async def crash(folder: Path, seed: int, kills: int) -> Tally:
    """Play the scenario on one new bank in an empty folder.

    Raises:
        AssertionError: something was lost, doubled, miscounted or refused; the message names the seed.
    """
    path, chance, workload = folder / "memory.sqlite", random.Random(seed), Workload(seed)
    begun, acknowledged = {episode_key(task.key) for task in workload.old}, set[str]()
    in_flight = kept = 0
    try:
        async with asyncio.timeout(SECONDS):
            with closing(manager(path)) as memory:
                for task in workload.old:
                    await memory.remember(task.episode())
                    acknowledged.add(episode_key(task.key))
            async with _child("read", path, seed) as reader:
                for left in range(kills, -1, -1):
                    waiting = len(workload.tasks) - len(acknowledged)
                    moment = len(acknowledged) + chance.randint(1, waiting // (left + 1)) if left else None
                    async with _child("write", path, seed) as writer:
                        await _tell(writer, acknowledged if left else ())
                        await _follow(writer, begun, acknowledged, moment, chance.uniform(0, 0.005))
                    taken = check(path, workload, begun, acknowledged)
                    in_flight += len(begun - acknowledged)
                    kept += len(taken - acknowledged)
                assert taken == set(workload.tasks), "the bank does not hold everything in the end"
                recalls = int((await reader.communicate(b""))[0])
    except (AssertionError, TimeoutError) as error:
        message = f"with seed {seed} and {kills} kills: {error or 'it hung'}"
        raise AssertionError(message) from error
    return Tally(kills, in_flight, kept, recalls)


@asynccontextmanager
async def _child(doing: str, path: Path, seed: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this program as a reader or a writer; whoever was not killed must end well, and all in silence."""
    errors = path.with_name(f"{doing}.errors")
    with errors.open("wb") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-X", "faulthandler", __file__, f"--{doing}", str(path), "--seed", str(seed)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        yield child
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    said = errors.read_text()
    assert not said, f"the process that was to {doing} said: {said}"
    assert child.returncode in (0, -signal.SIGKILL), f"the process that was to {doing} ended with {child.returncode}"


async def _tell(child: asyncio.subprocess.Process, keys: Iterable[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n".join(keys).encode())
    await child.stdin.drain()
    child.stdin.close()


async def _follow(
    writer: asyncio.subprocess.Process, begun: set[str], acknowledged: set[str], moment: int | None, delay: float
) -> None:
    """Note what a writer says; kill it a little after so many episodes have been acknowledged in all."""
    assert writer.stdout is not None
    killing: asyncio.Task[None] | None = None

    async def kill() -> None:
        await asyncio.sleep(delay)
        if writer.returncode is None:
            writer.kill()

    async for line in writer.stdout:
        (acknowledged if line.startswith(b"=") else begun).add(line[1:].decode().rstrip("\n"))
        if killing is None and moment is not None and len(acknowledged) >= moment:
            killing = asyncio.create_task(kill())
    if killing:
        await killing


def check(path: Path, workload: Workload, begun: set[str], acknowledged: set[str]) -> set[str]:
    """Open the bank as after a restart and hold it against what was submitted; return the episodes taken in."""
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the file is damaged"
        keys = [key for (key,) in file.execute("SELECT key FROM episodes WHERE alive")]
        shows = file.execute("SELECT episode, memory_id, won FROM shows WHERE alive AND NOT withheld").fetchall()
    taken = set(keys)
    assert len(taken) == len(keys), "an episode was taken in twice"
    assert acknowledged <= taken, f"acknowledged but lost: {sorted(acknowledged - taken)}"
    assert taken <= begun, f"never submitted: {sorted(taken - begun)}"
    votes = [(key, id_, workload.tasks[key].correct) for key in keys for id_ in workload.tasks[key].shown]
    assert sorted(shows) == sorted(votes), "the bank tells of other memories shown than there were"
    uses, wins = Counter(id_ for _, id_, _ in votes), Counter(id_ for _, id_, won in votes if won)
    with closing(manager(path)) as memory:
        memories, snapshot = memory.bank.storage.list(None), memory.bank.snapshot()
        for each in memories:
            counts, right = (each.uses, each.wins), (uses[each.id], wins[each.id])
            assert counts == right, f"memory {each.id} has uses and wins {counts}, not {right}"
        _check_memories(memories, [workload.tasks[key] for key in keys])
        alive = snapshot.alive
        vectors = dict(zip(snapshot.ids[alive].tolist(), snapshot.questions[alive], strict=True))
    assert vectors.keys() == {each.id for each in memories}, "the arrays hold other memories than the file"
    wanted = Digests().encode([each.question for each in memories])
    assert all((vectors[each.id] == row).all() for each, row in zip(memories, wanted, strict=True)), "a wrong vector"
    return taken


def _check_memories(memories: Sequence[Workflow], tasks: Sequence[Task]) -> None:
    """Hold memories against the episodes that were taken in: one for each question and label, made of the right one."""
    made_of: Mapping[tuple[str, bool], dict[str, Task]] = defaultdict(dict)
    for task in tasks:
        made_of[task.text, task.correct][episode_key(task.key)] = task
    places = Counter((memory.question, memory.correct) for memory in memories)
    assert places == Counter(made_of.keys()), "not one memory for each question and label"
    for memory in memories:
        candidates = made_of[memory.question, memory.correct]
        assert memory.episode in candidates, f"memory {memory.id} was made of an episode that was not taken in"
        task = candidates[memory.episode]
        whole = (memory.summary, memory.question_id) == (task.summary.strip(), task.key.question_id)
        assert whole, f"memory {memory.id} is a mixture"
        if memory.correct:
            best = min(len(each.summary) for each in candidates.values())
            assert len(task.summary) == best, f"memory {memory.id} is not the shortest success"
        elif len(candidates) > 1:
            assert task.key.run == "new", f"memory {memory.id} is not a later failure"


async def crashes(kills: int, each: int, seed: int) -> Tally:
    """Play the scenario on as many banks as it takes, two at once, and return what it came to in all.

    Raises:
        AssertionError: as `crash`.
    """
    some = [min(each, kills - before) for before in range(0, kills, each)]
    at_once = asyncio.Semaphore(2)

    async def one(number: int) -> Tally:
        async with at_once:
            with tempfile.TemporaryDirectory() as folder:
                return await crash(Path(folder), seed + number, some[number])

    done = await asyncio.gather(*map(one, range(len(some))))
    return Tally(*(sum(column) for column in zip(*done, strict=True)))


def main() -> None:
    """Play the scenario, or a part in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=10, help="kills of one bank")
    parser.add_argument("--seed", type=int, default=1, help="that of the first bank")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        asyncio.run(write(options.write, options.seed))
    elif options.read:
        asyncio.run(read(options.read, options.seed))
    else:
        started = time.perf_counter()
        print(asyncio.run(crashes(options.kills, options.each, options.seed)), f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
