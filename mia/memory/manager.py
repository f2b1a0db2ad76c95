"""The Memory Manager: shows what may help with a question, and keeps what came of it."""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from mia.errors import StorageError
from mia.memory.recall import Query, RecallRule, rank, twins
from mia.text import clean
from mia.types import Label, Recall, Workflow

if TYPE_CHECKING:
    from mia.memory.bank import Bank
    from mia.memory.compress import Compressor
    from mia.memory.recall import Snapshot
    from mia.memory.storage import Writing
    from mia.protocols import Encoder
    from mia.types import Episode, Question

READERS = 2
BATCH = 64
VECTORS = 1024


class Manager:
    """Plays the Memory role over a bank. Reading calls no model; writing goes through one thread."""

    def __init__(self, bank: Bank, encoder: Encoder, compressor: Compressor, rule: RecallRule | None = None) -> None:
        self.bank = bank
        # A question is looked up before its episode and kept after it: the vectors are the same.
        self._vectors = lru_cache(VECTORS)(lambda *texts: encoder.encode(texts))
        self._compressor = compressor
        self._rule = rule or RecallRule()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="recall")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="remember")
        self._waiting: deque[_Record] = deque()

    def close(self) -> None:
        """Finish what was begun, then close the bank."""
        self._readers.shutdown()
        self._writer.shutdown()
        self.bank.close()

    async def recall(self, question: Question) -> Recall:
        """Return the memories that may help with a question.

        Raises:
            StorageError: the bank cannot be read.
        """
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._recall, question)

    async def remember(self, episode: Episode) -> None:
        """Keep a graded episode and credit the memories that were shown for it; committed when this returns.

        An episode that failed, or has no grade, is passed over; one that is remembered already changes nothing.

        Raises:
            StorageError: the bank cannot be written; nothing of the episode was kept.
        """
        if not _graded(episode):
            return
        run = asyncio.get_running_loop().run_in_executor
        if await run(self._readers, self.bank.storage.remembers, str(episode.key)):
            return
        workflow = _workflow(episode, await self._compressor.compress(episode))
        record = _Record(episode, workflow)
        self._waiting.append(record)
        await run(self._writer, self._write_until, record)
        if record.error:
            raise record.error

    def _query(self, question: Question) -> Query:
        vector, caption = self._vectors(question.text, question.caption)
        return Query(vector, caption, self.bank.origin(question.id), text_only=not question.images)

    def _recall(self, question: Question) -> Recall:
        snapshot = self.bank.snapshot()
        ranking = rank(snapshot, self._query(question), self._rule)
        found = self.bank.storage.fetch([memory_id for memory_id, _ in (*ranking.successes, *ranking.failures)])
        # Another process may have forgotten one since the snapshot: what is gone is not shown.
        shown = (tuple((found[id_], score) for id_, score in ranked if id_ in found) for ranked in ranking)
        successes, failures = shown
        return Recall(successes=successes, failures=failures, sequence=snapshot.sequence)

    def _write_until(self, record: _Record) -> None:
        """Write batches until a record is settled; it may have been in an earlier one already."""
        while not (record.kept or record.error):
            self._write()

    def _write(self) -> None:
        """Write what waits in one transaction: records that arrive during a commit share the next one."""
        batch: list[_Record] = []
        while (
            self._waiting
            and len(batch) < BATCH
            and not any(_same(other.workflow, self._waiting[0].workflow) for other in batch)
        ):
            batch.append(self._waiting.popleft())
        try:
            with self.bank.storage.writing() as writing:
                snapshot = self.bank.snapshot()  # no other writer can be at work now: this is the bank as it is
                for record in batch:
                    self._keep(writing, snapshot, record)
        except StorageError as error:
            for record in batch:
                record.error = record.error or error
        else:
            for record in batch:
                record.kept = record.error is None
        finally:
            for record in batch:
                if not record.kept:
                    record.error = record.error or StorageError(
                        "The memory was not written, by a fault of the program."
                    )

    def _keep(self, writing: Writing, snapshot: Snapshot, record: _Record) -> None:
        """Write one record; one that cannot be written leaves its neighbours alone."""
        try:
            with writing.apart():
                if writing.take_in(record.workflow.episode):
                    shown = {"question_id": record.workflow.question_id, "episode": record.workflow.episode}
                    writing.credit(record.episode.recall.ids, **shown, won=record.workflow.correct)
                    self._settle(writing, snapshot, record)
        except StorageError as error:
            record.error = error

    def _settle(self, writing: Writing, snapshot: Snapshot, record: _Record) -> None:
        """Add the memory unless a better one of the same question and label is there; replace one that is worse.

        A success and a failure of one question stand side by side, as a contrast. A shorter success replaces a
        longer one, the latest failure the earlier one; what takes its place inherits its uses and wins.
        """
        workflow, query = record.workflow, self._query(record.episode.question)
        unseen = bool(record.episode.question.images) and not query.captioned
        near = twins(snapshot, query, correct=workflow.correct, same_origin=unseen)
        found = map(writing.get, near)
        present = next((memory for memory in found if memory and _same(memory, workflow)), None)
        if present:
            if workflow.correct and len(workflow.summary) >= len(present.summary):
                return
            writing.forget(present.id)
            workflow = workflow.model_copy(update={"uses": present.uses, "wins": present.wins})
        writing.add(workflow, query.question, query.caption)


@dataclass
class _Record:
    """What waits to be written, and whether it was: committed, or why not."""

    episode: Episode
    workflow: Workflow
    kept: bool = False
    error: StorageError | None = None


def _same(one: Workflow, other: Workflow) -> bool:
    """Tell whether two memories are of the same question: the same words, whatever case, width and spacing."""
    return _words(one.question) == _words(other.question) and _words(one.caption) == _words(other.caption)


def _words(text: str) -> list[str]:
    return unicodedata.normalize("NFKC", clean(text)).casefold().split()


def _graded(episode: Episode) -> bool:
    """Tell whether the episode ran through and its last attempt has a grade."""
    verdict = episode.final.verdict if episode.final else None
    return episode.failure is None and verdict is not None and verdict.label is not Label.JUDGE_ERROR


def _workflow(episode: Episode, summary: str) -> Workflow:
    """Make the memory of a graded episode; the bank gives it its id. A later plan is told by the summary."""
    first, final = episode.attempts[0], episode.final
    return Workflow(
        id=0,
        question=episode.question.text,
        caption=episode.question.caption,
        summary=summary,
        plan=first.plan.text,
        correct=bool(final and final.verdict and final.verdict.label is Label.CORRECT),
        question_id=episode.question.id,
        episode=str(episode.key),
        model=first.plan.said.model,
        created=time.time(),
    )
