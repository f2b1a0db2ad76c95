"""`mia memory`: what the agent remembers."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from sys import maxsize
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from mia import wiring
from mia.cli.drawing import TOP, bars, counted, draw, progress, rows, say
from mia.cli.files import read_text, usable, write_text
from mia.errors import InputError
from mia.memory import transfer
from mia.memory.reading import EMBEDDED
from mia.runtime.settings import RoleSettings, load
from mia.text import clean
from mia.types import OTHERS
from mia.wire.memory_files import plan_file, read, workflow_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mia.memory.storage import Storage

_HELP = """See and edit what the agent remembers. Every change can be undone.

Example: mia memory stats
"""

app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)


@contextmanager
def _storage() -> Iterator[Storage]:
    settings = load(RoleSettings)
    if not settings.memory_path.exists():
        raise InputError(
            f"There is no memory at {settings.memory_path} yet.",
            remedy="`mia ask ... --truth ...` or `mia memory import` makes one; MIA_MEMORY_PATH names another.",
        )
    with closing(wiring.storage(settings)) as storage:
        yield storage


@app.command("list")
def list_memories(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    label: Annotated[str | None, typer.Option(help="Only `correct` or only `incorrect` ones.")] = None,
    source: Annotated[str | None, typer.Option(help="Only those of one run or imported file.")] = None,
) -> None:
    """List memories, newest first.

    Example: mia memory list --label correct --limit 5
    """
    if label not in (None, "correct", "incorrect"):
        raise InputError(f"There is no label {label!r}.", remedy="Use correct or incorrect.")
    with _storage() as storage:
        found = storage.list(limit, correct=None if label is None else label == "correct", source=source)
    if not found:
        say("Nothing of that kind is remembered.")
        return
    table = Table("id", "label", "uses", "wins", "created", "question")
    for row in found:
        created = datetime.fromtimestamp(row.created, UTC).strftime("%Y-%m-%d %H:%M")
        name = "correct" if row.correct else "incorrect"
        table.add_row(str(row.id), name, str(row.uses), str(row.wins), created, Text(row.question))
    Console().print(table)


@app.command()
def show(id: Annotated[int, typer.Argument(help="The memory's id.")]) -> None:  # noqa: A002
    """Show one memory whole, as JSON.

    Example: mia memory show 3
    """
    with _storage() as storage:
        row = storage.get(id)
    if row is None:
        raise InputError(f"There is no memory {id}.", remedy="`mia memory list` shows the ids.")
    Console().print_json(row.model_dump_json(), ensure_ascii=False)


@app.command()
def forget(
    ids: Annotated[list[int] | None, typer.Argument(help="The memories' ids.", show_default=False)] = None,
    source: Annotated[str | None, typer.Option(help="All of one run or imported file, plan pairs too.")] = None,
) -> None:
    """Forget memories by id or by source, and say how to undo it.

    Example: mia memory forget 3 4
    """
    if bool(ids) == (source is not None):
        raise InputError("Name either ids or a source.", remedy="mia memory forget 3 4, or --source NAME.")
    with _storage() as storage, storage.writing() as writing:
        before = storage.sequence()  # nobody else writes meanwhile
        gone = writing.forget(ids or [])
        count = len(gone) if source is None else writing.forget_source(source)
    missing = ", ".join(str(id_) for id_ in dict.fromkeys(ids or []) if id_ not in gone)
    if not count:
        raise InputError(
            f"There is no memory {missing}." if source is None else f"Nothing is remembered of the source {source!r}.",
            remedy="`mia memory list` shows the ids, `mia memory stats --json` the sources.",
        )
    say(f"Forgot {counted(count, 'memory') if source is None else f'{count:,} memories and plan pairs'}.")
    if missing:
        say(f"There is no memory {missing}.")
    _say_undo(before)


@app.command()
def stats(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and all of it.")] = False) -> None:
    """Show how much is remembered, and of what use it was.

    Example: mia memory stats
    """
    with _storage() as storage:
        found, path = storage.stats(), storage.path
    if as_json:
        Console().print_json(json.dumps(found, ensure_ascii=False), ensure_ascii=False)
        return
    sources = {name or "(unnamed)": count for name, count in Counter(found["sources"]).most_common(TOP)}
    categories = dict(Counter(found["categories"]).most_common())
    draw(f"Memory in {path}", _facts(found))
    if found["memories"]:
        draw("Memories by label", bars({"correct": found["successes"], "incorrect": found["failures"]}))
        draw("Memories by how often they were shown", bars(found["uses_histogram"]))
        if categories.keys() - {OTHERS}:
            draw("Memories by category", bars(categories))
        draw("Memories by source", bars(sources), of=len(found["sources"]))
    if found["snapshots"]:
        latest = [(name, str(number)) for name, number in found["snapshots"].items()][-TOP:]
        draw("Snapshots, and the changes they name", rows(*latest), of=len(found["snapshots"]))


@app.command("export")
def export_files(
    file: Annotated[Path, typer.Argument(help="Where to write the memories.")],
    *,
    plans: Annotated[Path | None, typer.Option(help="Where to write the plan pairs.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Write the memory as files of the released code. They have no place for ids, runs, models and times.

    Example: mia memory export workflows.json --plans plans.json
    """
    targets = [path for path in (file, plans) if path]
    if plans and file.resolve() == plans.resolve():
        raise InputError(f"{file} cannot hold both memories and plan pairs.", remedy="Name two files.")
    for path in targets:
        with usable(path, "written"):
            there = path.exists()
        if there and not force:
            raise InputError(f"{path} is there already.", remedy="Name another file, or overwrite it with --force.")
    with _storage() as storage:
        workflows, pairs = storage.list(None)[::-1], storage.pairs()
    write_text(file, workflow_file(workflows))
    say(f"Wrote {counted(len(workflows), 'memory')} to {file}.")
    if plans:
        write_text(plans, plan_file(pairs))
        say(f"Wrote {counted(len(pairs), 'plan pair')} to {plans}.")
    elif pairs:
        say(f"Left out {counted(len(pairs), 'plan pair')}, which --plans FILE writes.")


