"""The Planner's reward: final answer, first answer, format, decision (paper section 4; weights .7 .2 .05 .05)."""

from __future__ import annotations

from mia.text import balanced, parse_decision
from mia.types import Attempt, Episode, Label, Reward


def planner_reward(episode: Episode) -> Reward:
    """Score an episode. One that ended before the Planner reflected is worth 0, as is a plan that was no plan."""
    complete = bool(episode.reflections) and all(attempt.plan.text for attempt in episode.attempts)
    complete = complete and len(episode.attempts) == 1 + episode.reflections[0].replan
    first = complete and _correct(episode.attempts[0])
    final = complete and _correct(episode.final)
    good_format = complete and _well_formed(episode)
    said = episode.reflections[0].said if complete else None
    decided = said is not None and parse_decision(said.text) is (not first)
    return Reward(
        parts={
            "final": (float(final), 0.7),
            "first": (float(first), 0.2),
            "format": (float(good_format), 0.05),
            "decision": (float(decided), 0.05),
        }
    )


def _correct(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.verdict is not None and attempt.verdict.label is Label.CORRECT


def _well_formed(episode: Episode) -> bool:
    decision = episode.reflections[0].said
    if decision is None or decision.text.strip().lower() not in ("yes", "no"):
        return False
    replies = [decision, *(attempt.plan.said for attempt in episode.attempts)]
    return all(balanced(reply.raw) for reply in replies)
