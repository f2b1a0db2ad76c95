"""The first form of a bank."""

from typing import Any

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def _texts(*names: str) -> list[sql.Column[str]]:
    return [sql.Column(name, sql.Text, nullable=False) for name in names]


def _restorable() -> list[sql.Column[Any]]:
    return [sql.Column("id", sql.Integer, primary_key=True), sql.Column("alive", sql.Boolean, nullable=False)]


def _whole(name: str) -> sql.Column[int]:
    return sql.Column(name, sql.Integer, nullable=False)


def _real(name: str) -> sql.Column[float]:
    return sql.Column(name, sql.Float, nullable=False)


def _flag(name: str) -> sql.Column[bool]:
    return sql.Column(name, sql.Boolean, nullable=False)


def _unique(name: str, table: str, columns: list[str]) -> None:
    op.create_index(name, table, columns, unique=True, sqlite_where=sql.text("alive = 1"))


def upgrade() -> None:
    """Make all tables."""
    op.create_table("meta", sql.Column("name", sql.Text, primary_key=True), *_texts("value"))
    op.create_table(
        "memories",
        *_restorable(),
        *_texts("question", "caption", "category", "summary", "plan"),
        _flag("correct"),
        sql.Column("feedback", sql.JSON, nullable=False),
        _whole("uses"),
        _whole("wins"),
        *_texts("question_id", "episode", "source", "model"),
        _real("created"),
        *_texts("twin"),
    )
    op.create_index("memories_twin", "memories", ["twin", "correct"])
    op.create_table(
        "plan_pairs",
        *_restorable(),
        *_texts("question", "caption", "correct_plan", "incorrect_plan", "question_id", "source"),
        _real("created"),
    )
    op.create_table(
        "embeddings",
        sql.Column("encoder", sql.Text, primary_key=True),
        sql.Column("subject", sql.Text, primary_key=True),
        sql.Column("row", sql.Integer, primary_key=True),
        sql.Column("question", sql.LargeBinary, nullable=False),
        sql.Column("caption", sql.LargeBinary),
    )
    op.create_table("episodes", *_restorable(), *_texts("key"), _real("at"))
    _unique("episodes_key", "episodes", ["key"])
    op.create_table(
        "shows", *_restorable(), *_texts("episode", "question_id"), _whole("memory_id"), _flag("withheld"), _flag("won")
    )
    op.create_table(
        "explorations",
        *_restorable(),
        *_texts("run"),
        _whole("step"),
        *_texts("question_id"),
        _whole("rollout"),
        *_texts("episode"),
    )
    _unique("explorations_key", "explorations", ["run", "step", "question_id", "rollout"])
    op.create_table("drafts", *_restorable(), _whole("memory_id"), *_texts("episode"))
    _unique("drafts_memory", "drafts", ["memory_id"])
    op.create_table("snapshots", *_restorable(), *_texts("name"), _whole("sequence"))
    _unique("snapshots_name", "snapshots", ["name"])
    op.create_table(
        "notes",
        sql.Column("kind", sql.Text, primary_key=True),
        sql.Column("key", sql.Text, primary_key=True),
        *_texts("text", "model"),
        _real("at"),
    )
    op.create_table(
        "changes",
        sql.Column("sequence", sql.Integer, primary_key=True),
        *_texts("kind", "subject"),
        _whole("row"),
        sql.Column("before", sql.JSON, nullable=False),
        _real("at"),
    )
