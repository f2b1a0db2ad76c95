"""The block of recalled memories that the Planner reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia.prompts import fill
from mia.text import disarm

if TYPE_CHECKING:
    from mia.protocols import TokenCounter
    from mia.types import Recall, Workflow

NONE_FOUND = "There are no memories of similar questions yet."
REVIEWED = ("reasoning and logic", "information sourcing", "validity of the result")  # what each reviewer looks at


def memory_block(recall: Recall, tokens: int, counter: TokenCounter) -> str:
    """Render successes, then failures, best first, each cut to its even share of `tokens`; or what is told instead."""
    if recall.told and tokens > 0:
        return fill("memories", memories=counter.cut(disarm(recall.told), tokens))
    shown = [workflow for workflow, _ in (*recall.successes, *recall.failures)]
    if not shown or tokens <= 0:
        return NONE_FOUND
    entries = [counter.cut(_entry(number, workflow), tokens // len(shown)) for number, workflow in enumerate(shown, 1)]
    return fill("memories", memories="\n\n".join(entries))


def _entry(number: int, workflow: Workflow) -> str:
    lines = [f"[{number}] {'This worked' if workflow.correct else 'This failed'}", f"Question: {workflow.question}"]
    if workflow.caption:
        lines.append(f"Caption of its image: {workflow.caption}")
    lines.append(f"What was done:\n{workflow.summary}")
    reviews = zip(REVIEWED, workflow.feedback, strict=False)
    lines += [f"A reviewer on its {subject}:\n{said.strip()}" for subject, said in reviews if said.strip()]
    return disarm("\n".join(lines))
