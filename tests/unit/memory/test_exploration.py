import asyncio
import json
from collections import Counter
from contextlib import closing

import pytest
from episodes import Fixed, at_once, counts, episode, kept, managed, recall, remember, together

from mia.errors import StorageError
from mia.memory.compress import Summary
from mia.memory.exploration import choose, graded
from mia.memory.manager import Committed
from mia.memory.recall import RecallRule
from mia.memory.writing import Writing
from mia.types import Failure, Label
from mia.wire.memory_files import workflow_file

RIGHT, WRONG = Label.CORRECT, Label.INCORRECT


def group(text="q", labels=(RIGHT, WRONG), **more):
    """Rollouts of one question, numbered from 0; each summary names its rollout."""
    return [
        episode(text, label, number=number, summary=f"{text}{number}", **more) for number, label in enumerate(labels)
    ]


def explore(manager, *episodes):
    async def one_by_one():
        for each in episodes:
            await manager.explore(each)

    asyncio.run(one_by_one())


def commit(manager, rollouts, step=0, run="run"):
    return asyncio.run(manager.commit(run, step, rollouts))


def state(manager):
    return manager.bank.storage.stats() | {"bytes": 0, "sequence": 0}


def waiting(manager, step=0):
    return {text: len(some) for text, some in manager.bank.storage.explorations("run", step).items()}


def test_of_successes_the_one_of_fewest_turns_is_chosen_and_of_equals_the_first():
    long, short, equal = (episode("q", number=number, turns=turns) for number, turns in ((0, 3), (2, 2), (1, 2)))
    assert choose([long, short, equal]).success is equal
    assert choose([long, short]).success is short
    assert choose([episode("q", WRONG)]).success is None


def test_turns_are_counted_over_both_attempts():
    twice = episode("q", number=0, turns=2)
    twice = twice.model_copy(update={"attempts": twice.attempts * 2})
    once = episode("q", number=1, turns=3)
    assert choose([twice, once]).success is once


def test_the_failure_is_drawn_by_the_group_alone():
    failures = [episode("q", WRONG, number=number) for number in range(8)]
    drawn = choose(failures).failure
    assert all(choose(order).failure is drawn for order in (failures[::-1], failures[4:] + failures[:4]))
    assert choose([episode("q", RIGHT)]).failure is None


def test_over_many_groups_each_failure_is_drawn_about_as_often():
    drawn = Counter(
        choose([episode("q", WRONG, number=number, step=step) for number in range(4)]).failure.key.rollout
        for step in range(400)
    )
    assert sum((count - 100) ** 2 / 100 for count in drawn.values()) < 16.3  # chi square of 3 degrees, p = 0.001
    assert len({choose(group(text, [WRONG] * 4)).failure.key.rollout for text in "abcdefgh"}) > 1


@pytest.mark.parametrize(("right", "wrong", "won"), [(3, 1, True), (2, 2, False), (1, 3, False), (4, 0, True)])
def test_a_group_has_one_vote_and_ties_are_failures(right, wrong, won):
    assert choose(group(labels=[RIGHT] * right + [WRONG] * wrong)).won is won


def test_a_group_votes_on_all_that_any_of_its_rollouts_was_shown():
    rollouts = [episode("q", number=0, shown=[3, 1], withheld=(7,)), episode("q", number=1, shown=[1, 2])]
    choice = choose(rollouts)
    assert (choice.shown, choice.withheld) == ((3, 1, 2), (7,))


def test_what_is_not_attempted_is_a_failure_and_what_has_no_grade_is_neither():
    assert choose([episode("q", Label.NOT_ATTEMPTED)]).failure is not None
    ungraded = [episode("q", None), episode("q", Label.JUDGE_ERROR)]
    failed = episode("q", failure=Failure(service="search", message="down"))
    assert not any(map(graded, [*ungraded, failed, failed.model_copy(update={"attempts": ()})]))
    assert graded(episode("q", WRONG))


def test_four_rollouts_leave_what_was_worked_out_by_hand(manager):
    """Specification 11.1, vector 8: two right in 7 and 5 messages, two wrong; a tie is a failure vote."""
    remember(manager, episode("shown"))
    rollouts = [
        episode("q", RIGHT, number=0, turns=3, summary="seven messages", shown=[1]),
        episode("q", WRONG, number=1, summary="wrong", shown=[1]),
        episode("q", RIGHT, number=2, turns=2, summary="five messages, longer to tell", shown=[1]),
        episode("q", WRONG, number=3, summary="wrong", shown=[1]),
    ]
    explore(manager, *rollouts)
    assert commit(manager, 4) == Committed(successes=1, failures=1, pairs=1)
    assert kept(manager)[1:] == [("q", True, "five messages, longer to tell"), ("q", False, "wrong")]
    assert counts(manager)[1] == (1, 0)
    (pair,) = manager.bank.storage.pairs()
    assert (pair.question, pair.correct_plan, pair.incorrect_plan) == ("q", "five messages, longer to tell", "wrong")
    assert (pair.question_id, pair.source) == ("q", "run")


