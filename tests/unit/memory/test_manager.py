import asyncio
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from episodes import RULE, Fixed, Letters, at_once, counts, episode, kept, managed, recall, remember, together
from hypothesis import given, settings
from hypothesis import strategies as st
from kept import fresh
from scripted import ScriptedModels

from mia.errors import InputError, ModelUnavailable, StorageError
from mia.memory.bank import Bank
from mia.memory.compress import Summary
from mia.memory.describe import Describer
from mia.memory.manager import Manager
from mia.memory.recall import RecallRule
from mia.memory.storage import Storage
from mia.memory.twins import twin
from mia.memory.writing import Credit, Vectors, Writing
from mia.types import Failure, ImageRef, Label, Question, Recall

ZEROS = {"vector": np.zeros(64), "caption": np.zeros(64)}
IMAGE = ImageRef(sha256="0", mime="image/png", width=1, height=1)


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
    assert counts(manager) == {1: (1, 1), 2: (2, 1), 3: (0, 0), 4: (0, 0)}
    shown = recall(manager, "bb").successes[0][0]
    assert (shown.id, shown.uses, shown.wins) == (2, 2, 1)


def test_the_score_follows_the_credits(manager):
    remember(manager, episode("aa"), episode("cc", Label.INCORRECT, shown=[1]))
    assert recall(manager, "aa").successes[0][1] == pytest.approx(0.7 + 0 + 0.15 / 2)


@pytest.mark.parametrize(
    ("label", "summary", "left"),
    [
        (Label.CORRECT, "longer than that", [("aa", True, "1. look")]),
        (Label.CORRECT, "short", [("aa", True, "short")]),
        (Label.INCORRECT, "x", [("aa", True, "1. look"), ("aa", False, "x")]),
    ],
    ids=["not kept", "replaced", "added"],
)
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "in one batch"])
def test_memories_are_credited_whatever_becomes_of_the_new_one(manager, label, summary, left, at_once):
    remember(manager, episode("aa"))
    later = [episode("aa", label, summary=summary, number=1, shown=[1, 1]), episode("b", number=2, shown=[1])]
    if at_once:
        assert together(manager, manager.remember, later) == [None, None]
    else:
        remember(manager, *later)
    assert [each for each in kept(manager) if each[0] == "aa"] == left
    assert counts(manager)[1] == (2, 2 if label is Label.CORRECT else 1)


def test_an_episode_is_remembered_once(manager):
    remember(manager, episode("aa"), episode("bb", shown=[1]))
    before, calls = manager.bank.storage.stats(), manager._compressor.calls
    remember(manager, episode("bb", shown=[1]), episode("bb", Label.INCORRECT, shown=[1]))
    assert manager.bank.storage.stats() == before
    assert manager._compressor.calls == calls


def test_an_episode_whose_memory_was_not_kept_is_not_credited_twice(manager):
    remember(manager, episode("aa"), *[episode("aa", summary="longer than that", number=1, shown=[1])] * 2)
    assert manager.bank.storage.get(1).uses == 1


def test_what_was_withheld_is_not_credited(manager):
    remember(manager, episode("aa"), episode("bb"), episode("cc", shown=[1], withheld=(2, 99)))
    assert counts(manager) == {1: (1, 1), 2: (0, 0), 3: (0, 0)}


def test_a_shorter_success_takes_the_place_of_a_longer_one_and_inherits_its_id_and_counts(manager):
    remember(manager, episode("a a", summary="a long road"), episode("bb", Label.INCORRECT, shown=[1]))
    before = manager.bank.snapshot()
    remember(manager, episode("A  A", summary="short", number=1, question_id="q2"))
    (memory, _), *_ = recall(manager, "a a").successes
    assert (memory.id, memory.uses, memory.wins) == (1, 1, 0)
    assert (memory.question, memory.summary, memory.plan) == ("a a", "short", "short")
    assert (memory.question_id, memory.episode) == ("q2", "run/0/q2/1")
    after = manager.bank.snapshot()
    assert after.ids.tolist() == before.ids.tolist() == [1, 2]
    assert (after.questions == before.questions).all()


