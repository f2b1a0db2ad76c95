"""Trajectory to text: the trace that the Planner reflects on and the Memory Manager compresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia.types import Step, Trajectory

_SMALLEST = 32


def transcript(question: str, trajectory: Trajectory, cut: Callable[[str], str] = str) -> str:
    """Render what happened, round by round; `cut` shortens each reply and each observation."""
    parts = [f"### Question\n{question}"]
    parts += [_round(number, step, cut) for number, step in enumerate(trajectory.steps, 1)]
    if trajectory.answer is None:
        parts.append(f"### End\nNo answer was given ({trajectory.stop.value}).")
    else:
        parts.append(f"### Answer\n{cut(trajectory.answer)}")
    return "\n\n".join(parts)


def _round(number: int, step: Step, cut: Callable[[str], str]) -> str:
    lines = [f"### Round {number}", "#### Reasoning and tool call", cut(step.said.raw.strip())]
    if step.observation is not None:
        lines += ["#### Tool result", cut(step.observation.text.strip())]
        lines += [f"[image {image.sha256[:8]}]" for image in step.observation.images]
    return "\n".join(lines)


def fitted_transcript(
    question: str,
    trajectory: Trajectory,
    tokens: int,
    *,
    each: int,
    count: Callable[[str], int],
    cut: Callable[[str, int], str],
) -> str:
    """Render within `tokens`: pieces of at most `each` tokens, shortened evenly until the whole fits.

    All rounds stay visible for as long as possible, since a reader needs the shape of the search more than the full
    text of one page.
    """
    while True:
        text = transcript(question, trajectory, lambda piece, limit=each: cut(piece, limit))  # type: ignore[misc]
        if count(text) <= tokens:
            return text
        if each <= _SMALLEST:
            return cut(text, tokens)
        each //= 2
