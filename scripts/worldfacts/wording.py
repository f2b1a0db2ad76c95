"""Questions in words: every family composes its own way from the pieces of each relation."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldfacts.world import Entity, Fact, pick

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARTICLE = re.compile(r"^the ")
_CAPITAL = re.compile(r"\^(.)")


@dataclass(frozen=True)
class Step:
    """One hop: a subject, what is asked of it, and the fact."""

    subject: Entity
    relation: str
    fact: Fact

    @property
    def words(self) -> dict[str, Any]:
        """The pieces for this relation."""
        found: dict[str, Any] = load("relations")[self.subject.kind][self.relation]
        return found

    @property
    def query(self) -> str:
        """Name what to search for at this hop."""
        label = self.words["label"].replace("[holiday]", self.fact.detail)
        return query(self.subject, label)


@dataclass(frozen=True)
class Example:
    """The last relation, of somebody else."""

    subject: Entity
    fact: Fact
    object: str


@cache
def load(name: str) -> dict[str, Any]:
    """Read one of the wording files."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def trained_families() -> list[str]:
    """Return the families that training may use, each as often as it weighs."""
    families = load("families")
    return [name for name, family in families.items() for _ in range(family.get("weight", 0))]


def held_out_families() -> list[str]:
    """Return the families that training never uses."""
    return [name for name, family in load("families").items() if family.get("held_out")]


def compose(family: str, steps: Sequence[Step], choice: str, example: Example | None = None) -> str:
    """Put a chain into words; `choice` decides between the wordings of the family."""
    frame = pick(load("families")[family]["frames"], "frame", family, choice)
    pieces = _Pieces(family, steps, choice, example)
    return finish(re.sub(r"\{(\w+)\}", lambda match: pieces.fill(match.group(1)), frame))


def query(subject: Entity, label: str) -> str:
    """Return keywords that find the passage of a subject."""
    return f"{subject.name} {'time zone' if subject.kind == 'timezone' else subject.kind} {label}"


def finish(text: str) -> str:
    """Begin with a capital, and write others where they are marked."""
    return _CAPITAL.sub(lambda match: match.group(1).upper(), f"^{text}")


def possessive(name: str) -> str:
    """Return the genitive of a name."""
    return f"{name}'" if name.endswith("s") else f"{name}'s"


class _Pieces:
    """The parts of a frame, made when a frame asks for them."""

    def __init__(self, family: str, steps: Sequence[Step], choice: str, example: Example | None) -> None:
        self.family = family
        self.steps = steps
        self.choice = choice
        self.example = example
        self.last = steps[-1]

    def fill(self, name: str) -> str:
        made = getattr(self, f"_{name}", None)
        text = made() if made else self._outer(name)
        return text.replace("[holiday]", self.last.fact.detail)

    def _pick(self, options: Sequence[str], *more: str) -> str:
        return pick(options, self.choice, self.family, *more)

    def _nested(self, steps: Sequence[Step], start: str) -> str:
        """Return the noun phrase that follows steps from a start; the first is casual in families that speak."""
        text = start
        for place, step in enumerate(steps):
            options = step.words["phrase"]
            if place == 0 and self.family in ("spoken", "situation"):
                options = [*step.words["phrase_spoken"], options[0]]
            text = self._pick(options, "phrase", str(place)).format(x=text)
        return text

    def _outer(self, name: str) -> str:
        """Return a piece of the last relation about all that comes before it."""
        options = self.last.words[name]
        subject = self._nested(self.steps[:-1], self.steps[0].subject.said)
        return self._pick([options] if isinstance(options, str) else options, name).format(x=subject)

    def _phrase(self) -> str:
        return self._nested(self.steps, self.steps[0].subject.said)

    def _who(self) -> str:
        return str(self.last.words.get("who", "what is"))

    def _first(self) -> str:
        first = self.steps[0]
        return str(first.words["clause"]).format(x=first.subject.said)

    def _tag(self) -> str:
        return str(self.steps[0].words["tag"])

    def _then(self) -> str:
        """Return what asks for the rest after the first hop was stated."""
        if len(self.steps) == 1:
            return str(self.last.words["it"])
        start = f"that {self.steps[0].words['noun']}"
        subject = self._nested(self.steps[1:-1], start)
        return self._pick([*self.last.words["ask"], *self.last.words["ask_spoken"]], "then").format(x=subject)

    def _steps(self) -> str:
        told = [self._first()]
        for before, step in zip(self.steps, self.steps[1:-1], strict=False):
            told.append(str(step.words["clause"]).format(x=f"that {before.words['noun']}"))
        return ". ^".join(told)

    def _last(self) -> str:
        if len(self.steps) == 1:
            return str(self.last.words["it"])
        subject = f"that {self.steps[-2].words['noun']}"
        return self._pick(self.last.words["ask"], "last").format(x=subject)

    def _anchor(self) -> str:
        anchor = self.steps[0].subject
        return anchor.title if anchor.kind in ("state", "language") else anchor.name

    def _labels(self) -> str:
        return ", ".join(step.words["label"] for step in self.steps)

    def _labels_of(self) -> str:
        return " ".join(step.words.get("of", f"{step.words['label']} of") for step in reversed(self.steps))

    def _owned(self) -> str:
        text = self.steps[0].subject.said
        for step in self.steps:
            text = f"{possessive(text)} {step.words.get('owned', step.words['label'])}"
        return text

    def _chinese(self) -> str:
        anchor = self.steps[0].subject
        text = self._anchor() if anchor.kind != "state" else f"美国{anchor.name}州"
        if anchor.kind == "timezone":
            text = f"时区{text}"
        elif anchor.chinese and self._pick(("plain", "both"), "chinese name") == "both":
            text = f"{text}（{anchor.chinese}）"
        for place, step in enumerate(self.steps):
            text = self._pick(step.words["chinese"], "chinese", str(place)).format(x=text)
        return text

    def _example(self) -> str:
        if self.example is None:
            raise ValueError("this family needs an example")
        options = self.last.words["phrase"]
        text = self._pick(options, "phrase", str(len(self.steps) - 1)).format(x=self.example.subject.said)
        return text.replace("[holiday]", self.example.fact.detail)

    def _answer(self) -> str:
        if self.example is None:
            raise ValueError("this family needs an example")
        return self.example.object


def without_article(name: str) -> str:
    """Return a name without a leading article."""
    return _ARTICLE.sub("", name)
