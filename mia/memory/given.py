"""A Memory that was asked before: training shows each question what a data set says was recalled for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia.types import Episode, Question, Recall


class GivenMemory:
    """Recalls what it was made with and keeps nothing."""

    def __init__(self, recall: Recall) -> None:
        self._recall = recall

    async def recall(self, question: Question) -> Recall:  # noqa: ARG002
        """Return what was recalled."""
        return self._recall

    async def remember(self, episode: Episode) -> None:
        """Let the episode go."""
