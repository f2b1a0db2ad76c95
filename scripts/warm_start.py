"""Train the adapters of the embedded model on the CPU, from traces of the training questions.

  python scripts/warm_start.py all --minutes 90 --out runs/warm/adapter     traces, training, probes and model card
  python scripts/warm_start.py all --minutes 90 --method one-shot           the adapter to compare with

or step by step:

  python scripts/warm_start.py traces                                       writes runs/warm/loop.jsonl
  python scripts/warm_start.py train --traces runs/warm/loop.jsonl --out runs/warm/adapter --minutes 90
  python scripts/warm_start.py train --traces runs/warm/loop.jsonl --start data/adapters/worldfacts --out runs/warm/more
  python scripts/warm_start.py finish runs/warm/adapter                     the card anew, with its scores.json
  MIA_ADAPTERS=executor=runs/warm/adapter,planner=runs/warm/adapter mia serve model

A run that was stopped, by ctrl-C, by a signal or by the power, goes on where it was when the same command is given
again. The first call makes models/SmolLM2-135M-Instruct from the served weights. Needs: ./install.sh embedded train
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mia.errors import ConfigError, InputError, MiaError, StorageError
from mia.runtime.settings import ModelServiceSettings, export, load

if TYPE_CHECKING:
    from warm.lora import Plan

DATA = Path(__file__).parents[1] / "data"
RUN = Path("runs/warm")
METHODS = {"loop": "worldfacts", "one-shot": "one-shot"}
_WORTH_COMPILING = 10.0  # minutes: compiling takes about one


def main() -> None:
    """Do what the command line names; an error ends with its own exit code."""
    arguments = _parser().parse_args()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        arguments.run(arguments, console)
    except ImportError as error:
        missing = ConfigError(f"The package {error.name} is missing.", remedy="Run ./install.sh embedded train.")
        _fail(console, missing)
    except MiaError as error:
        _fail(console, error)
    except OSError as error:
        _fail(console, StorageError(f"{error}.", remedy="Free space there, or name a place that can be written."))


def traces(arguments: argparse.Namespace, console: Console) -> None:
    """Write the traces of one split and show how many there are of each kind."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - of an extra
    from warm import from_gguf  # noqa: PLC0415 - of an extra
    from warm import traces as made  # noqa: PLC0415 - of an extra

    data = DATA / "worldfacts"
    if not (data / f"{arguments.split}.jsonl").exists():
        raise InputError(f"{data} has no questions of {arguments.split}.", remedy="Name train, dev or test.")
    out = arguments.out or traces_file(arguments.method, arguments.split, arguments.questions)
    tokenizer = AutoTokenizer.from_pretrained(from_gguf.prepare(load(ModelServiceSettings).folder))

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    with console.status("Playing the training questions"):
        mix = made.Mix(questions=arguments.questions)
        counts = made.write(out, data, tokens, mix, split=arguments.split, method=arguments.method)
    table = Table("kind", "traces")
    for kind, count in sorted(counts.items()):
        table.add_row(escape(kind), f"{count:,}")
    console.print(table)
    console.print(f"The traces are in {out}.")


def traces_file(method: str, split: str = "train", questions: int = 0) -> Path:
    """Return where traces lie unless --out says otherwise; only those of all training questions are `all`'s to use."""
    parts = [method, *([split] if split != "train" else []), *([str(questions)] if questions else [])]
    return RUN / f"{'-'.join(parts)}.jsonl"


def train(arguments: argparse.Namespace, console: Console) -> None:
    """Train, or go on; then write the record, the probes and the card."""
    export(OMP_WAIT_POLICY="passive")  # threads that spin while they wait stand still beside any other work
    import torch  # noqa: PLC0415 - of an extra
    from warm import adapter, card, from_gguf, lora  # noqa: PLC0415 - of an extra

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    folder = from_gguf.prepare(load(ModelServiceSettings).folder)
    trainer = lora.Trainer(folder, arguments.traces, arguments.out, _plan(arguments), console)
    long = not arguments.steps and arguments.minutes >= _WORTH_COMPILING
    if long and not (shutil.which("g++") and trainer.model.compile()):
        console.print("There is no working C++ compiler (g++ and Python's headers): about a quarter slower without.")
    trainer.run({"command": shlex.join(["python", *sys.argv]), "data": card.digests(DATA / "worldfacts")})
    adapter.write_probes(arguments.out, folder, trainer.traces, trainer.tokenizer)
    console.print(f"The adapter is in {arguments.out}; its card is {card.write(arguments.out)}.")


