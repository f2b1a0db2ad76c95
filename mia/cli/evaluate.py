"""`mia eval`: a data set, answered and graded, with live memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from mia import wiring
from mia.cli.drawing import counted, progress, say
from mia.cli.failures import failed
from mia.cli.results import outcomes, shares, summary
from mia.errors import ConfigError
from mia.evaluation.datasets import Dataset, read_dataset
from mia.evaluation.report import comparable, report
from mia.evaluation.runner import finished, run, whole
from mia.memory.manager import Manager
from mia.prompts import fingerprint
from mia.runs.folder import RunFolder, new_id
from mia.runtime.settings import RoleSettings, load
from mia.wiring import Method

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mia.types import Episode


def evaluate(  # noqa: PLR0913  (one parameter per option)
    data: Annotated[Path, typer.Argument(help="JSON lines with id, question and answers; type, too, if they have it.")],
    *,
    method: Annotated[Method, typer.Option(help="The loop, or a baseline that has neither plans nor memory.")] = (
        Method.LOOP
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions.")] = None,
    per_type: Annotated[
        int | None, typer.Option(min=1, help="Only N questions of each type, always the same ones.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Questions at once; with 1 each sees the memories of all before it.")
    ] = 1,
    against: Annotated[
        Path | None, typer.Option(help="Folder of a finished run over these questions, to compare with in pairs.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; naming one again resumes it.")] = None,
    run_id: Annotated[str, typer.Option(help="Id of a new run; the same id repeats a run's seeds.")] = "",
    memory: Annotated[str | None, typer.Option(help="bank, or none. [MIA_MEMORY]")] = None,
    memory_path: Annotated[Path | None, typer.Option(help="Memory to use. [default: a fresh one in the run]")] = None,
    model: Annotated[str | None, typer.Option(help="URL of a model server ending in /v1. [MIA_MODEL]")] = None,
    search_url: Annotated[str | None, typer.Option(help="URL of a search service. [MIA_SEARCH_URL]")] = None,
) -> None:
    """Answer and grade the questions of a data set; every question stays in the denominator.

    Example: mia eval data/worldfacts/dev.jsonl --limit 8 --out runs/first
    """
    settings = load(
        RoleSettings, model=model, search_url=search_url, memory=memory, memory_path=memory_path, benchmark=True
    )
    if settings.judge == "none":
        raise ConfigError("An evaluation needs a judge.", remedy="Set MIA_JUDGE to exact or truth.")
    others = whole(RunFolder(against)) if against else None
    path = out or settings.home / (run_id := run_id or new_id("eval"))
    if memory_path is None:
        settings = settings.model_copy(update={"memory_path": path / "memory.sqlite"})
    dataset = read_dataset(data, settings, limit, per_type)
    if others is not None:
        comparable(dataset.questions, others)
    # Where things are and who may use them does not change what is measured, and may differ when a run is resumed.
    place = {name for name in RoleSettings.model_fields if name.endswith(("_url", "_key", "_path"))}
    place |= {"model", "model_port", "home", "token"}
    made_by = {
        "method": method,
        "settings": settings.model_dump(mode="json", exclude=place),
        "concurrency": concurrency,
        "models": asyncio.run(wiring.served(settings, method)),
        "prompts": fingerprint(),
        "data": {
            "name": dataset.name,
            "sha256": dataset.sha256,
            "size": len(dataset.questions),
            "per_type": per_type,
        },
    }
    folder = RunFolder.create(path, made_by, run_id)
    episodes, missed = asyncio.run(_run(settings, method, dataset, folder, concurrency))
    _show(dataset, episodes, folder, others)
    if missed:
        wanted = ", ".join(counted(count, noun) for noun, count in sorted(missed.items()))
        say(f"a model was asked for the memory and failed to write: {wanted}")
    failures = [episode.failure for episode in episodes if episode.failure]
    if failures:
        raise failed(failures[0])


async def _run(
    settings: RoleSettings, method: Method, dataset: Dataset, folder: RunFolder, concurrency: int
) -> tuple[list[Episode], Counter[str]]:
    """Return the episodes, and what a model was asked for by the memory and did not bring."""
    count = set(finished(folder))
    async with wiring.agent(settings, method=method, answer_key=dataset.answer_key) as agent:
        with progress() as bar:
            task = bar.add_task(dataset.name, total=len(dataset.questions), completed=len(count))

            def advance(episode: Episode) -> None:
                if not episode.failure:
                    count.add(episode.key.question_id)
                    bar.update(task, completed=len(count))

            episodes = await run(dataset.questions, agent, folder, concurrency=concurrency, progress=advance)
        return episodes, agent.memory.counts if isinstance(agent.memory, Manager) else Counter()


def _show(dataset: Dataset, episodes: list[Episode], folder: RunFolder, others: Mapping[str, Episode] | None) -> None:
    console = Console()
    console.print(outcomes(dataset, episodes))
    for line in summary(episodes, report(episodes)):
        console.print(Text(line))
    if others is not None or len({dataset.types[episode.question.id] for episode in episodes}) > 1:
        console.print(shares(episodes, dataset.types, others))
    console.print(Text(f"recorded in {folder.path}"), soft_wrap=True)
