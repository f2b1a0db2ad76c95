import base64
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
import sqlalchemy as sql

from mia.errors import ConfigError, StorageError
from mia.memory.storage import Storage
from mia.types import Workflow

WRITER = """
import sys
from pathlib import Path
import numpy as np
from mia.memory.storage import Storage
from mia.types import Workflow

storage = Storage(Path(sys.argv[1]), "e")
vector = np.ones(2, np.float32)
for turn in range(int(sys.argv[3])):
    key = f"{sys.argv[2]}-{turn}"
    with storage.writing() as writing:
        writing.take_in(key)
        added = writing.add(
            Workflow(id=0, question="q", summary="s", plan="p", correct=True, question_id="q", episode=key, created=0.0),
            vector,
            vector,
        )
        writing.credit([1], question_id="q", episode=key, won=True)
    print(key, added, flush=True)
storage.close()
"""


def workflow(episode="run/0/q/0", **changes):
    values = {
        "question": "Which?",
        "summary": "1. look",
        "plan": "look",
        "correct": True,
        "question_id": "q",
        "model": "m",
    }
    return Workflow(id=0, episode=episode, created=12.5, **(values | changes))


def add(storage, episode="run/0/q/0", vector=(1, 0), caption=(0, 0), **changes):
    with storage.writing() as writing:
        assert writing.take_in(episode)
        return writing.add(workflow(episode, **changes), np.array(vector, np.float32), np.array(caption, np.float32))


def log(path):
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT sequence, kind, memory_id, payload FROM changes ORDER BY sequence").fetchall()
    return [(sequence, kind, memory_id, json.loads(payload)) for sequence, kind, memory_id, payload in rows]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bank" / "memory.sqlite"


@pytest.fixture
def storage(path):
    with closing(Storage(path, "e")) as storage:
        yield storage


def test_a_memory_comes_back_as_it_was_kept(storage):
    added = add(storage, question="東京は? 🗼", plan="塔", uses=3, wins=2)
    kept = workflow(question="東京は? 🗼", plan="塔", uses=3, wins=2).model_copy(update={"id": added})
    assert storage.get(added) == kept
    assert storage.fetch([added, 99]) == {added: kept}


def test_text_that_sqlite_cannot_hold_is_kept_with_replacement_characters(storage):
    added = add(storage, "run/0/\ud800/0", question="a\x00b\udfffc", question_id="\ud800")
    kept = storage.get(added)
    assert (kept.question, kept.question_id, kept.episode) == ("a\ufffdb\ufffdc", "\ufffd", "run/0/\ufffd/0")
    assert storage.remembers("run/0/\ud800/0")


def test_vectors_come_back_bit_by_bit(storage):
    vector, caption = np.array([0.1, 1e-30], np.float32), np.array([3.3, -0.0], np.float32)
    add(storage, vector=vector, caption=caption)
    add(storage, "other", vector=vector)
    first, second = storage.changes(0).entries
    assert (first.question, first.caption) == (vector.tobytes(), caption.tobytes())
    assert second.caption is None


def test_an_episode_is_taken_in_once(storage):
    add(storage)
    with storage.writing() as writing:
        assert not writing.take_in("run/0/q/0")
    assert storage.remembers("run/0/q/0")
    assert not storage.remembers("run/0/q/1")


def test_a_transaction_that_fails_leaves_nothing(storage):
    first = add(storage)
    before = storage.stats()
    twice = np.ones(2, np.float32), np.zeros(2, np.float32)

    def write():
        with storage.writing() as writing:
            writing.take_in("other")
            writing.credit([first], question_id="q", episode="other", won=True)
            writing.add(workflow("other"), *twice)
            writing.add(workflow("other"), *twice)

    with pytest.raises(StorageError, match="UNIQUE"):
        write()
    assert storage.stats() | {"bytes": 0} == before | {"bytes": 0}
    assert not storage.remembers("other")


def test_credits_count_uses_and_wins_by_id(storage):
    first, second = add(storage, "a"), add(storage, "b")
    with storage.writing() as writing:
        writing.credit([second, second, 99, -1, 1 << 80], question_id="q", episode="c", won=True)
        writing.credit([second], question_id="q", episode="d", won=False)
    assert (storage.get(first).uses, storage.get(second).uses, storage.get(second).wins) == (0, 2, 1)


def test_every_change_is_logged_with_what_was_there_before(storage, path):
    added = add(storage)
    with storage.writing() as writing:
        writing.credit([added], question_id="r", episode="run/0/r/0", won=True)
    assert log(path) == [
        (1, "add", added, {"before": None, "after": {"episode": "run/0/q/0"}}),
        (2, "credit", added, {"before": {"uses": 0, "wins": 0}, "after": {"uses": 1, "wins": 1}}),
    ]
    assert storage.sequence() == 2


def test_what_is_forgotten_can_be_brought_back_from_the_log(storage, path):
    added = add(storage, vector=(0.25, 0.5), caption=(0.125, 1))
    kept = storage.get(added)
    assert storage.forget(added)
    assert storage.get(added) is None
    assert not storage.forget(added)
    before = log(path)[-1][3]["before"]
    assert Workflow(**before["memory"]) == kept
    (vectors,) = before["embeddings"]
    assert vectors["encoder"] == "e"
    assert np.frombuffer(base64.b64decode(vectors["question"]), np.float32).tolist() == [0.25, 0.5]
    assert np.frombuffer(base64.b64decode(vectors["caption"]), np.float32).tolist() == [0.125, 1]


