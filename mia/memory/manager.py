"""The Memory Manager: shows what may help with a question, and keeps what came of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mia.errors import InputError, StorageError
from mia.memory.describe import Description
from mia.memory.exploration import choose, correct, graded
from mia.memory.group_commit import GroupCommit
from mia.memory.recall import Query, RecallRule, rank
from mia.memory.threads import waited
from mia.memory.twins import settle, twin
from mia.memory.writing import Credit, Fresh, Vectors, episode_key, group_key
from mia.text import to_json
from mia.types import OTHERS, PlanPair, Recall, Workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from mia.memory.bank import Bank
    from mia.memory.compress import Compressor
    from mia.memory.describe import Describer
    from mia.memory.writing import Writing
    from mia.protocols import Encoder
    from mia.types import Episode, Key, Question

    T = TypeVar("T")

READERS = 2
VECTORS = 1024
COMPRESSING = 8  # groups whose workflows are written at once


class Committed(NamedTuple):
    """What became of the groups of a step: memories kept, and groups that lack rollouts or grades still."""

    successes: int = 0
    failures: int = 0
    pairs: int = 0
    incomplete: int = 0


@dataclass(frozen=True)
class _Kept:
    """What an episode leaves behind, or a group; of a group `rollout` is the key of one that waited."""

    key: str
    fresh: tuple[Fresh, ...]
    credit: Credit | None = None
    pair: tuple[PlanPair, Vectors] | None = None
    rollout: Key | None = None


@dataclass(frozen=True)
class _Rollout:
    """A rollout that waits for its group."""

    episode: Episode


@dataclass(frozen=True)
class _Rewritten:
    """The summary of a memory that had a stand-in."""

    memory_id: int
    episode: str
    summary: str


class Manager:
    """Plays the Memory role over a bank. Ranking calls no model; writing goes through one thread.

    `counts` holds what went wrong and was passed over: `workflow`, a model that wrote none (a stand-in is
    kept, and written again later), and `caption` and `category`, which were left empty.
    """

    def __init__(
        self,
        bank: Bank,
        encoder: Encoder,
        compressor: Compressor,
        rule: RecallRule | None = None,
        describer: Describer | None = None,
    ) -> None:
        self.bank = bank
        # A question is looked up before its episode and kept after it: the vectors are the same.
        self._vectors = lru_cache(VECTORS)(lambda *texts: Vectors(*encoder.encode(texts)))
        self._compressor = compressor
        self._rule = rule or RecallRule()
        self._describer = describer
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="recall")
        self._commits: GroupCommit[_Kept | _Rollout | _Rewritten] = GroupCommit(bank.storage, self._write)
        self._dimensions = encoder.dimensions
        self._drafts = True  # whether summaries may have to be written again
        self._tried: set[int] = set()  # memories whose summary failed again
        self._failures = Counter[str]()

    @property
    def counts(self) -> Counter[str]:
        """What a model was asked for and did not bring, by kind."""
        return self._failures + (self._describer.failures if self._describer else Counter())

    def close(self) -> None:
        """Finish what was begun, then close the bank."""
        self._readers.shutdown()
        self._commits.close()
        self.bank.close()

    async def recall(self, question: Question, each: int | None = None) -> Recall:
        """Return the memories that may help with a question: `each` successes and failures, or as the rule has it.

        A model is asked only for what has never been asked: the caption of an image, the category of a question.

        Raises:
            StorageError: the bank cannot be read.
        """
        described = await self._describe(question)
        known = question.model_copy(update={"caption": described.caption})
        recall = await self._reading(self._recall, known, described.category, each)
        found = "" if described.caption == question.caption else described.caption
        return recall.model_copy(update={"caption": found})

    async def remember(self, episode: Episode) -> None:
        """Keep a graded episode and credit the memories that were shown for it; committed when this returns.

        An episode that failed, or has no grade, is passed over; one that is remembered already changes nothing.

        Raises:
            StorageError: the bank cannot be written; nothing of the episode was kept.
        """
        if not graded(episode) or await self._reading(self.bank.storage.remembers, episode_key(episode.key)):
            return
        fresh = await self._workflow(episode)
        await self.insert(
            fresh,
            Credit(
                episode=fresh.workflow.episode,
                question_id=episode.question.id,
                shown=episode.recall.ids,
                won=correct(episode),
                withheld=episode.recall.withheld,
            ),
        )
        if not fresh.draft:
            await self._finish_draft()

    async def insert(self, fresh: Fresh, credit: Credit | None = None) -> None:
        """Keep a memory whose vectors are known already; committed when this returns, once per `workflow.episode`.

        Raises:
            InputError: the vectors are not the encoder's.
            StorageError: the bank cannot be written; nothing was kept.
        """
        for each in fresh.vectors:
            if each.shape != (self._dimensions,) or each.dtype != "float32":
                raise InputError(
                    f"A vector of the memory is {each.dtype} {each.shape}.",
                    remedy=f"Give float32 vectors of length {self._dimensions}, made by the bank's encoder.",
                )
        await self._keep(_Kept(fresh.workflow.episode, (fresh,), credit))

    async def explore(self, episode: Episode) -> None:
        """Keep a rollout until its group is complete; on disk when this returns, once per key.

        One that failed or has no grade is passed over: its group stays incomplete.

        Raises:
            StorageError: the bank cannot be written.
        """
        if graded(episode):
            await self._commits.submit(_Rollout(episode))

    async def commit(self, run: str, step: int, rollouts: int) -> Committed:
        """Keep what the complete groups of a step leave behind: those with `rollouts` graded rollouts.

        Of each, the success of fewest turns, one failure, the pair of their plans, and one vote for the memories shown,
        in one transaction, once. The other groups go on waiting.

        Raises:
            StorageError: the bank cannot be written; groups that were committed before stay so.
        """
        waiting = await self._reading(self.bank.storage.explorations, run, step)
        complete = [group for group in waiting.values() if len(group) >= rollouts]
        at_once = asyncio.Semaphore(COMPRESSING)
        done = await asyncio.gather(*(self._commit(group, at_once) for group in complete), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        kept = [outcome for outcome in done if isinstance(outcome, Committed)]
        totals = (sum(column) for column in zip(*kept, strict=True)) if kept else ()
        return Committed(*totals)._replace(incomplete=len(waiting) - len(complete))

    async def _commit(self, group: Sequence[Episode], at_once: asyncio.Semaphore) -> Committed:
        choice, some = choose(group), group[0]
        key = group_key(some.key)
        async with at_once:
            chosen = [await self._workflow(episode) for episode in (choice.success, choice.failure) if episode]
        pair = None
        if choice.success and choice.failure:
            good, bad = (fresh.workflow for fresh in chosen)
            pair = _pair(good, bad), chosen[0].vectors
        credit = Credit(key, some.question.id, choice.shown, choice.won, choice.withheld)
        await self._keep(_Kept(key, tuple(chosen), credit, pair, some.key))
        return Committed(bool(choice.success), bool(choice.failure), bool(pair))

    async def _keep(self, kept: _Kept) -> None:
        await self._commits.submit(kept)
        if any(fresh.draft for fresh in kept.fresh):
            self._drafts = True

    async def _reading(self, call: Callable[..., T], *arguments: object) -> T:
        return await waited(self._readers, call, *arguments)

    async def _describe(self, question: Question) -> Description:
        if self._describer is None:
            return Description(question.caption, OTHERS)
        return await self._describer.describe(question)

    def _recall(self, question: Question, category: str, each: int | None) -> Recall:
        snapshot, vectors = self.bank.snapshot(), self._vectors(question.text, question.caption)
        origin, bucket = self.bank.origin(question.id), self.bank.category(category)
        worded = not question.images or bool(question.caption.strip())
        query = Query(*vectors, origin, worded=worded, category=bucket)
        rule = self._rule if each is None else replace(self._rule, each=each)
        ranking = rank(snapshot, query, rule)
        found = self.bank.storage.fetch([memory_id for memory_id, _ in (*ranking.successes, *ranking.failures)])
        # Another process may have forgotten one since the snapshot: what is gone is not shown.
        successes, failures = (tuple((found[id_], score) for id_, score in some if id_ in found) for some in ranking)
        return Recall(successes=successes, failures=failures, sequence=snapshot.sequence)

    async def _workflow(self, episode: Episode) -> Fresh:
        """Make the memory of a graded episode; the bank gives it its id. A later plan is told by the summary."""
        summary = await self._compressor.compress(episode)
        described = await self._describe(episode.question)
        question = episode.question.model_copy(update={"caption": described.caption})
        first, verdict = episode.attempts[0].plan, episode.attempts[-1].verdict
        workflow = Workflow(
            id=0,
            question=question.text,
            caption=question.caption,
            category=described.category,
            summary=summary.text,
            plan=first.text,
            correct=correct(episode),
            feedback=verdict.feedback if verdict else (),
            question_id=question.id,
            episode=episode_key(episode.key),
            source=episode.key.run,
            model=first.said.model,
            created=time.time(),
        )
        vectors = await self._reading(self._vectors, question.text, question.caption)
        if summary.final:
            return Fresh(workflow, twin(question), vectors)
        self._failures["workflow"] += 1
        draft = await self._reading(lambda: to_json(episode.model_dump(mode="json")))
        return Fresh(workflow, twin(question), vectors, draft)

    async def _finish_draft(self) -> None:
        """Write one summary that a model failed to write before: one has just come, so it is back."""
        if not self._drafts:
            return
        self._drafts, more = False, True  # which keeps others from the same one
        try:
            with suppress(StorageError):  # it goes on waiting; the episode that is being remembered is on disk
                more = await self._write_again()
        finally:
            self._drafts = self._drafts or more

    async def _write_again(self) -> bool:
        """Write a summary again, if one waits that has not failed again since the last of them was tried.

        So one that fails for ever holds up no other, and is not asked for with every episode.
        """
        waiting = await self._reading(self.bank.storage.drafts, len(self._tried) + 1)
        draft = next((draft for draft in waiting if draft.memory_id not in self._tried), None)
        if draft is None:
            self._tried.clear()
            return False
        summary = await self._compressor.compress(draft.episode)
        if summary.final:
            await self._commits.submit(_Rewritten(draft.memory_id, episode_key(draft.episode.key), summary.text))
        else:
            self._tried.add(draft.memory_id)
        return True

    def _write(self, writing: Writing, records: list[_Kept | _Rollout | _Rewritten]) -> None:
        """Make the changes of one batch."""
        by_key: dict[str, _Kept] = {}
        for record in records:
            if isinstance(record, _Kept):
                by_key.setdefault(record.key, record)
        taken = writing.take_in(by_key)
        kept = [record for key, record in by_key.items() if key in taken]
        writing.credit([record.credit for record in kept if record.credit])
        settle(writing, [fresh for record in kept for fresh in record.fresh])
        writing.add_pairs([record.pair for record in kept if record.pair])
        for record in kept:
            if record.rollout:
                writing.close_group(record.rollout)
        writing.explore([record.episode for record in records if isinstance(record, _Rollout)])
        rewritten = {record.memory_id: record for record in records if isinstance(record, _Rewritten)}
        for memory in writing.get(rewritten).values():
            if memory.episode == rewritten[memory.id].episode:  # else a later episode has taken its place
                writing.rewrite(memory.id, rewritten[memory.id].summary)


def _pair(good: Workflow, bad: Workflow) -> PlanPair:
    return PlanPair(
        id=0,
        question=good.question,
        caption=good.caption,
        correct_plan=good.plan,
        incorrect_plan=bad.plan,
        question_id=good.question_id,
        source=good.source,
        created=good.created,
    )
