import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import numpy as np
import pytest
import sqlalchemy as sql
from kept import add, fresh, pair, rollout, vectors, workflow

import mia.memory.sqlite
from mia.errors import ConfigError, InputError, StorageError
from mia.memory.storage import Storage
from mia.memory.writing import Credit, group_key

WRITER = """
import sys
from pathlib import Path
import numpy as np
from mia.memory.storage import Storage
from mia.memory.writing import Credit, Fresh, Vectors
from mia.types import Workflow

storage = Storage(Path(sys.argv[1]), "e")
vectors = Vectors(np.ones(2, np.float32), np.ones(2, np.float32))
for turn in range(int(sys.argv[3])):
    key = f"{sys.argv[2]}-{turn}"
    memory = Workflow(
        id=0, question="q", summary="s", plan="p", correct=True, question_id="q", episode=key, created=0.0
    )
    with storage.writing() as writing:
        writing.take_in([key])
        (added,) = writing.add([Fresh(memory, key, vectors)])
        writing.credit([Credit(key, "q", (1,), won=True)])
    print(key, added, flush=True)
storage.close()
"""


def credit(storage, *votes):
    with storage.writing() as writing:
        writing.credit(votes)


def explore(storage, *episodes):
    with storage.writing() as writing:
        writing.explore(episodes)


def waiting(storage, run="run", step=0):
    groups = storage.explorations(run, step)
    return {question_id: [episode.key.rollout for episode in group] for question_id, group in groups.items()}


