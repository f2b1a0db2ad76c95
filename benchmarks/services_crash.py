"""Saves through /batch_memory_save while the service is killed: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from services_house import House, Load, asked, post, session_of_clients

from mia.memory.storage import Storage

if TYPE_CHECKING:
    from mia.embedded.process import Process


class Killed(NamedTuple):
    """What was saved across kills: how often requests were cut off, and how long until the service was back."""

    saved: int
    kills: int
    cut: int
    back: float
    load: Load


class Saving:
    """Clients that save until all is acknowledged, and a service that is killed meanwhile."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.bank = house.folder / "saved.sqlite"
        self.up = asyncio.Event()
        scale, parts = house.scale, house.scale.kills + 1
        total = scale.clients * scale.saves
        self.moments = {total * number // parts: asyncio.Event() for number in range(1, parts)}
        self.url = ""
        self.acknowledged = self.cut = 0
        self.latencies: list[float] = []
        self._done = house.count("saved", total)

    async def run(self) -> Killed:
        """Save all, kill now and then, and hold the bank against what was acknowledged."""
        scale = self.house.scale
        process, self.url = await self.house.serve_memory(self.bank)
        self.up.set()
        async with session_of_clients() as session:
            await post(session, f"{self.url}/batch_memory_save", [_saved("shown to all", [])])
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                killing = group.create_task(self._kill(process))
                for number in range(scale.clients):
                    group.create_task(self._client(session, number))
            seconds = time.perf_counter() - started
            await self._check_answers(session)
        process, waits = killing.result()
        await process.stop()
        self._check()
        load = Load(self.latencies, seconds - sum(waits))
        return Killed(self.acknowledged, len(waits), self.cut, max(waits), load)

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        for count in range(self.house.scale.saves):
            body = [_saved(f"{asked(number)} {count}", [1])]
            done = False
            while not done:
                await self.up.wait()
                started = time.perf_counter()
                try:
                    await post(session, f"{self.url}/batch_memory_save", body)
                    done = True
                except aiohttp.ClientError:
                    self.cut += 1
                    await asyncio.sleep(0.01)
            self.latencies.append(time.perf_counter() - started)
            self.acknowledged += 1
            self._done()
            if moment := self.moments.get(self.acknowledged):
                moment.set()

    async def _kill(self, process: Process) -> tuple[Process, list[float]]:
        """Kill a little after each share of the work; return the last process, and how long the service was away."""
        waits = []
        for moment in self.moments.values():
            await moment.wait()
            await asyncio.sleep(random.uniform(0, 0.02))
            self.up.clear()
            os.kill(process.id, signal.SIGKILL)
            killed = time.perf_counter()
            process, self.url = await self.house.serve_memory(self.bank, int(self.url.rpartition(":")[2]))
            waits.append(time.perf_counter() - killed)
            self.up.set()
            self.house.tell(f"killed at {self.acknowledged:,} saved; back after {waits[-1]:.1f} s")
        return process, waits

    async def _check_answers(self, session: aiohttp.ClientSession) -> None:
        for number in range(self.house.scale.clients):
            question = f"{asked(number)} 0"
            (answer,) = await post(session, f"{self.url}/memory", [{"question": question, "mem_top_k": 1}])
            assert f"Question: {question}\n" in answer["context"], f"{question} is not shown for itself"

    def _check(self) -> None:
        scale = self.house.scale
        texts = {f"{asked(number)} {count}" for number in range(scale.clients) for count in range(scale.saves)}
        with closing(sqlite3.connect(self.bank)) as file:
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the file is damaged"
            keys = [key for (key,) in file.execute("SELECT key FROM episodes WHERE alive")]
        assert len(set(keys)) == len(keys) == len(texts) + 1, (
            f"{len(keys)} episodes were taken in, not {len(texts) + 1}"
        )
        with closing(Storage(self.bank)) as storage:
            memories = {memory.id: memory for memory in storage.list(None)}
        shown = memories.pop(1)
        assert (shown.uses, shown.wins) == (len(texts), len(texts)), f"{shown.uses} credits, not {len(texts)}"
        assert sorted(memory.question for memory in memories.values()) == sorted(texts), "not each question once"
        crossed = [memory.id for memory in memories.values() if memory.question not in memory.plan]
        assert not crossed, f"memories {crossed} have another's plan"


def _saved(question: str, shown: list[int]) -> dict[str, Any]:
    call = json.dumps({"name": "search", "arguments": {"query_list": [question]}})
    return {
        "data_id": question,
        "question": question,
        "plan": f"1. Search for {question}\n2. Answer.",
        "messages": [
            {"role": "assistant", "content": f"I search.\n<tool_call>{call}</tool_call>"},
            {"role": "user", "content": f"<tool_response>\n{'word ' * 300}\n</tool_response>"},
            {"role": "assistant", "content": "<answer>so it is</answer>"},
        ],
        "judgement": "correct",
        "used_memory_indices": shown,
    }
