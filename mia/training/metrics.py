"""What a step tells of the loop: facts of each episode, their means over a batch, and signs of collapse."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from mia.errors import MiaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mia.training.config import Alarms
    from mia.types import Episode

STOP = "stop_"  # begins the name of the fact that says why the Executor ended


class Collapsed(MiaError):  # noqa: N818 - named for what it says
    """Training went wrong in a way that more steps do not mend."""


def facts(episode: Episode) -> dict[str, float]:
    """Return the numbers of one rewarded episode: parts of its reward, and what the roles did."""
    final = episode.final
    steps = [step for attempt in episode.attempts for step in attempt.trajectory.steps]
    said = [attempt.plan.said for attempt in episode.attempts]
    said += [reflection.said for reflection in episode.reflections if reflection.said]
    parts = {name: score for name, (score, _) in (episode.reward.parts if episode.reward else {}).items()}
    return parts | {
        "replanned": float(any(reflection.replan for reflection in episode.reflections)),
        "tool_calls": float(sum(step.call is not None for step in steps)),
        "tool_failures": float(sum(bool(step.observation and step.observation.error) for step in steps)),
        "at_limit": float(any(each.finish == "length" for each in said)),
        "reply_tokens": sum(each.new_tokens for each in said) / max(1, len(said)),
        f"{STOP}{final.trajectory.stop.value if final else 'none'}": 1.0,
    }


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return means over the episodes of a batch, by the names that loggers show."""
    if not rows:
        return {}

    def mean(name: str, among: Sequence[Mapping[str, float]] = rows) -> float:
        return sum(row.get(name, 0.0) for row in among) / len(among) if among else math.nan

    replanned = [row for row in rows if row["replanned"]]
    stops = Counter(name.removeprefix(STOP) for row in rows for name in row if name.startswith(STOP))
    found = {
        "mia/accuracy/first": mean("first"),
        "mia/accuracy/final": mean("final"),
        "mia/reflection/rate": mean("replanned"),
        "mia/reflection/right": mean("decision"),
        "mia/format/rate": mean("format"),
        "mia/tools/calls": mean("tool_calls"),
        "mia/tools/failures": mean("tool_failures"),
        "mia/replies/tokens": mean("reply_tokens"),
        "mia/replies/at_limit": mean("at_limit"),
    }
    if replanned:  # of the answers that were called in question, how many were wrong
        found["mia/reflection/precision"] = 1 - mean("first", replanned)
    return found | {f"mia/stop/{stop}": count / len(rows) for stop, count in sorted(stops.items())}


class Watch:
    """Tells when a sign of collapse has shown for some steps in a row."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._shown: Counter[str] = Counter()

    def seen(self, metrics: Mapping[str, float]) -> str:
        """Take in the metrics of a step; return the signs that have lasted, in words, or nothing."""
        alarms = self._alarms
        signs = {
            "the entropy is near zero": metrics.get("actor/entropy", math.inf) < alarms.entropy_below,
            "hardly a reply is well formed": metrics.get("mia/format/rate", 1.0) < alarms.format_below,
            "most replies are cut off": metrics.get("mia/replies/at_limit", 0.0) > alarms.at_limit_above > 0,
            "the gradient is not a number": not math.isfinite(metrics.get("actor/grad_norm", 0.0)),
        }
        self._shown = Counter({sign: self._shown[sign] + 1 for sign, shows in signs.items() if shows})
        return "; ".join(sign for sign, steps in self._shown.items() if steps >= alarms.steps)
