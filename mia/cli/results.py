"""Runs as tables: each question's outcome, each type's share, what one run gains over another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from mia.evaluation.report import by_type, difference, outcome, report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mia.evaluation.datasets import Dataset
    from mia.evaluation.report import Difference, Report
    from mia.types import Episode


def percent(share: float, interval: tuple[float, float]) -> str:
    """Return a share with its interval."""
    low, high = interval
    return f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def points(gain: Difference) -> str:
    """Return a difference with its interval, in points."""
    low, high = gain.interval
    return f"{100 * gain.value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def outcomes(dataset: Dataset, episodes: Sequence[Episode]) -> Table:
    """Lay out how each question ended."""
    table = Table(title=dataset.name, expand=True)
    for name, ratio in (("question", 3), ("answer", 2), ("truth", 2)):
        table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
    table.add_column("outcome")
    table.add_column("searches", justify="right")
    table.add_column("s", justify="right")
    for episode in episodes:
        truth = dataset.answer_key[episode.question.id]
        table.add_row(
            Text(episode.question.text),
            Text(episode.answer or "-"),
            Text(" | ".join(truth.answers) or "(none exists)"),
            outcome(episode),
            str(sum(episode.cost.tool_calls.values())),
            f"{episode.cost.seconds.get('all', 0.0):.1f}",
        )
    return table


def summary(episodes: Sequence[Episode], result: Report) -> list[str]:
    """Say in a few lines what a run came to."""
    ended = Counter(episode.final.trajectory.stop.value for episode in episodes if episode.final)
    replans = sum(max(0, len(episode.attempts) - 1) for episode in episodes)
    shown = sum(len(episode.recall.ids) for episode in episodes)
    low, high = result.interval
    spent = f"{result.model_calls} model calls, {result.searches} searches, {result.tokens:,} tokens"
    return [
        f"{result.size} questions: {', '.join(f'{n} {name}' for name, n in sorted(result.outcomes.items()))}.",
        f"searching ended by: {', '.join(f'{n} {name}' for name, n in ended.most_common()) or 'nothing'}",
        f"{shown} memories shown, {replans} plans revised",
        f"accuracy {result.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}), failures counted as wrong",
        f"{spent}, {result.seconds:.0f} s, for the median question {result.pace:.1f} s",
    ]


def shares(episodes: Sequence[Episode], types: Mapping[str, str], others: Mapping[str, Episode] | None) -> Table:
    """Lay out what each type of question came to and, where there is another run, what was gained over it."""
    table = Table(title="by type, with 95 % intervals")
    table.add_column("type")
    for name in ("correct", "share", *(["points more than the other run"] if others is not None else [])):
        table.add_column(name, justify="right")
    for name, group in {**by_type(episodes, types), "all": episodes}.items():
        result = report(group)
        gain = [points(difference(group, others))] if others is not None else []
        table.add_row(name or "-", f"{result.correct}/{result.size}", percent(result.accuracy, result.interval), *gain)
    return table
