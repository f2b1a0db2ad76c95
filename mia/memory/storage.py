"""The bank's durable half: memories, vectors, credits and the log of changes, in one SQLite file."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack, closing, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sql

from mia.errors import ConfigError, StorageError
from mia.memory.reading import Unembedded, encoder_of, find, sequence_of, unembedded, workflow_of
from mia.memory.schema import current, prepare
from mia.memory.sqlite import REMEDIES, open_engine, reported
from mia.memory.tables import (
    changes,
    drafts,
    embeddings,
    episodes,
    explorations,
    memories,
    meta,
    notes,
    plan_pairs,
    snapshots,
)
from mia.memory.writing import Writing
from mia.types import Episode, PlanPair

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mia.types import Workflow

_LATEST = str(sql.select(sql.func.max(changes.c.sequence)))
_USES = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, None))


class Entry(NamedTuple):
    """What the snapshot holds of a memory; vectors are float32 bytes, `caption` None without a caption."""

    id: int
    question_id: str
    category: str
    correct: bool
    uses: int
    wins: int
    question: bytes
    caption: bytes | None


class Changes(NamedTuple):
    """What has changed up to `sequence`: ids that were touched, and those of them that exist as they are now."""

    sequence: int
    touched: tuple[int, ...]
    entries: tuple[Entry, ...]


class Draft(NamedTuple):
    """A memory whose summary is a stand-in, and the episode to write it from."""

    memory_id: int
    episode: Episode


class Storage:
    """One SQLite file that several processes may have open. What a call has written survives a crash once it returns.

    `encoder` is the id of the encoder whose vectors are written and read. Without it the file can be looked at and
    memories forgotten, but none added.
    """

    def __init__(self, path: Path, encoder: str | None = None) -> None:
        self.path = path
        self._engine = open_engine(path)
        self._writes = self._engine.execution_options(writes=True)
        self._encoder = encoder
        with ExitStack() as stack:
            stack.callback(self.close)
            self._open(encoder)
            stack.pop_all()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def sequence(self) -> int:
        """Return the number of the latest change, 0 for a new bank."""
        # Asked before every recall: a statement alone needs no transaction, and its text no compiling.
        with reported(self.path), closing(self._engine.raw_connection()) as connection:
            (number,) = connection.cursor().execute(_LATEST).fetchone()
            return number or 0

    def changes(self, after: int) -> Changes:
        """Return what changed after a sequence number, as of now; after 0, that is the whole bank."""
        columns, vectors = memories.c, embeddings.c
        query = (
            sql.select(columns.id, columns.question_id, columns.category, columns.correct, columns.uses, columns.wins)
            .add_columns(vectors.question, vectors.caption)
            .join(embeddings, vectors.row == columns.id)
            .where(columns.alive, vectors.encoder == self._encoder, vectors.subject == memories.name)
            .order_by(columns.id)
        )
        touched = sql.select(changes.c.row).where(changes.c.sequence > after, changes.c.subject == memories.name)
        with self._reading() as connection:
            sequence = sequence_of(connection)
            ids = tuple(connection.scalars(touched.distinct())) if after else ()
            rows = connection.execute(query.where(columns.id.in_(touched)) if after else query)
            return Changes(sequence, ids, tuple(Entry(*row) for row in rows))

    def fetch(self, ids: Sequence[int]) -> dict[int, Workflow]:
        """Return the memories that exist of these ids."""
        with self._reading() as connection:
            return find(connection, ids)

    def get(self, memory_id: int) -> Workflow | None:
        """Return one memory."""
        return self.fetch([memory_id]).get(memory_id)

    def list(
        self, limit: int | None = 20, *, correct: bool | None = None, source: str | None = None
    ) -> tuple[Workflow, ...]:
        """Return the newest memories, newest first, of one label or of both, from one source or from all."""
        query = sql.select(memories).where(memories.c.alive).order_by(memories.c.id.desc()).limit(limit)
        if correct is not None:
            query = query.where(memories.c.correct == correct)
        if source is not None:
            query = query.where(memories.c.source == source)
        with self._reading() as connection:
            return tuple(workflow_of(row) for row in connection.execute(query).mappings())

    def pairs(self) -> tuple[PlanPair, ...]:
        """Return the plan pairs, oldest first."""
        names = [plan_pairs.c[name] for name in PlanPair.model_fields]
        with self._reading() as connection:
            rows = connection.execute(sql.select(*names).where(plan_pairs.c.alive).order_by(plan_pairs.c.id))
            return tuple(PlanPair(**row) for row in rows.mappings())

    def explorations(self, run: str, step: int) -> dict[str, tuple[Episode, ...]]:
        """Return the rollouts of a step that wait for their group, by question id, in their order."""
        columns = explorations.c
        query = sql.select(columns.question_id, columns.episode)
        query = query.where(columns.alive, columns.run == run, columns.step == step)
        with self._reading() as connection:
            rows = list(connection.execute(query.order_by(columns.question_id, columns.rollout)))
        return {
            question_id: tuple(Episode.model_validate_json(row.episode) for row in group)
            for question_id, group in groupby(rows, key=lambda row: row.question_id)
        }

    def drafts(self, limit: int) -> tuple[Draft, ...]:
        """Return memories whose summaries have still to be written, oldest first."""
        query = sql.select(drafts.c.memory_id, drafts.c.episode).where(drafts.c.alive).order_by(drafts.c.memory_id)
        with self._reading() as connection:
            rows = connection.execute(query.limit(limit))
            return tuple(Draft(row.memory_id, Episode.model_validate_json(row.episode)) for row in rows)

    def remembers(self, key: str) -> bool:
        """Tell whether an episode, or a group, has been taken in."""
        query = sql.select(episodes.c.id).where(episodes.c.alive, episodes.c.key == key)
        with self._reading() as connection:
            return connection.scalar(query) is not None

    def unembedded(self, subject: str, encoder: str, after: int, limit: int) -> Sequence[Unembedded]:
        """Return rows of a table, gone or not, without vectors of an encoder; with ids above `after`, lowest first."""
        with self._reading() as connection:
            return unembedded(connection, subject, encoder, after, limit)

    def note(self, kind: str, key: str) -> str | None:
        """Return what a model has said of something before."""
        with self._reading() as connection:
            return connection.scalar(sql.select(notes.c.text).where(notes.c.kind == kind, notes.c.key == key))

    def keep_note(self, kind: str, key: str, text: str, model: str) -> None:
        """Keep what a model said of something."""
        row = {"kind": kind, "key": key, "text": text, "model": model, "at": time.time()}
        with reported(self.path), self._writes.begin() as connection:
            connection.execute(sql.insert(notes).prefix_with("OR REPLACE"), row)

    def forget(self, memory_id: int) -> bool:
        """Let a memory be gone, leaving in the log what brings it back. False if there is none of that id."""
        with self.writing() as writing:
            return bool(writing.forget([memory_id]))

    def forget_source(self, source: str) -> int:
        """Let all memories and plan pairs of a run or a file be gone; return how many there were."""
        with self.writing() as writing:
            return writing.forget_source(source)

    def snapshot(self, name: str) -> int:
        """Give the present state a name, and return the sequence number to restore it by (the same name: the same)."""
        with self.writing() as writing:
            return writing.snapshot(name)

    def snapshots(self) -> dict[str, int]:
        """Return the sequence numbers of the snapshots by name, oldest first."""
        query = sql.select(snapshots.c.name, snapshots.c.sequence).where(snapshots.c.alive).order_by(snapshots.c.id)
        with self._reading() as connection:
            return dict(map(tuple, connection.execute(query)))

    def restore(self, sequence: int) -> int:
        """Bring back the state at a sequence number exactly; return the number of the latest change.

        Raises:
            InputError: there has been no such number yet.
        """
        with self.writing() as writing:
            return writing.restore(sequence)

    def clear(self) -> int:
        """Let everything be gone; return the sequence number that brings it back, also kept as a snapshot."""
        with self.writing() as writing:
            return writing.clear()

    def stats(self) -> dict[str, Any]:
        """Count what the bank holds; `bytes` is what it takes on disk."""
        columns = memories.c
        total = sql.func.count()
        with self._reading() as connection:

            def counts(by: sql.ColumnElement[Any]) -> dict[Any, int]:
                rows = connection.execute(sql.select(by, total).where(columns.alive).group_by(by).order_by(by))
                return dict(map(tuple, rows))

            def waiting(table: sql.Table) -> int:
                return connection.scalar(sql.select(total).select_from(table).where(table.c.alive)) or 0

            labels, uses, wins = counts(columns.correct), counts(columns.uses), counts(columns.wins)
            found = {
                "memories": sum(labels.values()),
                "successes": labels.get(True, 0),
                "failures": labels.get(False, 0),
                "uses": sum(value * count for value, count in uses.items()),
                "wins": sum(value * count for value, count in wins.items()),
                "uses_histogram": _histogram(uses),
                "categories": counts(columns.category),
                "sources": counts(columns.source),
                "plan_pairs": waiting(plan_pairs),
                "explorations": waiting(explorations),
                "drafts": waiting(drafts),
                "encoder": encoder_of(connection) or "",
                "sequence": sequence_of(connection),
            }
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return {
            **found,
            "snapshots": self.snapshots(),
            "bytes": sum(file.stat().st_size for file in files if file.exists()),
        }

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Open the only write transaction of all processes: committed whole on leaving, or not at all on an error."""
        with reported(self.path), self._writes.begin() as connection:
            yield Writing(connection, self.path, self._encoder)

    @contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        with reported(self.path), self._engine.begin() as connection:
            yield connection

    def _open(self, encoder: str | None) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"The folder of the memory bank {self.path} cannot be made: {error}.",
                remedy=REMEDIES[sqlite3.SQLITE_CANTOPEN],
            ) from error
        with self._reading() as connection:  # first, since a process that only looks need not wait for those that write
            ready = current(connection)
            present = encoder_of(connection) if ready else None
        if not ready or (encoder and not present):
            with reported(self.path), self._writes.begin() as connection:
                prepare(connection, self.path)
                present = encoder_of(connection)
                if encoder and not present:
                    connection.execute(sql.insert(meta), {"name": "encoder", "value": encoder})
        if encoder and present not in (None, encoder):
            raise ConfigError(
                f"The memory bank {self.path} holds vectors of the encoder {present}, not of {encoder}.",
                remedy="Run `mia memory reembed` to move it to the encoder of MIA_ENCODER.",
            )


def _histogram(counts: dict[int, int]) -> dict[str, int]:
    """Return how many memories were shown how often, in doubling steps."""
    return {
        f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}": sum(
            count for value, count in counts.items() if value >= low and (high is None or value <= high)
        )
        for low, high in _USES
    }
