"""Build data/worldfacts and data/flags from the pinned packages of the extra `data`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from worldfacts.build import build_world
from worldfacts.files import write_text
from worldfacts.flags import write_flags
from worldfacts.generate import generate

DATA = Path(__file__).parents[1] / "data"


def main() -> None:
    """Build everything into a folder; the same packages make the same bytes."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Example: python scripts/build_worldfacts.py --out /tmp/data  (needs: ./install.sh data; about 15 s)",
    )
    parser.add_argument("--out", type=Path, default=DATA, help="where worldfacts/ and flags/ go (data)")
    out = parser.parse_args().out
    console = Console(stderr=True)
    with console.status("Reading the sources") as status:
        world = build_world()
        console.print(f"{len(world.titles):,} passages")

        def report(name: str, count: int) -> None:
            console.print(f"{count:,} questions for {name}")
            status.update("Making questions")

        made = generate(world, report)
        figures = write_text(out / "worldfacts", world, made)
        status.update("Making flag questions")
        flags = write_flags(out / "flags", DATA / "flags" / "images", world)
    table = Table("file", "questions", "by hops", "by family")
    for name, each in figures["files"].items():
        hops, families = (", ".join(f"{key} {count}" for key, count in each[by].items()) for by in ("hops", "families"))
        table.add_row(name, f"{each['questions']:,}", hops, families)
    for split, count in flags.items():
        table.add_row(f"flags/{split}", f"{count:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
