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

    from mia.memory.storage import Storage

app = typer.Typer(help="See and edit what the agent remembers.", no_args_is_help=True, rich_markup_mode=None)


@contextmanager
def _storage() -> Iterator[Storage]:
    settings = load(RoleSettings)
    if not settings.memory_path.exists():
        raise InputError(
            f"There is no memory at {settings.memory_path} yet.",
            remedy="`mia ask ... --truth ...` makes one; MIA_MEMORY_PATH names another.",
        )
    storage = wiring.storage(settings)
    try:
        yield storage
    finally:
        storage.close()


@app.command("list")
def list_memories(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    label: Annotated[str | None, typer.Option(help="Only `correct` or only `incorrect` ones.")] = None,
) -> None:
    """List memories, newest first."""
    if label not in (None, "correct", "incorrect"):
        raise InputError(f"There is no label {label!r}.", remedy="Use correct or incorrect.")
    with _storage() as storage:
        rows = storage.list(limit, correct=None if label is None else label == "correct")
    if not rows:
        Console().print("Nothing of that kind is remembered.")
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
    with _storage() as storage:
        row = storage.get(id)
    if row is None:
        raise InputError(f"There is no memory {id}.", remedy="`mia memory list` shows the ids.")
    Console().print_json(row.model_dump_json(), ensure_ascii=False)


@app.command()
def forget(id: Annotated[int, typer.Argument(help="The memory's id.")]) -> None:  # noqa: A002
    """Forget one memory. The change log keeps what is needed to undo it."""
    with _storage() as storage:
        if not storage.forget(id):
            raise InputError(f"There is no memory {id}.", remedy="`mia memory list` shows the ids.")
    Console().print(f"Memory {id} is forgotten.")


@app.command()
def stats() -> None:
    """Print counts of the memory as JSON."""
    with _storage() as storage:
        Console().print_json(json.dumps(storage.stats(), ensure_ascii=False))
