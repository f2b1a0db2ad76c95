"""The model card of an adapter: what it is, what it was made of and how, what it reaches, and what it does not do."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORD = "training.json"
SCORES = "scores.json"
_CURVE = 8  # rows of the table of losses

_CARD = """---
base_model: {base}
library_name: peft
license: mit
language: en
---

# {name}

A LoRA adapter of [{base}](https://huggingface.co/{base}) that plays {roles} in MIA. It is under the MIT licence like
all of MIA; the base model is under Apache-2.0 and comes apart from it.

It was trained on the base as it is served, a Q4_1 GGUF file dequantised to bf16, with the prompts of this package.
`mia serve model` merges it into that file at the first start. PEFT and vLLM load this folder as it is.

## Data

Traces of training questions only, from `data/worldfacts` and the package's own search; nothing of a test split.

{data}

The wordings of `scripts/warm/phrasings.toml` hold none of the held-out ones, but some of them are sentences to complete
and situations like those: of `test_phrasing`, the family `analogy` alone is of a kind that was never trained.

## Training

    {command}

LoRA of rank {rank} (alpha {alpha}) on all linear layers, AdamW at {rate:g} (cosine), {batch:,} tokens a step,
seed {seed}; loss on the assistant's words alone. {steps:,} steps over {tokens:,} tokens ({epochs:.2f} epochs) in
{minutes:.0f} minutes on {machine}; {memory:.1f} GB of memory at most.

{curve}

`probe.json` holds the next-token log-probabilities of the trainer for a few prompts, against which every conversion
is checked; `{record}` the whole record of the run.

## Scores

{scores}

## Limits

- Made for one task: questions over the facts of `data/worldfacts`, in English, in the words of this package's prompts.
  Other topics, tools and languages are untrained.
- A model of 135M parameters: it follows what the search finds and is not to be asked without it.
- Both the reflection and the answer can be wrong while they sound sure.
"""


def write(folder: Path) -> Path:
    """Write README.md of an adapter from the record of its training, and from its scores where there are some.

    `scores.json` is a list of flat objects, one a row of the table; their keys are the columns.

    Raises:
        InputError: there is no record, or the scores are no table.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} holds no record of a training: {error}.", remedy="Name the folder that `train` wrote as --out."
        ) from error
    plan, done = record["plan"], record["progress"]
    files = record["traces"] | record.get("data", {})
    text = _CARD.format(
        base=record["base"],
        name=folder.resolve().name,
        roles=_enumerated(record["roles"]),
        data=table({"file": name, "sha256": f"`{digest}`"} for name, digest in files.items()),
        command=record["command"],
        rank=plan["rank"],
        alpha=2 * plan["rank"],
        rate=plan["rate"],
        batch=plan["tokens"],
        seed=plan["seed"],
        steps=done["step"],
        tokens=done["tokens"],
        epochs=done["tokens"] / record["epoch_tokens"],
        minutes=done["seconds"] / 60,
        machine=record["machine"],
        memory=record["peak_gb"],
        curve=table(_curve(done["history"])),
        record=RECORD,
        scores=_scores(folder / SCORES),
    )
    target = folder / "README.md"
    target.write_text(text, encoding="utf-8")
    return target


def machine(threads: int) -> str:
    """Describe the CPU by what matters to the speed of training."""
    try:
        flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    except OSError:  # not Linux
        flags = set()
    kinds = [name for flag, name in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX-512 bf16")) if flag in flags]
    return f"{threads} CPU threads" + (f" with {' and '.join(kinds)}" if kinds else "")


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of a folder of data that training traces are made from."""
    files = [*folder.glob("train*.jsonl"), folder / "corpus.jsonl"]
    return {f"{folder.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return rows as a Markdown table; the columns are the keys in order of appearance."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([row.get(column, "") for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _curve(history: list[list[float]]) -> Iterable[dict[str, Any]]:
    """Yield mean loss and accuracy of equal parts of the run."""
    size = max(1, -(-len(history) // _CURVE))
    for start in range(0, len(history), size):
        part = history[start : start + size]
        yield {
            "minutes": f"{part[-1][0]:.1f}",
            "tokens": f"{part[-1][1]:,}",
            "loss": f"{sum(loss for *_, loss, _ in part) / len(part):.4f}",
            "tokens right": f"{sum(right for *_, right in part) / len(part):.3f}",
        }


def _scores(path: Path) -> str:
    if not path.exists():
        return "Not measured yet."
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise InputError(f"{path} is no table.", remedy="Write a list of flat objects, one a row.")
    return table(rows)


def _enumerated(names: list[str]) -> str:
    known = {"executor": "the Executor", "planner": "the Planner", "reflection": "the Planner's reflection"}
    return " and ".join([known.get(name, name) for name in names])
