"""Graded episodes, and a Memory Manager that takes them in without a model."""

import asyncio
import threading

import numpy as np

from mia.memory.bank import Bank
from mia.memory.compress import Summary
from mia.memory.manager import Manager
from mia.memory.recall import RecallRule
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

RULE = RecallRule("three_term", each=2, floor=0.3)


class Letters:
    """Counts letters: enough of an encoder to tell texts apart, and fast."""

    id = "letters"
    dimensions = 64

    def encode(self, texts):
        rows = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for letter in text.replace("\u00a0", " ").strip():
                row[ord(letter) % self.dimensions] += 1
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)


class Fixed:
    """Compresses every episode to what its first plan says; while `down`, only to a stand-in."""

    def __init__(self):
        self.calls = 0
        self.down = False

    async def compress(self, episode):
        self.calls += 1
        text = episode.attempts[0].plan.text
        return Summary(f"stand-in for {text}", final=False) if self.down else Summary(text)


def episode(text, label=Label.CORRECT, *, summary="1. look", number=0, turns=1, shown=(), withheld=(), **more):
    """An episode of one attempt; `more` are fields of the question, the key or the episode."""
    key, question = (
        {name: more.pop(name) for name in names if name in more} for names in (("run", "step"), ("caption", "images"))
    )
    question_id = more.pop("question_id", text)
    said = Said(raw=summary, text=summary, model="m")
    verdict = None if label is None else Verdict(label=label, judge="test")
    trajectory = Trajectory(steps=(Step(said=said),) * turns, answer="a", stop=StopReason.ANSWERED)
    memories = [
        (Workflow(id=i, question="", summary="", plan="", correct=True, question_id="", episode="", created=0.0), 1.0)
        for i in shown
    ]
    return Episode(
        key=Key(**({"run": "run"} | key), question_id=question_id, rollout=number),
        question=Question(id=question_id, text=text, **question),
        recall=Recall(successes=tuple(memories), withheld=withheld),
        attempts=(Attempt(plan=Plan(said=said), trajectory=trajectory, verdict=verdict),),
        **more,
    )


def managed(path, rule=RULE, compressor=None, describer=None):
    return Manager(Bank.open(path, Letters()), Letters(), compressor or Fixed(), rule, describer)


def remember(manager, *episodes):
    async def one_by_one():
        for each in episodes:
            await manager.remember(each)

    asyncio.run(one_by_one())


def at_once(call, arguments):
    """Start all calls together; return what each returned or raised."""

    async def all_of_them():
        return await asyncio.gather(*map(call, arguments), return_exceptions=True)

    return asyncio.run(all_of_them())


def together(manager, call, arguments):
    """Let calls arrive in this order while the writer is held up, so that they are one batch; return as `at_once`."""
    submit, arrived, held = manager._commits.submit, asyncio.Event(), threading.Event()

    async def noted(record):
        arrived.set()
        await submit(record)

    async def all_of_them():
        manager._commits._writer.submit(held.wait)
        tasks = []
        for each in arguments:
            tasks.append(asyncio.create_task(call(each)))
            await arrived.wait()
            arrived.clear()
        held.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    manager._commits.submit = noted
    try:
        return asyncio.run(all_of_them())
    finally:
        held.set()
        del manager._commits.submit


def recall(manager, text, **more):
    return asyncio.run(manager.recall(Question(id="asked", text=text, **more)))


def kept(manager):
    return [(memory.question, memory.correct, memory.summary) for memory in reversed(manager.bank.storage.list(1000))]


def counts(manager):
    """Uses and wins by id."""
    return {memory.id: (memory.uses, memory.wins) for memory in manager.bank.storage.list(None)}
