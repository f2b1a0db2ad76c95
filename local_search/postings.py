"""BM25 weights by term: merged from the parts of a corpus, and searched without reading most of them.

Weights are those of Lucene's BM25, as bm25s makes them: ln(1 + (N - n + 0.5) / (n + 0.5)) f / (f + k1 (1 - b + bl/L))
with N usable rows of L terms on average, n of which have the term, f times in a row of l terms. The files are arrays:
`terms` (ascending), `starts` of their `rows` and `weights`, and `bounds`, the greatest weight of each.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from local_search.terms import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from local_search.parts import Part

BLOCK = 4 << 20  # postings weighed at once, at about 50 bytes each
MARGIN = 1.0001  # sums of 32-bit floats are not exact


def write(folder: Path, parts: Sequence[Part], k1: float, b: float, show: Callable[[int, int], None]) -> None:
    """Merge parts, of which one at least has a term; `show` is told how many postings of how many are done.

    Holds some 12 bytes a row, 28 bytes a term and one block of postings (or the commonest term's) in memory.
    """
    terms = _union(parts)
    frequency = np.zeros(len(terms), np.int64)
    for part in parts:
        frequency[np.searchsorted(terms, part["terms"])] += np.diff(part["starts"])
    starts = np.concatenate([[0], np.cumsum(frequency)])
    lengths = np.concatenate([part["lengths"] for part in parts])
    usable = np.count_nonzero(lengths)
    rarity = np.log(1 + (usable - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)
    damping = (k1 * (1 - b + b * lengths / (lengths.sum() / usable))).astype(np.float32)
    bounds = np.empty(len(terms), np.float32)
    total = int(starts[-1])
    with (folder / "rows.npy").open("wb") as row_file, (folder / "weights.npy").open("wb") as weight_file:
        for file, kind in ((row_file, "<i4"), (weight_file, "<f4")):
            np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": (total,)})
        first = 0
        while first < len(terms):
            last = max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK, "right")) - 1)
            rows, counts = _block(parts, terms[first:last])
            weights = np.repeat(rarity[first:last], frequency[first:last]) * (counts / (damping[rows] + counts))
            rows.astype("<i4").tofile(row_file)
            weights.astype("<f4").tofile(weight_file)
            bounds[first:last] = np.maximum.reduceat(weights, starts[first:last] - starts[first])
            first = last
            show(int(starts[first]), total)
    for name, values in (("terms", terms), ("starts", starts), ("bounds", bounds)):
        np.save(folder / f"{name}.npy", values)


def _union(parts: Sequence[Part]) -> NDArray[np.uint64]:
    """Return all terms of parts, halving them: what all have is then never in memory more than twice."""
    if len(parts) == 1:
        return np.array(parts[0]["terms"])
    half = len(parts) // 2
    return np.union1d(_union(parts[:half]), _union(parts[half:]))


def _block(parts: Sequence[Part], terms: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return rows and counts of a range of terms, ordered by term and then by row."""
    keys, counts = [], []
    base = 0
    for part in parts:
        own, starts = part["terms"], part["starts"]
        low, high = np.searchsorted(own, terms[0]), np.searchsorted(own, terms[-1], "right")
        found = part["postings"][starts[low] : starts[high]]
        term = np.repeat(np.searchsorted(terms, own[low:high]), np.diff(starts[low : high + 1]))
        keys.append(term << 32 | (found["row"].astype(np.int64) + base))
        counts.append(found["count"].astype(np.float32))
        base += len(part["lengths"])
    every = np.concatenate(keys)
    order = np.argsort(every, kind="stable")
    return every[order] & 0xFFFFFFFF, np.concatenate(counts)[order]


class Postings:
    """The weights of an index, mapped and not read; many threads may search."""

    def __init__(self, folder: Path) -> None:
        self._terms, self._starts, self._bounds, self._rows, self._weights = (
            np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray)
            for name in ("terms", "starts", "bounds", "rows", "weights")
        )

    def best(self, terms: Iterable[str], limit: int, scores: NDArray[np.float32]) -> list[tuple[int, float]]:
        """Return at most `limit` rows with their scores, best first, of equal ones the first in the corpus.

        Terms come by their greatest weight. Once `limit` rows have more than all terms left could give, no other row
        can win, and those terms are looked up for the rows still in the race alone: long lists of common words stay
        unread. `scores` is the room for it: zeros, one a row, and zeros again afterwards.
        """
        found = self._look_up(terms)
        left = np.cumsum([bound for bound, _, _ in reversed(found)])[::-1] * MARGIN
        pieces = [np.empty(0, np.int32)]
        done = 0
        for done, (_, own, weights) in enumerate(found):
            # The first half of all weight cannot decide, so that it is not asked whether it does.
            if left[0] - left[done] > left[done] and _least(scores[np.concatenate(pieces)], limit) > left[done]:
                break
            pieces.append(own[scores[own] == 0])
            scores[own] += weights
        else:
            done = len(found)
        rows = np.concatenate(pieces)
        values = scores[rows]
        scores[rows] = 0
        least = _least(values, limit)
        for (_, own, weights), most in zip(found[done:], left[done:], strict=True):
            racing = values + most >= least
            rows, values = rows[racing], values[racing]
            at = np.minimum(np.searchsorted(own, rows), len(own) - 1)
            values += np.where(own[at] == rows, weights[at], np.float32(0))
            least = _least(values, limit)
        if len(values) > limit:
            in_race = values >= least
            rows, values = rows[in_race], values[in_race]
        order = np.lexsort((rows, -values))[:limit]
        return list(zip(rows[order].tolist(), values[order].tolist(), strict=True))

    def _look_up(self, terms: Iterable[str]) -> list[tuple[float, NDArray[np.int32], NDArray[np.float32]]]:
        """Return greatest weight, rows and weights of every term that the index has, by greatest weight."""
        found = []
        for term, times in Counter(terms).items():
            key = np.uint64(number(term))
            at = int(np.searchsorted(self._terms, key))
            if at < len(self._terms) and self._terms[at] == key:
                span = slice(int(self._starts[at]), int(self._starts[at + 1]))
                weights = self._weights[span] * np.float32(times) if times > 1 else self._weights[span]
                found.append((float(self._bounds[at]) * times, self._rows[span], weights))
        return sorted(found, key=lambda each: -each[0])


def _least(values: NDArray[np.float32], limit: int) -> float:
    """Return the value that one of the best `limit` has at least; none has, while there are fewer."""
    return float(np.partition(values, -limit)[-limit]) if len(values) >= limit else -np.inf
