"""The bank's durable half: memories, vectors, credits and the log of changes, in one SQLite file."""

from __future__ import annotations

import base64
import sqlite3
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sql
from sqlalchemy.dialects.sqlite import insert

from mia.errors import ConfigError, StorageError
from mia.memory.sqlite import REMEDIES, open_engine, reported
from mia.memory.tables import changes, embeddings, episodes, memories, meta, metadata, shows
from mia.types import Workflow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1


class Entry(NamedTuple):
    """What the snapshot holds of a memory; vectors are float32 bytes, `caption` None without a caption."""

    id: int
    question_id: str
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


class Storage:
    """One SQLite file that several processes may have open. What a call has written survives a crash once it returns.

    `encoder` is the id of the encoder whose vectors are written and read; a file holds those of one. Without it the
    file can be looked at and memories forgotten, but none added.
    """

    def __init__(self, path: Path, encoder: str | None = None) -> None:
        self.path = path
        self._engine = open_engine(path)
        self._writes = self._engine.execution_options(writes=True)
        self._encoder = encoder
        with ExitStack() as stack:
            stack.callback(self.close)
            self._create(encoder)
            stack.pop_all()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def sequence(self) -> int:
        """Return the number of the latest change, 0 for a new bank."""
        with self._reading() as connection:
            return _sequence(connection)

    def changes(self, after: int) -> Changes:
        """Return what changed after a sequence number, as of now; after 0, that is the whole bank."""
        columns = memories.c
        query = (
            sql.select(columns.id, columns.question_id, columns.correct, columns.uses, columns.wins)
            .add_columns(embeddings.c.question, embeddings.c.caption)
            .join(embeddings, embeddings.c.memory_id == columns.id)
            .order_by(columns.id)
        )
        touched = sql.select(changes.c.memory_id).where(changes.c.sequence > after).distinct()
        with self._reading() as connection:
            sequence = _sequence(connection)
            ids = tuple(connection.scalars(touched)) if after else ()
            rows = connection.execute(query.where(columns.id.in_(touched)) if after else query)
            return Changes(sequence, ids, tuple(Entry(*row) for row in rows))

    def fetch(self, ids: Sequence[int]) -> dict[int, Workflow]:
        """Return the memories that exist of these ids."""
        with self._reading() as connection:
            return {workflow.id: workflow for workflow in _workflows(connection, memories.c.id.in_(_possible(ids)))}

    def get(self, memory_id: int) -> Workflow | None:
        """Return one memory."""
        return self.fetch([memory_id]).get(memory_id)

    def list(self, limit: int = 20, *, correct: bool | None = None) -> tuple[Workflow, ...]:
        """Return the newest memories, newest first, of one label or of both."""
        wanted = sql.true() if correct is None else memories.c.correct == correct
        with self._reading() as connection:
            return _workflows(connection, wanted, limit)

    def remembers(self, episode: str) -> bool:
        """Tell whether an episode has been taken in."""
        with self._reading() as connection:
            return connection.scalar(sql.select(episodes.c.key).where(episodes.c.key == episode)) is not None

    def forget(self, memory_id: int) -> bool:
        """Delete a memory, leaving in the log all that brings it back. False if there is none of that id."""
        with self.writing() as writing:
            return writing.forget(memory_id)

    def stats(self) -> dict[str, int | str]:
        """Count what the bank holds; `bytes` is what it takes on disk."""
        columns = memories.c
        counts = sql.select(
            sql.func.count(),
            sql.func.coalesce(sql.func.sum(sql.cast(columns.correct, sql.Integer)), 0),
            sql.func.coalesce(sql.func.sum(columns.uses), 0),
            sql.func.coalesce(sql.func.sum(columns.wins), 0),
        ).select_from(memories)
        with self._reading() as connection:
            total, successes, uses, wins = connection.execute(counts).one()
            sequence, encoder = _sequence(connection), _encoder(connection)
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return {
            "memories": total,
            "successes": successes,
            "failures": total - successes,
            "uses": uses,
            "wins": wins,
            "encoder": encoder or "",
            "sequence": sequence,
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

    def _create(self, encoder: str | None) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"The folder of the memory bank {self.path} cannot be made: {error}.",
                remedy=REMEDIES[sqlite3.SQLITE_CANTOPEN],
            ) from error
        with reported(self.path), self._writes.begin() as connection:
            metadata.create_all(connection)
            made = {"schema": str(SCHEMA)} | ({"encoder": encoder} if encoder else {})
            rows = [{"name": name, "value": value} for name, value in made.items()]
            connection.execute(insert(meta).on_conflict_do_nothing(), rows)
            schema = connection.scalar(sql.select(meta.c.value).where(meta.c.name == "schema"))
            present = _encoder(connection)
        if schema != str(SCHEMA):
            raise StorageError(
                f"The memory bank {self.path} has format {schema}, this version of MIA reads format {SCHEMA}.",
                remedy="Use the version of MIA that made it, or set MIA_MEMORY_PATH to another file.",
            )
        if encoder and present != encoder:
            raise ConfigError(
                f"The memory bank {self.path} holds vectors of the encoder {present}, not of {encoder}.",
                remedy="Set MIA_ENCODER to the encoder it was made with, or MIA_MEMORY_PATH to another file.",
            )


