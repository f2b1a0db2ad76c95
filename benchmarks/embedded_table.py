"""The measurements that a folder of runs holds, as rows with their intervals and what they must reach."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

from mia.evaluation.datasets import read_dataset
from mia.evaluation.report import comparable, difference, right, wilson
from mia.evaluation.runner import whole
from mia.judge.match import matches
from mia.runs.folder import RunFolder
from mia.runtime.settings import RoleSettings, load
from mia.types import Truth

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mia.types import Episode

Row = dict[str, Any]

_GROUPS = {
    "1 hop": ("chain1",),
    "2 hops": ("chain2",),
    "1-2 hops": ("chain1", "chain2"),
    "3 hops": ("chain3",),
    "2-3 hops": ("chain2", "chain3"),
    "4 hops": ("chain4",),
    "comparisons": ("comparison",),
    "bridge comparisons": ("bridge_comparison",),
}
_MUST = {
    ("test", "1-2 hops"): ">= 95 %",
    ("test", "3 hops"): ">= 90 %",
    ("test", "comparisons"): ">= 75 %",
    ("test_phrasing", "1-2 hops"): ">= 70 %",
    ("test_unanswerable", "all"): ">= 60 %",
}
_NOTE = """Shares have Wilson's intervals, differences Newcombe's paired ones (method 10); seconds show the median with
the least and the most. The denominators are all questions asked."""


class Runs:
    """The runs of a folder, with the types of their questions."""

    def __init__(self, out: Path, data: Path) -> None:
        self._out = out
        self._data = data

    def __contains__(self, name: str) -> bool:
        return (self._out / name / "manifest.json").exists()

    def episodes(self, name: str) -> list[Episode]:
        """Return all episodes of a run. Raises InputError while it is not finished."""
        return list(whole(RunFolder(self._out / name)).values())

    def groups(self, name: str) -> dict[str, list[Episode]]:
        """Return the episodes of a run by group of types, and all of them."""
        episodes = self.episodes(name)
        file = RunFolder(self._out / name).manifest["made_by"]["data"]["name"]
        types = read_dataset(self._data / f"{file}.jsonl", load(RoleSettings)).types
        found = {
            group: [episode for episode in episodes if types[episode.question.id] in names]
            for group, names in _GROUPS.items()
        }
        return {group: chosen for group, chosen in found.items() if chosen} | {"all": episodes}


def measured(out: Path, data: Path) -> list[Row]:
    """Return a row for each thing that has been measured; what was not run has none."""
    runs = Runs(out, data)
    rows: list[Row] = []
    for name in ("test", "test-one-shot", "test_phrasing", "test_composition", "test_unanswerable"):
        if name in runs:
            rows += [
                _share(f"{name}, {group}", sum(map(right, chosen)), len(chosen), _MUST.get((name, group), ""))
                for group, chosen in runs.groups(name).items()
            ]
    if "test" in runs:
        episodes = runs.episodes("test")
        given_up = sum(matches(episode.answer or "", Truth(unanswerable=True)) for episode in episodes)
        rows.append(_share("test, answered by saying that nothing is known", given_up, len(episodes), "low"))
    for name, other, what, must in (
        ("test", "test-one-shot", "loop - one-shot adapter", "interval above 0"),
        ("test-reflection", "test-no-reflection", "with - without reflection", "interval not below 0"),
        ("test-memory", "test", "with - without memory", ""),
    ):
        if name in runs and other in runs:
            rows += _gains(runs, name, other, what, must)
    if "ask" in runs:
        seconds = [episode.cost.seconds["all"] for episode in runs.episodes("ask")]
        rows.append(
            _row("one question at a time, s", len(seconds), median(seconds), (min(seconds), max(seconds)), "<= 30")
        )
    return rows + _probes(out)


def _gains(runs: Runs, name: str, other: str, what: str, must: str) -> list[Row]:
    others = {episode.question.id: episode for episode in runs.episodes(other)}
    comparable((episode.question for episode in runs.episodes(name)), others)
    rows = []
    for group, chosen in runs.groups(name).items():
        gain = difference(chosen, others)
        must_here = must if name != "test" or group in ("2 hops", "3 hops", "2-3 hops") else ""
        low, high = gain.interval
        row = _row(f"{what}, {group}, points", gain.size, 100 * gain.value, (100 * low, 100 * high), must_here)
        rows.append(row | {"gained": gain.gained, "lost": gain.lost})
    return rows


def _probes(out: Path) -> list[Row]:
    rows = []
    if (path := out / "reading.json").exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        rows.append(_share("invented fact in the passages: followed", found["followed"], found["size"], ">= 90 %"))
        rows.append(_share("the same: the truth recited", found["recited"], found["size"], ""))
    if (path := out / "reflection.json").exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        yes, no = ((found[word]["right"], found[word]["size"]) for word in ("yes", "no"))
        rows.append(_balanced(yes, no))
        rows.append(_share("reflection: plan again, where it is needed", *yes, ""))
        rows.append(_share("reflection: let it stand, where it is right", *no, ""))
        rows += [
            _share(f"reflection, {kind}", kind_of["right"], kind_of["size"], "")
            for kind, kind_of in found["kinds"].items()
        ]
    return rows


def _balanced(yes: tuple[int, int], no: tuple[int, int]) -> Row:
    """Return the mean of two shares; its interval adds the squares of how far theirs reach."""
    shares = [hits / size if size else 0.0 for hits, size in (yes, no)]
    reach = [wilson(*pair) for pair in (yes, no)]
    value = sum(shares) / 2
    down = sum((share - low) ** 2 for share, (low, _) in zip(shares, reach, strict=True)) ** 0.5 / 2
    up = sum((high - share) ** 2 for share, (_, high) in zip(shares, reach, strict=True)) ** 0.5 / 2
    interval = (100 * (value - down), 100 * (value + up))
    return _row("reflection: balanced accuracy, %", yes[1] + no[1], 100 * value, interval, ">= 85 %")


def _share(what: str, hits: int, size: int, must: str) -> Row:
    low, high = wilson(hits, size)
    share = 100 * hits / size if size else 0.0
    return _row(f"{what}, %", size, share, (100 * low, 100 * high), must) | {"hits": hits}


def _row(what: str, size: int, value: float, interval: tuple[float, float], must: str) -> Row:
    low, high = (round(bound, 2) for bound in interval)
    return {"what": what, "n": size, "value": round(value, 2), "low": low, "high": high, "must": must}


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| what | n | value | 95 % interval | must be |", "| --- | ---: | ---: | --- | --- |"]
    for row in rows:
        interval = f"{row['low']:.1f} to {row['high']:.1f}"
        lines.append(f"| {row['what']} | {row['n']} | {row['value']:.1f} | {interval} | {row['must']} |")
    return "\n".join([*lines, "", _NOTE, ""])