def test_votes_count_as_worked_out_by_hand(manager):
    """Specification 11.1, vector 2, with the counters as the wire shows them."""
    remember(manager, episode("shown"))
    seen = []
    for step, right in enumerate([3, 2, 1]):
        explore(manager, *group("q", [RIGHT] * right + [WRONG] * (4 - right), shown=[1], step=step))
        commit(manager, 4, step)
        (record,) = json.loads(workflow_file([manager.bank.storage.get(1)]))["text-only"]["others"]
        seen.append((record["usage_count"], record["success_count"], record["win_rate"]))
    assert seen == [(2, 2, 1.0), (3, 2, 0.6667), (4, 2, 0.5)]


def test_the_release_score_follows_the_votes(path):
    """Specification 11.1, vector 3: all are equally similar, so similarity counts nothing."""
    with closing(managed(path, RecallRule("release"))) as manager:
        remember(manager, episode("shown"))
        for step, right in enumerate([2, 1]):
            explore(manager, *group("shown", [RIGHT] * right + [WRONG] * (2 - right), shown=[1], step=step, run="r"))
            commit(manager, 2, step, "r")
        assert counts(manager)[1] == (2, 1)
        assert recall(manager, "shown").successes[0][1] == pytest.approx(0.2)


def test_rollouts_are_no_memories_before_their_group_is_committed(manager):
    explore(manager, *group())
    assert recall(manager, "q").ids == ()
    assert commit(manager, 2) == Committed(1, 1, 1, 0)
    assert len(recall(manager, "q").ids) == 2


def test_rollouts_wait_across_a_restart(path):
    with closing(managed(path)) as manager:
        explore(manager, *group())
    with closing(managed(path)) as manager:
        assert commit(manager, 2) == Committed(1, 1, 1, 0)
        assert waiting(manager) == {}


def test_incomplete_groups_go_on_waiting_and_are_counted(manager):
    explore(manager, *group("a"), *group("b")[:1], *group("c")[1:])
    assert commit(manager, 2) == Committed(1, 1, 1, incomplete=2)
    assert waiting(manager) == {"b": 1, "c": 1}
    explore(manager, *group("b"))
    assert commit(manager, 2) == Committed(1, 1, 1, incomplete=1)


def test_rollouts_that_failed_or_have_no_grade_do_not_make_a_group_complete(manager):
    explore(manager, *group("q", [RIGHT, None, Label.JUDGE_ERROR]))
    explore(manager, episode("q", number=3, failure=Failure(service="search", message="down")))
    assert commit(manager, 4) == Committed(incomplete=1)
    assert waiting(manager) == {"q": 1}
    explore(manager, *[episode("q", number=number) for number in (1, 2, 3)])
    assert commit(manager, 4) == Committed(successes=1)


def test_steps_and_runs_are_committed_apart(manager):
    explore(manager, *group("q"), *group("q", step=1), *group("q", run="other"))
    assert commit(manager, 2, step=1).pairs == 1
    assert waiting(manager) == {"q": 2}
    assert commit(manager, 2, run="other").pairs == 1
    assert commit(manager, 2, run="none") == commit(manager, 2, step=7) == Committed()


def test_exploring_twice_is_exploring_once(manager):
    explore(manager, *group(), *group())
    assert together(manager, manager.explore, group() * 2) == [None] * 4
    assert waiting(manager) == {"q": 2}


def test_committing_twice_changes_nothing(manager):
    remember(manager, episode("shown"))
    explore(manager, *group(shown=[1]))
    assert commit(manager, 2).pairs == 1
    before, sequence = state(manager), manager.bank.storage.sequence()
    assert commit(manager, 2) == Committed()
    assert (state(manager), manager.bank.storage.sequence()) == (before, sequence)


def test_committing_twice_at_once_commits_once(manager):
    remember(manager, episode("shown"))
    explore(manager, *group("a", shown=[1]), *group("b", shown=[1]))
    assert at_once(lambda step: manager.commit("run", step, 2), [0, 0, 0]) == [Committed(2, 2, 2)] * 3
    assert counts(manager)[1] == (2, 0)
    assert len(kept(manager)) == 1 + 4
    assert len(manager.bank.storage.pairs()) == 2


