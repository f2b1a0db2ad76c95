import threading
from contextlib import closing

import numpy as np
import pytest
import sqlalchemy as sql
from kept import add, pair, vectors, workflow

from mia.errors import ConfigError, StorageError
from mia.memory import transfer
from mia.memory.bank import Bank
from mia.memory.storage import Storage
from mia.memory.tables import embeddings
from mia.memory.transfer import CHUNK, Taken, reembed, take_in
from mia.memory.twins import twin
from mia.memory.writing import Credit
from mia.types import Question


class Counting:
    """Encodes a text as its length and `sign`; `asked` is called before each time."""

    dimensions = 2

    def __init__(self, name="e", sign=1, asked=None):
        self.id, self.sign = name, sign
        self.asked = asked or (lambda texts: None)

    def encode(self, texts):
        self.asked(texts)
        rows = np.array([(len(text), self.sign) for text in texts], np.float32)
        return rows * np.array([bool(text) for text in texts])[:, None]


def breaking(times):
    """Return what raises when it is called for the last of so many times."""
    left = iter(range(times - 1))

    def asked(texts):
        if next(left, None) is None:
            raise RuntimeError("broken off")

    return asked


def ignore(count):
    pass


def known_of(path, encoder):
    """Return the vectors that a bank reads, by id."""
    with closing(Bank.open(path, encoder)) as bank:
        seen = bank.snapshot()
        alive = seen.alive
        return dict(zip(seen.ids[alive].tolist(), seen.questions[alive].tolist(), strict=True))


def encoders(storage):
    """Count the vectors of each encoder."""
    column = embeddings.c.encoder
    with storage._engine.begin() as connection:
        return dict(map(tuple, connection.execute(sql.select(column, sql.func.count()).group_by(column))))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.sqlite"


@pytest.fixture
def storage(path):
    with closing(Storage(path, "e")) as storage:
        yield storage


def file_of(count, **changes):
    return [
        workflow(f"import/f/{number}", question="?" * (number % 7 + 1), source="f", **changes)
        for number in range(count)
    ]


def test_memories_are_taken_in_as_they_are(storage, path):
    same = {"question": "Who?", "caption": "a cat", "uses": 7, "wins": 3, "feedback": ("good",)}
    workflows = [workflow("import/f/a/0", **same), workflow("import/f/a/1", **same)]
    pairs = [pair(caption="a cat", source="f"), pair(caption="a cat", source="f")]
    told = []
    assert take_in(storage, Counting(), workflows, pairs, told.append) == Taken(2, 2, 0)
    assert told == [2, 2]
    kept = [memory.model_copy(update={"id": 0}) for memory in reversed(storage.list())]
    assert kept == workflows
    assert [each.model_copy(update={"id": 0}) for each in storage.pairs()] == pairs
    assert [(entry.question, entry.caption) for entry in storage.changes(0).entries] == [
        tuple(each.tobytes() for each in vectors((4, 1), (5, 1)))
    ] * 2
    with storage.writing() as writing:
        assert len(writing.twins([twin(Question(id="q", text="WHO?", caption="a cat"))])) == 1


def test_what_was_taken_in_is_passed_over(storage):
    workflows, pairs = file_of(3), [pair(), pair(), pair("r")]
    take_in(storage, Counting(), workflows, pairs, ignore)
    before = storage.sequence()
    assert take_in(storage, Counting(), workflows, pairs, ignore) == Taken(0, 0, 6)
    assert storage.sequence() == before
    more = [*workflows, *file_of(4)[3:]]
    assert take_in(storage, Counting(), more, [*pairs, pair()], ignore) == Taken(1, 1, 6)


def test_a_memory_that_was_forgotten_is_not_taken_in_again(storage):
    take_in(storage, Counting(), file_of(2), [pair(source="f")], ignore)
    storage.forget_source("f")
    assert take_in(storage, Counting(), file_of(2), [pair(source="f")], ignore) == Taken(0, 0, 3)


def test_an_episode_that_a_file_holds_twice_is_one_memory(storage):
    workflows = [*file_of(2), *file_of(2)]
    assert take_in(storage, Counting(), workflows, [], ignore) == Taken(2, 0, 2)


def test_an_import_that_was_broken_off_goes_on(storage):
    workflows = file_of(2 * CHUNK + 5)
    pairs = [pair(f"q{number}") for number in range(CHUNK + 3)]
    for times, memories, kept_pairs in ((2, CHUNK, 0), (2, 2 * CHUNK, 0), (3, 2 * CHUNK + 5, CHUNK)):
        with pytest.raises(RuntimeError, match="broken off"):
            take_in(storage, Counting(asked=breaking(times)), workflows, pairs, ignore)
        assert (storage.stats()["memories"], storage.stats()["plan_pairs"]) == (memories, kept_pairs)
    done, encoded = [], []
    last = Counting(asked=encoded.extend)
    assert take_in(storage, last, workflows, pairs, done.append) == Taken(0, 3, len(workflows) + CHUNK)
    assert len(encoded) == 2 * 3
    assert sum(done) == len(workflows) + len(pairs)
    assert {memory.episode for memory in storage.list(None)} == {memory.episode for memory in workflows}


