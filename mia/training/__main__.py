"""Train one stage: python -m mia.training Planner-Train/config.yaml [+overlay=cpu] [KEY=VALUE...]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ray.exceptions
from omegaconf import OmegaConf
from rich.console import Console
from rich.markup import escape

from mia.errors import MiaError
from mia.training.config import composed


def main() -> None:
    """Do what the command line says; an error ends with its own exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mia.training",
        description="Train a role by GRPO on verl. Overrides are Hydra's: trainer.total_epochs=1, +overlay=one_gpu.",
    )
    parser.add_argument("stage", type=Path, help="the config.yaml of a stage folder, such as Planner-Train/config.yaml")
    parser.add_argument("overrides", nargs="*", help="+overlay=cpu|one_gpu, KEY=VALUE")
    parser.add_argument("--show", action="store_true", help="print the composed configuration and end")
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        config = composed(arguments.stage, arguments.overrides)
        if arguments.show:
            Console(highlight=False, soft_wrap=True).print(escape(OmegaConf.to_yaml(config, resolve=True)))
            return
        from mia.training.run import train  # noqa: PLC0415 - loads all of verl, which a wrong key need not wait for

        train(config)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, MiaError) else None
        if cause is None:
            raise
        _fail(console, cause)
    except MiaError as error:
        _fail(console, error)


def _fail(console: Console, error: MiaError) -> None:
    console.print(f"[bold]{escape(error.message)}[/] {escape(error.remedy)}")
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
