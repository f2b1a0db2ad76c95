"""The Executor's reward: accuracy, tool use, format (paper section 4; weights .7 .2 .1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mia.text import Answer, balanced, parse_turn
from mia.types import Episode, Label, Reward, ToolCall, Trajectory

if TYPE_CHECKING:
    from mia.types import Attempt, Step

_MAX_ANSWER_CHARACTERS = 100
_BONUS = 1.2
_IMAGE_TOOL = "web_image_to_image_search"
_TOOLS = ("search", _IMAGE_TOOL)


def executor_reward(episode: Episode, preset: Literal["paper", "release"] = "paper") -> Reward:
    """Score an episode. `release` adds its bonus for being right without a revised plan, so it reaches 1.14."""
    final = episode.final
    correct = final is not None and _correct(final)
    bonus = _BONUS if preset == "release" and len(episode.attempts) == 1 else 1.0
    used = [
        any(step.call is not None and step.call.name in _TOOLS for step in a.trajectory.steps) for a in episode.attempts
    ]
    return Reward(
        parts={
            "accuracy": (bonus if correct else 0.0, 0.7),
            "tool": (sum(used) / len(used) if used else 0.0, 0.2),
            "format": (float(_well_formed(episode)), 0.1),
        }
    )


def _correct(attempt: Attempt) -> bool:
    answer = attempt.trajectory.answer or ""
    right = attempt.verdict is not None and attempt.verdict.label is Label.CORRECT
    return right and len(answer) <= _MAX_ANSWER_CHARACTERS


def _well_formed(episode: Episode) -> bool:
    trajectories: list[Trajectory] = [attempt.trajectory for attempt in episode.attempts]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    image_calls = sum(step.call is not None and step.call.name == _IMAGE_TOOL for step in steps)
    answered = bool(trajectories) and trajectories[-1].answer is not None
    return answered and image_calls <= 1 and all(map(_clean_turn, steps))


def _clean_turn(step: Step) -> bool:
    if not balanced(step.said.raw):
        return False
    turn = parse_turn(step.said.text)
    return isinstance(turn, Answer) or (isinstance(turn, ToolCall) and not turn.repaired and _valid(turn))


def _valid(call: ToolCall) -> bool:
    """Tell whether a call has exactly the arguments that its tool declares."""
    if call.name == "search":
        queries = call.arguments.get("query_list")
        one_key = set(call.arguments) == {"query_list"}
        return one_key and isinstance(queries, list) and bool(queries) and all(map(_filled, queries))
    return call.name == _IMAGE_TOOL and call.arguments == {"img_idx": "0"}


def _filled(query: object) -> bool:
    return isinstance(query, str) and bool(query.strip())