def everything(arguments: argparse.Namespace, console: Console) -> None:
    """Write the traces unless they are there, then train on them."""
    from warm import adapter  # noqa: PLC0415 - of an extra

    arguments.out = arguments.out or DATA / "adapters" / METHODS[arguments.method]
    adapter.check_unfinished(arguments.out)
    arguments.traces = [traces_file(arguments.method)]
    if not arguments.traces[0].exists():
        wanted = argparse.Namespace(out=arguments.traces[0], split="train", method=arguments.method, questions=0)
        traces(wanted, console)
    train(arguments, console)


def finish(arguments: argparse.Namespace, console: Console) -> None:
    """Write the model card anew, as after scores.json came; before it the probes, where traces are named."""
    from warm import card  # noqa: PLC0415 - of an extra

    if arguments.traces:
        from transformers import AutoTokenizer  # noqa: PLC0415 - of an extra
        from warm import adapter, batches, from_gguf  # noqa: PLC0415 - of an extra

        folder = from_gguf.prepare(load(ModelServiceSettings).folder)
        found, _ = batches.read(arguments.traces)
        adapter.write_probes(arguments.adapter, folder, found, AutoTokenizer.from_pretrained(folder))
    console.print(f"The card is {card.write(arguments.adapter)}.")


def _plan(arguments: argparse.Namespace) -> Plan:
    from warm.lora import Plan  # noqa: PLC0415 - of an extra

    return Plan(
        minutes=arguments.minutes,
        epochs=arguments.epochs,
        steps=arguments.steps,
        rank=arguments.rank,
        rate=arguments.lr,
        tokens=arguments.tokens,
        seed=arguments.seed,
        start=str(arguments.start or ""),
    )


def _fail(console: Console, error: MiaError) -> None:
    console.print(f"[bold]{escape(error.message)}[/] {escape(error.remedy)}")
    raise SystemExit(error.exit_code) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    every = commands.add_parser("all", help="write the traces unless they are there, train, and write the card")
    every.add_argument("--out", type=Path, help="folder of the adapter (data/adapters/..., by the method)")
    every.set_defaults(run=everything)

    only = commands.add_parser("traces", help="write the supervised traces")
    only.add_argument("--out", type=Path, help="file to write (runs/warm/..., by the choices below)")
    only.add_argument("--split", default="train", help="which questions (%(default)s); others only to measure on")
    only.add_argument("--questions", type=int, default=0, help="the most of either kind of questions; 0: all")
    only.set_defaults(run=traces)

    fit = commands.add_parser("train", help="train on traces that are there")
    fit.add_argument("--traces", type=Path, nargs="+", required=True, metavar="FILE", help="files of traces")
    fit.add_argument("--out", type=Path, required=True, help="folder of the adapter, and of the checkpoint meanwhile")
    fit.set_defaults(run=train)

    about = commands.add_parser("finish", help="write model card (with scores.json of the folder) and probes anew")
    about.add_argument("adapter", type=Path, metavar="FOLDER", help="an adapter with its training.json")
    about.add_argument("--traces", type=Path, nargs="+", metavar="FILE", help="write the probes anew from these")
    about.set_defaults(run=finish)

    for each in (every, only):
        each.add_argument(
            "--method", choices=METHODS, default="loop", help="the loop, or answers from one search to compare with"
        )
    for each in (every, fit):
        _add_budget(each)
    return parser


def _add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=90.0, help="time to train (%(default)g)")
    parser.add_argument("--epochs", type=float, default=3.0, help="most times over the traces (%(default)g)")
    parser.add_argument("--steps", type=int, default=0, help="most steps; 0: as many as fit")
    parser.add_argument("--rank", type=int, default=12, help="rank of the adapter (%(default)d)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate at its highest (%(default)g)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a step; fewer need less memory (%(default)d)")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order (%(default)d)")
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="an adapter to train on, instead of a fresh one")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: all")


if __name__ == "__main__":
    main()
