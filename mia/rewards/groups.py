"""What the rollouts of one question are worth beside each other: group advantages (GRPO, paper section 4)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mia.types import Episode, Key

EPSILON = 1e-6  # added to the deviation, as the trainer does
_LARGEST = 1e300  # beyond it a difference of two rewards may not be a number


class Dropped(StrEnum):
    """Why a group is not trained on."""

    INCOMPLETE = "incomplete"
    NON_FINITE = "non_finite"
    NO_CONTRAST = "no_contrast"


class Group(NamedTuple):
    """The rollouts of one question at one step."""

    run: str
    step: int
    question_id: str


class Compared(NamedTuple):
    """Advantages by rollout, and the groups that have none."""

    advantages: dict[Key, float]
    dropped: dict[Group, Dropped]


def advantages(rewards: Sequence[float | None], *, scaled: bool = True) -> tuple[float, ...] | Dropped:
    """Return (reward - mean) / (sample deviation + 1e-6) for each member of a group, or why there is none.

    None stands for a member that is missing: the rest of its group says nothing then. `scaled` false leaves the
    deviation out. Sums are exact and only results are rounded, so equal members get equal advantages. A group whose
    members are all equal, or that is of one, has no contrast.
    """
    present = [reward for reward in rewards if reward is not None]
    if not present or len(present) < len(rewards):
        return Dropped.INCOMPLETE
    if not all(abs(reward) <= _LARGEST for reward in present):
        return Dropped.NON_FINITE
    if min(present) == max(present):
        return Dropped.NO_CONTRAST
    exact = [Fraction(reward) for reward in present]
    mean = statistics.mean(exact)
    scale = float(statistics.stdev(exact)) + EPSILON if scaled else 1.0
    return tuple(float(reward - mean) / scale for reward in exact)


def compare(episodes: Iterable[Episode], size: int, *, scaled: bool = True) -> Compared:
    """Compare the rollouts of each question at each step; a group is complete with `size` rewarded ones.

    Members are told apart by their keys, never by their texts or places; of two episodes of one key the later counts,
    since what failed is run again.
    """
    latest = {episode.key: episode for episode in episodes}
    groups: defaultdict[Group, list[Key]] = defaultdict(list)
    for key in latest:
        groups[Group(key.run, key.step, key.question_id)].append(key)
    compared = Compared({}, {})
    for group, keys in groups.items():
        found = advantages([_reward(latest[key]) for key in keys], scaled=scaled)
        if len(keys) != size:
            found = Dropped.INCOMPLETE
        if isinstance(found, Dropped):
            compared.dropped[group] = found
        else:
            compared.advantages.update(zip(keys, found, strict=True))
    return compared


def _reward(episode: Episode) -> float | None:
    return episode.reward.value if episode.reward and not episode.failure else None
