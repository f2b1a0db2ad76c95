"""Model text: thoughts, tags, turns and lengths, as plain functions that never raise on any string."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mia.lenient import DEEPEST, Unclear, read, read_call
from mia.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mia.types import ImageRef

STOPS = ("</tool_call>", "</answer>", "<tool_response>")
CUT = " …[cut]"

# The tags of thoughts of the open models: <think>, <thinking>, <seed:think>, Kimi's and Mistral's, in any case.
_THINK = re.compile(r"(?:<\s?|◁)(/?)(?:seed:)?think(?:ing)?(?:\s?>|▷)|\[(/?)THINK\]", re.IGNORECASE)
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_PROTOCOL_TAG = re.compile(
    r"<(\s{0,4}/?\s{0,4}(?:(?:seed:)?think(?:ing)?|tool_call|tool_response|tools|answer|image)\b[^<>]{0,64})>",
    re.IGNORECASE,
)
_OTHER_THINK = re.compile(r"[◁\[](/?think(?:ing)?)[▷\]]", re.IGNORECASE)
# What chat templates are made of; a tokenizer takes these for its own marks wherever they stand.
_TEMPLATE_MARK = re.compile(r"<([|｜][^<>|｜]{1,64}[|｜]|/?s|(?:start|end)_of_(?:turn|image)|[be]os|pad)>")
_NAMES = ("name", "function", "tool", "tool_name", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input")
_WRAPPERS = ("tool_call", "tool_calls", "function_call", "function", "name")
_LABELS = {"type", "id", "index"}
_WELL_FORMED = {"name", "arguments"}
_PIXELS_PER_TOKEN = 400
_JOINED = 24  # characters that a cut goes back for one that was put together; more is not writing


def clean(text: str) -> str:
    """Replace what UTF-8, SQL or a tokenizer cannot hold (NUL, lone surrogates) by U+FFFD."""
    return _UNSAFE.sub("\ufffd", text)


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that UTF-8 can hold, in its own letters; on one line unless indented."""
    separators = (",", ":") if indent is None else None
    return clean(json.dumps(value, ensure_ascii=False, indent=indent, separators=separators))


def split_thoughts(raw: str) -> tuple[str, str]:
    """Split a reply into (thoughts, text).

    What stands before a closing tag, or after an opening tag that is never closed, is thoughts: a reply cut off while
    thinking has no text at all. A second opening tag inside thoughts changes nothing, and a second closing tag makes
    all before it thoughts.
    """
    thoughts: list[str] = []
    text: list[str] = []
    position, thinking = 0, False
    for tag in _THINK.finditer(raw):
        piece = raw[position : tag.start()]
        position = tag.end()
        (thoughts if thinking else text).append(piece)
        closes = "/" in tag.group()
        if closes and not thinking:  # closes what a chat template opened: all so far was thoughts
            thoughts, text = [*thoughts, *text], []
        thinking = not closes
    (thoughts if thinking else text).append(raw[position:])
    outside = "".join(text)
    if _THINK.search(outside):  # a tag within a tag: what it was is past telling, so none of it is said
        thoughts, outside = [*thoughts, outside], ""
    return "".join(thoughts).strip(), outside.strip()


def balanced(raw: str) -> bool:
    """Tell whether every thought that is opened is closed, once and in order, by <think> and </think> themselves."""
    opened = False
    for tag in _THINK.finditer(raw):
        if tag.group() != ("</think>" if opened else "<think>"):
            return False
        opened = not opened
    return not opened


def stop_at(text: str, stops: Iterable[str]) -> str:
    """Cut after the earliest stop string, which stays: what a server that knows stop strings would have returned."""
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else text


def close(raw: str) -> str:
    """Give back the closing tag that a server dropped when it stopped at it."""
    _, text = split_thoughts(raw)
    if text.endswith(STOPS):
        return raw
    for tag in ("tool_call", "answer"):
        if text.rfind(f"<{tag}>") > text.rfind(f"</{tag}>"):
            return f"{raw}</{tag}>"
    return raw