def test_a_success_that_is_no_shorter_is_not_kept(manager):
    remember(manager, episode("aa", summary="12345"), episode("aa", summary="abcde", number=1))
    assert kept(manager) == [("aa", True, "12345")]


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


def test_a_benchmark_question_does_not_see_memories_of_itself(path):
    rule = RecallRule(exclude_same_question=True)
    with closing(managed(path, rule)) as manager:
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
    with closing(managed(path)) as other:
        remember(other, episode("aa"))
        assert recall(manager, "aa").ids == (1,)
        remember(manager, episode("aa", summary="no shorter", number=1), episode("bb", shown=[1]))
        assert [memory.id for memory in other.bank.storage.list()] == [2, 1]
        assert recall(other, "aa").successes[0][0].uses == 1
        other.bank.storage.forget(1)
    assert recall(manager, "aa").ids == ()


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
        keys = {str(episode("same", number=100 * task + 3).key) for task in range(64)}
        assert all(map(storage.remembers, keys))
    assert first.uses == first.wins == 64 * 4 - 1
    assert questions.count("same") == 1
    assert len(questions) == 1 + 64 * 3 + 1
    snapshot = manager.bank.snapshot()
    assert stats["memories"] == len(questions) == int(snapshot.alive.sum())
    assert snapshot.uses[0] == first.uses


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


def words(text, caption="", *, question_id="q", images=()):
    return twin(Question(id=question_id, text=text, caption=caption, images=images))


@pytest.mark.parametrize("same", ["is a b?", " IS  A\u00a0B?\n", "ｉｓ ａ ｂ？", "is a b\u037e"[:-1] + "?"])
def test_case_width_and_spacing_do_not_make_another_question(same):
    assert words(same, question_id="other") == words("Is a b?")


def test_other_words_another_order_or_another_caption_make_another_question():
    texts = ["is ab larger than ba", "is ba larger than ab", "isab larger than ba", "東京", "京東", "a\x00b", "a", ""]
    seen = [words(text, caption) for text in texts for caption in ("", "b", "a b")]
    assert len(set(seen)) == len(seen)


def test_blank_questions_are_kept_apart(manager):
    remember(manager, episode(" ", question_id="1"), episode(" ", question_id="2"))
    assert len(kept(manager)) == 2


def test_a_blank_caption_is_no_caption():
    assert words("a", " \n") == words("a")


def test_images_that_nobody_has_described_are_told_apart_by_the_question_s_id():
    assert words("a", images=(IMAGE,)) != words("a", images=(IMAGE,), question_id="r")
    assert words("a", "a cat", images=(IMAGE,)) == words("a", "a cat", images=(IMAGE,), question_id="r")
    assert words("a", images=(IMAGE,), question_id="\ud800") == words("a", images=(IMAGE,), question_id="\ufffd")


def test_a_benchmark_question_does_not_see_itself_under_another_id(path):
    rule = RecallRule(floor=-1.0, exclude_same_question=True)
    with closing(managed(path, rule)) as manager:
        remember(manager, episode("aa bb", question_id="ask-1"), episode("cc", question_id="2"))
        assert [memory.question for memory, _ in recall(manager, "aa bb").successes] == ["cc"]


