import asyncio
import threading
from contextlib import closing, suppress

import pytest

import mia.memory.threads
from mia.errors import StorageError
from mia.memory.group_commit import BATCH, GroupCommit
from mia.memory.storage import Storage


@pytest.fixture
def storage(tmp_path):
    with closing(Storage(tmp_path / "memory.sqlite", "e")) as storage:
        yield storage


class Commits(GroupCommit):
    """Takes names in; notes the batches it is asked to write. "bad" cannot be written, "fault" breaks off."""

    def __init__(self, storage):
        super().__init__(storage, self.take_in)
        self.asked = []

    def take_in(self, writing, names):
        self.asked.append(names)
        if "fault" in names:
            raise RuntimeError("a fault of ours")
        writing.take_in(names)
        if "bad" in names:
            raise StorageError("odd")

    async def at_once(self, *names):
        """Submit names while the writer is held up; return what each submission returned or raised."""
        held = threading.Event()
        self._writer.submit(held.wait)
        tasks = [asyncio.create_task(self.submit(name)) for name in names]
        await asyncio.sleep(0)  # each task has run up to where it waits
        held.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def commits(storage):
    with closing(Commits(storage)) as commits:
        yield commits


def names(*numbers):
    return [f"n{number}" for number in range(*numbers)]


def test_what_arrives_together_is_one_transaction_in_order(storage, commits):
    transactions = []
    writing = storage.writing
    storage.writing = lambda: transactions.append(1) or writing()
    assert asyncio.run(commits.at_once(*names(40))) == [None] * 40
    assert commits.asked == [names(40)]
    assert transactions == [1]
    assert all(map(storage.remembers, names(40)))


def test_a_transaction_takes_so_many_and_no_more(commits):
    assert asyncio.run(commits.at_once(*names(150))) == [None] * 150
    assert commits.asked == [names(BATCH), names(BATCH, 2 * BATCH), names(2 * BATCH, 150)]


def test_one_that_comes_alone_is_written_at_once(storage, commits):
    async def one_by_one():
        for name in names(3):
            await commits.submit(name)
            assert storage.remembers(name)

    asyncio.run(one_by_one())
    assert commits.asked == [["n0"], ["n1"], ["n2"]]


def test_a_submission_returns_when_it_is_on_disk(storage, commits):
    async def look(name):
        await commits.submit(name)
        with closing(Storage(storage.path)) as other:
            return other.remembers(name)

    async def story():
        return await asyncio.gather(*map(look, names(10)))

    assert asyncio.run(story()) == [True] * 10


def test_one_that_cannot_be_written_leaves_its_neighbours_alone(storage, commits):
    results = asyncio.run(commits.at_once("a", "bad", "b", "bad", "c"))
    assert [type(result) for result in results] == [type(None), StorageError] * 2 + [type(None)]
    assert commits.asked == [["a", "bad", "b", "bad", "c"], ["a"], ["bad"], ["b"], ["bad"], ["c"]]
    assert [storage.remembers(name) for name in ("a", "bad", "b", "c")] == [True, False, True, True]


def test_a_transaction_that_does_not_go_through_fails_all_of_it_and_none_of_the_next(storage, commits):
    writing = storage.writing

    def full():
        storage.writing = writing
        raise StorageError("full")

    storage.writing = full
    results = asyncio.run(commits.at_once(*names(BATCH + 2)))
    assert [type(result) for result in results] == [StorageError] * BATCH + [type(None)] * 2
    assert [storage.remembers(name) for name in names(BATCH + 2)] == [False] * BATCH + [True] * 2


def test_a_fault_is_never_taken_for_success_and_what_comes_later_is_written(storage, commits):
    results = asyncio.run(commits.at_once("a", "fault", "b"))
    assert [type(result) for result in results] == [RuntimeError, StorageError, StorageError]
    assert asyncio.run(commits.at_once("c", "d")) == [None, None]
    assert [storage.remembers(name) for name in "abcd"] == [False, False, True, True]


def test_a_submission_that_is_cancelled_takes_no_other_with_it(storage, commits):
    async def story():
        held = threading.Event()
        commits._writer.submit(held.wait)
        tasks = [asyncio.create_task(commits.submit(name)) for name in names(5)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        held.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(story())
    assert [type(result) for result in results] == [asyncio.CancelledError, type(None)] * 2 + [asyncio.CancelledError]
    assert all(map(storage.remembers, ["n1", "n3"]))


@pytest.mark.parametrize("again", [True, False], ids=["another follows", "none follows"])
def test_what_all_have_given_up_waiting_for_does_no_harm(storage, commits, again):
    async def story():
        held = threading.Event()
        commits._writer.submit(held.wait)
        tasks = [asyncio.create_task(commits.submit(name)) for name in names(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
        held.set()
        if again:
            await commits.submit("later")

    asyncio.run(story())
    assert storage.remembers("later") is again


def test_closing_writes_what_waits(storage, commits):
    async def story():
        held = threading.Event()
        commits._writer.submit(held.wait)
        tasks = [asyncio.create_task(commits.submit(name)) for name in names(100)]
        await asyncio.sleep(0)
        closed = asyncio.create_task(asyncio.to_thread(commits.close))
        await asyncio.sleep(0)
        held.set()
        await closed
        assert all(map(storage.remembers, names(100)))
        return await asyncio.gather(*tasks)

    assert asyncio.run(story()) == [None] * 100


def test_what_was_late_is_written_with_the_next(storage, commits, monkeypatch):
    async def story():
        held = threading.Event()
        commits._writer.submit(held.wait)
        with monkeypatch.context() as patched:
            patched.setattr(mia.memory.threads, "SECONDS", 0)
            with pytest.raises(StorageError, match="did not answer"):
                await commits.submit("late")
        held.set()
        await commits.submit("next")

    asyncio.run(story())
    assert commits.asked == [["late", "next"]]


def test_after_closing_nothing_is_taken_for_written(storage, commits):
    commits.close()
    with pytest.raises(RuntimeError):
        asyncio.run(commits.submit("late"))
    assert not storage.remembers("late")


def test_several_event_loops_may_write_to_one_bank_at_the_same_time(storage, commits):
    done = []

    def work(start):
        done.append(asyncio.run(commits.at_once(*names(start, start + 30))))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 120, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [[None] * 30] * 4
    assert all(map(storage.remembers, names(120)))
    assert sorted(name for batch in commits.asked for name in batch) == sorted(names(120))
