"""What the commands draw: sentences, rows, bars, and how far a long work is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mia.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

TOP = 8  # of many rows shown
_BAR = 30  # characters of the longest bar


def say(text: str) -> None:
    """Print a sentence."""
    Console().print(Text(clean(text)), soft_wrap=True)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def bars(counts: Mapping[str, int]) -> Table:
    """Draw counts as bars, of which the longest is that of the largest count."""
    most = max(counts.values())
    bar = partial(ProgressBar, total=most, width=_BAR, complete_style="cyan", finished_style="cyan")
    return rows(*((name, Text(f"{count:,}", justify="right"), bar(completed=count)) for name, count in counts.items()))


def rows(*lines: tuple[str, *tuple[RenderableType, ...]]) -> Table:
    """Lay out names and what belongs to them."""
    table = Table(box=None, show_header=False)
    for name, *cells in lines:
        table.add_row(Text(name), *(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def draw(title: str, table: Table, of: int = 0) -> None:
    """Print a table under its title, which says if only the top is shown `of` so many."""
    shown = f" ({TOP} of {of:,}; --json shows all)" if of > TOP else ""
    Console().print(Text(f"\n{title}{shown}", style="bold"), table, sep="\n")


def progress() -> Progress:
    """Return a bar on standard error: how much of how much, since when, and for how long still."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
