"""Questions that set two entities side by side, at once or after a few hops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from worldfacts import wording
from worldfacts.chains import walk
from worldfacts.questions import Collection, Hop, Question, split_of
from worldfacts.world import Entity, Measure, World, pick, plain, shuffled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from worldfacts.wording import Step

PAIRS_TRIED = 4000


def collect(world: World, split: str, families: Sequence[str], into: Collection, per_kind: int) -> None:
    """Add up to `per_kind` questions of every choice, as many of either direction, and of every same-or-not pair."""
    specified = wording.load("comparisons")
    for spec in specified["choice"]:
        for direction in ("more", "less"):
            _take(_choices(world, spec, direction, split, families), into, (per_kind + 1) // 2)
    for spec in specified["same"]["pair"]:
        for answer in ("yes", "no"):
            _take(_same(world, spec, answer, split, families), into, max(1, per_kind // 5))


def _take(found: Iterator[Question], into: Collection, count: int) -> None:
    taken = 0
    while taken < count:
        question = next(found, None)
        if question is None:
            return
        taken += into.add(question)


def _pairs(world: World, kind: str, split: str, *parts: str) -> Iterator[tuple[Entity, Entity]]:
    """Pair entities of one split, each with another one, in an order of their own."""
    entities = [entity for entity in world.of_kind(kind) if split_of(entity.title) == split]
    if len(entities) < 2:
        return
    for turn in range(PAIRS_TRIED // len(entities) + 1):
        order = shuffled(range(len(entities)), "pairs", kind, str(turn), *parts)
        for first, second in zip(order, [*order[1:], order[0]], strict=True):
            yield entities[first], entities[second]


def _choices(
    world: World, spec: dict[str, Any], direction: str, split: str, families: Sequence[str]
) -> Iterator[Question]:
    path, measure = tuple(spec.get("path", ())), spec["measure"]
    name = " ".join((spec["kind"], *path, measure, direction))
    frames = wording.load("comparisons")["frames"]
    families = [family for family in families if family in frames]
    for one, other in _pairs(world, spec["kind"], split, name):
        ways = [_way(world, entity, path, measure) for entity in (one, other)]
        if ways[0] is None or ways[1] is None:
            continue
        (hops_1, measure_1), (hops_2, measure_2) = ways[0], ways[1]
        if hops_1[-1].entity is hops_2[-1].entity or not _far_apart(spec, measure_1, measure_2):
            continue
        first = (measure_1.value > measure_2.value) == (direction == "more")
        choice = f"{name}|{one.title}|{other.title}"
        family = pick(families, "family", choice)
        pieces = spec[direction] | {"noun": spec["noun"], **_pair(family, one, other)}
        yield Question(
            text=fill(pick(frames[family], "frame", choice), pieces, choice),
            answers=names_of(one if first else other, chinese=family == "chinese"),
            hops=max(2, len(path) + 1),
            type="bridge_comparison" if path else "comparison",
            family=family,
            relations=(*path, measure),
            anchors=(one.title, other.title),
            decomposition=(*hops_1, *hops_2),
        )


def _way(world: World, entity: Entity, path: Sequence[str], measure: str) -> tuple[list[Hop], Measure] | None:
    """Follow a path to what is measured; None when it cannot be followed or measured."""
    steps = walk(world, entity, path)
    if steps is None:
        return None
    key = steps[-1].fact.entity if steps else entity.key
    end = world.entities.get(key) if key else None
    if end is None or measure not in end.measures:
        return None
    found = end.measures[measure]
    query = wording.query(end, measure.replace("_", " "))
    return [*_hops(steps), Hop(end, measure, found.text, query)], found


def _hops(steps: Sequence[Step]) -> list[Hop]:
    return [Hop(step.subject, step.relation, step.fact.text, step.query) for step in steps]


def _pair(family: str, one: Entity, other: Entity) -> dict[str, str]:
    """Return how the two are called: without an article in Chinese."""
    named = (one.name, other.name) if family == "chinese" else (one.said, other.said)
    return dict(zip("ab", named, strict=True))


def _far_apart(spec: dict[str, Any], one: Measure, other: Measure) -> bool:
    small, large = sorted((one.value, other.value))
    return (
        small != large
        and large - small >= spec.get("gap", 0.0)
        and (spec["margin"] == 0 or large >= spec["margin"] * small)
    )


def _same(world: World, spec: dict[str, Any], answer: str, split: str, families: Sequence[str]) -> Iterator[Question]:
    path = spec["path"]
    name = " ".join((spec["kind"], *path, answer))
    frames = wording.load("comparisons")["same"]["frames"]
    families = [family for family in families if family in frames]
    for one, other in _pairs(world, spec["kind"], split, name):
        ways = [walk(world, entity, path) for entity in (one, other)]
        if ways[0] is None or ways[1] is None:
            continue
        steps = [*ways[0], *ways[1]]
        equal = ways[0][-1].fact.text == ways[1][-1].fact.text
        if equal != (answer == "yes"):
            continue
        choice = f"{name}|{one.title}|{other.title}"
        family = pick(families, "family", choice)
        pieces = spec | {**_pair(family, one, other)}
        yield Question(
            text=fill(pick(frames[family], "frame", choice), pieces, choice),
            answers=(answer, *(("是" if equal else "不是",) if family == "chinese" else ())),
            hops=len(path) if len(path) > 1 else 2,
            type="bridge_comparison" if len(path) > 1 else "comparison",
            family=family,
            relations=tuple(path),
            anchors=(one.title, other.title),
            decomposition=tuple(_hops(steps)),
        )


def fill(frame: str, pieces: dict[str, Any], choice: str) -> str:
    """Put pieces into a frame, one of several where there are several, and pieces into those."""

    def piece(match: re.Match[str]) -> str:
        value = pieces[match.group(1)]
        text = value if isinstance(value, str) else pick(value, "piece", choice, match.group(1))
        return re.sub(r"\{(\w+)\}", piece, text)

    text = re.sub(r"\{(\w+)\}'s", lambda match: wording.possessive(pieces[match.group(1)]), frame)
    return wording.finish(re.sub(r"\{(\w+)\}", piece, text))


def names_of(entity: Entity, *, chinese: bool = False) -> tuple[str, ...]:
    """Return what an entity may be called in an answer."""
    name = entity.title if entity.kind == "city" else entity.name
    found = {*entity.aliases, plain(name), entity.said}
    if chinese and entity.chinese:
        found.add(entity.chinese)
    return (name, *sorted(found - {name, ""}))