def test_ids_are_never_reused(storage):
    add(storage, "a")
    second = add(storage, "b")
    storage.forget(second)
    assert add(storage, "c") == second + 1


def test_a_forgotten_episode_stays_forgotten(storage):
    storage.forget(add(storage))
    assert storage.remembers("run/0/q/0")


def test_changes_name_what_was_touched_and_what_is_left_of_it(storage):
    first, second, third = add(storage, "a"), add(storage, "b"), add(storage, "c")
    seen = storage.sequence()
    storage.forget(first)
    with storage.writing() as writing:
        writing.credit([third], question_id="q", episode="d", won=False)
    changes = storage.changes(seen)
    assert changes.sequence == seen + 2
    assert set(changes.touched) == {first, third}
    assert [(entry.id, entry.uses) for entry in changes.entries] == [(third, 1)]
    assert [entry.id for entry in storage.changes(0).entries] == [second, third]


def test_memories_are_listed_newest_first_by_label(storage):
    first, second, third = add(storage, "a"), add(storage, "b", correct=False), add(storage, "c")
    assert [memory.id for memory in storage.list()] == [third, second, first]
    assert [memory.id for memory in storage.list(1)] == [third]
    assert [memory.id for memory in storage.list(correct=True)] == [third, first]
    assert [memory.id for memory in storage.list(correct=False)] == [second]


def test_stats_count_the_bank(storage):
    first = add(storage, "a")
    add(storage, "b", correct=False)
    with storage.writing() as writing:
        writing.credit([first], question_id="q", episode="c", won=True)
    stats = storage.stats()
    assert stats.pop("bytes") > 0
    assert stats == {
        "memories": 2, "successes": 1, "failures": 1, "uses": 1, "wins": 1, "encoder": "e", "sequence": 3,
    }  # fmt: skip


def test_a_bank_opens_again_as_it_was(path):
    with closing(Storage(path, "e")) as storage:
        added = add(storage)
        kept = storage.get(added)
    with closing(Storage(path)) as storage:
        assert storage.get(added) == kept
        assert storage.stats()["encoder"] == "e"


def test_another_encoder_is_refused_with_the_setting_to_change(storage, path):
    with pytest.raises(ConfigError, match="MIA_ENCODER"):
        Storage(path, "f")


def test_a_file_that_is_no_bank_is_refused(tmp_path):
    path = tmp_path / "memory.sqlite"
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(StorageError, match=r"not a database.*MIA_MEMORY_PATH") as raised:
        Storage(path, "e")
    assert raised.value.__cause__ is not None


def test_a_damaged_bank_is_refused(path):
    with closing(Storage(path, "e")) as storage:
        for turn in range(50):
            add(storage, f"e{turn}", summary="s" * 2000)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with pytest.raises(StorageError), closing(Storage(path, "e")) as storage:
        storage.changes(0)


def test_a_bank_of_a_later_format_is_refused(path):
    Storage(path, "e").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = '2' WHERE name = 'schema'")
    with pytest.raises(StorageError, match="format 2"):
        Storage(path, "e")


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="MIA_MEMORY_PATH"):
        Storage(tmp_path / "file" / "memory.sqlite", "e")
    with pytest.raises(StorageError, match="MIA_MEMORY_PATH"):
        Storage(tmp_path, "e")


def test_a_full_disk_is_reported_and_what_was_kept_stays(storage):
    first = add(storage)

    @sql.event.listens_for(storage._engine, "begin")
    def fill_up(connection):
        connection.exec_driver_sql("PRAGMA max_page_count = 1")

    with pytest.raises(StorageError, match="Free some disk space"):
        add(storage, "more", summary="s" * 1_000_000)
    assert storage.get(first) is not None


def test_commits_reach_the_disk(storage):
    with storage._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def write(path, name, turns):
    command = [sys.executable, "-c", WRITER, str(path), name, str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_write_to_one_bank_side_by_side(path):
    writers = [write(path, name, 40) for name in ("a", "b", "c")]
    acknowledged = [line.split() for writer in writers for line in writer.communicate(timeout=120)[0].splitlines()]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    with closing(Storage(path, "e")) as storage:
        kept = {memory.episode: str(memory.id) for memory in storage.list(1000)}
        assert kept == dict(acknowledged)
        assert len(kept) == 120
        assert storage.get(1).uses == storage.get(1).wins == 120


def test_what_was_acknowledged_survives_a_kill(path):
    writer = write(path, "a", 100_000)
    acknowledged = [writer.stdout.readline() for _ in range(50)]
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged += writer.communicate(timeout=60)[0].splitlines(keepends=True)
    whole = [line.split() for line in acknowledged if line.endswith("\n")]
    with closing(Storage(path, "e")) as storage:
        kept = {memory.episode: str(memory.id) for memory in storage.list(100_000)}
        assert dict(whole).items() <= kept.items()
        assert len(kept) - len(whole) in (0, 1)
        assert storage.get(1).uses == len(kept)
        assert storage.sequence() == 2 * len(kept)
