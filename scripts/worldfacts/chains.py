"""Questions that follow relations from one entity to the next."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from worldfacts import questions, wording
from worldfacts.questions import TEST, TRAIN, Collection, Hop, Question, split_of
from worldfacts.wording import Example, Step
from worldfacts.world import Entity, World, pick, shuffled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_OF_ONE_ANSWER = 0.1
"""Of the questions of one chain; at least three."""
TRIES = 4


def specified(which: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the chains that are `trained` or `held_out`: the kind of the anchor, and the relations."""
    return [(line.split()[0], tuple(line.split()[1:])) for line in wording.load("chains")[which]]


def walk(world: World, anchor: Entity, path: Sequence[str]) -> list[Step] | None:
    """Follow relations from an anchor; None when one is not told or the way comes back to where it was."""
    steps: list[Step] = []
    entity: Entity | None = anchor
    for relation in path:
        if entity is None or relation not in entity.facts or any(step.subject is entity for step in steps):
            return None
        fact = entity.facts[relation]
        steps.append(Step(entity, relation, fact))
        entity = world.entities.get(fact.entity) if fact.entity else None
    return steps


def chain_questions(
    world: World, chain: tuple[str, tuple[str, ...]], split: str, families: Sequence[str]
) -> Iterator[Question]:
    """Make questions of one chain about the anchors of a split, one for each, in an order of its own."""
    kind, path = chain
    name = " ".join((kind, *path))
    for anchor in shuffled((each for each in world.of_kind(kind) if split_of(each.title) == split), "anchors", name):
        steps = walk(world, anchor, path)
        if steps:
            for attempt in range(TRIES):  # a wording may tell the answer where another does not
                choice = "|".join((name, anchor.title, str(attempt)))
                family = pick(families, "family", choice)
                question = _question(world, steps, family, choice)
                if question:
                    yield question
                    break


def _question(world: World, steps: list[Step], family: str, choice: str) -> Question | None:
    answers = questions.answers_of(world, steps[-1], chinese=family == "chinese")
    example = example_of(world, steps, choice) if family == "analogy" else None
    if family == "analogy" and example is None:
        return None
    text = wording.compose(family, steps, choice, example)
    if questions.gives_itself_away(steps, text, answers):
        return None
    return Question(
        text=text,
        answers=answers,
        hops=len(steps),
        type=f"chain{len(steps)}",
        family=family,
        relations=tuple(step.relation for step in steps),
        anchors=(steps[0].subject.title,),
        decomposition=tuple(Hop(step.subject, step.relation, step.fact.text, step.query) for step in steps),
    )


def example_of(world: World, steps: Sequence[Step], choice: str) -> Example | None:
    """Find who has the last relation too, with another object, among those that training knows."""
    last = steps[-1]
    named = {step.subject.name for step in steps}
    found = [
        each
        for each in world.of_kind(last.subject.kind)
        if last.relation in each.facts
        and split_of(each.title) == TRAIN
        and each.name not in named
        and each.facts[last.relation].text != last.fact.text
    ]
    if not found:
        return None
    other = pick(found, "example", choice)
    fact = other.facts[last.relation]
    end = world.entities.get(fact.entity) if fact.entity else None
    return Example(other, fact, end.said if end and end.kind in ("country", "currency") else fact.text)


def collect(
    world: World,
    chains: Sequence[tuple[str, tuple[str, ...]]],
    split: str,
    families: Sequence[str],
    into: Collection,
    per_chain: int,
) -> None:
    """Add up to `per_chain` questions of every chain, none of whose answers stands out."""
    most = max(3 if split != TEST else 2, round(per_chain * MOST_OF_ONE_ANSWER))
    for chain in chains:
        taken = 0
        seen: Counter[str] = Counter()
        for question in chain_questions(world, chain, split, families):
            if taken == per_chain:
                break
            if seen[question.answers[0]] < most and into.add(question):
                seen[question.answers[0]] += 1
                taken += 1
