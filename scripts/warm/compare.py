"""How two found values are set side by side, digit by digit, in words that a small model can follow."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What the larger value makes of its owner, and the smaller one.
WORDS = {
    "area": ("larger area", "smaller area"),
    "population": ("larger population", "smaller population"),
    "density": ("higher density", "lower density"),
    "latitude": ("place farther north", "place farther south"),
    "elevation": ("higher elevation", "lower elevation"),
    "number": ("higher atomic number", "lower atomic number"),
    "year": ("later year", "earlier year"),
    "melting_point": ("higher melting point", "lower melting point"),
    "counties": ("larger number of counties", "smaller number of counties"),
}


@dataclass(frozen=True)
class Weighed:
    """Which of two is larger (0 or 1), and the words that show it."""

    larger: int
    words: str


def value(text: str) -> float:
    """Read a number with commas, or degrees north or south."""
    number = float(re.sub(r"[^\d.]", "", text))
    return -number if text.rstrip().endswith("S") else number


def weigh(names: tuple[str, str], values: tuple[str, str]) -> Weighed:
    """Compare two values: hemispheres, then lengths, then digit by digit to the first that differs.

    Each value stands beside its own length: to count and to compare at once is more than a small model can do.
    """
    larger = 0 if value(values[0]) > value(values[1]) else 1
    degrees = any("°" in text for text in values)
    south = [text.rstrip().endswith("S") for text in values]
    if degrees and south[0] != south[1]:
        told = f"{names[0]}: {values[0]}, {names[1]}: {values[1]}."
        return Weighed(larger, f"{told} One is north and one is south: {names[larger]} is farther north.")
    lengths = [len(re.sub(r"\D", "", text.partition(".")[0])) for text in values]
    told = ", ".join(
        f"{name}: {text} ({length} digits)" for name, text, length in zip(names, values, lengths, strict=True)
    )
    shown = f"{_set_beside(*lengths)} digits"
    if lengths[0] == lengths[1]:
        for one, other in zip(*(re.sub(r"\D", "", text) for text in values), strict=False):
            shown += f" {_set_beside(int(one), int(other))}"
            if one != other:
                break
    more = 1 - larger if all(south) else larger  # the larger number of degrees south is the smaller value
    words = f"{told}. {shown}: {names[more]} is larger"
    if degrees:
        words += ", so farther south" if all(south) else ", so farther north"
    return Weighed(larger, f"{words}.")


def _set_beside(one: int, other: int) -> str:
    return f"{one}{'=' if one == other else '>' if one > other else '<'}{other}"
