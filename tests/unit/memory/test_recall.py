import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia.memory.recall import TERMS, Query, RecallRule, Snapshot, rank, similarities


def circle(cosine):
    """A unit vector whose cosine with (1, 0) is as given."""
    return [cosine, math.sqrt(1 - cosine * cosine)]


def snapshot(cosines, *, captions=None, **columns):
    count = len(cosines)
    shown = np.array(captions if captions is not None else np.zeros((count, 2)), np.float32).reshape(count, 2)
    kinds = {
        "ids": (np.int64, range(1, count + 1)),
        "origins": (np.int64, range(count)),
        "categories": (np.int64, [0] * count),
        "correct": (np.bool_, [True] * count),
        "alive": (np.bool_, [True] * count),
        "uses": (np.float64, [0] * count),
        "wins": (np.float64, [0] * count),
    }
    return Snapshot(
        sequence=1,
        captioned=shown.any(axis=1),
        questions=np.array([circle(cosine) for cosine in cosines], np.float32).reshape(count, 2),
        captions=shown,
        **{name: np.array(columns.get(name, usual), kind) for name, (kind, usual) in kinds.items()},
    )


def query(caption=(0.0, 0.0), origin=None, **more):
    return Query(np.array([1, 0], np.float32), np.array(caption, np.float32), origin, **more)


def ids(shown):
    return [id_ for id_, _ in shown]


def scores(score, similarity, uses, wins):
    similarity, uses, wins = (np.array(each, np.float64) for each in (similarity, uses, wins))
    return TERMS[score].relevance * similarity + TERMS[score].worth(uses, wins)


def test_release_gives_the_scores_worked_out_by_hand():
    bank = snapshot([0.9, 0.6, 0.3], uses=[0, 1, 0], wins=[0, 0, 0])  # win rates 1, 1/2, 1
    shown = rank(bank, query(), RecallRule("release", each=3, floor=-1)).successes
    assert [id_ for id_, _ in shown] == [1, 2, 3]
    assert [score for _, score in shown] == pytest.approx([1.0, 0.5, 0.3], abs=1e-6)


def test_the_papers_form_of_value_and_frequency_equals_the_win_rate_counted_from_one():
    assert 0.3 * 1 / 3 + 0.3 * 1 / 3 == pytest.approx(0.3 * 2 / 3) == pytest.approx(0.2)
    assert scores("release", [0.0, 0.0], uses=[2, 0], wins=[1, 0]) == pytest.approx([0.2, 0.3])


def test_release_counts_votes_as_worked_out_by_hand():
    assert scores("release", [0.0] * 3, uses=[1, 2, 3], wins=[1, 1, 1]) / 0.3 == pytest.approx([1.0, 2 / 3, 0.5])


def test_release_scales_a_single_memory_to_zero_similarity():
    bank = snapshot([0.8], uses=[3], wins=[1])
    assert rank(bank, query(), RecallRule("release", floor=-1)).successes == ((1, pytest.approx(0.3 * 2 / 4)),)


def test_release_compares_within_a_modality():
    bank = snapshot([0.9, 0.5], captions=[[1, 0], [0, 0]])
    assert [id_ for id_, _ in rank(bank, query(), RecallRule("release", floor=-1)).successes] == [2]
    assert [id_ for id_, _ in rank(bank, query((1, 0)), RecallRule("release", floor=-1)).successes] == [1]


def test_three_terms_give_the_scores_worked_out_by_hand():
    found = scores("three_term", [0.9, 0.6, 0.3], uses=[0, 2, 4], wins=[0, 1, 4])
    assert found == pytest.approx([0.63 + 0.15, 0.42 + 0.075 + 0.05, 0.21 + 0.15 + 0.03])


def test_gated_gives_the_scores_worked_out_by_hand():
    found = scores("gated", [0.9, 0.6, 0.3], uses=[0, 2, 4], wins=[0, 1, 4])
    assert found == pytest.approx([0.63 + 0.15, 0.42 + 0.15, 0.21 + 0.25])


def test_only_release_scales_similarity():
    assert [score for score, terms in TERMS.items() if terms.scaled] == ["release"]


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
    pictured = other._replace(worded=False)
    assert len(rank(bank, pictured, RecallRule(each=3, exclude_same_question=True)).successes) == 3


@pytest.mark.parametrize("score", TERMS)
def test_by_category_only_the_question_s_own_is_compared(score):
    bank = snapshot([0.9, 0.8, 0.7], categories=[0, 1, 1])
    rule = RecallRule(score, by_category=True)
    assert ids(rank(bank, query(category=1), rule).successes) == [2, 3]
    assert ids(rank(bank, query(category=0), rule).successes) == [1]
    assert rank(bank, query(category=None), rule) == rank(bank, query(category=7), rule) == ((), ())
    assert len(rank(bank, query(category=1), RecallRule(score, each=3)).successes) == 3


def test_another_category_is_no_part_of_the_scale():
    bank = snapshot([1.0, 0.6, 0.2], categories=[0, 1, 1])
    rule = RecallRule("release", floor=-1, by_category=True)
    assert dict(rank(bank, query(category=1), rule).successes) == pytest.approx({2: 1.0, 3: 0.3}, abs=1e-6)


def test_an_excluded_question_is_no_part_of_the_scale():
    bank = snapshot([1.0, 0.6, 0.2], origins=[7, 8, 9])
    rule = RecallRule("release", each=3, floor=-1, exclude_same_question=True)
    assert dict(rank(bank, query(origin=7), rule).successes) == pytest.approx({2: 1.0, 3: 0.3}, abs=1e-6)


