import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia.memory.recall import Query, RecallRule, Snapshot, rank, release_scores, similarities, three_term_scores, twins


def circle(cosine):
    """A unit vector whose cosine with (1, 0) is as given."""
    return [cosine, math.sqrt(1 - cosine * cosine)]


def snapshot(cosines, *, uses=None, wins=None, correct=None, origins=None, ids=None, captions=None, alive=None):
    count = len(cosines)
    shown = np.array(captions if captions is not None else np.zeros((count, 2)), np.float32).reshape(count, 2)
    return Snapshot(
        sequence=1,
        ids=np.array(ids if ids is not None else range(1, count + 1), np.int64),
        origins=np.array(origins if origins is not None else range(count), np.int64),
        correct=np.array(correct if correct is not None else [True] * count, np.bool_),
        captioned=shown.any(axis=1),
        alive=np.array(alive if alive is not None else [True] * count, np.bool_),
        uses=np.array(uses if uses is not None else [0] * count, np.int64),
        wins=np.array(wins if wins is not None else [0] * count, np.int64),
        questions=np.array([circle(cosine) for cosine in cosines], np.float32).reshape(count, 2),
        captions=shown,
    )


def query(caption=(0.0, 0.0), origin=None):
    return Query(np.array([1, 0], np.float32), np.array(caption, np.float32), origin)


def test_release_gives_the_scores_worked_out_by_hand():
    bank = snapshot([0.9, 0.6, 0.3], uses=[0, 1, 0], wins=[0, 0, 0])  # win rates 1, 1/2, 1
    shown = rank(bank, query(), RecallRule("release", each=3, floor=-1)).successes
    assert [id_ for id_, _ in shown] == [1, 2, 3]
    assert [score for _, score in shown] == pytest.approx([1.0, 0.5, 0.3], abs=1e-6)


def test_the_papers_form_of_value_and_frequency_equals_the_win_rate_counted_from_one():
    sameness, uses, wins = np.array([0.0, 0.0]), np.array([2, 0]), np.array([1, 0])
    papers = 0.3 * wins / (uses + 1) + 0.3 * 1 / (uses + 1)
    assert release_scores(sameness, uses, wins) == pytest.approx(papers)
    assert papers == pytest.approx([0.2, 0.3])


def test_release_counts_votes_as_worked_out_by_hand():
    one = np.array([0.0])
    rates = [
        release_scores(one, np.array([uses]), np.array([wins]))[0] / 0.3 for uses, wins in [(1, 1), (2, 1), (3, 1)]
    ]
    assert rates == pytest.approx([1.0, 2 / 3, 0.5])


def test_release_scales_a_single_memory_to_zero_similarity():
    bank = snapshot([0.8], uses=[3], wins=[1])
    assert rank(bank, query(), RecallRule("release", floor=-1)).successes == ((1, pytest.approx(0.3 * 2 / 4)),)


def test_release_compares_within_a_modality():
    bank = snapshot([0.9, 0.5], captions=[[1, 0], [0, 0]])
    assert [id_ for id_, _ in rank(bank, query(), RecallRule("release", floor=-1)).successes] == [2]
    assert [id_ for id_, _ in rank(bank, query((1, 0)), RecallRule("release", floor=-1)).successes] == [1]


def test_three_terms_give_the_scores_worked_out_by_hand():
    scores = three_term_scores(np.array([0.9, 0.6, 0.3]), np.array([0, 2, 4]), np.array([0, 1, 4]))
    assert scores == pytest.approx([0.63 + 0.15, 0.42 + 0.075 + 0.05, 0.21 + 0.15 + 0.03])


def test_a_caption_takes_a_fifth_of_the_similarity():
    bank = snapshot([0.5, 0.5, 0.5], captions=[[1, 0], [0, 1], [0, 0]])
    assert similarities(bank, query()) == pytest.approx([0.5, 0.5, 0.5])
    assert similarities(bank, query((1, 0))) == pytest.approx([0.6, 0.4, 0.4])


def test_successes_and_failures_are_chosen_apart():
    bank = snapshot([0.9, 0.8, 0.7, 0.6, 0.5], correct=[True, False, True, True, False])
    shown = rank(bank, query(), RecallRule(each=2))
    assert [id_ for id_, _ in shown.successes] == [1, 3]
    assert [id_ for id_, _ in shown.failures] == [2, 5]


def test_what_is_below_the_floor_is_not_shown_but_still_spans_the_scale():
    bank = snapshot([0.9, 0.6, 0.3])
    shown = rank(bank, query(), RecallRule("release", each=3, floor=0.5)).successes
    assert [id_ for id_, _ in shown] == [1, 2]
    assert shown[1][1] == pytest.approx(0.7 * 0.5 + 0.3, abs=1e-6)


def test_memories_of_the_same_question_are_excluded_only_when_asked():
    bank = snapshot([1.0, 0.8, 0.6], origins=[7, 8, 7])
    assert [id_ for id_, _ in rank(bank, query(origin=7), RecallRule(exclude_same_question=True)).successes] == [2]
    assert [id_ for id_, _ in rank(bank, query(origin=7), RecallRule()).successes] == [1, 2]
    other = query(origin=None)
    assert len(rank(bank, other, RecallRule(each=3)).successes) == 3
    assert [id_ for id_, _ in rank(bank, other, RecallRule(each=3, exclude_same_question=True)).successes] == [2, 3]
    pictured = other._replace(text_only=False)
    assert len(rank(bank, pictured, RecallRule(each=3, exclude_same_question=True)).successes) == 3


