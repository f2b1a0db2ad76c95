"""Snippets: of a passage, the sentences that match a query, for models that lose their way in whole ones."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

GAP = "…"

# Not after an initial or a title ("J. Swan", "St. Helena"), nor where a small letter goes on.
_BORDER = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)\s+(?=[^\W_a-zß-ÿ]|[\"“«(])|(?<=[。！？])")
_WORD = re.compile(r"\w+")
_STEM = 6  # letters: "discovered" and "discoverer" are one, "country" and "county" are two
_UNSPACED = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")  # scripts that leave no spaces between words


def snippet(text: str, query: str, words: int, *, known: str = "") -> str:
    """Return the sentences of a passage that share most with a query, in their order, `GAP` where some are left out.

    A word counts the less the more sentences hold it, so no list of common words is needed. Among equals the earlier
    sentence wins. One sentence is always kept, however long it is.

    Args:
        text: the passage.
        query: what was searched for.
        words: how many words the sentences may have in all.
        known: words that tell nothing here, such as the title over the passage.
    """
    sentences = [part for part in _BORDER.split(text) if part.strip()]
    if len(sentences) < 2 or _size(text) <= words:
        return text
    stems = [_stems(sentence) for sentence in sentences]
    shared = Counter(stem for each in stems for stem in each)
    wanted = _stems(query) - _stems(known)
    scores = [sum(1 / shared[stem] for stem in wanted & each) for each in stems]
    kept: set[int] = set()
    room = words
    for place in sorted(range(len(sentences)), key=lambda place: (-scores[place], place)):
        size = _size(sentences[place])
        if size <= room or not kept:
            kept.add(place)
            room -= size
    shown = [sentence.strip() if place in kept else GAP for place, sentence in enumerate(sentences)]
    return " ".join(part for place, part in enumerate(shown) if part != GAP or shown[place - 1 : place] != [GAP])


def _size(text: str) -> int:
    """Return how many words a text has: of scripts without spaces two letters are one."""
    return sum(-(-len(word) // 2) if _UNSPACED.search(word) else 1 for word in _WORD.findall(text))


def _stems(text: str) -> set[str]:
    """Return what words are compared by: their beginnings, without accents; of scripts without spaces all pairs."""
    found: set[str] = set()
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if _UNSPACED.search(word):
            found |= {word[place : place + 2] for place in range(max(1, len(word) - 1))}
        else:
            plain = "".join(each for each in unicodedata.normalize("NFKD", word) if not unicodedata.combining(each))
            found.add(plain[:_STEM].removesuffix("s"))
    return found
