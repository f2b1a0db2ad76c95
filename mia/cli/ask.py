"""`mia ask`: one question, answered live."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from mia import wiring
from mia.cli.failures import failed
from mia.cli.live import LiveView
from mia.errors import InputError
from mia.prompts import fingerprint
from mia.runs.folder import RunFolder, new_id
from mia.runtime.settings import RoleSettings, load
from mia.text import to_json
from mia.types import Episode, Key, Question, Source, Truth

_MAX_SOURCES = 8


def ask(  # noqa: PLR0913  (one parameter per option)
    question: Annotated[str, typer.Argument(help="The question; - reads it from standard input.")],
    *,
    image: Annotated[list[Path] | None, typer.Option(help="An image the question is about. May be repeated.")] = None,
    truth: Annotated[
        list[str] | None,
        typer.Option(help="The right answer or an alias; with it the answer is judged and the episode remembered."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole episode as JSON and nothing else.")] = False,
    model: Annotated[str | None, typer.Option(help="URL of a model server ending in /v1. [MIA_MODEL]")] = None,
    search_url: Annotated[str | None, typer.Option(help="URL of a search service. [MIA_SEARCH_URL]")] = None,
    no_memory: Annotated[bool, typer.Option("--no-memory", help="Neither recall nor remember.")] = False,
) -> None:
    """Answer a question: recall, plan, search, reflect, plan again if needed, answer.

    The model and search servers must be running: `mia serve model` and `mia serve search`.

    Example: mia ask "What is the official currency of Romania?" --truth "Romanian Leu"
    """
    settings = load(RoleSettings, model=model, search_url=search_url, memory="none" if no_memory else None)
    asked = wiring.question(settings, _read(question), image_files=image or ())
    console = Console(stderr=True, quiet=as_json)
    episode = asyncio.run(_run(settings, asked, truth, console))
    if as_json:
        sys.stdout.write(to_json(episode.model_dump(mode="json"), indent=2) + "\n")
    elif not episode.failure:
        _show(episode, Console())
    if episode.failure:
        raise failed(episode.failure)
    if episode.answer is None:
        raise typer.Exit(1)


def _read(question: str) -> str:
    if question != "-":
        return question
    try:
        return sys.stdin.buffer.read(1 << 22).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("Standard input is not UTF-8 text.", remedy="Pass the question as UTF-8 text.") from error


async def _run(settings: RoleSettings, question: Question, truth: list[str] | None, console: Console) -> Episode:
    answer_key = {question.id: Truth(answers=tuple(truth))} if truth else None
    made_by = {
        "settings": settings.model_dump(mode="json"),
        "models": await wiring.served(settings),
        "prompts": fingerprint(),
    }
    run = new_id("ask")
    folder = RunFolder.create(settings.home / run, made_by, run)
    async with wiring.agent(settings, answer_key=answer_key, listener=LiveView(console)) as agent:
        episode = await agent.run(question, Key(run=folder.id, question_id=question.id))
    folder.append(episode)
    console.print(Text(f"{'recorded':>10}  {folder.path}", style="dim"), soft_wrap=True)
    return episode


def _show(episode: Episode, console: Console) -> None:
    console.print(Text.assemble(("Answer: ", "bold"), episode.answer or "no answer was found"), soft_wrap=True)
    sources = _sources(episode)
    for number, source in enumerate(sources, 1):
        console.print(Text(f"  [{number}] {source.title} ({source.url or source.id})"), soft_wrap=True)
    if episode.final is None or episode.final.verdict is None:
        console.print(Text("Not judged, so not remembered: give --truth to have it learn from this.", style="dim"))


def _sources(episode: Episode) -> list[Source]:
    """Return what the answer can rest on: first the passages of observations that contain it."""
    if episode.final is None:
        return []
    answer = (episode.answer or "\0").casefold()
    seen = [step.observation for step in episode.final.trajectory.steps if step.observation]
    seen.sort(key=lambda observation: answer not in observation.text.casefold())
    found = {source.id: source for observation in seen for source in observation.sources}
    return list(found.values())[:_MAX_SOURCES]
