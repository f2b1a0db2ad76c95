"""A Memory that holds nothing: the loop without memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia.types import Recall

if TYPE_CHECKING:
    from mia.types import Episode, Question


class NoMemory:
    """Recalls nothing and keeps nothing."""

    async def recall(self, question: Question) -> Recall:  # noqa: ARG002
        """Return an empty recall."""
        return Recall()

    async def remember(self, episode: Episode) -> None:
        """Let the episode go."""
