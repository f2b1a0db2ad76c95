"""One write transaction of a bank: what can be changed in it, each change logged with what was there before."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sql

from mia.errors import InputError, StorageError
from mia.memory.reading import EMBEDDED, encoder_of, find, portions, possible, sequence_of, unembedded, workflow_of
from mia.memory.sqlite import reported
from mia.memory.tables import (
    RESTORABLE,
    changes,
    drafts,
    embeddings,
    episodes,
    explorations,
    memories,
    meta,
    plan_pairs,
    shows,
    snapshots,
)
from mia.text import clean, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from mia.types import Episode, Key, PlanPair, Workflow

GONE: Mapping[str, Any] = MappingProxyType({"alive": False})


class Vectors(NamedTuple):
    """A question and its caption (zero without one), float32 [dimensions], of unit length."""

    question: NDArray[np.float32]
    caption: NDArray[np.float32]


class Fresh(NamedTuple):
    """A memory to be kept. `twin` is equal for memories of one question.

    `draft` is the episode to write the summary from, as JSON, when the present one is a stand-in.
    """

    workflow: Workflow
    twin: str
    vectors: Vectors
    draft: str = ""


class Credit(NamedTuple):
    """One vote on the memories that a question was shown, from an episode or a group of them."""

    episode: str
    question_id: str
    shown: tuple[int, ...]
    won: bool
    withheld: tuple[int, ...] = ()


class Writing:
    """What can be done in one write transaction."""

    def __init__(self, connection: sql.Connection, path: Path, encoder: str | None) -> None:
        self._connection = connection
        self._path = path
        self._encoder = encoder

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Keep what is done inside apart: an error undoes that and leaves the rest of the transaction."""
        with reported(self._path), self._connection.begin_nested():
            yield

    def take_in(self, keys: Iterable[str]) -> set[str]:
        """Note that episodes, or groups of them, are being taken in; return those that have not been before."""
        fresh = {clean(key): key for key in keys}  # as the file holds them
        for some in portions(list(fresh)):
            known = sql.select(episodes.c.key).where(episodes.c.alive, episodes.c.key.in_(some))
            for key in self._connection.scalars(known):
                del fresh[key]
        self._insert("take in", episodes, [{"key": key, "at": time.time()} for key in fresh])
        return set(fresh.values())

    def credit(self, votes: Sequence[Credit]) -> None:
        """Count one use, and one win if it was one, for each memory shown; ids that are gone are passed over."""
        uses = Counter(memory_id for vote in votes for memory_id in set(vote.shown))
        wins = Counter(memory_id for vote in votes if vote.won for memory_id in set(vote.shown))
        columns, present = memories.c, {}
        for some in portions(possible({*uses, *(memory_id for vote in votes for memory_id in vote.withheld)})):
            counts = sql.select(columns.id, columns.uses, columns.wins).where(columns.alive, columns.id.in_(some))
            for row in self._connection.execute(counts):
                present[row.id] = {"uses": row.uses + uses[row.id], "wins": row.wins + wins[row.id]}
        self._update("credit", memories, present)
        rows = [
            {"memory_id": memory_id, "withheld": withheld, "won": vote.won}
            | {"episode": vote.episode, "question_id": vote.question_id}
            for vote in votes
            for ids, withheld in ((vote.shown, False), (vote.withheld, True))
            for memory_id in dict.fromkeys(ids)
            if memory_id in present
        ]
        self._insert("show", shows, rows)

    def twins(self, keys: Iterable[str]) -> dict[tuple[str, bool], Workflow]:
        """Return the latest memory of each of these questions and label, by (twin, correct)."""
        found: dict[tuple[str, bool], Workflow] = {}
        for some in portions(keys):
            wanted = sql.select(memories).where(memories.c.alive, memories.c.twin.in_(some)).order_by(memories.c.id)
            for row in self._connection.execute(wanted).mappings():
                found[row["twin"], row["correct"]] = workflow_of(row)
        return found

    def add(self, fresh: Sequence[Fresh]) -> list[int]:
        """Keep memories with their vectors and return the ids that they get (their own are not read).

        Raises:
            StorageError: the bank has been moved to another encoder.
        """
        rows = [{**_columns(each.workflow), "twin": each.twin} for each in fresh]
        ids = self._insert("add", memories, rows)
        self.embed("memories", dict(zip(ids, (each.vectors for each in fresh), strict=True)))
        self._draft({id_: each.draft for id_, each in zip(ids, fresh, strict=True)})
        return ids

    def replace(self, fresh: Mapping[int, Fresh]) -> None:
        """Put what was made of later episodes in the place of memories of the same questions.

        A memory keeps its id, its uses and wins, and its question and vectors, since the words are the same.
        """
        kept = ("question", "caption", "uses", "wins")
        wanted = {
            memory_id: {name: value for name, value in _columns(each.workflow).items() if name not in kept}
            for memory_id, each in fresh.items()
        }
        self._update("replace", memories, wanted)
        self.close_drafts(fresh)
        self._draft({memory_id: each.draft for memory_id, each in fresh.items()})

    def rewrite(self, memory_id: int, summary: str) -> None:
        """Put a summary in the place of the stand-in of a memory."""
        self._update("replace", memories, {memory_id: {"summary": summary}})
        self.close_drafts([memory_id])

    def close_drafts(self, memory_ids: Iterable[int]) -> None:
        """Take note that summaries of these memories need not be written any more."""
        for some in portions(memory_ids):
            wanted = sql.select(drafts.c.id).where(drafts.c.alive, drafts.c.memory_id.in_(some))
            self._update("replace", drafts, {row: {"alive": False} for row in self._connection.scalars(wanted)})

    def add_pairs(self, pairs: Sequence[tuple[PlanPair, Vectors]]) -> list[int]:
        """Keep plan pairs with their vectors and return the ids that they get."""
        ids = self._insert("add", plan_pairs, [pair.model_dump(exclude={"id"}) for pair, _ in pairs])
        self.embed("plan_pairs", dict(zip(ids, (vectors for _, vectors in pairs), strict=True)))
        return ids

    def embed(self, subject: str, vectors: Mapping[int, Vectors], encoder: str | None = None) -> None:
        """Keep vectors of rows, by id: of the bank's encoder, or of another one that the bank is to change to."""
        if not vectors:
            return
        present = encoder_of(self._connection)
        if encoder is None and self._encoder != present:
            raise StorageError(
                f"The memory bank {self._path} now holds vectors of the encoder {present}, not of {self._encoder}.",
                remedy=f"Start this process again with the encoder {present}.",
            )
        rows = [
            {
                "encoder": encoder or self._encoder,
                "subject": subject,
                "row": row,
                "question": each.question.tobytes(),
                "caption": each.caption.tobytes() if each.caption.any() else None,
            }
            for row, each in vectors.items()
        ]
        self._connection.execute(sql.insert(embeddings).prefix_with("OR REPLACE"), rows)

    def drop_vectors(self, *, but: str) -> None:
        """Delete vectors of encoders that the bank is neither read by nor about to change to."""
        kept = (but, encoder_of(self._connection))
        self._connection.execute(sql.delete(embeddings).where(embeddings.c.encoder.not_in(kept)))

    def change_encoder(self, encoder: str) -> bool:
        """Let the bank be read by another encoder's vectors. False, and nothing done, while some are missing."""
        if any(unembedded(self._connection, subject, encoder, 0, 1) for subject in EMBEDDED):
            return False
        self._connection.execute(sql.insert(meta).prefix_with("OR REPLACE"), {"name": "encoder", "value": encoder})
        return True

    def forget(self, ids: Iterable[int], subject: str = "memories") -> list[int]:
        """Let rows be gone; return the ids of those that were there."""
        table = RESTORABLE[subject]
        forgotten: list[int] = []
        for some in portions(possible(ids)):
            forgotten += self._connection.scalars(sql.select(table.c.id).where(table.c.alive, table.c.id.in_(some)))
        self._update("forget", table, dict.fromkeys(forgotten, GONE))
        if table is memories:
            self.close_drafts(forgotten)
        return forgotten

    def forget_source(self, source: str) -> int:
        """Let all memories and plan pairs of a run or a file be gone; return how many there were."""
        count = 0
        for table in (memories, plan_pairs):
            ids = self._connection.scalars(sql.select(table.c.id).where(table.c.alive, table.c.source == source))
            count += len(self.forget(list(ids), table.name))
        return count

    def explore(self, waiting: Sequence[Episode]) -> None:
        """Keep rollouts until their group is complete. Those that wait already, or whose group is taken in, are not."""
        groups = {group_key(episode.key) for episode in waiting}
        taken = sql.select(episodes.c.key).where(episodes.c.alive, episodes.c.key.in_(groups))
        done = set(self._connection.scalars(taken))
        for episode in waiting:
            place = episode.key.model_dump()
            here = [explorations.c[name] == value for name, value in place.items()]
            waits = self._connection.scalar(sql.select(explorations.c.id).where(explorations.c.alive, *here))
            if waits is None and group_key(episode.key) not in done:
                self._insert("explore", explorations, [{**place, "episode": to_json(episode.model_dump(mode="json"))}])

    def close_group(self, key: Key) -> None:
        """Let the rollouts that wait of a group be gone, since it is taken in."""
        here = explorations.c
        wanted = sql.select(here.id).where(
            here.alive, here.run == key.run, here.step == key.step, here.question_id == key.question_id
        )
        self._update("commit", explorations, dict.fromkeys(self._connection.scalars(wanted), GONE))

    def get(self, ids: Iterable[int]) -> dict[int, Workflow]:
        """Return the memories of these ids that there are, as this transaction sees them."""
        return find(self._connection, ids)

    def snapshot(self, name: str) -> int:
        """Give the bank's present state a name, and return the sequence number to restore it by.

        The same name gives the same number again.
        """
        named = sql.select(snapshots.c.sequence).where(snapshots.c.alive, snapshots.c.name == name)
        sequence = self._connection.scalar(named)
        if sequence is None:
            sequence = sequence_of(self._connection) + 1  # that of this very change, so that a restore keeps the name
            self._insert("snapshot", snapshots, [{"name": name, "sequence": sequence}])
        return sequence

    def restore(self, sequence: int) -> int:
        """Bring back the state at a sequence number, and return the number of the latest change.

        Doing it twice changes nothing more. What is undone stays in the log, so that a restore can itself be undone.

        Raises:
            InputError: there has been no such number yet.
        """
        latest = sequence_of(self._connection)
        if not 0 <= sequence <= latest:
            raise InputError(
                f"The memory bank {self._path} has no change {sequence}.", remedy=f"Name one from 0 to {latest}."
            )
        query = sql.select(changes.c.subject, changes.c.row, changes.c.before).where(changes.c.sequence > sequence)
        wanted: dict[str, dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
        for subject, row, before in self._connection.execute(query.order_by(changes.c.sequence.desc())):
            wanted[subject][row].update(before)  # the earliest change after the number comes last and tells
        for subject, rows in wanted.items():
            self._update("restore", RESTORABLE[subject], rows)
        return sequence_of(self._connection)

    def clear(self) -> int:
        """Let all be gone but snapshots, of which one is made first; return its sequence number."""
        sequence = self.snapshot(f"before-clear-{sequence_of(self._connection)}")
        for table in RESTORABLE.values():
            if table is not snapshots:
                alive = list(self._connection.scalars(sql.select(table.c.id).where(table.c.alive)))
                self._update("clear", table, dict.fromkeys(alive, GONE))
        return sequence

    def _draft(self, episode_of: Mapping[int, str]) -> None:
        rows = [{"memory_id": id_, "episode": episode} for id_, episode in episode_of.items() if episode]
        self._insert("add", drafts, rows)

    def _insert(self, kind: str, table: sql.Table, rows: Sequence[dict[str, Any]]) -> list[int]:
        """Insert rows and return their ids."""
        if not rows:
            return []
        first = (self._connection.scalar(sql.select(sql.func.max(table.c.id))) or 0) + 1
        ids = list(range(first, first + len(rows)))
        rows = [{"id": id_, "alive": True, **row} for id_, row in zip(ids, rows, strict=True)]
        self._connection.execute(sql.insert(table), rows)
        self._log(kind, table, dict.fromkeys(ids, GONE))
        return ids

    def _update(self, kind: str, table: sql.Table, wanted: Mapping[int, Mapping[str, Any]]) -> None:
        """Give rows these values, where they are not theirs already."""
        before: dict[int, dict[str, Any]] = {}
        alike: dict[tuple[bool, tuple[str, ...]], list[dict[str, Any]]] = defaultdict(list)
        touched = sorted({name for values in wanted.values() for name in values})
        present = sql.select(table.c.id, *(table.c[name] for name in touched))
        for some in portions(wanted):
            for row in self._connection.execute(present.where(table.c.id.in_(some))).mappings():
                now = {name: value for name, value in wanted[row["id"]].items() if row[name] != value}
                if now:
                    before[row["id"]] = {name: row[name] for name in now}
                    values = {f"new_{name}": value for name, value in now.items()}
                    alike[now.get("alive") is True, tuple(now)].append({"row": row["id"], **values})
        for (_, names), rows in sorted(alike.items()):  # what goes goes first: it may make room for what comes back
            update = sql.update(table).where(table.c.id == sql.bindparam("row"))
            self._connection.execute(update.values({name: sql.bindparam(f"new_{name}") for name in names}), rows)
        self._log(kind, table, before)

    def _log(self, kind: str, table: sql.Table, before: Mapping[int, Mapping[str, Any]]) -> None:
        """Add a row to the log for each that was changed: what was there before is the inverse."""
        now = time.time()
        rows = [
            {"kind": kind, "subject": table.name, "row": row, "before": dict(values), "at": now}
            for row, values in before.items()
        ]
        if rows:
            self._connection.execute(sql.insert(changes), rows)


def episode_key(key: Key) -> str:
    """Return the key under which an episode is taken in."""
    return clean(str(key))


def group_key(key: Key) -> str:
    """Return the key under which an episode's whole group is taken in; no episode has it, as theirs end in a number."""
    return clean(f"{key.run}/{key.step}/{key.question_id}/*")


def _columns(workflow: Workflow) -> dict[str, Any]:
    return {**workflow.model_dump(exclude={"id"}), "feedback": list(workflow.feedback)}
