"""A group of rollouts of one question to what is worth keeping of it: arithmetic, with no storage and no model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from mia.types import Label

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mia.types import Episode


class Choice(NamedTuple):
    """What a group leaves behind. Success and failure side by side also make a plan pair.

    `won` is the group's one vote on the memories that it was `shown` (or kept from): ties are failures.
    """

    success: Episode | None
    failure: Episode | None
    won: bool
    shown: tuple[int, ...]
    withheld: tuple[int, ...]


def graded(episode: Episode) -> bool:
    """Tell whether an episode ran through and its last attempt has a grade."""
    verdict = episode.final.verdict if episode.final else None
    return episode.failure is None and verdict is not None and verdict.label is not Label.JUDGE_ERROR


def correct(episode: Episode) -> bool:
    """Tell whether the attempt that counts was judged right."""
    verdict = episode.final.verdict if episode.final else None
    return verdict is not None and verdict.label is Label.CORRECT


def choose(group: Sequence[Episode]) -> Choice:
    """Choose from the graded rollouts of one question: the success of fewest turns, and one failure at random.

    The draw is seeded by the group's identity, so the same group always leaves the same behind (spec of the released
    code 2.8; the paper's Algorithm 3). Equal lengths are decided by the lower rollout number.
    """
    rollouts = sorted(group, key=lambda episode: episode.key.rollout)
    successes = [episode for episode in rollouts if correct(episode)]
    failures = [episode for episode in rollouts if not correct(episode)]
    return Choice(
        success=min(successes, key=_turns, default=None),
        failure=failures[_draw(failures[0], len(failures))] if failures else None,
        won=len(successes) > len(failures),
        shown=_union(episode.recall.ids for episode in rollouts),
        withheld=_union(episode.recall.withheld for episode in rollouts),
    )


def _turns(episode: Episode) -> int:
    return sum(len(attempt.trajectory.steps) for attempt in episode.attempts)


def _draw(episode: Episode, count: int) -> int:
    key = episode.key
    digest = hashlib.sha256(f"{key.run}/{key.step}/{key.question_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


def _union(ids: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(memory_id for some in ids for memory_id in some))
