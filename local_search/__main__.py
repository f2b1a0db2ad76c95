"""The command line of offline search: `python -m local_search [serve|build|check]`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from local_search.build import build, prepare
from local_search.index import REBUILD, locked, stale
from local_search.service import create_app
from mia.errors import MiaError, StorageError
from mia.runtime.app import serve
from mia.runtime.logging import configure
from mia.runtime.settings import SearchServiceSettings, load

if TYPE_CHECKING:
    from collections.abc import Sequence

STOPPED = 130  # what shells take for Ctrl-C

_log = logging.getLogger(__name__)

EXAMPLES = """\
commands:
  serve    build the index if it is missing or its corpus changed, then serve it (the default)
  build    build the index anew and stop; a build that was stopped goes on where it was
  check    read the corpus and the whole index, and say whether both are as they were built

a corpus is a text file (or .gz) with one JSON object a line, in any language:
  {"id": "1", "contents": "\\"Aba\\"\\nAba is a city in Nigeria."}

ask the running service:
  curl -s http://127.0.0.1:8001/retrieve -H 'Content-Type: application/json' \\
       -d '{"queries": ["Which country is Aba in?"], "topk": 3, "return_scores": true}'

more settings come from the environment: MIA_BM25_K1, MIA_BM25_B, MIA_SEARCH_THREADS, MIA_SEARCH_SECONDS,
MIA_SEARCH_ANSWERS, MIA_TOKEN, MIA_MAX_RUNNING, MIA_MAX_WAITING, MIA_DRAIN_SECONDS; local_search/README.md tells them
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = _parser().parse_args(arguments)
    configure()
    try:
        given = {name: value for name, value in vars(options).items() if name not in ("command", "no_build")}
        settings = load(SearchServiceSettings, **given)
        if options.command == "build":
            build(settings)
        elif options.command == "check":
            check(settings)
        else:
            index = None if options.no_build else prepare(settings)
            serve(create_app(settings, index), settings)
    except MiaError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        return STOPPED
    return 0


def check(settings: SearchServiceSettings) -> None:
    """Read everything that an index consists of. Raises StorageError when it is not as it was built."""
    with locked(settings.index, alone=False):
        reason = stale(settings, thorough=True)
    if reason:
        raise StorageError(f"The index {settings.index} cannot be used: {reason}.", remedy=REBUILD)
    _log.info("the index %s and its corpus are as they were built", settings.index)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m local_search",
        description="Search a corpus offline: POST /retrieve.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=("serve", "build", "check"), default="serve")
    parser.add_argument("--corpus", type=Path, help="the corpus file (CORPUS_PATH; data/worldfacts/corpus.jsonl)")
    parser.add_argument("--index", type=Path, help="the folder of the index (INDEX_PATH; runs/index)")
    parser.add_argument("--language", help="auto, none, english, german, ... (MIA_SEARCH_LANGUAGE; auto)")
    parser.add_argument("--workers", type=int, help="processes that build the index (MIA_SEARCH_WORKERS; 2)")
    parser.add_argument("--host", help="the address to listen on (HOST; 127.0.0.1)")
    parser.add_argument("--port", type=int, help="the port to listen on, 0 for a free one (SEARCH_PORT; 8001)")
    parser.add_argument("--no-build", action="store_true", help="serve the index as it is, or refuse if it is stale")
    return parser


if __name__ == "__main__":
    sys.exit(main())