def test_the_forgotten_are_not_shown():
    assert rank(snapshot([0.9, 0.8], alive=[False, True]), query(), RecallRule()).successes[0][0] == 2


def test_ties_go_to_the_lower_id_wherever_it_lies():
    bank = snapshot([0.5] * 6, ids=[9, 4, 7, 2, 8, 3])
    assert [id_ for id_, _ in rank(bank, query(), RecallRule(each=3)).successes] == [2, 3, 4]


@pytest.mark.parametrize("score", TERMS)
def test_an_empty_bank_and_a_choice_of_none_show_nothing(score):
    assert rank(snapshot([]), query(), RecallRule(score)) == ((), ())
    assert rank(snapshot([0.9]), query(), RecallRule(score, each=0)) == ((), ())


def test_a_blank_question_is_similar_to_nothing():
    blank = Query(np.zeros(2, np.float32), np.zeros(2, np.float32))
    assert rank(snapshot([0.9, 0.1]), blank, RecallRule(floor=0.01)) == ((), ())


def test_vectors_that_are_no_numbers_are_never_shown():
    bank = snapshot([0.9, 0.8])
    bank.questions[0] = np.nan
    assert ids(rank(bank, query(), RecallRule()).successes) == [2]


MEMORIES = st.lists(
    st.fixed_dictionaries(
        {
            "cosines": st.integers(-8, 8).map(lambda eighths: eighths / 8),
            "correct": st.booleans(),
            "alive": st.integers(0, 4).map(bool),
            "origins": st.integers(0, 3),
            "categories": st.integers(0, 1),
            "uses": st.integers(0, 5),
            "wins": st.integers(0, 5),
            "captions": st.sampled_from([(0, 0), (1, 0), (0, 1)]),
        }
    ).map(lambda memory: memory | {"wins": min(memory["uses"], memory["wins"])}),
    max_size=30,
)
RULES = st.builds(
    RecallRule,
    score=st.sampled_from(list(TERMS)),
    each=st.integers(0, 4),
    floor=st.sampled_from([-1.0, -0.05, 0.35]),
    exclude_same_question=st.booleans(),
    by_category=st.booleans(),
)
QUERIES = st.builds(
    query,
    caption=st.sampled_from([(0, 0), (1, 0)]),
    origin=st.none() | st.integers(0, 3),
    worded=st.booleans(),
    category=st.none() | st.integers(0, 1),
)


def similarity_to(asked, memory):
    """The specification's cosine, for a question whose vector is (1, 0)."""
    if not asked.captioned:
        return memory["cosines"]
    return 0.8 * memory["cosines"] + 0.2 * float(np.dot(memory["captions"], asked.caption))


def in_bucket(memory, asked, rule):
    if rule.exclude_same_question and memory["origins"] == asked.origin:
        return False
    if rule.exclude_same_question and asked.worded and similarity_to(asked, memory) >= 0.9999:
        return False
    if rule.by_category and memory["categories"] != asked.category:
        return False
    return memory["alive"] and (rule.score != "release" or any(memory["captions"]) == asked.captioned)


def score_of(memory, asked, rule, bucket):
    similar, uses, wins = similarity_to(asked, memory), memory["uses"], memory["wins"]
    if rule.score == "gated":
        return 0.7 * similar + 0.3 * (wins + 1) / (uses + 2)
    if rule.score == "three_term":
        return 0.7 * similar + 0.15 * (wins / uses if uses else 0) + 0.15 / (1 + uses)
    low, high = (extreme(similarity_to(asked, each) for each in bucket) for extreme in (min, max))
    return 0.7 * (similar - low) / (high - low + 1e-8) + 0.3 * (wins + 1) / (uses + 1)


@settings(max_examples=400, deadline=None)
@given(memories=MEMORIES, asked=QUERIES, rule=RULES, order=st.randoms(use_true_random=False))
def test_ranking_agrees_with_the_specification(memories, asked, rule, order):
    """Scores may differ in their last digits, so what nearly ties may come in either order."""
    numbers = order.sample(range(1, 1000), len(memories))
    columns = {name: [memory[name] for memory in memories] for name in (memories or [{"cosines": 0}])[0]}
    bank = snapshot(**columns, ids=numbers)
    before = {name: np.copy(value) for name, value in vars(bank).items() if name != "_worth"}
    shown = rank(bank, asked, rule)
    bucket = [memory for memory in memories if in_bucket(memory, asked, rule)]
    for label, some in zip((True, False), shown, strict=True):
        wanted = {
            number: score_of(memory, asked, rule, bucket)
            for number, memory in zip(numbers, memories, strict=True)
            if in_bucket(memory, asked, rule)
            and memory["correct"] is label
            and similarity_to(asked, memory) >= rule.floor
        }
        assert len(some) == min(rule.each, len(wanted))
        assert dict(some) == pytest.approx({number: wanted[number] for number in ids(some)}, abs=1e-6)
        assert list(some) == sorted(some, key=lambda pair: (-pair[1], pair[0]))
        best = sorted(wanted.values(), reverse=True)[: rule.each]
        assert [score for _, score in some] == pytest.approx(best, abs=1e-6)
    assert all(np.array_equal(value, getattr(bank, name)) for name, value in before.items())
