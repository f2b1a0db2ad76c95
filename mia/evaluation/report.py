"""What a run came to: outcomes over the size of the data set, with intervals, tokens, calls and seconds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from mia.errors import InputError
from mia.types import Label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mia.types import Episode, Question

_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Report:
    """Counts that add up to `size`, and what they cost; `pace` is the median of the seconds of a question."""

    size: int
    outcomes: dict[str, int]
    correct: int
    accuracy: float
    interval: tuple[float, float]
    searches: int
    model_calls: int
    tokens: int
    seconds: float
    pace: float


@dataclass(frozen=True)
class Difference:
    """How much more often one run is right than another on the same `size` questions.

    `gained` are right in this run alone, `lost` in the other alone.
    """

    size: int
    gained: int
    lost: int
    value: float
    interval: tuple[float, float]


def outcome(episode: Episode) -> str:
    """Name how a question ended: a label, or `failed` when a service was down, or `ungraded`."""
    if episode.failure:
        return "failed"
    verdict = episode.final.verdict if episode.final else None
    return verdict.label.value if verdict else "ungraded"


def right(episode: Episode) -> bool:
    """Tell whether a question was answered correctly."""
    return outcome(episode) == Label.CORRECT.value


def report(episodes: Sequence[Episode]) -> Report:
    """Add up a run. The denominator is the number of questions, whatever became of them."""
    outcomes = Counter(map(outcome, episodes))
    correct = outcomes[Label.CORRECT.value]
    costs = [episode.cost for episode in episodes]
    seconds = [cost.seconds.get("all", 0.0) for cost in costs]
    return Report(
        size=len(episodes),
        outcomes=dict(outcomes),
        correct=correct,
        accuracy=correct / len(episodes) if episodes else 0.0,
        interval=wilson(correct, len(episodes)),
        searches=sum(sum(cost.tool_calls.values()) for cost in costs),
        model_calls=sum(sum(cost.model_calls.values()) for cost in costs),
        tokens=sum(sum(cost.prompt_tokens.values()) + sum(cost.new_tokens.values()) for cost in costs),
        seconds=sum(seconds),
        pace=median(seconds) if seconds else 0.0,
    )


def by_type(episodes: Sequence[Episode], types: Mapping[str, str]) -> dict[str, list[Episode]]:
    """Sort episodes by the type of their question, types in the order of their names."""
    names = sorted({types[episode.question.id] for episode in episodes})
    return {name: [episode for episode in episodes if types[episode.question.id] == name] for name in names}


def comparable(questions: Iterable[Question], others: Mapping[str, Episode]) -> None:
    """Refuse to compare with a run that lacks some of the questions: all of them are compared or none.

    Raises:
        InputError: a question is missing there, or is another one under the same id.
    """
    for question in questions:
        other = others.get(question.id)
        if other is None or other.question.text != question.text:
            raise InputError(
                f"The other run does not hold the question {question.id!r}.",
                remedy="Compare runs over the same questions.",
            )


def difference(episodes: Sequence[Episode], others: Mapping[str, Episode]) -> Difference:
    """Compare a run with another that holds all of its questions; failures count as wrong in both."""
    return paired([(right(episode), right(others[episode.question.id])) for episode in episodes])


def paired(hits: Sequence[tuple[bool, bool]]) -> Difference:
    """Return the difference of two shares of the same things, with Newcombe's 95 % interval.

    That is his square-and-add interval for paired data (1998, method 10), made of the Wilson intervals of both shares:
    unlike a bootstrap it needs no seed and stays honest where few or none differ.
    """
    size = len(hits)
    if not size:
        return Difference(0, 0, 0, 0.0, (-1.0, 1.0))
    counts = Counter(hits)
    both, gained, lost, neither = (
        counts[pair] for pair in ((True, True), (True, False), (False, True), (False, False))
    )
    ours, theirs = (both + gained) / size, (both + lost) / size
    (low, high), (other_low, other_high) = wilson(both + gained, size), wilson(both + lost, size)
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    excess = float(both * neither - gained * lost)
    if excess > 0:
        excess = max(excess - size / 2, 0.0)  # his correction for continuity
    phi = excess / math.sqrt(margins) if margins else 0.0

    def spread(one: float, two: float) -> float:
        return math.sqrt(max(one * one - 2 * phi * one * two + two * two, 0.0))

    value = ours - theirs
    interval = value - spread(ours - low, other_high - theirs), value + spread(high - ours, theirs - other_low)
    return Difference(size, gained, lost, value, interval)


def wilson(hits: int, size: int, z: float = _Z) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a share; (0, 1) when nothing was tried."""
    if size == 0:
        return 0.0, 1.0
    share = hits / size
    centre = share + z * z / (2 * size)
    spread = z * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
