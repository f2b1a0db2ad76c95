"""What the adapters of the small model reach; scripts/evaluate_embedded.sh runs all of it in order.

    python benchmarks/embedded.py reading OUT [--size 60]          answers with an invented fact in the passages
    python benchmarks/embedded.py reflection OUT TRANSCRIPTS       reflections on transcripts, right or wrong
    python benchmarks/embedded.py table OUT                        everything that is in OUT, as results.json, table.md

OUT holds the folders of runs by `mia eval`, named as in the script. Each command can be run again and goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from pathlib import Path

from embedded_probes import invent, read, reflect
from embedded_table import markdown, measured
from rich.console import Console
from rich.markdown import Markdown

from mia import wiring
from mia.prompts import fingerprint
from mia.runs.folder import RunFolder
from mia.runtime.settings import RoleSettings, load

DATA = Path(__file__).parents[1] / "data" / "worldfacts"


def reading(out: Path, size: int) -> None:
    """Ask questions whose passages tell an invented answer."""
    settings = load(RoleSettings, benchmark=True)
    facts = invent(DATA / "test.jsonl", DATA / "corpus.jsonl", size)
    made_by = {"models": asyncio.run(wiring.served(settings)), "prompts": fingerprint(), "size": len(facts)}
    found = asyncio.run(read(settings, facts, RunFolder.create(out / "reading", made_by)))
    _write(out / "reading.json", found)


def reflection(out: Path, transcripts: Path) -> None:
    """Put transcripts of known worth to the Planner."""
    found = asyncio.run(reflect(load(RoleSettings), transcripts, out / "reflection.jsonl"))
    pairs = Counter((each.right, each.said) for each in found)
    kinds = Counter((each.kind, each.right == each.said) for each in found)
    counts = {
        "yes": {"size": pairs[True, True] + pairs[True, False], "right": pairs[True, True]},
        "no": {"size": pairs[False, False] + pairs[False, True], "right": pairs[False, False]},
        "unclear": sum(not each.clear for each in found),
        "kinds": {
            kind: {"size": kinds[kind, True] + kinds[kind, False], "right": kinds[kind, True]}
            for kind in sorted({kind for kind, _ in kinds})
        },
    }
    _write(out / "reflection.json", counts)


def table(out: Path) -> None:
    """Write and print all that has been measured."""
    rows = measured(out, DATA)
    _write(out / "results.json", {"rows": rows})
    text = markdown(rows)
    (out / "table.md").write_text(text, encoding="utf-8")
    Console().print(Markdown(text))


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("reading", "reflection", "table"))
    parser.add_argument("out", type=Path, help="folder of the runs and results")
    parser.add_argument("transcripts", type=Path, nargs="?", help="traces of the test split, JSON lines")
    parser.add_argument("--size", type=int, default=60, help="questions with an invented fact")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.command == "reading":
        reading(options.out, options.size)
    elif options.command == "reflection":
        if options.transcripts is None:
            parser.error("reflection needs a file of transcripts")
        reflection(options.out, options.transcripts)
    else:
        table(options.out)


if __name__ == "__main__":
    main()
