"""What a bank's file tells within a transaction, to whoever reads it and to the one who writes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sql

from mia.memory.tables import RESTORABLE, changes, embeddings, memories, meta
from mia.types import Workflow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EMBEDDED = ("memories", "plan_pairs")
# Made once: every recall reads by it, and making it takes longer than reading does.
_ALIVE = sql.select(memories).where(memories.c.alive, memories.c.id.in_(sql.bindparam("ids", expanding=True)))
MOST_PARAMETERS = 10_000  # of one statement; SQLite takes 32,766


class Unembedded(NamedTuple):
    """A row of a table without vectors of some encoder."""

    row: int
    question: str
    caption: str


def sequence_of(connection: sql.Connection) -> int:
    """Return the number of the latest change."""
    return connection.scalar(sql.select(sql.func.max(changes.c.sequence))) or 0


def encoder_of(connection: sql.Connection) -> str | None:
    """Return the id of the encoder whose vectors the bank is read by."""
    return connection.scalar(sql.select(meta.c.value).where(meta.c.name == "encoder"))


def unembedded(connection: sql.Connection, subject: str, encoder: str, after: int, limit: int) -> list[Unembedded]:
    """Return rows of a table, gone or not, that have no vectors of an encoder; with ids above `after`, lowest first."""
    columns = RESTORABLE[subject].c
    has = sql.exists().where(
        embeddings.c.encoder == encoder, embeddings.c.subject == subject, embeddings.c.row == columns.id
    )
    query = sql.select(columns.id, columns.question, columns.caption).where(columns.id > after, ~has)
    rows = connection.execute(query.order_by(columns.id).limit(limit))
    return [Unembedded(*row) for row in rows]


def workflow_of(row: sql.RowMapping) -> Workflow:
    """Return a row of `memories` as the noun."""
    return Workflow(**{name: row[name] for name in Workflow.model_fields})


def find(connection: sql.Connection, ids: Iterable[int]) -> dict[int, Workflow]:
    """Return the memories of these ids that there are."""
    found: dict[int, Workflow] = {}
    for some in portions(possible(ids)):
        rows = connection.execute(_ALIVE, {"ids": some})
        found.update({row["id"]: workflow_of(row) for row in rows.mappings()})
    return found


def possible(ids: Iterable[int]) -> list[int]:
    """Return the ids that SQLite can hold: an id may come from outside."""
    return [row for row in ids if 0 < row < 1 << 63]


def portions(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the values in lists that one statement can take."""
    left = iter(values)
    while some := list(islice(left, MOST_PARAMETERS)):
        yield some