def rows(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bank" / "memory.sqlite"


@pytest.fixture
def storage(path):
    with closing(Storage(path, "e")) as storage:
        yield storage


def test_a_memory_comes_back_as_it_was_kept(storage):
    said = {
        "question": "東京は? 🗼",
        "plan": "塔",
        "feedback": ("よい", "", "no"),
        "category": "location",
        "source": "f",
    }
    added = add(storage, uses=3, wins=2, **said)
    kept = workflow(uses=3, wins=2, **said).model_copy(update={"id": added})
    assert storage.get(added) == kept
    assert storage.fetch([added, 99, -1, 0, 1 << 80]) == {added: kept}


def test_text_that_sqlite_cannot_hold_is_kept_with_replacement_characters(storage):
    added = add(storage, "run/0/\ud800/0", question="a\x00b\udfffc", question_id="\ud800", feedback=("\udfff",))
    kept = storage.get(added)
    assert (kept.question, kept.question_id, kept.episode) == ("a\ufffdb\ufffdc", "\ufffd", "run/0/\ufffd/0")
    assert kept.feedback == ("\ufffd",)
    assert storage.remembers("run/0/\ud800/0")


def test_vectors_come_back_bit_by_bit(storage):
    vector, caption = np.array([0.1, 1e-30], np.float32), np.array([3.3, -0.0], np.float32)
    add(storage, vector=vector, caption=caption)
    add(storage, "other", vector=vector)
    first, second = storage.changes(0).entries
    assert (first.question, first.caption) == (vector.tobytes(), caption.tobytes())
    assert second.caption is None


def test_what_is_taken_in_is_taken_in_once(storage):
    with storage.writing() as writing:
        assert writing.take_in(["b", "a", "b"]) == {"a", "b"}
        assert writing.take_in(["a", "c"]) == {"c"}
    with storage.writing() as writing:
        assert writing.take_in(iter(["a", "b", "c"])) == set()
        assert writing.take_in([]) == set()
    assert storage.remembers("a")
    assert not storage.remembers("d")


def test_keys_that_the_file_holds_alike_are_taken_in_once(storage):
    with storage.writing() as writing:
        assert len(writing.take_in(["\x00", "\ud800", "\ufffd"])) == 1
        assert writing.take_in(["\udfff", "x"]) == {"x"}


def test_as_many_keys_and_ids_are_taken_as_come(storage):
    keys = {f"k{number}" for number in range(40_000)}
    with storage.writing() as writing:
        assert writing.take_in(keys) == keys
    with storage.writing() as writing:
        assert writing.take_in([*keys, "new"]) == {"new"}
    added = add(storage, "a")
    assert list(storage.fetch(range(100_000))) == [added]


def test_a_transaction_that_fails_leaves_nothing(storage):
    first = add(storage)
    before = storage.stats()

    def write():
        with storage.writing() as writing:
            writing.take_in(["other"])
            writing.credit([Credit("other", "q", (first,), won=True)])
            writing.add([fresh("other"), fresh("next", created=float("nan"))])

    with pytest.raises(StorageError, match="NOT NULL"):
        write()
    assert storage.stats() | {"bytes": 0} == before | {"bytes": 0}
    assert not storage.remembers("other")


def test_what_fails_apart_leaves_the_rest(storage):
    def fail(writing):
        with writing.apart():
            writing.take_in(["b"])
            writing.add([fresh("b", created=float("nan"))])

    with storage.writing() as writing:
        writing.take_in(["a"])
        with pytest.raises(StorageError, match="NOT NULL"):
            fail(writing)
        with writing.apart():
            writing.take_in(["c"])
    assert [storage.remembers(key) for key in "abc"] == [True, False, True]


def test_a_number_too_large_for_the_file_is_reported(storage):
    with pytest.raises(StorageError, match="too large"):
        explore(storage, rollout(step=1 << 80))
    with pytest.raises(StorageError, match="too large"):
        storage.explorations("run", 1 << 80)


def test_a_transaction_that_sqlite_gave_up_is_neither_continued_nor_taken_for_committed(storage):
    """An error of the disk may roll back all; what follows would then be committed by itself, what preceded lost."""

    def fail(writing):
        with writing.apart():
            writing._connection.exec_driver_sql("ROLLBACK")
            writing.add([fresh("b", created=float("nan"))])

    def give_up():
        with storage.writing() as writing:
            writing.take_in(["a"])
            with pytest.raises(StorageError):
                fail(writing)
            with pytest.raises(StorageError, match="gave up"), writing.apart():
                writing.take_in(["b"])

    with pytest.raises(StorageError, match="gave up"):
        give_up()
    assert not storage.remembers("a")
    assert not storage.remembers("b")
    add(storage, "a")


def test_votes_count_uses_and_wins_by_id(storage):
    first, second, third = (add(storage, key) for key in "abc")
    shown = (second, second, 99, -1, 0, 1 << 80)
    credit(storage, Credit("c", "q", shown, won=True), Credit("d", "q", (second, third), won=False))
    credit(storage, Credit("e", "q", (third,), won=True))
    counts = {each.id: (each.uses, each.wins) for each in storage.list()}
    assert counts == {first: (0, 0), second: (2, 1), third: (2, 1)}


def test_what_was_withheld_is_noted_but_counts_nothing(storage, path):
    first, second = add(storage, "a"), add(storage, "b")
    credit(storage, Credit("c", "r", (first,), won=True, withheld=(second, second, 77)))
    assert [storage.get(each).uses for each in (first, second)] == [1, 0]
    shows = rows(path, "SELECT episode, question_id, memory_id, withheld, won FROM shows WHERE alive ORDER BY id")
    assert shows == [("c", "r", first, 0, 1), ("c", "r", second, 1, 1)]


def test_votes_on_what_is_gone_are_passed_over(storage, path):
    gone = add(storage)
    storage.forget(gone)
    before = storage.sequence()
    credit(storage, Credit("c", "q", (gone,), won=True, withheld=(gone,)))
    assert storage.sequence() == before


def test_every_change_is_logged_with_what_was_there_before(storage, path):
    added = add(storage)
    credit(storage, Credit("c", "r", (added,), won=True))
    log = rows(path, "SELECT sequence, kind, subject, row, before FROM changes ORDER BY sequence")
    assert [(*entry, json.loads(before)) for *entry, before in log] == [
        (1, "take in", "episodes", 1, {"alive": False}),
        (2, "add", "memories", added, {"alive": False}),
        (3, "credit", "memories", added, {"uses": 0, "wins": 0}),
        (4, "show", "shows", 1, {"alive": False}),
    ]
    assert storage.sequence() == 4


def test_the_latest_memory_of_a_question_and_label_is_its_twin(storage):
    add(storage, "a", twin="t")
    second, third = add(storage, "b", twin="t"), add(storage, "c", twin="t", correct=False)
    other, gone = add(storage, "d", twin="u"), add(storage, "e", twin="v")
    storage.forget(gone)
    with storage.writing() as writing:
        twins = writing.twins(["t", "u", "v", "w"])
    assert {place: memory.id for place, memory in twins.items()} == {
        ("t", True): second,
        ("t", False): third,
        ("u", True): other,
    }


def test_what_is_replaced_keeps_its_id_counts_question_and_vectors(storage):
    added = add(storage, "a", twin="t", vector=(0.5, 0.25), caption=(0, 1), question="Who?", uses=4, wins=3)
    later = fresh("b", twin="t", vector=(9, 9), question="WHO?", summary="new", source="s", feedback=("f",))
    with storage.writing() as writing:
        writing.replace({added: later})
    expected = later.workflow.model_copy(update={"id": added, "question": "Who?", "uses": 4, "wins": 3})
    assert storage.list() == (expected,)
    (entry,) = storage.changes(0).entries
    assert (entry.question, entry.caption) == tuple(each.tobytes() for each in vectors((0.5, 0.25), (0, 1)))


def test_a_stand_in_waits_to_be_written_until_something_takes_its_place(storage):
    memories = [add(storage, key, draft=rollout(number).model_dump_json()) for number, key in enumerate("abcd")]
    assert [draft.memory_id for draft in storage.drafts(2)] == memories[:2]
    with storage.writing() as writing:
        writing.rewrite(memories[0], "told")
        writing.replace({memories[1]: fresh("e")})
        writing.replace({memories[2]: fresh("f", draft=rollout(7).model_dump_json())})
    storage.forget(memories[3])
    assert storage.get(memories[0]).summary == "told"
    assert [(draft.memory_id, draft.episode) for draft in storage.drafts(9)] == [(memories[2], rollout(7))]
    assert storage.stats()["drafts"] == 1


def test_rollouts_wait_for_their_group(storage):
    explore(storage, rollout(1), rollout(0), rollout(0, "r"), rollout(0, step=1), rollout(0, run="other"))
    assert waiting(storage) == {"q": [0, 1], "r": [0]}
    assert waiting(storage, step=1) == {"q": [0]}
    assert waiting(storage, "none") == {}
    (kept,) = storage.explorations("run", 0)["r"]
    assert kept == rollout(0, "r")


def test_a_rollout_waits_once(storage):
    explore(storage, rollout(0), rollout(0))
    explore(storage, rollout(0), rollout(1))
    assert waiting(storage) == {"q": [0, 1]}


def test_a_rollout_whose_group_was_taken_in_does_not_wait(storage):
    explore(storage, rollout(0))
    with storage.writing() as writing:
        writing.take_in([group_key(rollout().key)])
        writing.close_group(rollout().key)
    assert waiting(storage) == {}
    explore(storage, rollout(0), rollout(1), rollout(0, "r"))
    assert waiting(storage) == {"r": [0]}


def test_rollouts_may_have_any_text_for_an_id(storage):
    strange = "a\x00/\ud800'\"%", "東京\udfff"
    explore(storage, rollout(0, strange[1], run=strange[0]), rollout(0, "東京\ufffd", run=strange[0]))
    explore(storage, rollout(0, strange[1], run=strange[0]))
    assert waiting(storage, strange[0]) == {"東京\ufffd": [0]}


def test_a_note_is_kept_and_can_be_written_anew(storage):
    assert storage.note("caption", "k") is None
    storage.keep_note("caption", "k", "a cat", "m")
    storage.keep_note("category", "k", "animal\x00", "m")
    storage.keep_note("caption", "k", "two cats", "m")
    assert (storage.note("caption", "k"), storage.note("category", "k")) == ("two cats", "animal\ufffd")
    assert storage.sequence() == 0


def test_plan_pairs_come_back_as_they_were_kept(storage):
    pairs = pair("a", caption="塔", source="f"), pair("b")
    with storage.writing() as writing:
        ids = writing.add_pairs([(each, vectors()) for each in pairs])
    assert storage.pairs() == tuple(each.model_copy(update={"id": id_}) for id_, each in zip(ids, pairs, strict=True))


def test_what_is_forgotten_is_gone_once(storage):
    added = add(storage)
    assert storage.forget(added)
    assert storage.get(added) is None
    assert storage.list() == storage.changes(0).entries == ()
    assert not storage.forget(added)
    assert not storage.forget(1 << 80)


def test_a_source_is_forgotten_whole(storage):
    add(storage, "a", source="f")
    other = add(storage, "b", source="g")
    with storage.writing() as writing:
        writing.add_pairs([(pair(source="f"), vectors()), (pair("r"), vectors())])
    assert storage.forget_source("f") == 2
    assert storage.forget_source("f") == storage.forget_source("none") == 0
    assert [memory.id for memory in storage.list()] == [other]
    assert [each.question_id for each in storage.pairs()] == ["r"]


def test_ids_are_never_reused(storage):
    add(storage, "a")
    second = add(storage, "b")
    storage.forget(second)
    assert add(storage, "c") == second + 1
    storage.restore(0)
    assert add(storage, "c") == second + 2


def test_a_forgotten_episode_stays_forgotten(storage):
    storage.forget(add(storage))
    assert storage.remembers("run/0/q/0")


def test_changes_name_what_was_touched_and_what_is_left_of_it(storage):
    first, second, third = (add(storage, key) for key in "abc")
    seen = storage.sequence()
    storage.forget(first)
    credit(storage, Credit("d", "q", (third,), won=False))
    changes = storage.changes(seen)
    assert changes.sequence == storage.sequence()
    assert set(changes.touched) == {first, third}
    assert [(entry.id, entry.uses) for entry in changes.entries] == [(third, 1)]
    assert [entry.id for entry in storage.changes(0).entries] == [second, third]


def test_changes_after_a_restore_name_what_it_brought_back_and_what_it_took(storage):
    first = add(storage, "a")
    credit(storage, Credit("c", "q", (first,), won=True))
    seen = storage.sequence()
    storage.forget(first)
    second, forgotten = add(storage, "b"), storage.sequence()
    storage.restore(seen)
    changes = storage.changes(forgotten)
    assert set(changes.touched) == {first, second}
    assert [(entry.id, entry.uses, entry.wins) for entry in changes.entries] == [(first, 1, 1)]
    assert storage.changes(changes.sequence) == (changes.sequence, (), ())


def test_a_snapshot_has_one_number_for_good(storage):
    add(storage, "a")
    number = storage.snapshot("x")
    add(storage, "b")
    assert storage.snapshot("x") == number
    assert storage.snapshot("y") == storage.sequence()
    assert storage.snapshots() == {"x": number, "y": storage.sequence()}


def test_a_bank_that_was_cleared_is_empty_and_can_be_brought_back(storage):
    memories = add(storage, "a"), add(storage, "b", draft=rollout().model_dump_json())
    explore(storage, rollout())
    number = storage.clear()
    assert not storage.remembers("a")
    stats = storage.stats()
    assert [stats[name] for name in ("memories", "plan_pairs", "explorations", "drafts")] == [0] * 4
    assert list(stats["snapshots"].values()) == [number]
    again = storage.clear()
    assert again > number
    storage.restore(number)
    assert sorted(memory.id for memory in storage.list()) == sorted(memories)
    assert waiting(storage) == {"q": [0]}


@pytest.mark.parametrize("number", [-1, 3, 1 << 80])
def test_a_number_that_there_has_not_been_cannot_be_restored(storage, number):
    add(storage)
    with pytest.raises(InputError, match="Name one from 0 to 2"):
        storage.restore(number)


def test_memories_are_listed_newest_first_by_label_and_source(storage):
    first, second, third = add(storage, "a", source="f"), add(storage, "b", correct=False), add(storage, "c")
    assert [memory.id for memory in storage.list()] == [third, second, first]
    assert [memory.id for memory in storage.list(1)] == [third]
    assert [memory.id for memory in storage.list(None, correct=True)] == [third, first]
    assert [memory.id for memory in storage.list(correct=False)] == [second]
    assert [memory.id for memory in storage.list(source="f")] == [first]
    assert storage.list(correct=False, source="f") == ()


def test_stats_count_the_bank(storage):
    counts = {"a": 0, "b": 1, "c": 3, "d": 7, "e": 16, "f": 1000}
    for key, uses in counts.items():
        add(storage, key, correct=key != "b", uses=uses, wins=uses // 2, category="human" if key < "c" else "time")
    storage.forget(add(storage, "g", uses=5, source="gone"))
    with storage.writing() as writing:
        writing.add_pairs([(pair(), vectors())])
    explore(storage, rollout(), rollout(1))
    number = storage.snapshot("n")
    stats = storage.stats()
    assert stats.pop("bytes") > 0
    assert stats == {
        "memories": 6,
        "successes": 5,
        "failures": 1,
        "uses": 1027,
        "wins": 512,
        "uses_histogram": {"0": 1, "1": 1, "2-3": 1, "4-7": 1, "8-15": 0, "16+": 2},
        "categories": {"human": 2, "time": 4},
        "sources": {"": 6},
        "plan_pairs": 1,
        "explorations": 2,
        "drafts": 0,
        "encoder": "e",
        "sequence": number,
        "snapshots": {"n": number},
    }


def test_what_is_looked_up_by_key_is_found_by_an_index(storage):
    statements = {}

    def note(connection, cursor, statement, parameters, context, many):
        if statement.startswith(("SELECT", "UPDATE", "DELETE")):
            statements[statement] = parameters[0] if many else parameters

    sql.event.listen(storage._engine, "before_cursor_execute", note)
    draft = rollout().model_dump_json()
    first, second = add(storage, "a", draft=draft), add(storage, "b")
    with storage.writing() as writing:
        writing.credit([Credit("c", "q", (first,), won=True, withheld=(second,))])
        writing.twins(["a", "b"])
        writing.replace({first: fresh("d", draft=draft)})
        writing.rewrite(second, "told")
        writing.forget([second])
        writing.explore([rollout()])
        writing.forget([1], "explorations")
        writing.add_pairs([(pair(), vectors())])
        writing.snapshot("n")
    storage.keep_note("caption", "k", "a cat", "m")
    storage.note("caption", "k")
    storage.remembers("a")
    storage.explorations("run", 0)
    storage.drafts(1)
    storage.fetch([first])
    storage.changes(storage.sequence() - 1)
    storage.unembedded("memories", "f", 0, 5)
    storage.restore(storage.sequence() - 1)
    sql.event.remove(storage._engine, "before_cursor_execute", note)
    with storage._engine.connect() as connection:
        plans = {
            statement: [step for *_, step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            for statement, parameters in statements.items()
        }
    drafts = "SCAN drafts USING INDEX drafts_memory"  # those that wait, in their order
    assert len(plans) > 25
    assert {step for steps in plans.values() for step in steps if "SCAN" in step} == {drafts}
    (maxima,) = {tuple(steps) for statement, steps in plans.items() if "max(memories.id)" in statement}
    assert maxima == ("SEARCH memories",)


def test_a_bank_opens_again_as_it_was(path):
    with closing(Storage(path, "e")) as storage:
        added = add(storage)
        kept = storage.get(added)
    with closing(Storage(path)) as storage:
        assert storage.get(added) == kept
        assert storage.stats()["encoder"] == "e"


def test_another_encoder_is_refused_with_the_command_that_changes_over(storage, path):
    with pytest.raises(ConfigError, match=r"of the encoder e, not of f.*`mia memory reembed`"):
        Storage(path, "f")


def test_a_bank_that_is_opened_without_an_encoder_takes_the_first_that_comes(path):
    with closing(Storage(path)) as looked_at, closing(Storage(path, "e")):
        assert looked_at.stats()["encoder"] == "e"
        with pytest.raises(StorageError, match="Start this process again with the encoder e"):
            add(looked_at)


def test_looking_waits_for_no_writer(storage, path, monkeypatch):
    monkeypatch.setattr(mia.memory.sqlite, "BUSY_SECONDS", 0.1)
    added = add(storage)
    with storage.writing() as writing:
        writing.take_in(["b"])
        for encoder in ("e", None):
            with closing(Storage(path, encoder)) as other:
                assert other.get(added) is not None
                assert not other.remembers("b")
                with pytest.raises(StorageError, match="Another process is writing for long"):
                    other.forget(added)


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


def test_threads_may_open_a_new_bank_at_once(path):
    opened = []

    def begin():
        with closing(Storage(path, "e")) as storage:
            opened.append(storage.stats()["encoder"])

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert opened == ["e"] * 8


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
        assert storage.sequence() == 4 * len(kept)  # taken in, added, credited, shown
