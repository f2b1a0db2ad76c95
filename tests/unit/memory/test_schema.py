import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from kept import add

import mia.memory.schema
from mia.errors import StorageError
from mia.memory.schema import migrations
from mia.memory.sqlite import open_engine
from mia.memory.storage import Storage
from mia.memory.tables import REVISION, metadata

LATER = '''
"""A later form."""

import time

import sqlalchemy as sql
from alembic import op

revision = "later"
down_revision = "{before}"


def upgrade() -> None:
    op.create_table("added", sql.Column("id", sql.Integer, primary_key=True))
    op.execute("UPDATE memories SET summary = summary || ' anew'")
    time.sleep({seconds})
'''

OPENER = """
import sys
from pathlib import Path
import mia.memory.schema
from mia.memory.storage import Storage

mia.memory.schema.REVISION, mia.memory.schema.MIGRATIONS = "later", Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
print(*(memory.summary for memory in Storage(Path(sys.argv[1]), "e").list()), flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.sqlite"


@pytest.fixture
def scripts(path):
    with writing(path) as connection:
        return ScriptDirectory.from_config(migrations(connection))


@pytest.fixture
def later(tmp_path):
    """The migrations with one more that takes a while."""
    folder = tmp_path / "later 100%"
    shutil.copytree(mia.memory.schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "later.py").write_text(LATER.format(before=REVISION, seconds=0.3), encoding="utf-8")
    return folder


def writing(path):
    return open_engine(path).execution_options(writes=True).begin()


def form(path):
    """Return the columns of all tables, and the words of all indexes."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}
        indexes = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        revision = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        return columns, dict(indexes.fetchall()), revision


def set_revision(path, revision):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])


def test_a_new_file_is_what_the_migrations_make(path, tmp_path):
    migrated = tmp_path / "migrated.sqlite"
    with writing(migrated) as connection:
        command.upgrade(migrations(connection), "head")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    Storage(path).close()
    assert form(path) == form(migrated)
    _, indexes, _ = form(path)
    assert {name for name, words in indexes.items() if words.endswith("WHERE alive = 1")} == {
        "episodes_key",
        "explorations_key",
        "drafts_memory",
        "snapshots_name",
    }


def test_the_migrations_are_one_line_that_ends_at_the_present_form(scripts):
    assert scripts.get_heads() == [REVISION]
    assert len(scripts.get_bases()) == 1
    assert not any(script.is_branch_point or script.is_merge_point for script in scripts.walk_revisions())


def test_an_open_of_the_present_form_needs_no_migration(path, monkeypatch):
    Storage(path, "e").close()
    monkeypatch.setattr(mia.memory.schema, "MIGRATIONS", Path("nowhere"))
    Storage(path, "e").close()


def test_a_file_of_a_later_form_is_refused_and_left_as_it_was(path):
    Storage(path, "e").close()
    set_revision(path, "9999")
    before = form(path)
    with pytest.raises(StorageError, match=rf"its form is 9999, not {REVISION}.*MIA_MEMORY_PATH"):
        Storage(path, "e")
    assert form(path) == before


@pytest.mark.parametrize("tables", [["other"], ["meta"], ["memories", "changes"], ["memories", "alembic_version"]])
def test_a_file_with_tables_of_something_else_is_refused_and_left_as_it_was(path, tables):
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (version_num TEXT)")
    with pytest.raises(StorageError, match=r"no memory bank.*unknown.*Move it away.*MIA_MEMORY_PATH"):
        Storage(path, "e")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [(table,) for table in tables]


def test_an_older_form_is_brought_up_to_the_present_one_in_place(path, later, monkeypatch):
    with closing(Storage(path, "e")) as storage:
        added = add(storage)
    monkeypatch.setattr(mia.memory.schema, "MIGRATIONS", later)
    monkeypatch.setattr(mia.memory.schema, "REVISION", "later")
    for _ in range(2):
        with closing(Storage(path, "e")) as storage:
            assert storage.get(added).summary == "1. look anew"
    columns, _, revision = form(path)
    assert "added" in columns
    assert revision == [("later",)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(path, later, monkeypatch):
    Storage(path, "e").close()
    script = later / "versions" / "later.py"
    script.write_text(script.read_text(encoding="utf-8") + '    op.execute("SELECT missing")\n', encoding="utf-8")
    monkeypatch.setattr(mia.memory.schema, "MIGRATIONS", later)
    monkeypatch.setattr(mia.memory.schema, "REVISION", "later")
    before = form(path)
    with pytest.raises(StorageError, match="no such column: missing"):
        Storage(path, "e")
    assert form(path) == before


def test_processes_that_open_an_older_form_at_once_upgrade_it_once(path, later):
    with closing(Storage(path, "e")) as storage:
        add(storage)
    command_line = [sys.executable, "-c", OPENER, str(path), str(later)]
    openers = [
        subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [opener.stdout.readline() for opener in openers] == ["ready\n"] * 2
    assert [opener.communicate("go\n", timeout=60)[0] for opener in openers] == ["1. look anew\n"] * 2
    assert [opener.returncode for opener in openers] == [0, 0]
