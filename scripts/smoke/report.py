"""What a smoke run learnt, from verl's own log of metrics: python -m smoke.report METRICS [--steps N]."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

_SHOWN = {
    "critic/score/mean": "reward",
    "mia/accuracy/first": "first answer right",
    "mia/accuracy/final": "final answer right",
    "mia/reflection/right": "reflection right",
    "mia/format/rate": "format",
    "actor/entropy": "entropy",
    "mia/groups/dropped": "groups dropped",
    "mia/log_probs/difference": "log-probability, rollout against trainer",
    "timing_s/step": "seconds",
}
_EDGE = 5  # steps at the beginning and at the end that are compared
_LEARNS = 30  # steps in which a run must have learnt
_RISE, _DIFFERENCE = 0.2, 1e-5


def main() -> None:
    """Print the table; end with an error if the run is not what it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metrics", type=Path, help="JSON lines of verl's logger `file`")
    parser.add_argument("--steps", type=int, default=_LEARNS, help="steps that the run had to take")
    arguments = parser.parse_args()
    found = read(arguments.metrics)
    console = Console(highlight=False, soft_wrap=True)
    table = Table("", f"first {_EDGE} steps", f"last {_EDGE} steps", title=f"{len(found)} steps")
    for name, words in _SHOWN.items():
        values = [row[name] for row in found if name in row]
        if values:
            table.add_row(words, f"{fmean(values[:_EDGE]):.4g}", f"{fmean(values[-_EDGE:]):.4g}")
    console.print(table)
    faults = wrong(found, arguments.steps)
    for fault in faults:
        console.print(f"[bold]{fault}[/]")
    sys.exit(bool(faults))


def read(file: Path) -> list[dict[str, Any]]:
    """Return the metrics of each training step."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return [row["data"] for row in rows if "training/global_step" in row["data"]]


def wrong(found: list[dict[str, Any]], steps: int) -> list[str]:
    """Return what a run is not as it must be, in words."""
    faults = []
    if len(found) < steps:
        faults.append(f"Only {len(found)} of {steps} steps were taken.")
    differs = max((row["mia/log_probs/difference"] for row in found), default=0.0)
    if differs > _DIFFERENCE:
        faults.append(
            f"Rollout server and trainer differ by {differs:.2g} in log-probability; {_DIFFERENCE:g} is the most."
        )
    if steps >= _LEARNS and len(found) >= steps:
        for name in ("critic/score/mean", "mia/accuracy/final"):
            rise = fmean(row[name] for row in found[-_EDGE:]) - fmean(row[name] for row in found[:_EDGE])
            if rise < (_RISE if name.startswith("critic") else 0.0):
                faults.append(f"{_SHOWN[name].capitalize()} rose by {rise:.2f} only.")
    return faults


if __name__ == "__main__":
    main()
