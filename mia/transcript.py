"""Trajectory to text: the trace that the Planner reflects on and the Memory Manager compresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia.types import Episode, Step, Trajectory

    Cut = Callable[[str], str]

_SMALLEST = 32


def transcript(question: str, trajectory: Trajectory, cut: Cut = str) -> str:
    """Render what happened, round by round; `cut` shortens each reply and each observation."""
    return "\n\n".join([f"### Question\n{question}", *_rounds(trajectory, 1, cut), _end(trajectory, cut)])


def record(episode: Episode, cut: Cut = str) -> str:
    """Render a whole episode: each plan and what came of it, the rounds numbered through."""
    parts, rounds = [f"### Question\n{episode.question.text}"], 0
    for attempt in episode.attempts:
        trajectory = attempt.trajectory
        parts.append(f"### {'Revised plan' if attempt.plan.revises is not None else 'Plan'}\n{cut(attempt.plan.text)}")
        parts += [*_rounds(trajectory, rounds + 1, cut), _end(trajectory, cut)]
        rounds += len(trajectory.steps)
    return "\n\n".join(parts)


def fitted(
    render: Callable[[Cut], str],
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
        text = render(lambda piece, limit=each: cut(piece, limit))  # type: ignore[misc]
        if count(text) <= tokens:
            return text
        if each <= _SMALLEST:
            return cut(text, tokens)
        each //= 2


def _rounds(trajectory: Trajectory, first: int, cut: Cut) -> list[str]:
    return [_round(number, step, cut) for number, step in enumerate(trajectory.steps, first)]


def _end(trajectory: Trajectory, cut: Cut) -> str:
    if trajectory.answer is None:
        return f"### End\nNo answer was given ({trajectory.stop.value})."
    return f"### Answer\n{cut(trajectory.answer)}"


def _round(number: int, step: Step, cut: Cut) -> str:
    lines = [f"### Round {number}", "#### Reasoning and tool call", cut(step.said.raw.strip())]
    if step.observation is not None:
        lines += ["#### Tool result", cut(step.observation.text.strip())]
        lines += [f"[image {image.sha256[:8]}]" for image in step.observation.images]
    return "\n".join(lines)
