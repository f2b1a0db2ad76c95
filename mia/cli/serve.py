"""`mia serve`: the processes that the agent needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import Annotated

import typer

from mia.embedded.server import serve_model
from mia.runtime.app import serve
from mia.runtime.logging import configure
from mia.runtime.settings import (
    AgentServiceSettings,
    MemoryServiceSettings,
    ModelServiceSettings,
    SearchServiceSettings,
    load,
)
from mia.services.agent import create_app as create_agent_app
from mia.services.memory import create_app

app = typer.Typer(help="Start a process that the agent needs.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def model(
    model: Annotated[
        str | None, typer.Option(help="smollm2, a local .gguf file, or a Hugging Face name. [MIA_MODEL]")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. [MODEL_PORT]")] = None,
    slots: Annotated[int | None, typer.Option(help="Requests at once; memory grows with it. [MIA_MODEL_SLOTS]")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per request. [MIA_WINDOW]")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of each; 0: all cores. [MIA_MODEL_THREADS]")] = None,
    adapters: Annotated[
        str | None, typer.Option(help="auto, none, or role=folder[,role=folder]. [MIA_ADAPTERS]")
    ] = None,
) -> None:
    """Serve a language model on this machine's CPU to every role, with an OpenAI-compatible API.

    The models are named executor, planner, judge and manager, and the model as it comes by its own name. A role with an
    adapter has it merged in. Roles of the same weights share one llama.cpp, with its slots and, unless --threads says
    otherwise, all cores; the Executor's is loaded at once, any other when it is first asked for.
    """
    given = {"slots": slots, "window": window, "threads": threads, "adapters": adapters}
    serve_model(load(ModelServiceSettings, model=model, port=port, **given))


@app.command()
def search(
    corpus: Annotated[Path | None, typer.Option(help="JSON lines with id and contents. [CORPUS_PATH]")] = None,
    index: Annotated[Path | None, typer.Option(help="Folder of the index. [INDEX_PATH]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. [SEARCH_PORT]")] = None,
) -> None:
    """Serve offline search over a corpus; the index is built when it is missing or the corpus has changed."""
    load(SearchServiceSettings, corpus=corpus, index=index, port=port)
    options = {"--corpus": corpus, "--index": index, "--port": port}
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    sys.stdout.flush()
    # The search service is a package of its own that this one meets over HTTP only, so the process becomes it.
    os.execv(sys.executable, [sys.executable, "-m", "local_search", "serve", *given])  # noqa: S606


@app.command()
def memory(
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. [MEMORY_PORT]")] = None,
    cold_start: Annotated[
        bool | None, typer.Option(help="Let the Manager's model plan while few memories are found. [MIA_COLD_START]")
    ] = None,
) -> None:
    """Serve memory and planning to agents elsewhere: the released Memory-Serve's routes, and /v1."""
    configure()
    settings = load(MemoryServiceSettings, port=port, cold_start=cold_start)
    serve(create_app(settings), settings)


@app.command()
def agent(
    mode: Annotated[str | None, typer.Option(help="train, ttrl, ttrl-no-truth or streaming. [MIA_AGENT_MODE]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. [AGENT_PORT]")] = None,
    parquet: Annotated[
        str | None, typer.Option(help="Data sets that hold the images, separated by commas. [PARQUET_PATH]")
    ] = None,
) -> None:
    """Serve the Executor to trainers elsewhere, and the memory that they fill: the released Serve's routes, and /v1."""
    configure()
    settings = load(AgentServiceSettings, mode=mode, port=port, parquet=parquet)
    serve(create_agent_app(settings), settings)
