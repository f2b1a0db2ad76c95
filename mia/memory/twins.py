"""Memories of one question: what tells them, and which of them stays."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import TYPE_CHECKING

from mia.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia.memory.writing import Fresh, Writing
    from mia.types import Question


def twin(question: Question) -> str:
    """Return what is equal for two questions of the same words, whatever their case, width and spacing.

    Vectors alone do not settle that, since some encoders know no word order. Blank questions cannot be told apart by
    words, nor can images that nobody has described: there the question's id decides.
    """
    text, caption = (
        " ".join(unicodedata.normalize("NFKC", clean(words)).casefold().split())
        for words in (question.text, question.caption)
    )
    wordless = clean(question.id) if not text or (question.images and not caption) else ""
    return hashlib.sha256(f"{text}\x00{caption}\x00{wordless}".encode()).hexdigest()[:32]


def settle(writing: Writing, memories: Sequence[Fresh]) -> None:
    """Add memories unless a better one of the same question and label is there; replace those that are worse.

    A success and a failure of one question stand side by side, as a contrast. A shorter success replaces a longer one
    (a stand-in does not: it is short because nobody wrote it), the latest failure the earlier one; what takes its place
    goes on under its id, with its uses and wins.
    """
    present = writing.twins(fresh.twin for fresh in memories)
    wanted: dict[tuple[str, bool], Fresh] = {}
    for fresh in memories:
        place = fresh.twin, fresh.workflow.correct
        rival = wanted[place].workflow if place in wanted else present.get(place)
        shorter = rival and not fresh.draft and len(fresh.workflow.summary) < len(rival.summary)
        if rival is None or not rival.correct or shorter:
            wanted[place] = fresh
    writing.replace({present[place].id: fresh for place, fresh in wanted.items() if place in present})
    writing.add([fresh for place, fresh in wanted.items() if place not in present])