def test_a_bank_moves_to_another_encoder(storage, path):
    take_in(storage, Counting(), file_of(3), [pair()], ignore)
    done = []
    with closing(Storage(path)) as whole:
        reembed(whole, Counting("f", -1), done.append)
    assert sum(done) == 4
    assert known_of(path, Counting("f", -1)) == {1: [1, -1], 2: [2, -1], 3: [3, -1]}
    with pytest.raises(ConfigError, match=r"of the encoder f, not of e.*`mia memory reembed`"):
        Storage(path, "e")


def test_a_bank_moves_to_the_encoder_that_it_has_at_no_cost(storage, path):
    take_in(storage, Counting(), file_of(3), [], ignore)
    done = []
    reembed(storage, Counting(asked=breaking(1)), done.append)
    assert done == []
    assert len(known_of(path, Counting())) == 3


def test_a_bank_that_is_empty_moves_too(storage, path):
    reembed(storage, Counting("f"), ignore)
    Storage(path, "f").close()


def test_the_bank_is_read_and_written_as_before_until_the_end(storage, path):
    """Others work, and wait for nothing, while vectors are made: what they add has its vectors before the change."""
    take_in(storage, Counting(), file_of(CHUNK + 1), [pair()], ignore)
    added = []

    def work(texts):
        assert storage.stats()["encoder"] == "e"
        assert set(known_of(path, Counting())) == {memory.id for memory in storage.list(None)}
        if len(added) < 4:
            added.append(add(storage, f"new{len(added)}"))
            storage.forget(added[0])

    done = []
    with closing(Storage(path)) as whole:
        reembed(whole, Counting("f", -1, work), done.append)
    assert len(added) == 4
    assert sum(done) == CHUNK + 1 + 1 + 4
    assert set(known_of(path, Counting("f", -1))) == {memory.id for memory in storage.list(None)}


def test_the_change_itself_is_for_all_at_once(storage, path, monkeypatch):
    """A memory that is added between the last look and the change is waited for."""
    take_in(storage, Counting(), file_of(2), [], ignore)
    looked, late = transfer._missing, []

    def missing(*arguments):
        yield from looked(*arguments)
        if not late:
            late.append(add(storage, "late"))

    monkeypatch.setattr(transfer, "_missing", missing)
    with closing(Storage(path)) as whole:
        reembed(whole, Counting("f", -1), ignore)
    assert known_of(path, Counting("f", -1)).keys() >= set(late)


def test_writers_that_hurry_do_not_spoil_a_move(storage, path):
    take_in(storage, Counting(), file_of(20), [], ignore)
    refused = threading.Event()

    def hurry():
        number = 0
        while not refused.wait(0.002):
            try:
                add(storage, f"hurried{number}")
            except StorageError:
                refused.set()
            number += 1

    writer = threading.Thread(target=hurry)
    writer.start()
    with closing(Storage(path)) as whole:
        reembed(whole, Counting("f", -1), ignore)
    assert refused.wait(60)
    writer.join(60)
    known = known_of(path, Counting("f", -1))
    assert set(known) == {memory.id for memory in storage.list(None)}


def test_a_process_with_the_former_encoder_reads_on_and_its_additions_are_refused(storage, path):
    first = add(storage, "a", vector=(0.5, 1))
    with closing(Storage(path, "e")) as other:
        bank = Bank(other, 2)
        reembed(storage, Counting("f", -1), ignore)
        with closing(Storage(path, "f")) as later:
            second = add(later, "b")
        with pytest.raises(StorageError, match="Start this process again with the encoder f"):
            add(other, "c")
        assert not other.remembers("c")
        with other.writing() as writing:
            writing.credit([Credit("d", "q", (first, second), won=True)])
        seen = bank.snapshot()
        assert seen.ids[seen.alive].tolist() == [first]
        assert seen.questions[seen.alive].tolist() == [[0.5, 1]]
        assert seen.uses[seen.alive].tolist() == [1]


def test_a_move_that_was_broken_off_goes_on(storage, path):
    take_in(storage, Counting(), file_of(2 * CHUNK), [pair()], ignore)
    with pytest.raises(RuntimeError, match="broken off"):
        reembed(storage, Counting("f", asked=breaking(2)), ignore)
    assert encoders(storage) == {"e": 2 * CHUNK + 1, "f": CHUNK}
    assert storage.stats()["encoder"] == "e"
    done = []
    reembed(storage, Counting("f"), done.append)
    assert sum(done) == CHUNK + 1
    Storage(path, "f").close()


def test_what_was_forgotten_before_a_move_can_be_found_when_it_is_brought_back(storage, path):
    gone = add(storage, "a", question="Who?")
    with storage.writing() as writing:
        writing.add_pairs([(pair(), vectors())])
    seen = storage.sequence()
    storage.clear()
    reembed(storage, Counting("f", -1), ignore)
    with closing(Storage(path, "f")) as moved:
        bank = Bank(moved, 2)
        assert not bank.snapshot().alive.any()
        moved.restore(seen)
        snapshot = bank.snapshot()
        assert snapshot.ids[snapshot.alive].tolist() == [gone]
        assert snapshot.questions[snapshot.alive].tolist() == [[4, -1]]
    assert encoders(storage) == {"e": 2, "f": 2}


def test_vectors_of_encoders_that_nobody_reads_are_dropped(storage):
    add(storage)
    reembed(storage, Counting("f"), ignore)
    assert encoders(storage) == {"e": 1, "f": 1}
    reembed(storage, Counting("g"), ignore)
    assert encoders(storage) == {"f": 1, "g": 1}