def test_a_rollout_that_comes_after_its_group_was_committed_is_passed_over(manager):
    explore(manager, *group())
    commit(manager, 2)
    before = state(manager)
    explore(manager, *group(), episode("q", number=7))
    assert commit(manager, 1) == Committed()
    assert state(manager) == before


def test_many_groups_are_committed_at_once_and_lose_nothing(manager):
    remember(manager, episode("shown"))
    texts = [chr(0x4E00 + number) * 3 for number in range(40)]
    rollouts = [each for text in texts for each in group(text, [RIGHT, RIGHT, WRONG], shown=[1])]
    assert at_once(manager.explore, rollouts) == [None] * 120
    assert commit(manager, 3) == Committed(40, 40, 40)
    assert counts(manager)[1] == (40, 40)
    assert {text for text, _, _ in kept(manager)} == {"shown", *texts}
    assert {pair.question for pair in manager.bank.storage.pairs()} == set(texts)
    assert waiting(manager) == {}


def test_groups_are_committed_again_and_again_in_new_event_loops(path):
    class Slow(Fixed):
        async def compress(self, episode):
            await asyncio.sleep(0.001)
            return await super().compress(episode)

    with closing(managed(path, compressor=Slow())) as manager:
        for step in range(3):
            explore(manager, *[each for number in range(20) for each in group(f"q{number}", step=step)])
            assert commit(manager, 2, step).pairs == 20


def test_a_group_without_failures_or_without_successes_leaves_no_pair(manager):
    explore(manager, *group("a", [RIGHT, RIGHT]), *group("b", [WRONG, WRONG]))
    assert commit(manager, 2) == Committed(successes=1, failures=1)
    assert manager.bank.storage.pairs() == ()


def test_a_group_that_was_shown_nothing_credits_nothing(manager):
    remember(manager, episode("other"))
    explore(manager, *group())
    commit(manager, 2)
    assert set(counts(manager).values()) == {(0, 0)}


def test_a_group_s_memories_are_settled_with_those_that_are_there(manager):
    remember(manager, episode("q", summary="x"))
    explore(manager, *group("q", [RIGHT, WRONG], shown=[1]))
    commit(manager, 2)
    assert kept(manager) == [("q", True, "x"), ("q", False, "q1")]
    assert counts(manager)[1] == (1, 0)


def test_a_group_is_committed_whole_or_not_at_all(manager, monkeypatch):
    remember(manager, episode("shown"))
    explore(manager, *group("a", shown=[1]), *group("b", [RIGHT, RIGHT], shown=[1]))
    add_pairs = Writing.add_pairs

    def fail(self, pairs):
        if pairs:
            raise StorageError("full")
        return add_pairs(self, pairs)

    monkeypatch.setattr(Writing, "add_pairs", fail)
    with pytest.raises(StorageError, match="full"):
        commit(manager, 2)
    assert kept(manager) == [("shown", True, "1. look"), ("b", True, "b0")]
    assert counts(manager)[1] == (1, 1)
    assert waiting(manager) == {"a": 2}
    monkeypatch.undo()
    assert commit(manager, 2) == Committed(1, 1, 1)
    assert counts(manager)[1] == (2, 1)
    assert waiting(manager) == {}


def test_rollouts_of_any_text_and_number_wait_and_are_committed(manager):
    strange = "NUL \x00, lone \ud83d, 東京/0/*"
    explore(manager, *group(strange, run=strange, caption=strange, step=1 << 62))
    assert commit(manager, 2, 1 << 62, strange) == Committed(1, 1, 1)
    assert kept(manager)[0][0] == "NUL \ufffd, lone \ufffd, 東京/0/*"
    results = at_once(manager.explore, [*group("a"), *group("b", step=1 << 63)])
    assert [type(result) for result in results] == [type(None)] * 2 + [StorageError] * 2
    assert waiting(manager) == {"a": 2}


def test_a_group_s_stand_ins_wait_to_be_written_again(path):
    class Down(Fixed):
        async def compress(self, episode):
            return Summary("stand-in", final=False)

    with closing(managed(path, compressor=Down())) as manager:
        explore(manager, *group())
        assert commit(manager, 2) == Committed(1, 1, 1)
        assert manager.counts == {"workflow": 2}
        assert manager.bank.storage.stats()["drafts"] == 2
    with closing(managed(path)) as manager:
        remember(manager, episode("other"), episode("another"))
        assert manager.bank.storage.stats()["drafts"] == 0
        assert kept(manager)[:2] == [("q", True, "q0"), ("q", False, "q1")]