class Writing:
    """What can be done in one write transaction. Each change is logged with what was there before it."""

    def __init__(self, connection: sql.Connection, path: Path, encoder: str | None) -> None:
        self._connection = connection
        self._path = path
        self._encoder = encoder

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Keep what is done inside apart: an error undoes that and leaves the rest of the transaction."""
        with reported(self._path), self._connection.begin_nested():
            yield

    def take_in(self, episode: str) -> bool:
        """Note that an episode is being taken in. False if it has been before."""
        note = insert(episodes).values(key=episode, at=time.time()).on_conflict_do_nothing()
        return self._connection.execute(note).rowcount == 1

    def credit(self, ids: Iterable[int], *, question_id: str, episode: str, won: bool) -> None:
        """Count one use, and one win if it was one, for each memory shown; ids that are gone are passed over."""
        shown = _workflows(self._connection, memories.c.id.in_(_possible(ids)))
        if not shown:
            return
        count = sql.update(memories).where(memories.c.id == sql.bindparam("memory"))
        count = count.values(uses=memories.c.uses + 1, wins=memories.c.wins + int(won))
        self._connection.execute(count, [{"memory": memory.id} for memory in shown])
        show = {"episode": episode, "question_id": question_id, "won": won}
        self._connection.execute(insert(shows), [{"memory_id": memory.id, **show} for memory in shown])
        self._log(
            "credit",
            {
                memory.id: (
                    {"uses": memory.uses, "wins": memory.wins},
                    {"uses": memory.uses + 1, "wins": memory.wins + won},
                )
                for memory in shown
            },
        )

    def add(self, workflow: Workflow, question: NDArray[np.float32], caption: NDArray[np.float32]) -> int:
        """Keep a memory with its float32 vectors and return the id that it gets (its own is not read)."""
        values = workflow.model_dump(exclude={"id"})
        added: int = self._connection.execute(sql.insert(memories).values(values)).lastrowid
        vectors = {"question": question.tobytes(), "caption": caption.tobytes() if caption.any() else None}
        self._connection.execute(insert(embeddings).values(memory_id=added, encoder=self._encoder, **vectors))
        self._log("add", {added: (None, {"episode": workflow.episode})})
        return added

    def forget(self, memory_id: int) -> bool:
        """Delete a memory; the log keeps its row and its vectors (base64). False if there is none of that id."""
        before = self.get(memory_id)
        if before is None:
            return False
        rows = self._connection.execute(sql.select(embeddings).where(embeddings.c.memory_id == memory_id))
        vectors = [
            {"encoder": row.encoder, "question": _base64(row.question), "caption": row.caption and _base64(row.caption)}
            for row in rows
        ]
        self._connection.execute(sql.delete(embeddings).where(embeddings.c.memory_id == memory_id))
        self._connection.execute(sql.delete(memories).where(memories.c.id == memory_id))
        self._log("forget", {memory_id: ({"memory": before.model_dump(), "embeddings": vectors}, None)})
        return True

    def get(self, memory_id: int) -> Workflow | None:
        """Return one memory as this transaction sees it."""
        found = _workflows(self._connection, memories.c.id.in_(_possible([memory_id])))
        return found[0] if found else None

    def _log(self, kind: str, changed: dict[int, tuple[Any, Any]]) -> None:
        """Add one row per memory to the log: what was there before, what is there now."""
        entries = [
            {"kind": kind, "memory_id": memory_id, "payload": {"before": before, "after": after}, "at": time.time()}
            for memory_id, (before, after) in changed.items()
        ]
        self._connection.execute(insert(changes), entries)


def _sequence(connection: sql.Connection) -> int:
    return connection.scalar(sql.select(sql.func.coalesce(sql.func.max(changes.c.sequence), 0))) or 0


def _encoder(connection: sql.Connection) -> str | None:
    return connection.scalar(sql.select(meta.c.value).where(meta.c.name == "encoder"))


def _workflows(
    connection: sql.Connection, wanted: sql.ColumnElement[bool], limit: int | None = None
) -> tuple[Workflow, ...]:
    """Return memories, newest first."""
    query = sql.select(memories).where(wanted).order_by(memories.c.id.desc()).limit(limit)
    return tuple(Workflow(**row) for row in connection.execute(query).mappings())


def _possible(ids: Iterable[int]) -> list[int]:
    """Return the ids that SQLite can hold: an id may come from outside."""
    return [memory_id for memory_id in ids if 0 < memory_id < 1 << 63]


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode("ascii")
