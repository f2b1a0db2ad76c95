"""SQLite as a memory bank needs it: durable, shared between processes, and clear about what went wrong."""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sql

from mia.errors import StorageError
from mia.text import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY_SECONDS = 15.0

REMEDIES = {
    sqlite3.SQLITE_BUSY: "Another process is writing for long; try again, or end it.",
    sqlite3.SQLITE_CANTOPEN: "Make its folder writable, or set MIA_MEMORY_PATH to another file.",
    sqlite3.SQLITE_CORRUPT: "Put back a copy of it, or set MIA_MEMORY_PATH to another file.",
    sqlite3.SQLITE_FULL: "Free some disk space.",
    sqlite3.SQLITE_IOERR: "Check the disk that it lies on.",
    sqlite3.SQLITE_NOTADB: "Put back a copy of it, or set MIA_MEMORY_PATH to another file.",
    sqlite3.SQLITE_READONLY: "Make it and its folder writable, or set MIA_MEMORY_PATH to another file.",
}


def open_engine(path: Path) -> sql.Engine:
    """Make an engine whose commits are on disk when they return.

    Connections with the execution option `writes` begin as the only writer of all processes.
    """
    engine = sql.create_engine(
        sql.URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_SECONDS}, json_serializer=to_json
    )
    sql.event.listen(engine, "connect", _set_up)
    sql.event.listen(engine, "begin", _begin)
    sql.event.listen(engine, "savepoint", _still_open)
    sql.event.listen(engine, "commit", _still_open)
    return engine


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Raise what goes wrong inside as a StorageError with its remedy."""
    try:
        yield
    except (sqlite3.Error, sql.exc.SQLAlchemyError, OverflowError) as error:
        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest the detail
        raise StorageError(f"The memory bank {path} failed: {cause}.", remedy=REMEDIES.get(code, "")) from error


def _set_up(connection: sqlite3.Connection, _record: object) -> None:
    """Make a new connection durable, and leave transactions to `_begin`."""
    connection.isolation_level = None
    journal = _journal(connection, time.monotonic() + BUSY_SECONDS)
    connection.execute("PRAGMA synchronous = FULL")
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    if journal != "wal" or synchronous != 2:
        raise StorageError(
            f"The memory bank cannot be made durable here (journal {journal}, synchronous {synchronous}).",
            remedy="Set MIA_MEMORY_PATH to a file on a local disk.",
        )


def _journal(connection: sqlite3.Connection, deadline: float) -> str:
    """Ask for the write-ahead log; SQLite itself does not wait for others that open a new file at the same moment."""
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin(connection: sql.Connection) -> None:
    """Begin at once as the writer where writing is meant, so that no other process can slip in between."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _still_open(connection: sql.Connection, *_name: str) -> None:
    """Refuse to go on once SQLite has given up a transaction by itself, as it may on an error of the disk.

    A savepoint would silently begin another one, and a commit would silently do nothing.
    """
    if not connection.connection.in_transaction:
        raise StorageError("The memory bank gave up a transaction.", remedy=REMEDIES[sqlite3.SQLITE_IOERR])
