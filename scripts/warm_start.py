"""Train the adapters of the embedded model on traces of the training questions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from mia.errors import ConfigError, MiaError

MODELS = Path("models")


def main() -> None:
    """Parse the command line and do what it names."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    train.add_argument("--traces", type=Path, nargs="+", required=True)
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--minutes", type=float, default=90.0)
    train.add_argument("--epochs", type=float, default=3.0)
    train.add_argument("--steps", type=int, default=0)
    train.add_argument("--rank", type=int, default=12)
    train.add_argument("--lr", type=float, default=1e-3)
    train.add_argument("--tokens", type=int, default=4096)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--threads", type=int, default=0)
    train.add_argument("--compile", action="store_true")
    a = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    try:
        try:
            import torch
            from warm import base, lora
        except ImportError as error:
            raise ConfigError(f"{error.name} is missing.", remedy="Run ./install.sh train.") from error
        if a.threads:
            torch.set_num_threads(a.threads)
        plan = lora.Plan(a.minutes, a.epochs, a.steps, a.rank, a.lr, a.tokens, a.seed)
        t = lora.Trainer(base.prepare(MODELS), a.traces, a.out, plan, console)
        if a.compile:
            t.model.compile()
        t.run()
    except MiaError as error:
        console.print(f"[bold]{error.message}[/] {error.remedy}")
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    main()