def disarm(text: str) -> str:
    """Defuse protocol tags and template marks in text from outside: a web page cannot speak as the model or a tool."""
    text = _TEMPLATE_MARK.sub(r"‹\1›", _PROTOCOL_TAG.sub(r"‹\1›", text))
    return _OTHER_THINK.sub(r"‹\1›", text)


@dataclass(frozen=True)
class Answer:
    """The turn that ends a trajectory."""

    text: str


@dataclass(frozen=True)
class Malformed:
    """A turn that tried to call or to answer; `reason` tells the model what to mend."""

    reason: str


@dataclass(frozen=True)
class Prose:
    """A turn without call and without answer."""

    text: str


Turn = ToolCall | Answer | Malformed | Prose


def parse_turn(text: str) -> Turn:
    """Read one turn of the Executor, thoughts already removed. The first tag decides; a forged observation is cut.

    A call that is not written as asked is read when it can mean one thing only, and is then marked as repaired.
    """
    text = text.partition("<tool_response>")[0]
    call, answer = text.find("<tool_call>"), text.find("<answer>")
    if call < 0 and answer < 0:
        return _parse_untagged(text)
    if answer < 0 or 0 <= call < answer:
        body, closed, _ = text[call + len("<tool_call>") :].partition("</tool_call>")
        return _parse_call(body) if closed else _parse_open_call(body.partition("<answer>")[0])
    body, closed, _ = text[answer + len("<answer>") :].partition("</answer>")
    if not closed:
        return Malformed("The answer is not closed by </answer>.")
    said = {part.strip() for part in body.split("<answer>")} - {""}
    if len(said) > 1:
        return Malformed("There is more than one answer.")
    return Answer(said.pop()) if said else Malformed("The answer is empty.")


def _parse_untagged(text: str) -> Turn:
    """Read a turn without opening tag: an object that ends it and is a call in all else is one."""
    body, closed, _ = text.partition("</tool_call>")
    begin = min((n for n in (body.find("{"), body.find("｛")) if n >= 0), default=-1)
    turn = _repair(body[begin:], ended=bool(closed)) if begin >= 0 else None
    if isinstance(turn, ToolCall):
        return turn
    for tag in ("tool_call", "answer"):
        if f"</{tag}>" in text:
            return Malformed(f"There is </{tag}> without <{tag}> before it.")
    return Prose(text.strip())


def _parse_open_call(body: str) -> ToolCall | Malformed:
    """Read a call whose closing tag is missing: it may have been cut off, so all else must be there."""
    turn = _repair(body, ended=False)
    return turn if isinstance(turn, ToolCall) else Malformed("The tool call is not closed by </tool_call>.")


def _parse_call(body: str) -> ToolCall | Malformed:
    try:
        call = _STRICT.decode(body)
        if isinstance(call, dict) and call.keys() == _WELL_FORMED:
            name, arguments = call["name"], call["arguments"]
            if isinstance(name, str) and name.strip() == name != "" and isinstance(arguments, dict):
                return ToolCall(name=clean(name), arguments=_storable(arguments))
    except (ValueError, RecursionError):
        pass  # not as asked: the lenient reader says what it is
    return _repair(body, ended=True)


def _repair(body: str, *, ended: bool) -> ToolCall | Malformed:
    try:
        spoken = read_call(body, ended=ended)
        calls = [spoken] if spoken else [_meant(value) for value in read(body, ended=ended)]
        if not calls:
            return Malformed("The tool call is empty.")
        if any(repr(call) != repr(calls[0]) for call in calls):
            return Malformed("There is more than one tool call. Write one, then wait for its result.")
        name, arguments = calls[0]
        return ToolCall(name=clean(name), arguments=_storable(arguments), repaired=True)
    except Unclear as problem:
        return Malformed(f"The tool call cannot be read: {disarm(str(problem))}.")


