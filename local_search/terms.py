"""A text as the terms that the index knows, in any language."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import Stemmer  # type: ignore[import-not-found]
from bm25s import stopwords  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable

ENGLISH = "english"
NONE = "none"
# Left over from don't and we'd, but also vitamin D, T cells, Yo-Yo Ma, and who won what.
_WORDS_TOO = frozenset({"d", "don", "m", "ma", "o", "s", "shan", "t", "won", "y"})
STOP_WORDS = {
    language: frozenset(map(str.casefold, words))
    for language, words in {
        ENGLISH: set(stopwords.STOPWORDS_EN_PLUS) - _WORDS_TOO,
        "danish": stopwords.STOPWORDS_DANISH,
        "dutch": stopwords.STOPWORDS_DUTCH,
        "french": stopwords.STOPWORDS_FRENCH,
        "german": stopwords.STOPWORDS_GERMAN,
        "italian": stopwords.STOPWORDS_ITALIAN,
        "norwegian": stopwords.STOPWORDS_NORWEGIAN,
        "portuguese": stopwords.STOPWORDS_PORTUGUESE,
        "russian": stopwords.STOPWORDS_RUSSIAN,
        "spanish": stopwords.STOPWORDS_SPANISH,
        "swedish": stopwords.STOPWORDS_SWEDISH,
        "turkish": stopwords.STOPWORDS_TURKISH,
    }.items()
}
LANGUAGES = (NONE, *sorted(set(Stemmer.algorithms()) - {"porter", "dutch_porter"}))

LEAST_SHARE = 0.15  # of the words of a text are stop words of its language: 0.2 to 0.5 in prose, 0.1 in another's
LEAST_LEAD = 1.2
KNOWN_WORDS = 200_000

# Scripts that write no spaces between words (Han with its repetition mark and zero, kana, Thai, Lao, Burmese, Khmer),
# and Hangul, whose words carry endings: runs of them become pairs of neighbours.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# `\w` leaves out the vowel signs of Indic scripts and the points of Arabic and Hebrew.
_SIGNS = "\u0591-\u05c7\u0610-\u065f\u0900-\u0963\u0966-\u0dff"
_RUN = re.compile(rf"[{_UNSPACED}]+")
_WORD = re.compile(rf"[\w{_SIGNS}]+")
_MARKS = re.compile(r"[\u0300-\u036f]+")
_POSSESSIVE = re.compile(r"['\u2019]s\b")


class Analyzer:
    """Makes terms in the way of one language: its stop words dropped, its endings cut. For one thread at a time."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._term_of = _Known(language)

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text: words folded and stemmed, then pairs of characters where no spaces are.

        Of a text of stop words alone, like The Who, these are the terms.
        """
        text = _plain(text)
        words = _words(text)
        found = list(filter(None, map(self._term_of.__getitem__, words)))
        if not text.isascii():
            found.extend(chain.from_iterable(map(_pairs, _RUN.findall(text))))
        return found or words


class _Known(dict[str, str]):
    """The term of every word met so far, empty for stop words: a text has few words that no other has."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._stop_words = STOP_WORDS.get(language, frozenset())
        self._stem = None if language == NONE else Stemmer.Stemmer(language, 0).stemWord

    def __missing__(self, word: str) -> str:
        if len(self) >= KNOWN_WORDS:
            self.clear()
        term = "" if word in self._stop_words else word
        if term and self._stem is not None:
            term = self._stem(term)
        if not term.isascii():  # after the stemmer, for many know an ending by its accent
            term = unicodedata.normalize("NFC", _MARKS.sub("", unicodedata.normalize("NFD", term)))
        self[word] = term
        return term


def whole(found: list[str]) -> str:
    """Return the one term of all terms in their order: a query that is a title finds that title's page first."""
    return "=" + " ".join(found)


def number(term: str) -> int:
    """Return the 64-bit number that stands for a term in an index, where two of a billion terms may share one."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def detect(texts: Iterable[str]) -> str:
    """Return the language whose stop words are most frequent in texts; English where none stands out."""
    words = [word for text in texts for word in _words(_plain(text))]
    shares = {name: sum(word in known for word in words) for name, known in STOP_WORDS.items()}
    best = max(shares, key=lambda name: shares[name])
    clear = shares[best] >= LEAST_SHARE * len(words) and shares[best] >= LEAST_LEAD * shares[ENGLISH]
    return best if words and clear else ENGLISH


def _plain(text: str) -> str:
    """Make spellings of a word equal: case, width, possessive, and stress marks that belong to no letter."""
    text = text.casefold()
    if not text.isascii():
        text = _MARKS.sub("", unicodedata.normalize("NFKC", text).casefold())
    return _POSSESSIVE.sub("", text)


def _words(text: str) -> list[str]:
    return _WORD.findall(text if text.isascii() else _RUN.sub(" ", text))


def _pairs(run: str) -> list[str]:
    return list(map("".join, pairwise(run))) if len(run) > 1 else [run]
