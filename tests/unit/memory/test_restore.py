import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import hypothesis.strategies as st
import pytest
import sqlalchemy as sql
from hypothesis import HealthCheck, given, settings
from kept import add, fresh, pair, rollout, vectors

from mia.memory.bank import Bank
from mia.memory.storage import Storage
from mia.memory.tables import RESTORABLE, changes
from mia.memory.writing import Credit, group_key

QUESTIONS, NUMBERS, IDS = st.sampled_from("pqr"), st.integers(0, 2), st.integers(1, 6)
SOME_IDS = st.lists(IDS, max_size=3).map(tuple)
OPERATIONS = {
    "remember": (st.lists(st.tuples(QUESTIONS, NUMBERS, st.booleans()), max_size=3),),
    "credit": (st.lists(st.builds(Credit, st.just("e"), QUESTIONS, SOME_IDS, st.booleans(), SOME_IDS), max_size=2),),
    "rewrite": (IDS, NUMBERS),
    "forget": (st.sampled_from(["memories", "plan_pairs"]), SOME_IDS),
    "forget_source": (NUMBERS,),
    "pair": (QUESTIONS, NUMBERS),
    "explore": (st.lists(st.tuples(NUMBERS, QUESTIONS), max_size=3),),
    "commit": (QUESTIONS,),
    "snapshot": (NUMBERS,),
    "clear": (),
    "restore": (st.integers(0, 30),),
}
PROGRAMS = st.lists(
    st.one_of(st.tuples(st.just(name), st.tuples(*arguments)) for name, arguments in OPERATIONS.items()),
    min_size=1,
    max_size=25,
)


class Played:
    """A bank, and what it held at every border between two transactions."""

    def __init__(self, storage):
        self.storage = storage
        self.states = {}
        self.borders = []
        self.log = []
        self.look()

    def look(self):
        """Note the present state under its number; the log only ever grows."""
        number, state, log = self.storage.sequence(), contents(self.storage), logged(self.storage)
        assert log[: len(self.log)] == self.log
        assert number == len(log)
        assert self.states.setdefault(number, state) == state
        self.borders.append(number)
        self.log = log

    def play(self, name, arguments):
        getattr(self, name)(*arguments)
        self.look()

    def remember(self, memories):
        with self.storage.writing() as writing:
            keyed = {f"{question}/{number}": (question, number, correct) for question, number, correct in memories}
            for key in sorted(writing.take_in(keyed)):
                question, number, correct = keyed[key]
                draft = rollout(number, question).model_dump_json() if number else ""
                changed = {"correct": correct, "question_id": question, "summary": key, "category": question}
                kept = fresh(key, twin=question, draft=draft, source=str(number), vector=(number, 1), **changed)
                twin = writing.twins([question]).get((question, correct))
                if twin:
                    writing.replace({twin.id: kept})
                else:
                    writing.add([kept])

    def credit(self, votes):
        with self.storage.writing() as writing:
            writing.credit(votes)

    def rewrite(self, memory_id, number):
        with self.storage.writing() as writing:
            if writing.get([memory_id]):
                writing.rewrite(memory_id, f"rewritten {number}")

    def forget(self, subject, ids):
        with self.storage.writing() as writing:
            writing.forget(ids, subject)

    def forget_source(self, number):
        self.storage.forget_source(str(number))

    def pair(self, question, number):
        with self.storage.writing() as writing:
            writing.add_pairs([(pair(question, source=str(number)), vectors())])

    def explore(self, rollouts):
        with self.storage.writing() as writing:
            writing.explore([rollout(number, question) for number, question in rollouts])

    def commit(self, question):
        waiting = self.storage.explorations("run", 0).get(question, ())
        key = group_key(rollout(0, question).key)
        with self.storage.writing() as writing:
            if waiting and writing.take_in([key]):
                writing.add([fresh(key, twin=key, question_id=question)])
            writing.close_group(rollout(0, question).key)

    def snapshot(self, number):
        name = f"s{number}"
        known = self.storage.snapshots().get(name)
        sequence = self.storage.snapshot(name)
        assert sequence == (known or self.storage.sequence())

    def clear(self):
        sequence = self.storage.clear()
        named = {"snapshots": contents(self.storage)["snapshots"]}
        self.states[sequence] = self.states[self.borders[-1]] | named
        self.borders.append(sequence)

    def restore(self, choice):
        border = self.borders[choice % len(self.borders)]
        before, number = contents(self.storage), self.storage.sequence()
        self.look_at(border)
        forward = self.storage.sequence()
        self.look_at(number)  # undo the undo
        assert contents(self.storage) == before
        self.look_at(forward)

    def look_at(self, border):
        """Restore a state twice: the second time does nothing."""
        latest = self.storage.restore(border)
        self.look()
        assert contents(self.storage) == self.states[border]
        assert self.storage.restore(border) == latest == self.storage.sequence()


