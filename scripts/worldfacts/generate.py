"""All question files of one build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worldfacts import chains, comparisons, unanswerable, wording
from worldfacts.questions import DEV, TEST, TRAIN, Collection

if TYPE_CHECKING:
    from collections.abc import Callable

    from worldfacts.world import World


@dataclass(frozen=True)
class Plan:
    """How many questions a file gets: of each chain, comparison and reason for no answer, and of one answer at most."""

    name: str
    split: str
    per_chain: int = 0
    per_comparison: int = 0
    per_reason: int = 0
    chains: str = "trained"
    held_out_families: bool = False
    most_of_one_answer: int = 0


PLANS = (
    Plan("train", TRAIN, per_chain=40, per_comparison=30, most_of_one_answer=40),
    Plan("dev", DEV, per_chain=4, per_comparison=4, most_of_one_answer=9),
    Plan("test", TEST, per_chain=6, per_comparison=8, most_of_one_answer=13),
    Plan("test_phrasing", TEST, per_chain=6, per_comparison=6, held_out_families=True, most_of_one_answer=13),
    Plan("test_composition", TEST, per_chain=30, chains="held_out", most_of_one_answer=6),
    Plan("train_unanswerable", TRAIN, per_reason=70),
    Plan("test_unanswerable", TEST, per_reason=70),
)


def generate(world: World, report: Callable[[str, int], None] = lambda _name, _count: None) -> dict[str, Collection]:
    """Make the questions of every file by its name; `report` hears of each file made."""
    made = {}
    for plan in PLANS:
        families = wording.held_out_families() if plan.held_out_families else wording.trained_families()
        collection = Collection(plan.most_of_one_answer)
        if plan.per_chain:
            specified = chains.specified(plan.chains)
            chains.collect(world, specified, plan.split, families, collection, plan.per_chain)
        if plan.per_comparison:
            comparisons.collect(world, plan.split, families, collection, plan.per_comparison)
        if plan.per_reason:
            unanswerable.collect(world, plan.split, collection, plan.per_reason)
        made[plan.name] = collection
        report(plan.name, len(collection.questions))
    return made