def test_a_benchmark_question_with_images_does_not_see_itself_under_another_id(path):
    """A later success of the same words and caption takes the place of an earlier one, and its id for the question."""
    rule = RecallRule(floor=-1.0, exclude_same_question=True)
    asked = {"caption": "red", "images": (IMAGE,)}
    with closing(managed(path, rule)) as manager:
        remember(
            manager,
            episode("aa", question_id="1", **asked),
            episode("aa", question_id="2", summary="1. x", **asked),
            episode("aa", question_id="3", caption="blue", images=(IMAGE,)),
            episode("aa", question_id="4", images=(IMAGE,)),
        )
        seen = asyncio.run(manager.recall(Question(id="1", text="aa", **asked)))
        assert sorted(memory.question_id for memory, _ in seen.successes) == ["3", "4"]
        undescribed = asyncio.run(manager.recall(Question(id="4", text="aa", images=(IMAGE,))))
        assert sorted(memory.question_id for memory, _ in undescribed.successes) == ["2", "3"]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "A", "b"]),
            st.sampled_from([Label.CORRECT, Label.INCORRECT]),
            st.integers(1, 4),
            st.integers(0, 3),
            st.lists(st.integers(1, 3), max_size=3),
        ),
        max_size=8,
    )
)
def test_a_batch_leaves_what_its_episodes_leave_one_by_one(program):
    """Same question, same episode and shared credits included."""
    seeds = [episode("a", summary="12345"), episode("b", Label.INCORRECT), episode("c")]
    episodes = [
        episode(text, label, summary="x" * length, number=number, shown=shown, question_id=text.lower(), run="later")
        for text, label, length, number, shown in program
    ]
    left = []
    for batch in (False, True):
        with tempfile.TemporaryDirectory() as folder, closing(managed(Path(folder) / "bank")) as manager:
            remember(manager, *seeds)
            if batch:
                assert together(manager, manager.remember, episodes) == [None] * len(episodes)
            else:
                remember(manager, *episodes)
            fields = {"id", "summary", "correct", "uses", "wins", "episode", "plan"}
            left.append([memory.model_dump(include=fields) for memory in manager.bank.storage.list(None)])
    assert left[0] == left[1]


def test_of_one_episode_in_a_batch_the_first_counts(manager):
    remember(manager, episode("a"))
    twice = [episode("b", shown=[1]), episode("b", Label.INCORRECT, summary="x", shown=[1])]
    assert together(manager, manager.remember, twice) == [None, None]
    assert kept(manager) == [("a", True, "1. look"), ("b", True, "1. look")]
    assert counts(manager)[1] == (1, 1)


class Watched(Letters):
    """Notes each text it encodes, and refuses to in the event loop."""

    def __init__(self):
        self.texts = []

    def encode(self, texts):
        assert threading.current_thread() is not threading.main_thread()
        self.texts += texts
        return super().encode(texts)


def test_a_question_is_encoded_once_and_never_in_the_event_loop(path):
    encoder = Watched()
    with closing(Manager(Bank.open(path, encoder), encoder, Fixed(), RULE)) as manager:
        recall(manager, "aa")
        remember(manager, episode("aa"))
    assert encoder.texts == ["aa", ""]


def test_a_memory_whose_vectors_are_given_is_kept_once_and_not_encoded(path):
    encoder = Watched()
    with closing(Manager(Bank.open(path, encoder), encoder, Fixed(), RULE)) as manager:
        vector = np.eye(64, dtype=np.float32)[3]
        given = fresh("made elsewhere", vector=vector, caption=np.zeros(64), question="?")
        vote = Credit("made elsewhere", "q", (1,), won=True)

        async def story():
            await manager.insert(fresh("first", vector=vector, caption=vector))
            await asyncio.gather(*(manager.insert(given, vote) for _ in range(3)))

        asyncio.run(story())
        assert encoder.texts == []
        assert counts(manager) == {1: (1, 1), 2: (0, 0)}
        snapshot = manager.bank.snapshot()
        assert (snapshot.questions == vector).all()
        assert snapshot.captioned.tolist() == [True, False]


@pytest.mark.parametrize("vector", [np.ones(63), np.ones((2, 32)), np.ones(0)], ids=["short", "folded", "empty"])
def test_vectors_that_are_not_the_encoder_s_are_refused(manager, vector):
    """They would lie in the bank and break every recall."""
    with pytest.raises(InputError, match="length 64"):
        asyncio.run(manager.insert(fresh(vector=vector, caption=np.zeros(64))))
    with pytest.raises(InputError, match="float64"):
        asyncio.run(manager.insert(fresh()._replace(vectors=Vectors(np.ones(64), np.zeros(64)))))
    assert kept(manager) == []


def described(path, models, rule=RULE, *, captions=True, categories=False):
    manager = managed(path, rule)
    manager._describer = Describer(models, manager.bank.storage, captions=captions, categories=categories)
    return closing(manager)


def test_no_model_is_asked_about_a_question_without_images_or_with_a_caption(path):
    models = ScriptedModels(executor=["a cat"])
    with described(path, models) as manager:
        remember(manager, episode("aa"), episode("bb", caption="seen", images=(IMAGE,)))
        assert recall(manager, "aa").caption == ""
        assert recall(manager, "bb", caption="seen", images=(IMAGE,)).caption == ""
        assert manager._compressor.calls == 2
    assert models.asked == []


