"""`mia serve`: the processes that the agent needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import Annotated

import typer

from mia.embedded.server import serve_model
from mia.runtime.settings import ModelServiceSettings, SearchServiceSettings, load

app = typer.Typer(help="Start a process that the agent needs.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def model(
    model: Annotated[
        str | None, typer.Option(help="smollm2, a local .gguf file, or a Hugging Face name. [MIA_MODEL]")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. [MODEL_PORT]")] = None,
    slots: Annotated[int | None, typer.Option(help="Requests at once; memory grows with it. [MIA_MODEL_SLOTS]")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per request. [MIA_WINDOW]")] = None,
) -> None:
    """Serve a language model on this machine's CPU, with an OpenAI-compatible API."""
    serve_model(load(ModelServiceSettings, model=model, port=port, slots=slots, window=window))


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
