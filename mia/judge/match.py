"""Exact match: when two short answers say the same thing without asking a model."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia.types import Truth

_SEPARATOR = re.compile(r"(?<=\d)[,\u00a0\u202f' ](?=\d{3}(?!\d))")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_OUTER = "\"'“”‘’`.,;:!?()[]{}。，！？；： \t\n"


def normalise(text: str) -> str:
    """Fold case, accents, unicode forms, articles, outer punctuation, thousands separators and white space."""
    text = unicodedata.normalize("NFKD", text).casefold()
    text = "".join(char for char in text if not unicodedata.combining(char))
    text = text.replace("−", "-").replace("–", "-")
    text = _SEPARATOR.sub("", text)
    text = _ARTICLE.sub(" ", text)
    return " ".join(text.split()).strip(_OUTER)


def matches(answer: str, truth: Truth) -> bool:
    """Tell whether the whole answer is the right one or an alias. A longer sentence around it does not match."""
    given = normalise(answer)
    return bool(given) and any(given == normalise(right) for right in truth.answers)