def test_a_caption_that_was_found_is_told_ranked_by_and_asked_for_once(path):
    models = ScriptedModels(executor=["zzzz"])
    with described(path, models) as manager:
        remember(manager, episode("what is this", caption="yyyy"), episode("what is this", caption="zzzz", number=1))
        shown = recall(manager, "what is this", images=(IMAGE,))
        assert shown.caption == "zzzz"
        assert shown.ids == (2, 1)
        assert [score for _, score in shown.successes] == pytest.approx([0.7 + 0.15, 0.7 * 0.8 + 0.15])
        assert recall(manager, "what is this", caption=" ", images=(IMAGE,)) == shown
        remember(manager, episode("who", images=(IMAGE,)))
        assert manager.bank.storage.get(3).caption == "zzzz"
        assert manager.counts == {}
    assert len(models.asked) == 1


def test_a_caption_that_could_not_be_had_is_counted_and_asked_for_again(path):
    models = ScriptedModels(executor=[ModelUnavailable("down", service="model"), "zzzz"])
    with described(path, models) as manager:
        assert recall(manager, "what", images=(IMAGE,)).caption == ""
        assert manager.counts == {"caption": 1}
        assert recall(manager, "what", images=(IMAGE,)).caption == "zzzz"


def test_with_categories_only_memories_of_the_question_s_own_are_shown(path):
    models = ScriptedModels(manager=["time", "location", "location", "event"])
    with described(path, models, RecallRule(by_category=True), categories=True) as manager:
        remember(manager, episode("aaa b"), episode("aaa c"))
        assert [memory.category for memory in manager.bank.storage.list()] == ["location", "time"]
        assert recall(manager, "aaa d").ids == (2,)
        assert recall(manager, "aaa e").ids == ()
        assert recall(manager, "aaa b").ids == (1,)
    assert len(models.asked) == 4


@pytest.fixture
def drafted(manager):
    """A manager whose model was down for the questions a, b and c."""
    manager._compressor.down = True
    remember(manager, *map(episode, "abc"))
    manager._compressor.down = False
    return manager


def waiting(manager):
    return [draft.memory_id for draft in manager.bank.storage.drafts(100)]


def test_a_memory_with_a_stand_in_is_kept_counted_and_waits_to_be_written_again(drafted):
    assert kept(drafted) == [(text, True, "stand-in for 1. look") for text in "abc"]
    assert drafted.counts == {"workflow": 3}
    assert drafted.bank.storage.stats()["drafts"] == 3


def test_each_summary_that_a_model_writes_finishes_one_that_waits(drafted):
    for number, left in enumerate([[2, 3], [3], [], []]):
        remember(drafted, episode("d", number=number, summary="1. found"))
        assert waiting(drafted) == left
    assert [summary for _, _, summary in kept(drafted)] == ["1. look"] * 3 + ["1. found"]
    assert drafted._compressor.calls == 3 + 4 + 3
    assert drafted.counts == {"workflow": 3}


def test_a_stand_in_is_written_again_after_a_restart(drafted, path):
    with closing(managed(path)) as restarted:
        remember(restarted, episode("d"), episode("e"))
        assert waiting(restarted) == [3]


def test_a_stand_in_of_any_text_waits_and_is_written_again(manager):
    manager._compressor.down = True
    strange = "NUL \x00, lone \ud83d, 東京"
    remember(manager, episode(strange, summary=strange))
    manager._compressor.down = False
    remember(manager, episode("b"))
    assert manager.bank.storage.get(1).summary == "NUL \ufffd, lone \ufffd, 東京"
    assert waiting(manager) == []


class Stubborn(Fixed):
    """Never manages some questions."""

    def __init__(self, *texts):
        super().__init__()
        self.texts = texts
        self.asked = []

    async def compress(self, episode):
        self.asked.append(episode.question.text)
        summary = await super().compress(episode)
        return Summary("stand-in", final=False) if episode.question.text in self.texts else summary


