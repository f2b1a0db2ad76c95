"""The Planner's rewards, with truth and by peer review (paper section 4)."""

from __future__ import annotations

from mia.text import balanced, parse_decision
from mia.types import Attempt, Episode, Label, Reward


def planner_reward(episode: Episode) -> Reward:
    """Score an episode: final answer, first answer, format, decision (weights .7 .2 .05 .05)."""
    complete = _complete(episode)
    first = complete and _correct(episode.attempts[0])
    final = complete and _correct(episode.final)
    said = episode.reflections[0].said if complete else None
    decided = said is not None and parse_decision(said.text) is (not first)
    return Reward(
        parts={
            "final": (float(final), 0.7),
            "first": (float(first), 0.2),
            "format": (float(complete and _well_formed(episode)), 0.05),
            "decision": (float(decided), 0.05),
        }
    )


def reviewed_reward(episode: Episode) -> Reward:
    """Score an episode without truth: what the reviewers made of the final answer, and format (weights .9 .1)."""
    complete = _complete(episode)
    return Reward(
        parts={
            "review": (float(complete and _correct(episode.final)), 0.9),
            "format": (float(complete and _well_formed(episode)), 0.1),
        }
    )


def _complete(episode: Episode) -> bool:
    """Tell whether all was said that was to be: an episode that ended before is worth 0, as is a plan that was none."""
    planned = bool(episode.reflections) and all(attempt.plan.text for attempt in episode.attempts)
    return planned and len(episode.attempts) == 1 + episode.reflections[0].replan


def _correct(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.verdict is not None and attempt.verdict.label is Label.CORRECT


def _well_formed(episode: Episode) -> bool:
    decision = episode.reflections[0].said
    if decision is None or decision.text.strip().lower() not in ("yes", "no"):
        return False
    replies = [decision, *(attempt.plan.said for attempt in episode.attempts)]
    return all(balanced(reply.raw) for reply in replies)
