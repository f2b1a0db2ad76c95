"""A text as the terms that the index knows, in any language."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import Stemmer  # type: ignore[import-not-found]
from bm25s.stopwords import STOPWORDS_EN  # type: ignore[import-untyped]

STOP_WORDS = frozenset(STOPWORDS_EN)

# Scripts that write no spaces between words (Han, kana, Thai, Lao, Burmese, Khmer), and Hangul, whose words carry
# endings: runs of them become pairs of neighbours.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# `\w` leaves out the vowel signs of Indic scripts and the points of Arabic and Hebrew.
_SIGNS = "\u0591-\u05c7\u0610-\u065f\u0900-\u0963\u0966-\u0dff"
_TERM = re.compile(rf"([{_UNSPACED}]+)|((?:(?![{_UNSPACED}])[\w{_SIGNS}])+)")
_DROPPED = re.compile(r"[\u0300-\u036f]+|['\u2019]s\b")


def terms(text: str) -> list[str]:
    """Return the terms of a text: folded, English stop words dropped, stemmed; pairs of characters in CJK."""
    words: list[str] = []
    pairs: list[str] = []
    for run, word in _TERM.findall(_fold(text)):
        if word and word not in STOP_WORDS:
            words.append(word)
        elif run:
            pairs.extend(map("".join, pairwise(run)) if len(run) > 1 else [run])
    # A stemmer is made in no time and must not be shared between threads.
    return [*Stemmer.Stemmer("english").stemWords(words), *pairs]


def whole(found: list[str]) -> str:
    """Return the one term of all terms in their order: a query that is a title finds that title's page first."""
    return ("=" + " ".join(found))[:200]


def _fold(text: str) -> str:
    """Make spellings of a word equal: case, width, possessive, accents of Latin, Greek and Cyrillic letters."""
    return unicodedata.normalize("NFC", _DROPPED.sub("", unicodedata.normalize("NFKD", text.casefold())))