def _meant(value: Any) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a decoded call in any of the shapes that models give it."""
    for _ in range(DEEPEST):
        if isinstance(value, str):
            value = _only(read(value), "tool call")
        elif isinstance(value, list):
            value = _only(value, "tool call")
        elif isinstance(value, dict) and (inner := _wrapped(value)):
            value = inner
        else:
            break
    if not isinstance(value, dict):
        raise Unclear("it is not an object with a name and arguments")
    names = [value[key] for key in _NAMES if key in value]
    name = _only(names, "name") if names else None
    if not isinstance(name, str) or not name.strip():
        raise Unclear('it needs a "name" that is a string')
    given = [value[key] for key in _ARGUMENTS if key in value]
    arguments = _only([_unquoted(entry) for entry in given], '"arguments"') if given else None
    if not isinstance(arguments, dict):
        raise Unclear('it needs "arguments" that are an object')
    return name.strip(), arguments


def _wrapped(value: dict[str, Any]) -> Any:
    """Return what an object that is nothing but a wrapper holds."""
    keys = [key for key in value if key not in _LABELS]
    inner = value[keys[0]] if len(keys) == 1 and keys[0] in _WRAPPERS else None
    return inner if isinstance(inner, dict | list) else None


def _unquoted(arguments: Any) -> Any:
    """Decode arguments given as a string."""
    return _only(read(arguments), '"arguments"') if isinstance(arguments, str) else arguments


def _only(values: list[Any], what: str) -> Any:
    if not values or any(repr(value) != repr(values[0]) for value in values):
        raise Unclear(f"there is {'more than one' if values else 'no'} {what}")
    return values[0]


def _storable(value: Any, depth: int = 0) -> Any:
    """Clean every string of a decoded value: an escape can bring what the raw text could not hold."""
    if isinstance(value, str):
        return clean(value)
    if depth > DEEPEST:
        raise Unclear("it is nested too deep")
    if isinstance(value, dict):
        return {clean(name): _storable(entry, depth + 1) for name, entry in value.items()}
    if isinstance(value, list):
        return [_storable(entry, depth + 1) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise Unclear("a number is too large")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise Unclear("a name stands twice")
    return entries


def _no_constant(name: str) -> NoReturn:
    raise Unclear(f"{name} is no value of JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def parse_decision(text: str) -> bool | None:
    """Read a yes or no that stands as the first or the last word; None when neither, or when they contradict."""
    words = re.findall(r"\w+", text.lower())
    if not words:
        return None
    said = {word == "yes" for word in (words[0], words[-1]) if word in ("yes", "no")}
    return said.pop() if len(said) == 1 else None


def image_tokens(images: Iterable[ImageRef]) -> int:
    """Return what images cost a model, estimated from their size: vision models take 784 to 1024 pixels a token."""
    return sum(image.width * image.height // _PIXELS_PER_TOKEN + 2 for image in images)


class ByteCounter:
    """Token counts without a tokenizer: UTF-8 bytes / 3, rounded up.

    That is too many for prose. Digits, rare scripts and emoji can take a token a byte, so a model's server has the last
    word on what fits.
    """

    BYTES_PER_TOKEN = 3

    def count(self, text: str) -> int:
        """Return the estimate for a text."""
        return -(-len(text.encode("utf-8", "replace")) // self.BYTES_PER_TOKEN)

    def cut(self, text: str, tokens: int) -> str:
        """Return the text, or as much of its head as fits with the marker. Cuts between characters as read."""
        room = max(tokens, 0) * self.BYTES_PER_TOKEN
        data = text.encode("utf-8", "replace")
        if len(data) <= room:
            return text
        marker = CUT.encode()
        if room < len(marker):
            return ""
        fits = len(data[: room - len(marker)].decode("utf-8", "ignore"))
        return text[: border(text, fits)] + CUT


def border(text: str, end: int) -> int:
    """Return the nearest place at or before `end` where no accent, modifier or joined emoji is torn off."""
    for place in range(end, max(end - _JOINED, 0), -1):
        if place == len(text) or (text[place - 1] != "\u200d" and not _attaches(text[place])):
            return place
    return 0 if end < _JOINED else end


def _attaches(character: str) -> bool:
    return (
        unicodedata.category(character).startswith("M")
        or character == "\u200d"
        or "\U0001f3fb" <= character <= "\U0001f3ff"
        or "\U000e0020" <= character <= "\U000e007f"
    )
