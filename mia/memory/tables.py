"""The tables of a memory bank."""

from __future__ import annotations

import sqlalchemy as sql

from mia.text import clean


class CleanText(sql.TypeDecorator[str]):
    """Text in any language, without NUL and lone surrogates, which become U+FFFD on the way in."""

    impl = sql.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sql.Dialect) -> str | None:  # noqa: ARG002  (its signature)
        """Clean a value on its way into the file."""
        return None if value is None else clean(value)


metadata = sql.MetaData()
meta = sql.Table("meta", metadata, sql.Column("name", CleanText, primary_key=True), sql.Column("value", CleanText))
memories = sql.Table(
    "memories",
    metadata,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("question", CleanText, nullable=False),
    sql.Column("caption", CleanText, nullable=False),
    sql.Column("summary", CleanText, nullable=False),
    sql.Column("plan", CleanText, nullable=False),
    sql.Column("correct", sql.Boolean, nullable=False),
    sql.Column("uses", sql.Integer, nullable=False),
    sql.Column("wins", sql.Integer, nullable=False),
    sql.Column("question_id", CleanText, nullable=False),
    sql.Column("episode", CleanText, nullable=False, unique=True),
    sql.Column("model", CleanText, nullable=False),
    sql.Column("created", sql.Float, nullable=False),
    sqlite_autoincrement=True,  # ids are never reused
)
embeddings = sql.Table(
    "embeddings",
    metadata,
    sql.Column("memory_id", sql.ForeignKey("memories.id"), primary_key=True),
    sql.Column("encoder", CleanText, primary_key=True),
    sql.Column("question", sql.LargeBinary, nullable=False),
    sql.Column("caption", sql.LargeBinary),  # null: the question has no caption
)
episodes = sql.Table(  # every episode ever taken in, also those whose memory was not kept or is gone
    "episodes",
    metadata,
    sql.Column("key", CleanText, primary_key=True),
    sql.Column("at", sql.Float, nullable=False),
)
shows = sql.Table(
    "shows",
    metadata,
    sql.Column("episode", CleanText, primary_key=True),
    sql.Column("memory_id", sql.Integer, primary_key=True),
    sql.Column("question_id", CleanText, nullable=False),
    sql.Column("won", sql.Boolean, nullable=False),
)
changes = sql.Table(
    "changes",
    metadata,
    sql.Column("sequence", sql.Integer, primary_key=True),
    sql.Column("kind", CleanText, nullable=False),
    sql.Column("memory_id", sql.Integer, nullable=False),
    sql.Column("payload", sql.JSON, nullable=False),
    sql.Column("at", sql.Float, nullable=False),
    sqlite_autoincrement=True,
)
