"""Runs an agent over questions: concurrent, resumable, every question accounted for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mia.errors import InputError, MiaError
from mia.types import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mia.agent import Agent
    from mia.runs.folder import RunFolder
    from mia.types import Episode, Question

_TRIES = 2


def latest(folder: RunFolder) -> dict[str, Episode]:
    """Return the last episode of each question."""
    return {episode.key.question_id: episode for episode in folder.episodes()}


def finished(folder: RunFolder) -> dict[str, Episode]:
    """Return the last episode of each question that ended without a failure."""
    return {name: episode for name, episode in latest(folder).items() if not episode.failure}


def whole(folder: RunFolder) -> dict[str, Episode]:
    """Return the last episode of every question of a run.

    Raises:
        InputError: it is no run, or not all of its questions have been asked yet.
    """
    size = folder.manifest.get("made_by", {}).get("data", {}).get("size", 0)
    episodes = latest(folder)
    if not size or len(episodes) < size:
        raise InputError(
            f"The run in {folder.path} holds {len(episodes)} of {size} questions.",
            remedy="Run its `mia eval` again to the end: naming its folder resumes it.",
        )
    return episodes


async def run(
    questions: Sequence[Question],
    agent: Agent,
    folder: RunFolder,
    *,
    concurrency: int = 1,
    progress: Callable[[Episode], None] = lambda _: None,
) -> list[Episode]:
    """Answer the questions that the folder has no finished episode of; return one episode per question, in order.

    A question whose episode failed is queued once more at the end and then reported as failed. With a concurrency of
    1, each question sees the memories of all before it.
    """
    done = finished(folder)
    gate = asyncio.Semaphore(concurrency)

    async def answer(question: Question) -> None:
        async with gate:
            episode = await agent.run(question, Key(run=folder.id, question_id=question.id))
        await asyncio.to_thread(folder.append, episode)
        done[question.id] = episode
        progress(episode)

    for _ in range(_TRIES):
        waiting = [question for question in questions if question.id not in done or done[question.id].failure]
        try:
            async with asyncio.TaskGroup() as group:
                for question in waiting:
                    group.create_task(answer(question))
        except* MiaError as errors:
            raise errors.exceptions[0] from errors
    return [done[question.id] for question in questions]
