"""Exact match: when two short answers say the same thing without asking a model."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING

from mia.text import clean

if TYPE_CHECKING:
    from mia.types import Truth

# What says that there is no answer, or none that can be found. "None" and "no" are not here: they answer questions.
_NO_ANSWER = (
    *("unanswerable", "no answer", "there is no answer", "it cannot be answered", "cannot be answered"),
    *("unknown", "not known", "I do not know", "I don't know", "cannot be determined"),
    *("not found", "no answer found", "no answer was found", "could not be found", "cannot be found"),
    *("not recorded", "no information", "not available", "N/A"),
    *("未知", "不知道", "无法确定", "无法回答", "没有答案", "找不到", "未找到", "没有找到", "没有记录"),
)

# Soft hyphen, zero-width space, byte order mark, direction marks; not the joiners, which Persian and emoji need.
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufe0e\ufe0f]")
_ACCENT = re.compile(r"([a-z\u0370-\u052f])[\u0300-\u036f]+")  # Latin, Greek and Cyrillic letters
_VOWEL_SIGN = re.compile("[\u0640\u064b-\u0652\u0670\u0591-\u05bd\u05bf\u05c1\u05c2\u05c7]")  # Arabic and Hebrew
_ALIKE = str.maketrans(
    dict.fromkeys("‐‑‒–—―−﹣－", "-")
    | dict.fromkeys("‘’ʼ′´`", "'")
    | dict.fromkeys("“”„″", '"')
    | {"⁄": "/", "٫": ".", "٬": ",", "٪": "%"}
    | {"ł": "l", "ø": "o", "đ": "d", "ı": "i", "æ": "ae", "œ": "oe"}
)
_SUPERSCRIPT = {char: f"^{digit}" for digit, char in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_OUTER = "\"',;:!?()[]{}<>«»‹›。、，！？；：「」『』《》〈〉【】\ufffd \t\n"
_POINT = re.compile(r"^\.+(?!\d)|\.+$")
_EMPHASIS = re.compile(r"(\*{1,3}|_{1,3})(.+)\1")
_ARTICLE = re.compile(r"^(?:a|an|the)\s+")
_GROUPED = re.compile(r"(?<![\d.,'])[1-9]\d{0,2}([,' ])\d{3}(?:\1\d{3})*(?!\d|[,']\d)")
_INITIAL = re.compile(r"(?<![^\W_])([a-z])\.\s?(?=[a-z]\.)")
_ABBREVIATION = re.compile(r"(?<=[^\W\d_])\.(?=\s|$)")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_PERCENT = re.compile(r"(?<=\d) ?(?:percent|per cent)\b")
_UNIT = re.compile(r"(?<=\d) (?=[a-zµμ°%])")
_NUMBER = re.compile(r"([+-]?)(\d*)(?:\.(\d+))?")

_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_MONTH_NUMBER = {form: n for n, name in enumerate(_MONTHS, 1) for form in (name, name[:3])} | {"sept": 9}
_MONTH = r"(?P<month>[a-z]{3,9})"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_DATES = tuple(
    re.compile(form)
    for form in (
        rf"{_DAY}(?: ?of)? ?{_MONTH}(?:,? ?{_YEAR})?",
        rf"{_MONTH} ?{_DAY}(?:,? {_YEAR})?",
        rf"{_MONTH},? ?{_YEAR}",
        rf"{_YEAR}([-/.])(?P<number>\d\d?)\2(?P<day>\d\d?)",
        rf"{_YEAR} ?年 ?(?P<number>\d\d?) ?月(?: ?(?P<day>\d\d?) ?[日号])?",
    )
)
_LEAP_YEAR = 2000


def normalise(text: str) -> str:
    """Return one text for all the forms of an answer that say the same.

    Folded are: case, accents, width, digits of other scripts, an English article in front, outer punctuation and
    emphasis, kinds of dashes and quotes, thousands separators, the space before a unit, dates that can be read one way.
    Marks are dropped from letters that have a bare form of the same reading, as in é; elsewhere, as in Japanese, a mark
    makes another letter. Superscripts and fractions stay apart from the digits before them.
    """
    text = "".join(map(_readable, _INVISIBLE.sub("", clean(text))))
    text = unicodedata.normalize("NFKD", text).casefold().translate(_ALIKE)
    text = unicodedata.normalize("NFC", _VOWEL_SIGN.sub("", _ACCENT.sub(r"\1", text)))
    text = _bare(_INITIAL.sub(r"\1", " ".join(text.split())))
    text = _HYPHEN.sub(" ", _ABBREVIATION.sub("", text))
    text = _GROUPED.sub(lambda number: number.group().replace(number.group(1), ""), text)
    text = _UNIT.sub("", _PERCENT.sub("%", text))
    text = _ARTICLE.sub("", text) or text
    return _as_date(text) or _as_number(text) or text


def matches(answer: str, truth: Truth) -> bool:
    """Tell whether the whole answer is the right one or an alias. A longer sentence around it does not match.

    What holds no letter, digit or symbol says nothing and matches nothing.
    """
    given = normalise(answer)
    right = (*truth.answers, *_NO_ANSWER) if truth.unanswerable else truth.answers
    says_something = any(unicodedata.category(char)[0] in "LNS" for char in given)
    return says_something and any(given == normalise(alias) for alias in right)


def _readable(char: str) -> str:
    """Return what a character is to be read as where its decomposition alone would run into the digit before it."""
    if char in _SUPERSCRIPT:
        return _SUPERSCRIPT[char]
    if unicodedata.decomposition(char).startswith("<fraction>"):
        return f" {char}"
    digit = unicodedata.decimal(char, None)
    return char if digit is None else str(digit)


def _bare(text: str) -> str:
    """Take off what surrounds an answer: punctuation, and emphasis that both opens and closes."""
    text = _POINT.sub("", text.strip(_OUTER))
    emphasised = _EMPHASIS.fullmatch(text)
    return _POINT.sub("", emphasised.group(2).strip(_OUTER)) if emphasised else text.strip(_OUTER)


def _as_number(text: str) -> str | None:
    """Return a number without a fraction of mere zeros. Other zeros stay: 007 is not 7, version 3.10 is not 3.1."""
    number = _NUMBER.fullmatch(text)
    if number is None or not (number.group(2) or number.group(3)):
        return None
    sign, whole, fraction = number.groups(default="")
    whole = whole or "0"
    return f"{sign}{whole}.{fraction}" if fraction.strip("0") else f"{sign}{whole}"


def _as_date(text: str) -> str | None:
    """Return a date as in ISO 8601, whose year or day may be missing; None if it is none, or can be read two ways."""
    found = next(filter(None, (form.fullmatch(text) for form in _DATES)), None)
    if found is None:
        return None
    parts = found.groupdict()
    month = _MONTH_NUMBER.get(parts.get("month") or "") or int(parts.get("number") or 0)
    year, day = parts.get("year"), parts.get("day")
    with suppress(ValueError):
        date(int(year or _LEAP_YEAR), month, int(day or 1))
        return f"{year or '-'}-{month:02}" + (f"-{int(day):02}" if day else "")
    return None