def contents(storage):
    """Return all rows that are not gone."""
    with storage._engine.begin() as connection:
        return {
            name: [tuple(map(str, row)) for row in connection.execute(sql.select(table).where(table.c.alive))]
            for name, table in RESTORABLE.items()
        }


def logged(storage):
    with storage._engine.begin() as connection:
        return [tuple(map(str, row)) for row in connection.execute(sql.select(changes).order_by(changes.c.sequence))]


def known(bank):
    """Return what a bank knows of each memory by id; numbers of questions and categories are its own."""
    seen = bank.snapshot()
    assert seen.sequence == bank.storage.sequence()
    found = {}
    for row in seen.alive.nonzero()[0]:
        memory_id = int(seen.ids[row])
        memory = bank.storage.get(memory_id)
        assert seen.origins[row] == bank.origin(memory.question_id)
        assert seen.categories[row] == bank.category(memory.category)
        arrays = seen.correct, seen.captioned, seen.uses, seen.wins, seen.questions, seen.captions
        found[memory_id] = [array[row].tolist() for array in arrays]
    assert set(found) == {memory.id for memory in bank.storage.list(None)}
    return found


@pytest.fixture(scope="module")
def blank(tmp_path_factory):
    path = tmp_path_factory.mktemp("restore") / "blank.sqlite"
    Storage(path, "e").close()
    return path


@pytest.fixture
def storage(tmp_path):
    with closing(Storage(tmp_path / "memory.sqlite", "e")) as storage:
        yield storage


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=PROGRAMS, ends=st.lists(st.integers(0, 99), min_size=1, max_size=3))
def test_a_restore_brings_back_exactly_what_was_there(blank, program, ends):
    with tempfile.TemporaryDirectory(dir=blank.parent) as folder:
        path = Path(shutil.copy(blank, folder))
        with closing(Storage(path, "e")) as storage, closing(Storage(path, "e")) as other:
            played, follower = Played(storage), Bank(other, 2)
            for name, arguments in program:
                played.play(name, arguments)
                follower.snapshot()
            for choice in ends:
                played.play("restore", [choice])
                follower.snapshot()
            assert known(follower) == known(Bank(storage, 2))


def test_what_was_undone_can_be_taken_in_again_and_brought_back_in_its_turn(storage):
    first = add(storage)
    one = storage.sequence()
    storage.restore(0)
    second = add(storage)
    two = storage.sequence()
    storage.restore(one)
    assert [memory.id for memory in storage.list()] == [first]
    storage.restore(two)
    assert [memory.id for memory in storage.list()] == [second]
    with storage.writing() as writing:
        assert not writing.take_in(["run/0/q/0"])


def test_a_restore_keeps_the_names_of_its_time_and_drops_later_ones(storage):
    add(storage, "a")
    first = storage.snapshot("first")
    add(storage, "b")
    second = storage.snapshot("second")
    storage.restore(first)
    assert storage.snapshots() == {"first": first}
    assert storage.snapshot("second") == storage.sequence()
    storage.restore(second)
    assert storage.snapshots() == {"first": first, "second": second}


def test_a_bank_of_many_memories_is_restored(storage):
    many = 12_000
    with storage.writing() as writing:
        writing.add([fresh(f"e{number}") for number in range(many)])
    added = storage.sequence()
    storage.clear()
    storage.restore(added)
    assert storage.stats()["memories"] == many
    storage.restore(0)
    assert storage.stats()["memories"] == 0