def test_a_summary_that_fails_again_waits_on_and_holds_up_no_other(path):
    compressor = Stubborn("a", "b")
    with closing(managed(path, compressor=compressor)) as manager:
        compressor.down = True
        remember(manager, *map(episode, "abc"))
        compressor.down = False
        compressor.asked.clear()
        remember(manager, *map(episode, "defghi"))
        assert waiting(manager) == [1, 2]
        assert manager.bank.storage.get(3).summary == "1. look"
        assert "".join(compressor.asked) == "daebfcghi"


def test_after_the_next_failure_all_are_tried_again(path):
    compressor = Stubborn("a")
    with closing(managed(path, compressor=compressor)) as manager:
        remember(manager, *map(episode, "abcd"))
        compressor.texts = ("x",)
        remember(manager, *map(episode, "xefg"))
        assert waiting(manager) == [5]
        assert manager.bank.storage.get(1).summary == "1. look"


class Gate(Fixed):
    """Waits for leave to write about some question."""

    def __init__(self, text):
        super().__init__()
        self.text = text
        self.may = asyncio.Event()
        self.begun = asyncio.Event()

    async def compress(self, episode):
        if episode.question.text == self.text and not self.down:
            self.begun.set()
            await self.may.wait()
        return await super().compress(episode)


def test_a_stand_in_that_was_replaced_meanwhile_is_left_alone(path):
    gate = Gate("a")
    with closing(managed(path, compressor=gate)) as manager:
        gate.down = True
        remember(manager, episode("a", Label.INCORRECT))
        gate.down = False

        async def story():
            other = asyncio.create_task(manager.remember(episode("b")))
            await gate.begun.wait()
            await manager.insert(latest)
            gate.may.set()
            await other

        latest = fresh("later", twin=twin(Question(id="", text="a")), correct=False, summary="the latest", **ZEROS)
        asyncio.run(story())
        assert manager.bank.storage.get(1).summary == "the latest"
        assert waiting(manager) == []


def test_one_stand_in_is_written_by_one_task_at_a_time(drafted):
    assert at_once(drafted.remember, map(episode, "def")) == [None] * 3
    assert drafted._compressor.calls <= 3 + 3 + 3
    remember(drafted, *map(episode, "ghi"))
    assert waiting(drafted) == []
    assert drafted._compressor.calls == 3 + 6 + 3


def test_a_stand_in_is_tried_again_when_the_task_that_wrote_it_was_cancelled(path):
    gate = Gate("a")
    with closing(managed(path, compressor=gate)) as manager:
        gate.down = True
        remember(manager, episode("a"))
        gate.down = False

        async def story():
            task = asyncio.create_task(manager.remember(episode("b")))
            await gate.begun.wait()
            task.cancel()
            await asyncio.wait([task])
            gate.may.set()
            await manager.remember(episode("c"))

        asyncio.run(story())
        assert waiting(manager) == []


def test_an_episode_that_is_kept_does_not_fail_because_a_stand_in_cannot_be_written(drafted, monkeypatch):
    def fail(*arguments):
        raise StorageError("full")

    monkeypatch.setattr(Writing, "rewrite", fail)
    remember(drafted, episode("d"))
    assert waiting(drafted) == [1, 2, 3]
    monkeypatch.undo()
    remember(drafted, episode("e"))
    assert waiting(drafted) == [2, 3]


def test_a_stand_in_does_not_take_the_place_of_a_success_though_it_is_shorter(manager):
    remember(manager, episode("a", summary="a workflow that a model has written"))
    manager._compressor.down = True
    remember(manager, episode("a", summary="x", number=1), episode("b", Label.INCORRECT, summary="y"))
    assert kept(manager)[0] == ("a", True, "a workflow that a model has written")
    assert waiting(manager) == [2]


def test_what_was_begun_is_written_when_the_manager_is_closed(path):
    manager = managed(path)

    async def story():
        tasks = [asyncio.create_task(manager.remember(episode(chr(0x4E00 + n) * 3))) for n in range(40)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(manager.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(story())
    assert {type(result) for result in results} <= {type(None), RuntimeError}
    with closing(Storage(path)) as storage:
        for number, result in enumerate(results):
            assert result or storage.remembers(str(episode(chr(0x4E00 + number) * 3).key))
