"""The form of a bank's file: made new at the latest revision, or brought to it by Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sql

from mia.errors import StorageError
from mia.memory.tables import REVISION, metadata, revisions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"


def current(connection: sql.Connection) -> bool:
    """Tell whether the tables of a file have the form that this version reads, so that nothing need be written."""
    return _revision(connection, sql.inspect(connection).get_table_names()) == REVISION


def prepare(connection: sql.Connection, path: Path) -> None:
    """Bring the tables of a file, inside a write transaction, to the form that this version reads.

    Raises:
        StorageError: a later version of MIA made the file, or it is none of ours.
    """
    present = sql.inspect(connection).get_table_names()
    if not present:
        metadata.create_all(connection)
        connection.execute(sql.insert(revisions), {"version_num": REVISION})
        return
    revision = _revision(connection, present)
    if revision == REVISION:
        return
    from alembic import command  # noqa: PLC0415  (slow to import, and hardly ever needed)
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = migrations(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision not in known:
        raise StorageError(
            f"The file {path} is no memory bank that this version of MIA can read: its form is "
            f"{revision or 'unknown'}, not {', '.join(sorted(known))}.",
            remedy="Move it away, or set MIA_MEMORY_PATH to another file; the version of MIA that made it can read it.",
        )
    command.upgrade(config, "head")


def _revision(connection: sql.Connection, present: Sequence[str]) -> str | None:
    return connection.scalar(sql.select(revisions.c.version_num)) if revisions.name in present else None


def migrations(connection: sql.Connection) -> Config:
    """Return what Alembic's commands need to work on a connection."""
    from alembic.config import Config  # noqa: PLC0415  (as above)

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
