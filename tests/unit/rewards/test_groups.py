"""Group advantages against whole-number arithmetic."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia.rewards.groups import Compared, Dropped, Group, advantages, compare
from mia.types import Episode, Failure, Key, Question, Reward

EPSILON = Fraction(1e-6)
RUBRIC = [0.0, 0.05, 0.1, 0.25, 0.3, 0.75, 0.8, 0.9, 0.95, 1.0, 1.14]
NAN, INF = math.nan, math.inf


def root(square):
    """Return the square root of a rational number, right to 40 binary digits more than a float has."""
    shift = 200 + max(0, square.denominator.bit_length() - square.numerator.bit_length())
    shift += shift % 2
    return Fraction(math.isqrt((square.numerator << shift) // square.denominator), 1 << (shift // 2))


def oracle(rewards, *, scaled):
    """Work a group out in whole numbers: over one denominator, deviations are n*k - sum."""
    ratios = [reward.as_integer_ratio() for reward in rewards]
    over = max(denominator for _, denominator in ratios)  # powers of two
    whole = [numerator * (over // denominator) for numerator, denominator in ratios]
    n, total = len(whole), sum(whole)
    variance = Fraction(n * sum(k * k for k in whole) - total * total, n * (n - 1) * over * over)
    scale = root(variance) + EPSILON if scaled else 1
    return [float(Fraction(n * k - total, n * over) / scale) for k in whole]


def some_group(draw):
    """Draw a group, uneven in size and of any kind that training may bring, and some that it should not."""
    size = draw.randint(1, 12)
    kind = draw.randrange(5)
    if kind == 0:
        rewards = [draw.choice(RUBRIC) for _ in range(size)]
    elif kind == 1:
        rewards = [draw.choice(RUBRIC)] * size
    elif kind == 2:
        rewards = [draw.random() for _ in range(size)]
    elif kind == 3:
        rewards = [1e6 + draw.random() * 2.0 ** -draw.randrange(20) for _ in range(size)]
    else:
        rewards = [draw.choice([0.0, 1.0]) for _ in range(size)]
    for bad, chance in ((None, 0.1), (draw.choice([NAN, INF, -INF]), 0.05)):
        if draw.random() < chance:
            rewards[draw.randrange(size)] = bad
    return rewards


def expected_outcome(rewards):
    if None in rewards:
        return Dropped.INCOMPLETE
    if not all(map(math.isfinite, rewards)):
        return Dropped.NON_FINITE
    return Dropped.NO_CONTRAST if len(set(rewards)) == 1 else None


@pytest.mark.parametrize("scaled", [True, False])
def test_100_000_groups_agree_with_whole_number_arithmetic(scaled):
    draw = random.Random(5 + scaled)
    outcomes = dict.fromkeys([*Dropped, None], 0)
    for _ in range(50_000):
        rewards = some_group(draw)
        found, outcome = advantages(rewards, scaled=scaled), expected_outcome(rewards)
        outcomes[outcome] += 1
        if outcome:
            assert found is outcome
        else:
            for ours, right in zip(found, oracle(rewards, scaled=scaled), strict=True):
                assert abs(ours - right) <= 4 * math.ulp(right)
    assert min(outcomes.values()) > 1000


def test_a_group_by_hand():
    found = advantages([1.0, 0.8, 0.05, 0.05])
    assert found == pytest.approx([1.0552, 0.6532, -0.8542, -0.8542], abs=1e-4)
    assert [round(value, 2) for value in found] == [1.06, 0.65, -0.85, -0.85]
    assert advantages([1.0, 0.8, 0.05, 0.05], scaled=False) == pytest.approx([0.525, 0.325, -0.425, -0.425])


@pytest.mark.parametrize(
    ("rewards", "why"),
    [
        ([], Dropped.INCOMPLETE),
        ([None], Dropped.INCOMPLETE),
        ([1.0, None, 0.0, 0.0], Dropped.INCOMPLETE),
        ([NAN, None], Dropped.INCOMPLETE),
        ([1.0], Dropped.NO_CONTRAST),
        ([0.0, 0.0, 0.0, 0.0], Dropped.NO_CONTRAST),
        ([0.1, 0.1, 0.1], Dropped.NO_CONTRAST),
        ([0.0, -0.0], Dropped.NO_CONTRAST),
        ([1.0, NAN], Dropped.NON_FINITE),
        ([NAN, NAN], Dropped.NON_FINITE),
        ([1.0, INF], Dropped.NON_FINITE),
        ([INF, INF], Dropped.NON_FINITE),
        ([1.7e308, -1.7e308], Dropped.NON_FINITE),
    ],
)
def test_a_group_that_says_nothing_is_dropped_and_says_why(rewards, why):
    assert advantages(rewards) is why
    assert advantages(rewards, scaled=False) is why


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=16), st.randoms(use_true_random=False))
def test_equal_members_get_equal_advantages_in_any_order(rewards, draw):
    found = advantages(rewards)
    if isinstance(found, Dropped):
        assert len(set(rewards)) == 1
        return
    assert all(map(math.isfinite, found))
    order = draw.sample(range(len(rewards)), len(rewards))
    assert advantages([rewards[place] for place in order]) == tuple(found[place] for place in order)
    assert len(set(zip(rewards, found, strict=True))) == len(set(rewards))


def rollout(reward, question_id="q", number=0, step=0, text="?", failed=False):
    return Episode(
        key=Key(run="r", step=step, question_id=question_id, rollout=number),
        question=Question(id=question_id, text=text),
        reward=None if reward is None else Reward(parts={"all": (reward, 1.0)}),
        failure=Failure(service="search", message="down") if failed else None,
    )


def test_rollouts_are_compared_within_their_question_and_step_whatever_their_texts_and_order():
    mixed = [
        rollout(1.0, "a", 0),
        rollout(0.5, "b", 1),
        rollout(0.0, "a", 1, step=1),
        rollout(0.0, "a", 1),
        rollout(0.0, "b", 0),
        rollout(1.0, "a", 0, step=1),
    ]
    found = compare(mixed, 2)
    assert found.dropped == {}
    high, low = advantages([1.0, 0.0])
    half, _ = advantages([0.5, 0.0])
    ours = {(key.question_id, key.step, key.rollout): value for key, value in found.advantages.items()}
    assert ours == {
        ("a", 0, 0): high,
        ("a", 0, 1): low,
        ("a", 1, 0): high,
        ("a", 1, 1): low,
        ("b", 0, 1): half,
        ("b", 0, 0): -half,
    }


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([rollout(1.0), rollout(0.0, number=1)], Dropped.INCOMPLETE),
        ([rollout(1.0)], Dropped.INCOMPLETE),
        ([rollout(1.0), rollout(0.0, number=1), rollout(None, number=2)], Dropped.INCOMPLETE),
        ([rollout(1.0), rollout(0.0, number=1), rollout(1.0, number=2, failed=True)], Dropped.INCOMPLETE),
        ([rollout(float(n), number=n) for n in range(4)], Dropped.INCOMPLETE),
        ([rollout(1.0), rollout(1.0), rollout(1.0)], Dropped.INCOMPLETE),
        ([rollout(1.0, number=n) for n in range(3)], Dropped.NO_CONTRAST),
        ([rollout(1.0), rollout(0.0, number=1), rollout(NAN, number=2)], Dropped.NON_FINITE),
    ],
)
def test_only_complete_groups_are_compared(members, why):
    assert compare(members, 3) == Compared({}, {Group("r", 0, "q"): why})


def test_a_rollout_that_was_run_again_counts_as_it_ended_last():
    members = [rollout(None, failed=True), rollout(0.0, number=1), rollout(1.0)]
    assert list(compare(members, 2).advantages.values()) == list(advantages([1.0, 0.0]))
