import threading
from contextlib import closing, suppress
from functools import partial

import numpy as np
import pytest
from episodes import Letters
from kept import fresh

from mia.errors import ConfigError
from mia.memory.bank import Bank
from mia.memory.storage import Storage
from mia.memory.writing import Credit

ones = partial(fresh, vector=np.ones(64), caption=np.zeros(64))


@pytest.fixture
def bank(path):
    with closing(Bank.open(path, Letters())) as bank:
        yield bank


def change(bank, *, add=0, forget=(), credit=(), **more):
    with bank.storage.writing() as writing:
        writing.forget(forget)
        writing.add([ones(f"e{number}", **more) for number in range(add)])
        writing.credit([Credit("e", "q", (memory_id,), won=True) for memory_id in credit])
    return bank.snapshot()


def test_a_bank_that_is_new_is_empty(bank):
    snapshot = bank.snapshot()
    assert (snapshot.sequence, snapshot.ids.size, snapshot.questions.shape) == (0, 0, (0, 64))


def test_a_bank_opens_again_as_it_was(path):
    with closing(Bank.open(path, Letters())) as bank:
        change(bank, add=5)
        before = change(bank, add=1, forget=[2], credit=[1, 1], correct=False, category="time", question_id="r")
    with closing(Bank(Storage(path, "letters"), 64)) as bank:
        after = bank.snapshot()
        assert (bank.origin("r"), bank.category("time")) == (1, 1)
    assert before.sequence == after.sequence
    for name in ("ids", "correct", "captioned", "origins", "categories", "uses", "wins", "questions", "captions"):
        assert np.array_equal(getattr(before, name)[before.alive], getattr(after, name))


def test_questions_and_categories_are_numbered_as_they_come(bank):
    change(bank, add=1, question_id="\ud800", category="time")
    snapshot = change(bank, add=1, question_id="other", category="others")
    assert snapshot.origins.tolist() == snapshot.categories.tolist() == [0, 1]
    assert (bank.origin("\ud800"), bank.origin("\ufffd"), bank.origin("none")) == (0, 0, None)
    assert (bank.category("others"), bank.category("none")) == (1, None)


def test_a_snapshot_never_changes(bank):
    held = change(bank, add=2)
    copy = {name: np.copy(value) for name, value in vars(held).items() if name != "_worth"}
    for _ in range(40):
        change(bank, add=10, credit=[1])
    latest = change(bank, forget=[2])
    assert latest.uses[0] == latest.wins[0] == 40
    assert latest.alive.tolist() == [True, False] + [True] * 400
    assert all(np.array_equal(value, getattr(held, name)) for name, value in copy.items())
    with pytest.raises(ValueError, match="read-only"):
        held.uses[0] = 1


def test_the_same_snapshot_is_handed_out_until_something_changes(bank):
    first = change(bank, add=1)
    assert bank.snapshot() is first
    assert change(bank, credit=[1]) is not first


def test_what_takes_a_memory_s_place_changes_its_row(bank):
    change(bank, add=2)
    with bank.storage.writing() as writing:
        writing.replace({2: ones("later", question_id="r", category="time", uses=9)})
    snapshot = bank.snapshot()
    assert snapshot.ids.tolist() == [1, 2]
    assert snapshot.origins.tolist() == snapshot.categories.tolist() == [0, 1]
    assert snapshot.uses.tolist() == [0, 0]


def test_forgotten_rows_are_left_behind_when_the_bank_grows(bank):
    change(bank, add=250)
    change(bank, forget=range(1, 241))
    snapshot = change(bank, add=251, credit=[245])
    assert snapshot.ids.tolist() == [*range(241, 502)]
    assert snapshot.alive.all()
    assert change(bank, forget=[501], credit=[245]).uses[4] == 2


@pytest.mark.parametrize("grown", [0, 600], ids=["its row is there", "its row is gone"])
def test_what_a_restore_brings_back_is_seen_again(bank, grown):
    change(bank, add=3, credit=[1])
    number = bank.storage.sequence()
    change(bank, forget=[1, 2], credit=[3])
    change(bank, add=grown)
    bank.storage.restore(number)
    snapshot = bank.snapshot()
    alive = dict(zip(snapshot.ids[snapshot.alive].tolist(), snapshot.uses[snapshot.alive].tolist(), strict=True))
    assert alive == {1: 1, 2: 0, 3: 0}
    assert (snapshot.questions[snapshot.alive] == 1).all()


def test_threads_that_look_while_others_write_see_whole_states(bank):
    """Every credit gives all ten memories a use and a win, so in no state do they differ."""
    change(bank, add=10)
    wrong, done = [], threading.Event()

    def look():
        last = 0
        while not done.is_set():
            snapshot = bank.snapshot()
            uses, wins = (set(column[:10].tolist()) for column in (snapshot.uses, snapshot.wins))
            if uses != wins or len(uses) != 1 or snapshot.sequence < last or len(snapshot.ids) != len(snapshot.alive):
                wrong.append(snapshot)
            last = snapshot.sequence

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        with bank.storage.writing() as writing:
            writing.add([ones(f"e{number}") for number in range(20)])
            writing.credit([Credit("e", "q", tuple(range(1, 11)), won=True)])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    snapshot = bank.snapshot()
    assert snapshot.ids.tolist() == [*range(1, 10 + 25 * 20 + 1)]
    assert (snapshot.uses[:10] == 25).all()


def test_threads_that_look_at_the_same_moment_take_a_change_in_once(bank, monkeypatch):
    meeting, update = threading.Barrier(2), bank._update

    def meet(*arguments):
        with suppress(threading.BrokenBarrierError):  # nobody comes: they take turns
            meeting.wait(0.1)
        update(*arguments)

    monkeypatch.setattr(bank, "_update", meet)
    with bank.storage.writing() as writing:
        writing.add([ones("a"), ones("b")])
    threads = [threading.Thread(target=bank.snapshot) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    snapshot = change(bank, add=1, credit=[1])
    assert snapshot.ids.tolist() == [1, 2, 3]
    assert snapshot.uses.tolist() == [1, 0, 0]


def test_another_encoder_is_refused(bank, path):
    class Other(Letters):
        id = "other"

    with pytest.raises(ConfigError, match="MIA_ENCODER"):
        Bank.open(path, Other())
