"""`mia compare`: runs over the same questions, side by side."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mia.cli.drawing import counted, say
from mia.cli.results import percent, points
from mia.evaluation.report import comparable, difference, report
from mia.evaluation.runner import whole
from mia.runs.folder import RunFolder

if TYPE_CHECKING:
    from mia.types import Episode

_METHODS = {"closed-book": "closed book", "one-shot": "one-shot retrieval"}


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, each to be set against the one before it.")],
) -> None:
    """Set finished runs over the same questions side by side, each with what it gains over the one before it.

    Example: mia compare runs/closed-book runs/one-shot runs/loop
    """
    folders = [RunFolder(path) for path in runs]
    table = Table(caption="gain: over the run above; 95 % intervals by Wilson, of the gain by Newcombe's paired method")
    table.add_column("method")
    for name in ("correct", "share", "gain, points", "searches", "median s"):
        table.add_column(name, justify="right")
    before: dict[str, Episode] = {}
    by_model: dict[str, list[str]] = {}
    for folder in folders:
        episodes = whole(folder)
        result = report(list(episodes.values()))
        gain = "-"
        if before:
            comparable((episode.question for episode in episodes.values()), before)
            comparable((episode.question for episode in before.values()), episodes)
            gain = points(difference(list(episodes.values()), before))
        made_by = folder.manifest["made_by"]
        table.add_row(
            Text(_method(made_by)),
            f"{result.correct}/{result.size}",
            percent(result.accuracy, result.interval),
            gain,
            str(result.searches),
            f"{result.pace:.1f}",
        )
        by_model.setdefault(_model(made_by), []).append(_method(made_by))
        before = episodes
    table.title = f"{counted(len(before), 'question')} of {folders[-1].manifest['made_by']['data']['name']}"
    Console().print(table)
    for model, methods in by_model.items():
        say(f"{', '.join(methods)}: {model}")


def _method(made_by: dict[str, Any]) -> str:
    """Name what answered."""
    if (method := made_by.get("method", "loop")) in _METHODS:
        return _METHODS[method]
    return "loop without memory" if made_by["settings"]["memory"] == "none" else "loop with memory"


def _model(made_by: dict[str, Any]) -> str:
    """Name the weights of Planner and Executor, once where they are one."""
    models = made_by["models"]
    return ", ".join(dict.fromkeys(models[role] for role in ("planner", "executor") if role in models))
