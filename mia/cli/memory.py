"""`mia memory`: what the agent remembers."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mia import wiring
from mia.errors import InputError
from mia.runtime.settings import RoleSettings, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia.memory.bank import Bank

app = typer.Typer(help="See and edit what the agent remembers.", no_args_is_help=True, rich_markup_mode=None)


@contextmanager
def _bank() -> Iterator[Bank]:
    bank = wiring.bank(load(RoleSettings))
    try:
        yield bank
    finally:
        bank.close()


@app.command("list")
def list_memories(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    label: Annotated[str | None, typer.Option(help="Only `correct` or only `incorrect` ones.")] = None,
) -> None:
    """List memories, newest first."""
    if label not in (None, "correct", "incorrect"):
        raise InputError(f"There is no label {label!r}.", remedy="Use correct or incorrect.")
    with _bank() as bank:
        rows = bank.list(limit=limit, label=label)
    if not rows:
        Console().print("Nothing is remembered yet: `mia ask ... --truth ...` or `mia eval` make memories.")
        return
    table = Table("id", "label", "uses", "wins", "created", "question")
    for row in rows:
        created = datetime.fromtimestamp(row.created, UTC).strftime("%Y-%m-%d %H:%M")
        name = "correct" if row.correct else "incorrect"
        table.add_row(str(row.id), name, str(row.uses), str(row.wins), created, Text(row.question))
    Console().print(table)


@app.command()
def show(id: Annotated[int, typer.Argument(help="The memory's id.")]) -> None:  # noqa: A002
    """Show one memory whole."""
    with _bank() as bank:
        row = bank.get(id)
    if row is None:
        raise InputError(f"There is no memory {id}.", remedy="`mia memory list` shows the ids.")
    Console().print_json(row.model_dump_json(), ensure_ascii=False)


@app.command()
def forget(id: Annotated[int, typer.Argument(help="The memory's id.")]) -> None:  # noqa: A002
    """Forget one memory. The change log keeps what is needed to undo it."""
    with _bank() as bank:
        if not bank.forget(id):
            raise InputError(f"There is no memory {id}.", remedy="`mia memory list` shows the ids.")
    Console().print(f"Memory {id} is forgotten.")


@app.command()
def stats() -> None:
    """Print counts of the memory as JSON."""
    with _bank() as bank:
        Console().print_json(json.dumps(bank.stats(), ensure_ascii=False))
