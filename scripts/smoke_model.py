"""Make what a smoke run of Planner training starts from: a tiny model whose plans are often wrong, its data, a corpus.

  python scripts/smoke_model.py --out runs/smoke

writes FOLDER/model (a Qwen3 of two layers with a word-level tokenizer), FOLDER/train.parquet and FOLDER/val.parquet
(id, question, answers, recall) and FOLDER/corpus.jsonl, which `mia serve search` is to serve, and tells how often the
model is right. It takes under a minute on one core. Needs: ./install.sh embedded train
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mia.errors import ConfigError, InputError, MiaError

if TYPE_CHECKING:
    from smoke.rehearsal import Plays, Rehearsal

DATA = Path(__file__).parents[1] / "data" / "worldfacts"


def main() -> None:
    """Do what the command line names; an error ends with its own exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to write; not there yet")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, and of what they learn from (default 0)")
    parser.add_argument("--right", type=int, default=220, metavar="STEPS", help="on right plans, first (default 220)")
    parser.add_argument("--mixed", type=int, default=120, metavar="STEPS", help="on mixed ones, then (default 120)")
    console = Console(highlight=False, soft_wrap=True)
    try:
        make(parser.parse_args(), console)
    except ImportError as error:
        _fail(console, ConfigError(f"The package {error.name} is missing.", remedy="Run ./install.sh embedded train."))
    except MiaError as error:
        _fail(console, error)


def make(options: argparse.Namespace, console: Console) -> None:
    """Write the folder and show what the model can do."""
    if options.out.exists():
        raise InputError(f"{options.out} is there already.", remedy="Name another --out, or remove it.")
    import torch  # noqa: PLC0415 - of an extra
    from smoke import rehearsal, tiny, warm  # noqa: PLC0415 - of an extra
    from smoke.world import SmokeWorld  # noqa: PLC0415 - of an extra
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 - of an extra

    disable_progress_bar()
    torch.set_num_threads(1)  # more are no faster for a model as small as this
    scratch = options.out.with_name(f".{options.out.name}")  # so that a folder of the name asked for is whole
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    started = time.monotonic()
    chance = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    course = warm.Course(options.right, options.mixed)
    with rehearsal.opened(SmokeWorld(DATA)) as stage:
        plays = asyncio.run(_play(stage, scratch, course.mixed * warm.BATCH, chance))
    played = time.monotonic()
    learnt = warm.start(plays, course, options.seed, chance)
    taught = time.monotonic()
    tiny.save(scratch / "model", *learnt)
    scratch.rename(options.out)
    table = Table("share at temperature 1", "training", "validation")
    measured = (warm.odds(learnt, plays.training), warm.odds(learnt, plays.validation))
    for name, *values in zip(warm.Odds._fields, *measured, strict=True):
        table.add_row(name.replace("_", " "), *(f"{value:.3f}" for value in values))
    console.print(table)
    seconds = f"played in {played - started:.0f} s, taught in {taught - played:.0f} s"
    console.print(f"{options.out}: {len(learnt.tokenizer)} words, {seconds}")


async def _play(stage: Rehearsal, out: Path, count: int, chance: random.Random) -> Plays:
    """Write the data, and return what the model is to learn from."""
    from smoke import rehearsal  # noqa: PLC0415 - of an extra
    from smoke.world import write_rows  # noqa: PLC0415 - of an extra

    stage.world.write_corpus(out / "corpus.jsonl")
    await stage.remember()
    await write_rows(out / "train.parquet", stage.world.training, stage.memory)
    await write_rows(out / "val.parquet", stage.world.validation, stage.memory)
    return await rehearsal.plays(stage, count, chance)


def _fail(console: Console, error: MiaError) -> None:
    console.print(f"{error.message} {error.remedy}", markup=False)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
