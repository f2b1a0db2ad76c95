"""Which memories to show for a question: arithmetic over frozen arrays, with no model, clock or storage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Vectors = NDArray[np.float32]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

Score = Literal["release", "three_term", "gated"]
Ranked = tuple[tuple[int, float], ...]

QUESTION_SHARE, CAPTION_SHARE = 0.8, 0.2
TWIN = 0.9999  # similarity from which two texts may be the same question


@dataclass(frozen=True)
class RecallRule:
    """How memories are chosen: `each` successes and as many failures, none less similar than `floor`.

    `exclude_same_question` is for benchmarks: a question never sees memories made from itself. `by_category` compares
    within the question's category only.
    """

    score: Score = "three_term"
    each: int = 2
    floor: float = 0.3
    exclude_same_question: bool = False
    by_category: bool = False


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The bank at one sequence number. Row i of each array is one memory; vectors are float32 [n, dimensions].

    `origins` numbers the questions that memories were made from, `categories` their categories; rows that are not
    `alive` have been forgotten.
    """

    sequence: int
    ids: Integers
    origins: Integers
    categories: Integers
    correct: Flags
    captioned: Flags
    alive: Flags
    uses: Floats
    wins: Floats
    questions: Vectors
    captions: Vectors
    _worth: dict[Score, Floats] = field(default_factory=dict, init=False, repr=False)

    def worth(self, score: Score) -> Floats:
        """Return what its uses and wins add to each memory's score, worked out once for all queries."""
        if score not in self._worth:
            self._worth[score] = TERMS[score].worth(self.uses, self.wins)
        return self._worth[score]


class Query(NamedTuple):
    """A question as vectors; `origin` and `category` are its numbers in the bank, None when the bank knows none.

    `worded` tells whether words alone say what is asked: there are no images, or a caption tells what they show.
    """

    question: Vectors
    caption: Vectors
    origin: int | None = None
    worded: bool = True
    category: int | None = None

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
    similarity = _cosines(snapshot.questions, query.question)
    if query.captioned:
        similarity = QUESTION_SHARE * similarity + CAPTION_SHARE * _cosines(snapshot.captions, query.caption)
    return similarity


def _cosines(rows: Vectors, vector: Vectors) -> Floats:
    # Not by `@`: the threads of BLAS spin while they wait for each other, and where requests come at once on few cores
    # 10,000 rows take them 8 ms. One thread takes 0.4, about as fast as memory is read.
    products: Vectors = np.einsum("ij,j->i", rows, vector)
    return products.astype(np.float64)


def rank(snapshot: Snapshot, query: Query, rule: RecallRule) -> Ranking:
    """Choose the memories to show for a query; equal scores are ordered by id, lowest first.

    The released code compares within a modality (with or without a caption), so `release` does too: its min-max scale
    spans that bucket, of which an excluded question is no part.
    """
    similarity, bucket = similarities(snapshot, query), snapshot.alive
    if rule.exclude_same_question:
        if query.worded:  # the same words may have been asked under another id; hiding too much is the safe side
            bucket = bucket & (similarity < TWIN)
        if query.origin is not None:
            bucket = bucket & (snapshot.origins != query.origin)
    if rule.by_category:
        bucket = bucket & (snapshot.categories == (-1 if query.category is None else query.category))
    if rule.score == "release":
        bucket = bucket & (snapshot.captioned == query.captioned)
    near = bucket & (similarity >= rule.floor)
    if not near.any():
        return Ranking((), ())
    terms = TERMS[rule.score]
    if terms.scaled:
        similarity = scaled(similarity, similarity if bucket.all() else similarity[bucket])
    scores = terms.relevance * similarity + snapshot.worth(rule.score)
    chosen = (np.flatnonzero(near & snapshot.correct), np.flatnonzero(near & ~snapshot.correct))
    return Ranking(*(_best(snapshot.ids[rows], scores[rows], rule.each) for rows in chosen))


def scaled(similarity: Floats, bucket: Floats) -> Floats:
    """Return similarities on the min-max scale of a bucket, as the released code compares them."""
    low: float = bucket.min()
    scale: Floats = (similarity - low) / (bucket.max() - low + 1e-8)
    return scale


@dataclass(frozen=True)
class Terms:
    """A score in its terms: relevance, value (how often it helped) and frequency (how little it was used)."""

    relevance: float
    value: Callable[[Floats, Floats], Floats]
    frequency: float = 0.0
    scaled: bool = False

    def worth(self, uses: Floats, wins: Floats) -> Floats:
        """Return value and frequency of each row; `uses` and `wins` are counted from 0."""
        value = self.value(uses, wins)
        return value + self.frequency / (1 + uses) if self.frequency else value


TERMS: dict[Score, Terms] = {
    # The released code's 0.7 s + 0.3 (w + 1) / (u + 1), in the paper's terms.
    "release": Terms(0.7, lambda uses, wins: 0.3 * wins / (uses + 1), frequency=0.3, scaled=True),
    "three_term": Terms(0.7, lambda uses, wins: 0.15 * wins / np.maximum(uses, 1), frequency=0.15),
    # A memory that was never shown is worth even odds, not full marks, and none is shown for being new.
    "gated": Terms(0.7, lambda uses, wins: 0.3 * (wins + 1) / (uses + 2)),
}


def _best(ids: Integers, scores: Floats, count: int) -> Ranked:
    if count < 1:
        return ()
    if len(scores) > count:  # only rows that can be among the best are sorted, with all that tie for the last place
        kept = scores >= np.partition(scores, -count)[-count]
        ids, scores = ids[kept], scores[kept]
    order = np.lexsort((ids, -scores))[:count]
    return tuple((int(ids[row]), float(scores[row])) for row in order)
