"""What the oracle knows of the world facts: passages, the hops of a question, and every fact that training may use."""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

_WORDING = Path(__file__).resolve().parent.parent / "worldfacts"
HOLIDAY = re.compile(r"^date of ")
_ARTICLE = re.compile(r"^the ", re.IGNORECASE)
_FIRST = {
    ("city", "country"): re.compile(r"(?:is a city in|^The city of .* is in) (?:the )?([^.]+)\."),
    ("airport", "city"): re.compile(r"airport serving ([^.]+)\."),
}
_SUFFIX = {"language": " language", "state": " (U.S. state)"}
# Queries in the corpus's own words, where a relation's name shares none with the sentence that tells it.
_SEARCHED = {
    ("city", "latitude"): "lies at latitude",
    ("country", "area"): "covers an area",
    ("country", "density"): "inhabitants per square kilometre",
    ("country", "only_neighbour"): "shares land borders",
    ("country", "population"): "has a population",
    ("currency", "sole_user"): "official currency of",
    ("element", "country"): "discovered by, in which country",
    ("element", "discoverer"): "discovered by",
    ("element", "melting_point"): "melts at kelvin",
    ("element", "year"): "discovered in year",
    ("state", "year"): "admitted to the Union in year",
}


@dataclass(frozen=True)
class Hop:
    """One fact to find: whose, which, and what is found in which passage."""

    subject: str
    kind: str
    relation: str
    label: str
    object: str
    document: str

    @property
    def said(self) -> str:
        """The subject as a plan names it, so that its kind is plain where names are shared."""
        if self.kind == "state" and not self.subject.startswith("the U.S. state"):
            return f"the U.S. state of {self.subject}"
        if self.kind == "language" and not self.subject.endswith("language"):
            return f"the {self.subject} language"
        return self.subject

    @property
    def query(self) -> str:
        """The words to search for."""
        name = _ARTICLE.sub("", self.subject).removesuffix(" language")
        wanted = _SEARCHED.get((self.kind, self.relation), self.label)
        return f"{name} {'time zone' if self.kind == 'timezone' else self.kind} {wanted}"


