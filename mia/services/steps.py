"""Steps of rollouts whose clients name none: the open one takes them in, and consolidating closes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mia.memory.manager import Committed
from mia.memory.threads import waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia.memory.manager import Manager
    from mia.types import Episode
    from mia.wire.agent_serve import StepRequest

_KIND = "open step"


class Steps:
    """Which steps of a run are open or not consolidated yet, kept in the bank's file: a restart changes nothing."""

    def __init__(self, memory: Manager, run: str) -> None:
        self._memory = memory
        self._storage = memory.bank.storage
        self._run = run
        self._first = self._open = 0  # the first that is not consolidated, and the one that takes rollouts in
        self._saving: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Lock()

    async def load(self) -> None:
        """Go on where the process before this one ended."""
        kept = await waited(None, self._storage.note, _KIND, self._run)
        if kept is not None:
            self._first, self._open = map(int, kept.split())

    async def explore(self, rollout: Callable[[str, int], Episode]) -> None:
        """Keep a rollout, made for a run and a step, in the open step.

        Raises:
            StorageError: it is not on disk.
        """
        saving = asyncio.create_task(self._memory.explore(rollout(self._run, self._open)))
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        await saving

    async def waiting(self, step: StepRequest | None) -> list[tuple[Episode, ...]]:
        """Return the groups of a step that wait, or of all that are not consolidated."""
        if step and step.run is not None and step.step is not None:
            places = [(step.run, step.step)]
        else:
            places = [(self._run, number) for number in range(self._first, self._open + 1)]
        found = [await waited(None, self._storage.explorations, *place) for place in places]
        return [group for groups in found for group in groups.values()]

    async def commit(self, step: StepRequest | None) -> Committed:
        """Consolidate the complete groups of a step, or close the open one and consolidate what it holds.

        A step that could not be consolidated whole is tried again with the next.

        Raises:
            StorageError: the bank cannot be written; groups that were committed before stay so.
        """
        if step and step.run is not None and step.step is not None:
            return await self._memory.commit(step.run, step.step, step.rollouts)
        async with self._closing:
            await self._mark(self._first, self._open + 1)
            if self._saving:
                await asyncio.wait(set(self._saving))  # those of the step that was open, too
            total = Committed()
            for number in range(self._first, self._open):
                done = await self._memory.commit(self._run, number, 1)
                total = Committed(*map(sum, zip(total, done, strict=True)))
                await self._mark(number + 1, self._open)
            return total

    async def _mark(self, first: int, opened: int) -> None:
        await waited(None, self._storage.keep_note, _KIND, self._run, f"{first} {opened}", "")
        self._first, self._open = first, opened
