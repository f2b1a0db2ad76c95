"""Exact match: when two short answers say the same thing without asking a model."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia.types import Truth

_SEPARATOR = re.compile(r"(?<=\d)[,\u00a0\u202f' ](?=\d{3}(?!\d))")
_ARTICLE = re.compile(r"^(?:a|an|the)\s+")
_ACCENT = re.compile(r"([a-z\u0370-\u052f])[\u0300-\u036f]+")  # Latin, Greek and Cyrillic letters
_POINT = re.compile(r"^\.+(?!\d)|\.+$")
_OUTER = "\"'“”‘’`,;:!?()[]{}。，！？；： \t\n"
_SUPERSCRIPT = {char: f"^{digit}" for digit, char in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_NO_ANSWER = ("unanswerable", "no answer", "there is no answer", "it cannot be answered")


def normalise(text: str) -> str:
    """Fold case, accents, width, articles, outer punctuation, thousands separators and white space.

    Marks are dropped from letters that have a bare form of the same reading, as in é; elsewhere, as in Japanese, a
    mark makes another letter. Superscripts stay what they are.
    """
    text = "".join(_SUPERSCRIPT.get(char, char) for char in text)
    text = unicodedata.normalize("NFKD", text).casefold()
    text = unicodedata.normalize("NFC", _ACCENT.sub(r"\1", text))
    text = text.replace("−", "-").replace("–", "-")
    text = _SEPARATOR.sub("", text)
    text = _POINT.sub("", " ".join(text.split()).strip(_OUTER))
    return _ARTICLE.sub("", text) or text


def matches(answer: str, truth: Truth) -> bool:
    """Tell whether the whole answer is the right one or an alias. A longer sentence around it does not match."""
    given = normalise(answer)
    right = (*truth.answers, *_NO_ANSWER) if truth.unanswerable else truth.answers
    return bool(given) and any(given == normalise(alias) for alias in right)