@app.command("import")
def import_files(
    files: Annotated[list[Path], typer.Argument(help="Workflow or plan memories, nested or one record a line.")],
    source: Annotated[
        str | None, typer.Option(help="A name for where they come from. [default: the file's name]")
    ] = None,
) -> None:
    """Take in memory files of the released code. What is known of a source, even if forgotten, is not taken in again.

    Example: mia memory import memory_bank.json plan_memory.jsonl
    """
    settings, now = load(RoleSettings), time.time()
    released = [read(read_text(file), file.name if source is None else source, now) for file in files]
    encoder = wiring.encoder(settings)
    with closing(wiring.storage(settings, encoder)) as storage:
        before = storage.sequence()
        with _resumable("importing", sum(len(one.workflows) + len(one.pairs) for one in released)) as done:
            taken = [transfer.take_in(storage, encoder, one.workflows, one.pairs, done) for one in released]
    memories, pairs, known = map(sum, zip(*taken, strict=True))
    say(f"Took in {counted(memories, 'memory')} and {counted(pairs, 'plan pair')}; known already: {known:,}.")
    dropped: Counter[str] = sum((one.dropped for one in released), Counter())
    for field, count in dropped.most_common():
        say(f"The field {field!r} has no place here and was dropped, in {counted(count, 'record')}.")
    if memories or pairs:
        _say_undo(before)


@app.command()
def reembed() -> None:
    """Move the memory to the encoder that MIA_ENCODER names. When broken off, it goes on where it was.

    Example: MIA_ENCODER=static mia memory reembed
    """
    with _storage() as storage:
        encoder = wiring.encoder(load(RoleSettings))
        if storage.stats()["encoder"] == encoder.id:
            say(f"The memory is read by the encoder {encoder.id} already.")
            return
        rows = sum(len(storage.unembedded(subject, encoder.id, 0, maxsize)) for subject in EMBEDDED)
        with _resumable("encoding", rows) as done:
            transfer.reembed(storage, encoder, done)
    say(f"The memory is read by the encoder {encoder.id} now.")
    say("Services that were running have the former one loaded: start them again with this MIA_ENCODER.")


@app.command()
def snapshot(name: Annotated[str, typer.Argument(help="A name that is not taken.")]) -> None:
    """Give the present state of the memory a name to restore it by.

    Example: mia memory snapshot before-training
    """
    name = clean(name).strip()
    if not name or name.isdecimal():
        raise InputError(f"{name!r} cannot be a snapshot's name.", remedy="Use words, not a number: before-training.")
    with _storage() as storage, storage.writing() as writing:
        taken = storage.snapshots().get(name)
        if taken is not None:
            raise InputError(f"There is a snapshot {name!r} already, of change {taken}.", remedy="Use another name.")
        writing.snapshot(name)
    say(f"To come back to this state: mia memory restore {shlex.quote(name)}")


@app.command()
def restore(
    state: Annotated[str, typer.Argument(metavar="N|NAME", help="The number of a change, or a snapshot's name.")],
) -> None:
    """Bring the memory back to an earlier state. That can be undone too.

    Example: mia memory restore before-training
    """
    state = clean(state).strip()
    with _storage() as storage, storage.writing() as writing:
        sequence = int(state) if state.isdecimal() else storage.snapshots().get(state)
        if sequence is None:
            raise InputError(f"There is no snapshot {state!r}.", remedy="`mia memory stats --json` shows their names.")
        before = storage.sequence()  # nobody else writes meanwhile
        after = writing.restore(sequence)
    if after == before:
        say(f"The memory is as it was at change {sequence} already.")
    else:
        say(f"The memory is as it was at change {sequence}.")
        _say_undo(before)


@app.command()
def clear(*, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Forget everything, and say how to undo it. Snapshots are kept.

    Example: mia memory clear --yes
    """
    with _storage() as storage:
        found = storage.stats()
        what = f"{counted(found['memories'], 'memory')} and {counted(found['plan_pairs'], 'plan pair')}"
        if not yes:
            typer.confirm(f"Forget {what} of {storage.path}, and all that waits?", abort=True)
        before = storage.clear()
    say(f"Forgot {what}.")
    _say_undo(before)


def _say_undo(sequence: int) -> None:
    say(f"To undo this: mia memory restore {sequence}")


def _facts(found: Mapping[str, Any]) -> Table:
    rollouts, summaries = counted(found["explorations"], "rollout"), counted(found["drafts"], "summary")
    return rows(
        ("memories", f"{found['memories']:,}"),
        ("shown", f"{counted(found['uses'], 'time')}, {found['wins']:,} of them for a right answer"),
        ("plan pairs", f"{found['plan_pairs']:,}"),
        ("waiting", f"{rollouts} for their group, {summaries} to be written again"),
        ("encoder", found["encoder"] or "none yet"),
        ("latest change", str(found["sequence"])),
        ("on disk", decimal(found["bytes"])),
    )


@contextmanager
def _resumable(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far work is that can be broken off and goes on."""
    try:
        with progress() as bar:
            yield partial(bar.advance, bar.add_task(title, total=total))
    except KeyboardInterrupt:
        Console(stderr=True).print("Broken off. What is done is kept; the same command goes on from there.")
        raise typer.Exit(130) from None
