import asyncio
import threading
from contextlib import closing

import numpy as np
import pytest

from mia.errors import ConfigError, StorageError
from mia.memory.bank import Bank
from mia.memory.manager import Manager
from mia.memory.recall import RecallRule
from mia.memory.storage import Storage, Writing
from mia.types import (
    Attempt,
    Episode,
    Failure,
    ImageRef,
    Key,
    Label,
    Plan,
    Question,
    Recall,
    Said,
    StopReason,
    Trajectory,
    Verdict,
    Workflow,
)

RULE = RecallRule("three_term", each=2, floor=0.3)
IMAGE = ImageRef(sha256="0", mime="image/png", width=1, height=1)


class Letters:
    """Counts letters: enough of an encoder to tell texts apart, and fast."""

    id = "letters"
    dimensions = 64

    def encode(self, texts):
        rows = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for letter in text.replace("\u00a0", " ").strip():
                row[ord(letter) % self.dimensions] += 1
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)


class Fixed:
    """Compresses every episode to what its first plan says."""

    def __init__(self):
        self.calls = 0

    async def compress(self, episode):
        self.calls += 1
        return episode.attempts[0].plan.text


def episode(
    text, label=Label.CORRECT, *, summary="1. look", number=0, shown=(), caption="", question_id=None, images=(), **more
):
    said = Said(raw=summary, text=summary, model="m")
    verdict = None if label is None else Verdict(label=label, judge="test")
    trajectory = Trajectory(steps=(), answer="a", stop=StopReason.ANSWERED)
    question = Question(id=question_id or text, text=text, caption=caption, images=images)
    memories = [
        (Workflow(id=i, question="", summary="", plan="", correct=True, question_id="", episode="", created=0.0), 1.0)
        for i in shown
    ]
    return Episode(
        key=Key(run="run", question_id=question.id, rollout=number),
        question=question,
        recall=Recall(successes=tuple(memories)),
        attempts=(Attempt(plan=Plan(said=said), trajectory=trajectory, verdict=verdict),),
        **more,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.sqlite"


@pytest.fixture
def manager(path):
    with closing(Manager(Bank.open(path, Letters()), Letters(), Fixed(), RULE)) as manager:
        yield manager


def remember(manager, *episodes):
    async def all_of_them():
        for each in episodes:
            await manager.remember(each)

    asyncio.run(all_of_them())


def recall(manager, text, **more):
    return asyncio.run(manager.recall(Question(id="asked", text=text, **more)))


def kept(manager):
    return [(memory.question, memory.correct, memory.summary) for memory in reversed(manager.bank.storage.list(1000))]


def test_what_is_remembered_is_recalled(manager):
    remember(manager, episode("capital of France"), episode("capital of Italy", Label.INCORRECT), episode("zzzz"))
    shown = recall(manager, "capital of Francia")
    assert [memory.question for memory, _ in shown.successes] == ["capital of France"]
    assert [memory.question for memory, _ in shown.failures] == ["capital of Italy"]
    assert shown.ids == (1, 2)
    (memory, score), *_ = shown.successes
    assert (memory.plan, memory.summary, memory.model, memory.episode) == (
        "1. look",
        "1. look",
        "m",
        "run/0/capital of France/0",
    )
    assert 0.3 * 0.7 < score <= 0.85


def test_an_empty_bank_recalls_nothing(manager):
    assert recall(manager, "anything") == Recall()


def test_recall_encodes_and_calls_no_model(manager):
    remember(manager, episode("abc"))
    calls = manager._compressor.calls
    recall(manager, "abc")
    assert manager._compressor.calls == calls


@pytest.mark.parametrize(
    "passed_over",
    [
        episode("a", failure=Failure(service="search", message="down")),
        episode("a", None),
        episode("a", Label.JUDGE_ERROR),
        episode("a").model_copy(update={"attempts": ()}),
    ],
    ids=["failed", "no verdict", "judge error", "no attempt"],
)
def test_an_episode_without_a_grade_is_passed_over(manager, passed_over):
    remember(manager, episode("b"), passed_over.model_copy(update={"recall": episode("b", shown=[1]).recall}))
    assert kept(manager) == [("b", True, "1. look")]
    assert manager.bank.storage.get(1).uses == 0


def test_only_a_correct_last_attempt_is_a_success(manager):
    twice = episode("b").model_copy(
        update={"attempts": (*episode("b").attempts, *episode("b", Label.NOT_ATTEMPTED).attempts)}
    )
    remember(manager, episode("a", Label.NOT_ATTEMPTED), twice)
    assert [correct for _, correct, _ in kept(manager)] == [False, False]


def test_shown_memories_are_credited_by_id(manager):
    remember(manager, episode("aa"), episode("bb"))
    remember(manager, episode("cc", shown=[2, 1, 77]), episode("dd", Label.INCORRECT, shown=[2]))
    counts = {memory.id: (memory.uses, memory.wins) for memory in manager.bank.storage.list()}
    assert (counts[1], counts[2]) == ((1, 1), (2, 1))
    shown = recall(manager, "bb").successes[0][0]
    assert (shown.id, shown.uses, shown.wins) == (2, 2, 1)


def test_the_score_follows_the_credits(manager):
    remember(manager, episode("aa"), episode("cc", Label.INCORRECT, shown=[1]))
    assert recall(manager, "aa").successes[0][1] == pytest.approx(0.7 + 0 + 0.15 / 2)


def test_memories_are_credited_whatever_becomes_of_the_new_one(manager):
    remember(manager, episode("aa"), episode("aa", summary="longer than that", number=1, shown=[1]))
    assert kept(manager) == [("aa", True, "1. look")]
    assert manager.bank.storage.get(1).uses == 1


def test_an_episode_is_remembered_once(manager):
    remember(manager, episode("aa"), episode("bb", shown=[1]))
    before, calls = manager.bank.storage.stats(), manager._compressor.calls
    remember(manager, episode("bb", shown=[1]), episode("bb", Label.INCORRECT, shown=[1]))
    assert manager.bank.storage.stats() == before
    assert manager._compressor.calls == calls


def test_an_episode_whose_memory_was_not_kept_is_not_credited_twice(manager):
    remember(manager, episode("aa"), *[episode("aa", summary="longer than that", number=1, shown=[1])] * 2)
    assert manager.bank.storage.get(1).uses == 1


def test_a_shorter_success_replaces_a_longer_one_and_inherits_its_counts(manager):
    remember(manager, episode("aa", summary="a long road"), episode("bb", shown=[1]))
    remember(manager, episode("aa", summary="short", number=1))
    assert kept(manager) == [("bb", True, "1. look"), ("aa", True, "short")]
    memory = recall(manager, "aa").successes[0][0]
    assert (memory.id, memory.uses, memory.wins) == (3, 1, 1)


def test_a_success_is_never_replaced_by_a_failure(manager):
    remember(manager, episode("aa", summary="a long road"), episode("aa", Label.INCORRECT, summary="x", number=1))
    assert kept(manager) == [("aa", True, "a long road"), ("aa", False, "x")]


def test_a_success_and_a_failure_of_one_question_stand_side_by_side_in_either_order(manager):
    remember(manager, episode("aa", Label.INCORRECT, summary="x"), episode("aa", summary="y", number=1))
    assert kept(manager) == [("aa", False, "x"), ("aa", True, "y")]


def test_the_latest_failure_replaces_the_earlier_one(manager):
    remember(
        manager,
        episode("aa", Label.INCORRECT, summary="x"),
        episode("aa", Label.NOT_ATTEMPTED, summary="a longer road", number=1),
    )
    assert kept(manager) == [("aa", False, "a longer road")]


def test_questions_with_and_without_caption_are_not_the_same(manager):
    remember(manager, episode("aa"), episode("aa", caption="bb", number=1), episode("aa", caption="cc", number=2))
    assert len(kept(manager)) == 3


def test_images_without_captions_are_not_taken_for_one_another(manager):
    remember(
        manager,
        episode("what is this", question_id="1", images=(IMAGE,)),
        episode("what is this", question_id="2", images=(IMAGE,)),
        episode("what is this", question_id="2", images=(IMAGE,), summary="x", number=1),
    )
    assert [summary for _, _, summary in kept(manager)] == ["1. look", "x"]


def test_blank_questions_are_kept_apart(manager):
    remember(manager, episode(" ", question_id="1"), episode(" ", question_id="2"))
    assert len(kept(manager)) == 2


def test_a_benchmark_question_does_not_see_memories_of_itself(path):
    rule = RecallRule(exclude_same_question=True)
    with closing(Manager(Bank.open(path, Letters()), Letters(), Fixed(), rule)) as manager:
        remember(manager, episode("aa", question_id="q\ud800"), episode("aab", question_id="other"))
        seen = asyncio.run(manager.recall(Question(id="q\ud800", text="aa")))
        assert [memory.question for memory, _ in seen.successes] == ["aab"]


@pytest.mark.parametrize(
    "text", ["東京の人口は? 🗼", "NUL \x00 here", "lone \ud83d surrogate", "👩‍👩‍👧", "x" * 100_000]
)
def test_any_text_is_remembered_and_recalled(manager, text):
    remember(manager, episode(text, summary=text, caption=text))
    clean = text.replace("\x00", "\ufffd").replace("\ud83d", "\ufffd")
    (memory, _), *_ = recall(manager, text, caption=text).successes
    assert (memory.question, memory.caption, memory.summary) == (clean, clean, clean)


def test_a_forgotten_memory_is_not_recalled(manager):
    remember(manager, episode("aa"))
    assert recall(manager, "aa").ids == (1,)
    manager.bank.storage.forget(1)
    assert recall(manager, "aa").ids == ()


def test_what_another_process_writes_is_recalled(manager, path):
    with closing(Manager(Bank.open(path, Letters()), Letters(), Fixed(), RULE)) as other:
        remember(other, episode("aa"))
        assert recall(manager, "aa").ids == (1,)
        remember(manager, episode("aa", summary="no shorter", number=1), episode("bb", shown=[1]))
        assert [memory.id for memory in other.bank.storage.list()] == [2, 1]
        assert recall(other, "aa").successes[0][0].uses == 1
        other.bank.storage.forget(1)
    assert recall(manager, "aa").ids == ()


def test_a_bank_opens_again_without_encoding(path):
    with closing(Manager(Bank.open(path, Letters()), Letters(), Fixed(), RULE)) as manager:
        remember(manager, *[episode(f"question {number}") for number in range(5)], episode("x", caption="cc"))
        before = manager.bank.snapshot()
    with closing(Bank(Storage(path, "letters"), 64)) as bank:
        after = bank.snapshot()
    assert before.sequence == after.sequence
    for name in ("ids", "correct", "captioned", "alive", "uses", "wins", "questions", "captions"):
        assert np.array_equal(getattr(before, name), getattr(after, name))


def change(bank, *, add=0, forget=(), credit=()):
    with bank.storage.writing() as writing:
        start = bank.storage.sequence()
        for memory_id in forget:
            writing.forget(memory_id)
        for number in range(add):
            key = f"{start}-{number}"
            memory = Workflow(
                id=0, question="", summary="", plan="", correct=True, question_id="q", episode=key, created=0.0
            )
            writing.add(memory, np.ones(64, np.float32), np.zeros(64, np.float32))
        writing.credit(credit, question_id="q", episode=f"{start}", won=True)
    return bank.snapshot()


def test_a_snapshot_never_changes(manager):
    held = change(manager.bank, add=2)
    copy = {name: np.copy(value) for name, value in vars(held).items()}
    for _ in range(40):
        change(manager.bank, add=10, credit=[1])
    latest = change(manager.bank, forget=[2])
    assert latest.uses[0] == latest.wins[0] == 40
    assert latest.alive.tolist() == [True, False] + [True] * 400
    assert all(np.array_equal(copy[name], value) for name, value in vars(held).items())
    with pytest.raises(ValueError, match="read-only"):
        held.uses[0] = 1


def test_forgotten_rows_are_left_behind_when_the_bank_grows(manager):
    change(manager.bank, add=250)
    change(manager.bank, forget=range(1, 241))
    snapshot = change(manager.bank, add=251, credit=[245])
    assert snapshot.ids.tolist() == [*range(241, 502)]
    assert snapshot.alive.all()
    assert change(manager.bank, forget=[501], credit=[245]).uses[4] == 2


def test_sixty_four_tasks_lose_nothing(manager):
    async def work(task):
        for turn in range(4):
            shown = await manager.recall(Question(id="?", text=f"{task} {turn}"))
            assert all(memory.id >= 1 for memory, _ in (*shown.successes, *shown.failures))
            text = "same" if turn == 3 else chr(0x4E00 + 4 * task + turn) * 3 + f" {task} {turn}"
            await manager.remember(episode(text, number=100 * task + turn, shown=[1] if task or turn else []))

    async def all_tasks():
        await manager.remember(episode("first"))
        await asyncio.gather(*(work(task) for task in range(64)))

    asyncio.run(all_tasks())
    with closing(Storage(manager.bank.storage.path)) as storage:
        stats = storage.stats()
        first = storage.get(1)
        questions = [memory.question for memory in storage.list(1000)]
    assert first.uses == first.wins == 64 * 4 - 1
    assert questions.count("same") == 1
    snapshot = manager.bank.snapshot()
    assert stats["memories"] == len(questions) == int(snapshot.alive.sum())
    assert all(manager.bank.storage.remembers(str(episode(f"{q}").key)) for q in ["first"])


def test_a_question_is_encoded_once_and_never_in_the_event_loop(path):
    threads = []

    class Watched(Letters):
        def encode(self, texts):
            threads.append(threading.current_thread() is threading.main_thread())
            return super().encode(texts)

    with closing(Manager(Bank.open(path, Watched()), Watched(), Fixed(), RULE)) as manager:
        recall(manager, "aa")
        remember(manager, episode("aa"))
    assert threads == [False]


def test_another_encoder_is_refused(manager, path):
    class Other(Letters):
        id = "other"

    with pytest.raises(ConfigError, match="MIA_ENCODER"):
        Bank.open(path, Other())


def test_a_bank_that_cannot_be_written_keeps_nothing_and_says_so(manager, monkeypatch):
    remember(manager, episode("aa"))

    def fail(*arguments):
        raise StorageError("full")

    monkeypatch.setattr("mia.memory.storage.Writing.add", fail)
    with pytest.raises(StorageError):
        remember(manager, episode("bb", shown=[1]))
    monkeypatch.undo()
    assert manager.bank.storage.get(1).uses == 0
    remember(manager, episode("bb", shown=[1]))
    assert manager.bank.storage.get(1).uses == 1


def test_the_same_words_in_another_order_are_another_question(manager):
    remember(manager, episode("is ab larger than ba"), episode("is ba larger than ab"))
    assert len(kept(manager)) == 2


def test_spacing_does_not_make_another_question(manager):
    remember(
        manager,
        episode("is a b larger"),
        episode("is a  b larger".replace("  ", "\u00a0"), question_id="2", summary="x"),
    )
    assert [summary for _, _, summary in kept(manager)] == ["x"]


def test_a_benchmark_question_does_not_see_itself_under_another_id(path):
    rule = RecallRule(floor=-1.0, exclude_same_question=True)
    with closing(Manager(Bank.open(path, Letters()), Letters(), Fixed(), rule)) as manager:
        remember(manager, episode("aa bb", question_id="ask-1"), episode("cc", question_id="2"))
        assert [memory.question for memory, _ in recall(manager, "aa bb").successes] == ["cc"]


def test_a_cancelled_record_takes_no_other_with_it(manager):
    async def story():
        release = threading.Event()
        manager._writer.submit(release.wait)
        first = asyncio.create_task(manager.remember(episode("aa")))
        await asyncio.sleep(0.05)
        first.cancel()
        second = asyncio.create_task(manager.remember(episode("aa", number=1, summary="x")))
        await asyncio.sleep(0.05)
        release.set()
        await second

    asyncio.run(story())
    assert manager.bank.storage.remembers(str(episode("aa", number=1).key))


def test_what_arrives_together_is_committed_together(manager):
    begun = []
    writing = manager.bank.storage.writing
    manager.bank.storage.writing = lambda: begun.append(1) or writing()

    async def at_once():
        await asyncio.gather(*(manager.remember(episode(chr(0x4E00 + n) * 3)) for n in range(40)))

    asyncio.run(at_once())
    assert len(kept(manager)) == 40
    assert len(begun) < 40


def test_a_record_that_cannot_be_written_leaves_its_neighbours_alone(manager, monkeypatch):
    credit = Writing.credit

    def fail_for_one(self, ids, *, question_id, **more):
        if question_id == "bad":
            raise StorageError("odd")
        return credit(self, ids, question_id=question_id, **more)

    monkeypatch.setattr(Writing, "credit", fail_for_one)

    async def at_once():
        texts = ["bad", *(chr(0x4E00 + n) * 3 for n in range(10))]
        return await asyncio.gather(*(manager.remember(episode(text)) for text in texts), return_exceptions=True)

    results = asyncio.run(at_once())
    assert isinstance(results[0], StorageError)
    assert results[1:] == [None] * 10
    assert len(kept(manager)) == 10
    assert not manager.bank.storage.remembers(str(episode("bad").key))


def test_a_write_that_breaks_off_is_never_taken_for_a_memory(manager, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Writing, "take_in", broken)

    async def at_once():
        return await asyncio.gather(*(manager.remember(episode(text)) for text in ("aa", "bb")), return_exceptions=True)

    results = asyncio.run(at_once())
    assert all(isinstance(result, RuntimeError | StorageError) for result in results)
    assert kept(manager) == []
