"""What a run came to: outcomes over the size of the data set, with intervals, tokens, calls and seconds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mia.types import Label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.types import Episode


@dataclass(frozen=True)
class Report:
    """Counts that add up to `size`, and what they cost."""

    size: int
    outcomes: dict[str, int]
    accuracy: float
    interval: tuple[float, float]
    searches: int
    model_calls: int
    tokens: int
    seconds: float


def outcome(episode: Episode) -> str:
    """Name how a question ended: a label, or `failed` when a service was down, or `ungraded`."""
    if episode.failure:
        return "failed"
    verdict = episode.final.verdict if episode.final else None
    return verdict.label.value if verdict else "ungraded"


def report(episodes: Sequence[Episode]) -> Report:
    """Add up a run. The denominator is the number of questions, whatever became of them."""
    outcomes = Counter(map(outcome, episodes))
    correct = outcomes[Label.CORRECT.value]
    costs = [episode.cost for episode in episodes]
    return Report(
        size=len(episodes),
        outcomes=dict(outcomes),
        accuracy=correct / len(episodes) if episodes else 0.0,
        interval=wilson(correct, len(episodes)),
        searches=sum(sum(cost.tool_calls.values()) for cost in costs),
        model_calls=sum(sum(cost.model_calls.values()) for cost in costs),
        tokens=sum(sum(cost.prompt_tokens.values()) + sum(cost.new_tokens.values()) for cost in costs),
        seconds=sum(cost.seconds.get("all", 0.0) for cost in costs),
    )


def wilson(hits: int, size: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a share; (0, 1) when nothing was tried."""
    if size == 0:
        return 0.0, 1.0
    share = hits / size
    centre = share + z * z / (2 * size)
    spread = z * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
