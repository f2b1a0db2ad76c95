"""Which memories to show for a question: arithmetic over frozen arrays, with no model, clock or storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Vectors = NDArray[np.float32]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

Score = Literal["release", "three_term"]
Ranked = tuple[tuple[int, float], ...]

QUESTION_SHARE, CAPTION_SHARE = 0.8, 0.2
TWIN = 0.9999  # similarity from which two memories may be of the same question


@dataclass(frozen=True)
class RecallRule:
    """How memories are chosen: `each` successes and as many failures, none less similar than `floor`.

    `exclude_same_question` is for benchmarks: a question never sees memories made from itself.
    """

    score: Score = "three_term"
    each: int = 2
    floor: float = 0.3
    exclude_same_question: bool = False


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The bank at one sequence number. Row i of each array is one memory; vectors are float32 [n, dimensions].

    `origins` numbers the questions that memories were made from; rows that are not `alive` have been forgotten.
    """

    sequence: int
    ids: Integers
    origins: Integers
    correct: Flags
    captioned: Flags
    alive: Flags
    uses: Integers
    wins: Integers
    questions: Vectors
    captions: Vectors


class Query(NamedTuple):
    """A question as vectors; `origin` is its number in the bank, None when no memory was made from it."""

    question: Vectors
    caption: Vectors
    origin: int | None = None
    text_only: bool = True

    @property
    def captioned(self) -> bool:
        """Whether there is a caption to compare."""
        return bool(self.caption.any())


class Ranking(NamedTuple):
    """(id, score) of the memories to show, best first."""

    successes: Ranked
    failures: Ranked


def similarities(snapshot: Snapshot, query: Query) -> Floats:
    """Return the cosine of each memory's question with the query's, mixed 0.8 to 0.2 with captions' if it has one."""
    similarity = (snapshot.questions @ query.question).astype(np.float64)
    if query.captioned:
        similarity = QUESTION_SHARE * similarity + CAPTION_SHARE * (snapshot.captions @ query.caption)
    return similarity


def rank(snapshot: Snapshot, query: Query, rule: RecallRule) -> Ranking:
    """Choose the memories to show for a query; equal scores are ordered by id, lowest first.

    The released code compares within a modality (with or without a caption), so `release` does too: its min-max scale
    spans that bucket, of which an excluded question is no part.
    """
    bucket = snapshot.alive
    similarity = similarities(snapshot, query)
    if rule.exclude_same_question:
        if query.text_only:  # the same words may have been asked under another id; hiding too much is the safe side
            bucket = bucket & (similarity < TWIN)
        if query.origin is not None:
            bucket = bucket & (snapshot.origins != query.origin)
    if rule.score == "release":
        bucket = bucket & (snapshot.captioned == query.captioned)
    rows = np.flatnonzero(bucket)
    similarity = similarity[rows]
    scores = _SCORES[rule.score](similarity, snapshot.uses[rows], snapshot.wins[rows])
    near, correct, ids = similarity >= rule.floor, snapshot.correct[rows], snapshot.ids[rows]
    chosen = (near & correct, near & ~correct)
    return Ranking(*(_best(ids[rows_of], scores[rows_of], rule.each) for rows_of in chosen))


def twins(snapshot: Snapshot, query: Query, *, correct: bool, same_origin: bool = False) -> list[int]:
    """Return the ids with the same label and modality that are near enough to be of the same question, nearest first.

    Vectors alone do not settle it, since some encoders know no word order: whoever asks compares the texts.
    `same_origin` asks for the same question id too: vectors cannot tell apart images without captions.
    """
    alike = snapshot.alive & (snapshot.correct == correct) & (snapshot.captioned == query.captioned)
    if same_origin:
        alike = alike & (snapshot.origins == (-1 if query.origin is None else query.origin))
    rows = np.flatnonzero(alike & (similarities(snapshot, query) >= TWIN))
    return [memory_id for memory_id, _ in _best(snapshot.ids[rows], similarities(snapshot, query)[rows], len(rows))]


def release_scores(similarity: Floats, uses: Integers, wins: Integers) -> Floats:
    """Score as the released code does: 0.7 of the min-max similarity, 0.3 of the win rate counted from one."""
    if not len(similarity):
        return similarity
    low = similarity.min()
    scaled: Floats = (similarity - low) / (similarity.max() - low + 1e-8)
    score: Floats = 0.7 * scaled + 0.3 * ((wins + 1) / (uses + 1))
    return score


def three_term_scores(similarity: Floats, uses: Integers, wins: Integers) -> Floats:
    """Score by relevance, value and frequency: 0.7 similarity + 0.15 wins per use + 0.15 of how little it was used."""
    score: Floats = 0.7 * similarity + 0.15 * (wins / np.maximum(uses, 1)) + 0.15 * (1 / (1 + uses))
    return score


_SCORES: dict[Score, Callable[[Floats, Integers, Integers], Floats]] = {
    "release": release_scores,
    "three_term": three_term_scores,
}


def _best(ids: Integers, scores: Floats, count: int) -> Ranked:
    if count < 1:
        return ()
    if len(scores) > count:  # only rows that can be among the best are sorted, with all that tie for the last place
        kept = scores >= np.partition(scores, -count)[-count]
        ids, scores = ids[kept], scores[kept]
    order = np.lexsort((ids, -scores))[:count]
    return tuple((int(ids[row]), float(scores[row])) for row in order)
