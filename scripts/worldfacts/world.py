"""Entities and their facts: what passages tell and questions ask."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Key: TypeAlias = tuple[str, str]
"""Kind and name of an entity."""

T = TypeVar("T")


@dataclass(frozen=True)
class Fact:
    """The object of a relation, as the passage writes it; `entity` is its own passage, if it has one."""

    text: str
    entity: Key | None = None
    aliases: tuple[str, ...] = ()
    detail: str = ""
    """What a question must name beside the subject, such as which holiday."""


@dataclass(frozen=True)
class Measure:
    """A number to compare by, and how the passage writes it."""

    value: float
    text: str


@dataclass
class Entity:
    """One thing with a passage of its own; `said` is its name within a sentence."""

    kind: str
    name: str
    title: str
    said: str
    aliases: tuple[str, ...] = ()
    chinese: str = ""
    sentences: list[str] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    measures: dict[str, Measure] = field(default_factory=dict)
    not_single: frozenset[str] = frozenset()
    """Relations that presume one object where this entity has none or several."""
    disputed: frozenset[str] = frozenset()
    """Relations about which the sources disagree, so that the passage is silent."""

    def __str__(self) -> str:
        return self.title

    @property
    def key(self) -> Key:
        """Kind and name."""
        return self.kind, self.name

    def tell(self, *sentences: str) -> None:
        """Add the sentences that are not empty; those that need one another come as one."""
        self.sentences.extend(sentence for sentence in sentences if sentence)

    @property
    def text(self) -> str:
        """The text of the passage: its first sentence, then the others in an order of its own."""
        first, *others = self.sentences
        return " ".join([first, *shuffled(others, "sentences", self.title)])


@dataclass
class World:
    """All entities, by key and by title."""

    entities: dict[Key, Entity] = field(default_factory=dict)
    titles: dict[str, Entity] = field(default_factory=dict)

    def add(self, entity: Entity) -> None:
        """Take an entity in; neither its key nor its title may be there already."""
        if entity.key in self.entities or entity.title in self.titles:
            raise ValueError(f"{entity.key} titled {entity.title!r} is there already")
        self.entities[entity.key] = entity
        self.titles[entity.title] = entity

    def of_kind(self, kind: str) -> list[Entity]:
        """Return the entities of a kind in the order of their names."""
        return sorted((entity for entity in self.titles.values() if entity.kind == kind), key=lambda each: each.name)

    def ids(self) -> dict[str, str]:
        """Return the id of every title: its place among all titles."""
        return {title: f"wf-{place:05d}" for place, title in enumerate(sorted(self.titles))}


@cache
def fold(text: str) -> str:
    """Drop case and diacritics."""
    return (text if text.isascii() else plain(text)).lower().strip()


def plain(text: str) -> str:
    """Drop diacritics."""
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))


def holds(text: str, part: str) -> bool:
    """Say whether a text tells a part, whatever the case and diacritics; a short part must be a word of its own."""
    text, part = fold(text), fold(part)
    if len(part) >= 4 or not part.isascii():
        return part in text
    return re.search(rf"(?<![a-z0-9]){re.escape(part)}(?![a-z0-9])", text) is not None  # Chinese has no spaces


def number(value: float) -> str:
    """Write a number rounded to whole, with commas."""
    return f"{round(value):,}"


def join(parts: Sequence[str]) -> str:
    """Join with commas and a last "and"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def digest(*parts: str) -> int:
    """Return a number that depends on the parts alone: every choice of the generator is made by it."""
    return int.from_bytes(_hash(*parts))


def _hash(*parts: str) -> bytes:
    return hashlib.sha256("|".join(parts).encode()).digest()


def pick(options: Sequence[T], *parts: str) -> T:
    """Choose one option by the parts."""
    return options[digest(*parts) % len(options)]


def shuffled(items: Iterable[T], *parts: str) -> list[T]:
    """Return the items in an order that depends on the parts and on how each is written."""
    return sorted(items, key=lambda item: _hash(*parts, str(item)))