class World:
    """The corpus, how relations are named, and the facts of the train split by kind and relation."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.documents = {row["id"]: row for row in read(data / "corpus.jsonl")}
        self.kinds = {row["title"]: row["kind"] for row in self.documents.values()}
        self.relations: dict[str, Any] = tomllib.loads((_WORDING / "relations.toml").read_text(encoding="utf-8"))
        self.facts: dict[tuple[str, str], dict[str, Hop]] = defaultdict(dict)
        self.of_subject: dict[tuple[str, str], dict[str, Hop]] = defaultdict(dict)
        self.anchors: dict[str, set[str]] = defaultdict(set)
        for row in read(data / "train.jsonl"):
            for title in row["anchors"]:
                self.anchors[self.kinds[title]].add(title)
            for hop in self.hops(row):
                self.facts[hop.kind, hop.relation][hop.subject] = hop
                self.of_subject[hop.kind, hop.subject][hop.relation] = hop
        invented = tomllib.loads((_WORDING / "unanswerable.toml").read_text(encoding="utf-8"))["invented"]
        self._invented = {name: kind for kind, names in invented.items() for name in names}

    def said(self, title: str) -> str:
        """Return how a question speaks of what a passage is about."""
        kind = self.kinds[title]
        return Hop(title.removesuffix(_SUFFIX.get(kind, "")).removesuffix(" (time zone)"), kind, "", "", "", "").said

    def hops(self, row: dict[str, Any]) -> list[Hop]:
        """Return the facts of a question's decomposition, in order."""
        found = []
        for step in row["decomposition"]:
            kind = self.documents[step["id"]]["kind"]
            named = f"{step['subject']} {'time zone' if kind == 'timezone' else kind} "
            label = str(self.relations[kind].get(step["relation"], {}).get("label", "[]"))
            label = step["query"].removeprefix(named) if "[" in label else label
            found.append(Hop(step["subject"], kind, step["relation"], label, step["object"], step["id"]))
        return found

    def title(self, hop: Hop) -> str:
        """Return the title of the passage that tells a fact."""
        return str(self.documents[hop.document]["title"])

    def noun(self, hop: Hop) -> str:
        """Return what the object of a fact is called when it is spoken of again."""
        words = self.relations[hop.kind].get(hop.relation, {})
        return str(words.get("noun", "language" if hop.relation == "only_language" else "number"))

    def asked(self, hop: Hop, subject: str) -> str:
        """Return the noun phrase for what a hop looks for."""
        words = self.relations[hop.kind].get(hop.relation, {})
        of = str(words.get("of", f"{hop.label} of")).replace("[holiday]", HOLIDAY.sub("", hop.label))
        return f"{of} {subject}"

    def unanswerable(self, row: dict[str, Any]) -> tuple[list[Hop], list[Hop]] | None:
        """Return the hops up to the one that nothing tells, whose object is empty, and those that would come after.

        None if the way there is not known.
        """
        anchor: str = row["anchors"][0]
        path: list[str] = row["relations"]
        kind = self.kinds.get(anchor) or self._invented.get(anchor) or ("airport" if "irport" in anchor else "city")
        subject = anchor.removesuffix(_SUFFIX.get(kind, "")) if anchor in self.kinds else anchor
        missing = len(path) - 1 if row["reason"] == "disputed" else 0
        found: list[Hop] = []
        for place, relation in enumerate(path):
            label = str(self.relations[kind].get(relation, {}).get("label", relation.replace("_", " ")))
            if place >= missing:
                document = self._document(subject, kind) if subject else ""
                found.append(Hop(subject, kind, relation, label, "", document))
                subject, kind = "", self._kind(found[-1])
            else:
                known = self._told(subject, kind, relation)
                if known is None:
                    return None
                found.append(known)
                subject, kind = known.object, self._kind(known)
            if not kind and place < len(path) - 1:
                return None
        return found[: missing + 1], found[missing + 1 :]

    def _told(self, subject: str, kind: str, relation: str) -> Hop | None:
        """Return a fact: one of the train questions, or one of the two that every passage of its kind begins with."""
        known = self.of_subject[kind, subject].get(relation)
        document = self._document(subject, kind)
        if known or not document or (kind, relation) not in _FIRST:
            return known
        told = _FIRST[kind, relation].search(self.documents[document]["text"])
        return Hop(subject, kind, relation, relation, told.group(1), document) if told else None

    def _kind(self, hop: Hop) -> str:
        """Return the kind of a fact's object, where that has a passage."""
        kinds = {"capital": "city", "capital_of": "country", "sole_user": "country", "sole_country": "country"}
        kinds |= {"only_neighbour": "country", "only_language": "language"}
        kind = kinds.get(hop.relation, hop.relation)
        return kind if kind in self.relations else ""

    def _document(self, subject: str, kind: str) -> str:
        titles = (subject, f"{subject}{_SUFFIX.get(kind, '')}")
        return next((key for key, row in self.documents.items() if row["title"] in titles and row["kind"] == kind), "")


def read(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def invent(hop: Hop, world: World, chance: random.Random) -> str:
    """Return another object of the same look as a fact's: one of somebody else's, or one that nothing has."""
    text = hop.object
    if re.search(r"\d", text):
        for _ in range(20):
            made = re.sub(
                r"\d",
                lambda digit: chance.choice("123456789") if digit.start() == 0 else chance.choice("0123456789"),
                text,
            )
            if made != text:
                return made
    others = sorted({other.object for other in world.facts[hop.kind, hop.relation].values()} - {text})
    if others and chance.random() < 0.4:
        return chance.choice(others)
    return re.sub(r"[^\W\d_]+", lambda word: _word(word.group(), chance), text)


def _word(like: str, chance: random.Random) -> str:
    if len(like) <= 3:
        made = "".join(chance.choice("bcdfghjklmnpqrstvwxyz") for _ in like)
        return made.upper() if like.isupper() else made
    size = max(2, round(len(like) / 2.6))
    made = "".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(size))
    made += chance.choice(("", "n", "r", "s", "l"))
    return made.capitalize() if like[0].isupper() else made


def renamed(hop: Hop, value: str) -> Hop:
    """Return a fact with another object."""
    return replace(hop, object=value)
