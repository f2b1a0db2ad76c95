"""JSON as models write it: reads what can mean one thing only, and refuses the rest with a reason.

Libraries that repair JSON always return something: they end a string that was cut off, fill in missing values and drop
what they do not know. Here nothing is made up, since what is read is carried out.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEEPEST = 16

_CLOSING = {'"': '"', "'": "'", "“": "”", "”": "”", "‘": "’", "’": "’", "＂": "＂", "＇": "＇"}
# One pattern a closing quote; its alternatives exclude each other, so that time is linear in the text.
_STRING = {quote: re.compile(rf"[^\\{quote}]*(?:\\.[^\\{quote}]*)*{quote}", re.DOTALL) for quote in _CLOSING.values()}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"(?:[\s,;，；)\]}）］｝`]|<tool_call>)*")
_OPENING = re.compile(r"(?:\s|<tool_call>)*")
_FENCE = re.compile(r"\s*`*(?:json|python|tool_call)?(?=[\s{｛\[［])\s*", re.IGNORECASE)
_CALL = re.compile(r"\s*`*(?:python\s+)?([^\W\d][\w.-]*)\s*[(（]")
_AFTER_CALL = re.compile(r"[\s;`]*")
_PUNCTUATION = {"｛": "{", "｝": "}", "［": "[", "］": "]", "（": "(", "）": ")", "：": ":", "，": ",", "＝": "="}


class Unclear(ValueError):  # noqa: N818  (named for what it says)
    """The text means nothing, or more than one thing."""


def read(text: str, *, ended: bool = True) -> list[Any]:
    """Return the values that stand in a text one after the other.

    Reads single, curly and full-width quotes and punctuation, raw line breaks in strings, trailing commas, names
    without quotes, Python's constants, code fences, and brackets missing or left over. With `ended` false the text may
    have been cut off, and a missing bracket is not one forgotten.

    Raises:
        Unclear: always with what to mend.
    """
    reader = _Reader(text, ended=ended)
    reader.skip(_OPENING)
    reader.skip(_FENCE)
    values: list[Any] = []
    while reader.position < len(text):
        values.append(reader.value())
        reader.skip(_BETWEEN)
    return values


def read_call(text: str, *, ended: bool = True) -> tuple[str, dict[str, Any]] | None:
    """Return name and arguments of a call in Python's manner; None when the text does not begin as one.

    Raises:
        Unclear: it begins as a call and is none whose arguments have names.
    """
    begin = _CALL.match(text)
    if begin is None:
        return None
    reader = _Reader(text, ended=ended)
    reader.position = begin.end()
    arguments = reader.keywords()
    reader.skip(_AFTER_CALL)
    if reader.position < len(text):
        raise Unclear("there is more than one call, or text after it")
    return begin.group(1), arguments


class _Reader:
    def __init__(self, text: str, *, ended: bool) -> None:
        self.text = text
        self.position = 0
        self._ended = ended
        self._open: list[str] = []

    def skip(self, pattern: re.Pattern[str] = _SPACE) -> None:
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position

    def value(self) -> Any:
        mark = self._peek()
        if mark == "{":
            return self._object()
        if mark == "[":
            return self._array()
        if mark in _CLOSING:
            return self._string()
        number = _NUMBER.match(self.text, self.position)
        if number:
            self.position = number.end()
            return _number(number.group())
        word = _WORD.match(self.text, self.position)
        if word is None or word.group() not in _WORDS:
            raise Unclear(f"{self._ahead} stands where a value is expected")
        self.position = word.end()
        return _WORDS[word.group()]

    def keywords(self) -> dict[str, Any]:
        """Read the arguments of a call up to its closing parenthesis; one object may stand for all of them."""
        entries: dict[str, Any] = {}
        self._enter(")")
        if self._peek() == "{":
            entries = self._object()
            if not self._goes_on(")"):
                return entries
        while not self._closes(")"):
            name = self._word()
            if not name or self._peek() not in ("=", ":"):
                raise Unclear("every argument needs its name")
            self.position += 1
            _put(entries, name, self.value())
            if not self._goes_on(")"):
                break
        return entries

    def _object(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        self.position += 1
        self._enter("}")
        while not self._closes("}"):
            mark = self._peek()
            name = self._string() if mark in _CLOSING else self._word()
            if mark not in _CLOSING and not name:
                raise Unclear(f"{self._ahead} stands where a name is expected")
            if self._peek() != ":":
                raise Unclear(f"{self._ahead} stands where a colon is expected")
            self.position += 1
            _put(entries, name, self.value())
            if not self._goes_on("}"):
                break
        return entries

    def _array(self) -> list[Any]:
        values: list[Any] = []
        self.position += 1
        self._enter("]")
        while not self._closes("]"):
            values.append(self.value())
            if not self._goes_on("]"):
                break
        return values

    def _string(self) -> str:
        quote = _CLOSING[self.text[self.position]]
        found = _STRING[quote].match(self.text, self.position + 1)
        if found is None:
            raise Unclear("a string is not closed")
        self.position = found.end()
        return _unescaped(found.group()[:-1])

    def _word(self) -> str:
        found = _WORD.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return found.group() if found else ""

    def _enter(self, closing: str) -> None:
        if len(self._open) >= DEEPEST:
            raise Unclear("it is nested too deep")
        self._open.append(closing)

    def _closes(self, closing: str) -> bool:
        """Take the closing bracket if it is next; at the end of the text only `_goes_on` takes one as written."""
        if self._peek() != closing:
            return False
        self.position += 1
        self._open.pop()
        return True

    def _goes_on(self, closing: str) -> bool:
        """Tell whether a comma follows an entry; else its bracket ends, which may have been forgotten."""
        mark = self._peek()
        if mark == ",":
            self.position += 1
            return True
        if self._closes(closing):
            return False
        forgotten = mark in self._open if mark else self._ended
        if not forgotten:
            raise Unclear(f"{self._ahead} stands where a comma or a closing bracket is expected")
        self._open.pop()
        return False

    def _peek(self) -> str:
        self.skip()
        mark = self.text[self.position : self.position + 1]
        return _PUNCTUATION.get(mark, mark)

    @property
    def _ahead(self) -> str:
        ahead = self.text[self.position : self.position + 12]
        return repr(ahead) if ahead else "the end"


def _put(entries: dict[str, Any], name: str, value: Any) -> None:
    if name in entries and repr(entries[name]) != repr(value):
        raise Unclear(f"the name {name[:32]!r} stands twice with different values")
    entries[name] = value


def _number(text: str) -> int | float:
    try:
        number: int | float = json.loads(text)
    except ValueError as error:  # more digits than Python reads
        raise Unclear("a number is too long") from error
    if not math.isfinite(number):
        raise Unclear("a number is too large")
    return number


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_escaped, text)
    if _SURROGATE.search(text):  # two escapes make one character
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _escaped(found: re.Match[str]) -> str:
    escape = found.group(1)
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    if escape.isalnum() and escape not in _ESCAPES:
        raise Unclear(f"\\{escape} is no escape")
    return _ESCAPES.get(escape, escape)
