"""The tables of a memory bank. No row is ever deleted: one that is not `alive` is as good as gone, and can come back.

That makes every change its own small inverse: the log of changes holds, for each row that was touched, the values that
were there before. A restore writes them back, and is itself such a change.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sql

from mia.text import clean

REVISION = "0001"  # the revision in migrations/versions that these tables are


class CleanText(sql.TypeDecorator[str]):
    """Text in any language, without NUL and lone surrogates, which become U+FFFD on the way in."""

    impl = sql.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sql.Dialect) -> str | None:  # noqa: ARG002  (its signature)
        """Clean a value on its way into the file."""
        return None if value is None else clean(value)


def _text(name: str) -> sql.Column[str]:
    return sql.Column(name, CleanText, nullable=False)


def _restorable(name: str, *columns: sql.Column[Any] | sql.Index) -> sql.Table:
    """Declare a table whose rows are logged; an id is never reused, as no row is ever deleted."""
    id_, alive = sql.Column("id", sql.Integer, primary_key=True), sql.Column("alive", sql.Boolean, nullable=False)
    return sql.Table(name, metadata, id_, alive, *columns)


def _alive_unique(name: str, *columns: str) -> sql.Index:
    return sql.Index(name, *columns, unique=True, sqlite_where=sql.text("alive = 1"))


metadata = sql.MetaData()
meta = sql.Table("meta", metadata, sql.Column("name", CleanText, primary_key=True), _text("value"))
revisions = sql.Table("alembic_version", metadata, sql.Column("version_num", sql.String(32), primary_key=True))

memories = _restorable(
    "memories",
    _text("question"),
    _text("caption"),
    _text("category"),
    _text("summary"),
    _text("plan"),
    sql.Column("correct", sql.Boolean, nullable=False),
    sql.Column("feedback", sql.JSON, nullable=False),
    sql.Column("uses", sql.Integer, nullable=False),
    sql.Column("wins", sql.Integer, nullable=False),
    _text("question_id"),
    _text("episode"),
    _text("source"),
    _text("model"),
    sql.Column("created", sql.Float, nullable=False),
    _text("twin"),  # equal for memories of one question: finding them costs the same however large the bank
    sql.Index("memories_twin", "twin", "correct"),
)
plan_pairs = _restorable(
    "plan_pairs",
    _text("question"),
    _text("caption"),
    _text("correct_plan"),
    _text("incorrect_plan"),
    _text("question_id"),
    _text("source"),
    sql.Column("created", sql.Float, nullable=False),
)
embeddings = sql.Table(  # of memories and plan pairs; another encoder's lie beside them, so that a bank can change over
    "embeddings",
    metadata,
    sql.Column("encoder", CleanText, primary_key=True),
    sql.Column("subject", CleanText, primary_key=True),
    sql.Column("row", sql.Integer, primary_key=True),
    sql.Column("question", sql.LargeBinary, nullable=False),
    sql.Column("caption", sql.LargeBinary),  # null: the question has no caption
)
episodes = _restorable(  # what was taken in, also where no memory came of it: an episode, or a group of them
    "episodes", _text("key"), sql.Column("at", sql.Float, nullable=False), _alive_unique("episodes_key", "key")
)
shows = _restorable(  # which memories a question was shown, or kept from, and what came of it
    "shows",
    _text("episode"),
    _text("question_id"),
    sql.Column("memory_id", sql.Integer, nullable=False),
    sql.Column("withheld", sql.Boolean, nullable=False),
    sql.Column("won", sql.Boolean, nullable=False),
)
explorations = _restorable(  # rollouts that wait for the rest of their group
    "explorations",
    _text("run"),
    sql.Column("step", sql.Integer, nullable=False),
    _text("question_id"),
    sql.Column("rollout", sql.Integer, nullable=False),
    _text("episode"),
    _alive_unique("explorations_key", "run", "step", "question_id", "rollout"),
)
drafts = _restorable(  # memories with a stand-in for a summary, and the episode to write it from
    "drafts",
    sql.Column("memory_id", sql.Integer, nullable=False),
    _text("episode"),
    _alive_unique("drafts_memory", "memory_id"),
)
snapshots = _restorable(
    "snapshots",
    _text("name"),
    sql.Column("sequence", sql.Integer, nullable=False),
    _alive_unique("snapshots_name", "name"),
)
notes = sql.Table(  # what a model said of an image or a question; true whatever becomes of the bank, so not logged
    "notes",
    metadata,
    sql.Column("kind", CleanText, primary_key=True),
    sql.Column("key", CleanText, primary_key=True),
    _text("text"),
    _text("model"),
    sql.Column("at", sql.Float, nullable=False),
)
changes = sql.Table(
    "changes",
    metadata,
    sql.Column("sequence", sql.Integer, primary_key=True),
    _text("kind"),
    _text("subject"),  # a table
    sql.Column("row", sql.Integer, nullable=False),
    sql.Column("before", sql.JSON, nullable=False),
    sql.Column("at", sql.Float, nullable=False),
)
RESTORABLE = {table.name: table for table in (memories, plan_pairs, episodes, shows, explorations, drafts, snapshots)}