def test_an_excluded_question_is_no_part_of_the_scale():
    bank = snapshot([1.0, 0.6, 0.2], origins=[7, 8, 9])
    rule = RecallRule("release", each=3, floor=-1, exclude_same_question=True)
    assert dict(rank(bank, query(origin=7), rule).successes) == pytest.approx({2: 1.0, 3: 0.3}, abs=1e-6)


def test_the_forgotten_are_not_shown():
    assert rank(snapshot([0.9, 0.8], alive=[False, True]), query(), RecallRule()).successes[0][0] == 2


def test_ties_go_to_the_lower_id_wherever_it_lies():
    bank = snapshot([0.5] * 6, ids=[9, 4, 7, 2, 8, 3])
    assert [id_ for id_, _ in rank(bank, query(), RecallRule(each=3)).successes] == [2, 3, 4]


@pytest.mark.parametrize("score", ["release", "three_term"])
def test_an_empty_bank_and_a_choice_of_none_show_nothing(score):
    assert rank(snapshot([]), query(), RecallRule(score)) == ((), ())
    assert rank(snapshot([0.9]), query(), RecallRule(score, each=0)) == ((), ())


def test_a_blank_question_is_similar_to_nothing():
    blank = Query(np.zeros(2, np.float32), np.zeros(2, np.float32))
    assert rank(snapshot([0.9, 0.1]), blank, RecallRule(floor=0.01)) == ((), ())


def test_a_twin_has_the_same_label_modality_and_nearly_the_same_vector():
    bank = snapshot(
        [1.0, 0.999, 1.0, 1.0], correct=[False, True, True, True], captions=[[0, 0], [0, 0], [1, 0], [0, 0]]
    )
    assert twins(bank, query(), correct=True)[0] == 4
    assert twins(bank, query(), correct=False)[0] == 1
    assert twins(bank, query((1, 0)), correct=True)[0] == 3
    assert twins(bank, query((1, 0)), correct=False) == []
    assert twins(snapshot([0.999]), query(), correct=True) == []
    assert twins(snapshot([]), query(), correct=True) == []


def test_a_twin_may_have_to_be_of_the_same_question():
    bank = snapshot([1.0, 1.0], origins=[3, 4])
    assert twins(bank, query(origin=4), correct=True, same_origin=True)[0] == 2
    assert twins(bank, query(origin=None), correct=True, same_origin=True) == []


def oracle(bank, asked, rule):
    """The rule of the specification, one memory at a time."""
    similar = similarities(bank, asked)
    bucket = [
        row
        for row in range(len(bank.ids))
        if bank.alive[row]
        and not (rule.exclude_same_question and (bank.origins[row] == asked.origin or similar[row] >= 0.9999))
        and (rule.score != "release" or bank.captioned[row] == asked.captioned)
    ]
    low, high = min((similar[row] for row in bucket), default=0), max((similar[row] for row in bucket), default=0)
    shown = {True: [], False: []}
    for row in bucket:
        uses, wins = int(bank.uses[row]), int(bank.wins[row])
        if rule.score == "release":
            score = 0.7 * ((similar[row] - low) / (high - low + 1e-8)) + 0.3 * ((wins + 1) / (uses + 1))
        else:
            score = 0.7 * similar[row] + 0.15 * (wins / uses if uses else 0) + 0.15 * (1 / (1 + uses))
        if similar[row] >= rule.floor:
            shown[bool(bank.correct[row])].append((int(bank.ids[row]), float(score)))
    best = [sorted(shown[label], key=lambda pair: (-pair[1], pair[0]))[: rule.each] for label in (True, False)]
    return tuple(tuple(pairs) for pairs in best)


MEMORY = st.tuples(
    st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([(0, 0), (1, 0), (0, 1)]),
)


@settings(max_examples=300, deadline=None)
@given(
    memories=st.lists(MEMORY, max_size=30),
    caption=st.sampled_from([(0, 0), (1, 0)]),
    origin=st.none() | st.integers(0, 3),
    rule=st.builds(
        RecallRule,
        score=st.sampled_from(["release", "three_term"]),
        each=st.integers(0, 4),
        floor=st.sampled_from([-1.0, 0.0, 0.3]),
        exclude_same_question=st.booleans(),
    ),
    order=st.randoms(use_true_random=False),
)
def test_ranking_agrees_with_the_specification(memories, caption, origin, rule, order):
    cosines, correct, alive, origins, uses, wins, captions = (
        map(list, zip(*memories, strict=True)) if memories else [[]] * 7
    )
    ids = order.sample(range(1, 1000), len(memories))
    wins = [min(pair) for pair in zip(uses, wins, strict=True)]
    bank = snapshot(
        cosines, uses=uses, wins=wins, correct=correct, origins=origins, ids=ids, captions=captions, alive=alive
    )
    assert rank(bank, query(caption, origin), rule) == oracle(bank, query(caption, origin), rule)
