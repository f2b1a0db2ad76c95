"""Questions whose answer the corpus does not hold."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from worldfacts import sources, wording
from worldfacts.chains import walk
from worldfacts.comparisons import fill
from worldfacts.questions import Collection, Question, split_of
from worldfacts.wording import Step
from worldfacts.world import Entity, Fact, World, fold, pick, shuffled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worldfacts.world import Key

# What a country's passage leaves out when its sources disagree, and the ways to come to ask it.
DISPUTED = {
    "capital": (("country",), ("city", "country"), ("airport", "city", "country")),
    "currency": (("country",), ("city", "country"), ("airport", "city", "country")),
}
MOST_OF_ONE_COUNTRY = 6
AIRPORT_ENDINGS = ("International Airport", "Airport", "Regional Airport")
MADE_UP = 60
"""How many names of cities and of airports are made up."""


def collect(world: World, split: str, into: Collection, per_reason: int) -> None:
    """Add up to `per_reason` questions of every reason for which there is no answer."""
    makers = (
        _not_recorded(world, split),
        _false_premises(world, split),
        _unknown(world, split),
        _disputed(world, split),
    )
    for found in makers:
        taken = 0
        for question in found:
            if taken == per_reason:
                break
            taken += into.add(question)


def _not_recorded(world: World, split: str) -> Iterator[Question]:
    turns = []
    for spec in wording.load("unanswerable")["not_recorded"]:
        anchors = shuffled(_of_split(world, spec["kind"], split), "not recorded", spec["label"])
        turns.append([(spec, anchor) for anchor in anchors])
    for place in range(max(map(len, turns))):
        for turn in turns:
            if place < len(turn):
                spec, anchor = turn[place]
                yield _plain(spec, anchor, "not_recorded", spec["label"])


def _false_premises(world: World, split: str) -> Iterator[Question]:
    turns = []
    for spec in wording.load("unanswerable")["false_premise"]:
        anchors = shuffled(_of_split(world, spec["kind"], split), "false premise", spec["label"])
        several = (each for each in anchors if spec["relation"] in each.not_single)
        turns.append([(spec, anchor) for anchor in several if anchor.name not in spec.get("but", ())])
    for place in range(max(map(len, turns))):
        for turn in turns:
            if place < len(turn):
                spec, anchor = turn[place]
                question = _plain(spec, anchor, "false_premise", spec["relation"])
                yield question
                yield _then(spec, anchor)


def _then(spec: dict[str, Any], anchor: Entity) -> Question:
    """Ask one thing more of the one that there is not."""
    relations = {"country": ("capital", "currency", "calling"), "language": ("script", "code")}[spec["then"]]
    relation = pick(relations, "then", spec["label"], anchor.title)
    nobody = Entity(spec["then"], "", "", spec["phrase"].format(x=anchor.said))
    step = Step(nobody, relation, Fact(""))
    family = pick(("formal", "indirect", "spoken"), "family", spec["label"], anchor.title)
    return _unanswerable(
        wording.compose(family, [step], anchor.title),
        family,
        "false_premise",
        (spec["relation"], relation),
        anchor.title,
    )


def _unknown(world: World, split: str) -> Iterator[Question]:
    """Ask of names that nothing bears, with the relations and wordings that others are asked with."""
    made = wording.load("unanswerable")["invented"] | {
        "city": _made_up_cities(world),
        "airport": [f"{name} {pick(AIRPORT_ENDINGS, 'ending', name)}" for name in _made_up_cities(world, "airport")],
    }
    titles = "\n".join(map(fold, world.titles))
    names = [
        (kind, name)
        for kind, all_names in made.items()
        for name in all_names
        if split_of(name) == split and fold(wording.without_article(name)) not in titles
    ]
    relations = {kind: _open_relations(kind) for kind in made}
    for turn in range(3):
        for kind, name in shuffled(names, "unknown", str(turn)):
            relation = relations[kind][(turn + len(name)) % len(relations[kind])]
            anchor = Entity(kind, wording.without_article(name), wording.without_article(name), name)
            family = pick(wording.trained_families(), "unknown", name, relation)
            text = wording.compose(family, [Step(anchor, relation, Fact(""))], name)
            yield _unanswerable(text, family, "unknown_entity", (relation,), name)


def _open_relations(kind: str) -> list[str]:
    """Return the relations of a kind that are asked of anything of that kind."""
    return [relation for relation in wording.load("relations")[kind] if relation not in ("holiday", "capital_of")]


def _made_up_cities(world: World, more: str = "") -> list[str]:
    """Join the head of one city's name to the tail of another's; none is the name of a known place."""
    plain_names = [city.name for city in world.of_kind("city") if re.fullmatch(r"[A-Z][a-z]{5,9}", city.name)]
    known = sources.place_names()
    made: list[str] = []
    order = shuffled(plain_names, "heads", more)
    for head, tail in zip(order, shuffled(plain_names, "tails", more), strict=True):
        name = head[: len(head) // 2 + 1] + tail[-(len(tail) // 2) :]
        if fold(name) not in known and len(made) < MADE_UP * 3 and not re.search(r"(.)\1\1|[^aeiou]{4}", name):
            made.append(name)
    return made


def _disputed(world: World, split: str) -> Iterator[Question]:
    asked_of: Counter[Key] = Counter()
    for relation, ways in DISPUTED.items():
        for kind, *path in ways:
            for anchor in shuffled(_of_split(world, kind, split), "disputed", relation, kind):
                steps = walk(world, anchor, path)
                end = steps[-1].fact.entity if steps else anchor.key
                country = world.entities.get(end) if end else None
                if steps is None or country is None or relation not in country.disputed:
                    continue
                if asked_of[country.key] == MOST_OF_ONE_COUNTRY:
                    continue
                asked_of[country.key] += 1
                family = pick(wording.trained_families(), "disputed", anchor.title)
                asked = [*steps, Step(country, relation, Fact(""))]
                text = wording.compose(family, asked, anchor.title)
                yield _unanswerable(text, family, "disputed", (*path, relation), anchor.title)


def _of_split(world: World, kind: str, split: str) -> list[Entity]:
    return [entity for entity in world.of_kind(kind) if split_of(entity.title) == split]


def _plain(spec: dict[str, Any], anchor: Entity, reason: str, relation: str) -> Question:
    choice = f"{spec['label']}|{anchor.title}"
    frames = wording.load("unanswerable")["frames"]
    family = pick(sorted(frames), "family", choice)
    pieces = {"who": "what is", "anchor": anchor.name} | spec | {"x": anchor.said}
    return _unanswerable(
        fill(pick(frames[family], "frame", choice), pieces, choice), family, reason, (relation,), anchor.title
    )


def _unanswerable(text: str, family: str, reason: str, relations: tuple[str, ...], anchor: str) -> Question:
    return Question(
        text=text,
        answers=(),
        hops=len(relations),
        type="unanswerable",
        family=family,
        relations=relations,
        anchors=(anchor,),
        unanswerable=reason,
    )
