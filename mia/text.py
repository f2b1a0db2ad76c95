"""Model text: thoughts, tags, turns and lengths, as plain functions that never raise on any string."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mia.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable

STOPS = ("</tool_call>", "</answer>", "<tool_response>")
CUT = " …[cut]"
_DEEPEST = 16

_THINK = re.compile(r"<(/?)think>")
_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_PROTOCOL_TAG = re.compile(r"<(/?(?:think|tool_call|tool_response|tools|answer))>")
_FENCE = re.compile(r"^```[a-z]*\n(.*?)\n?```$", re.DOTALL)


def clean(text: str) -> str:
    """Replace what UTF-8, SQL or a tokenizer cannot hold (NUL, lone surrogates) by U+FFFD."""
    return _UNSAFE.sub("\ufffd", text)


def split_thoughts(raw: str) -> tuple[str, str]:
    """Split a reply into (thoughts, text).

    What stands before a closing tag, or after an opening tag that is never closed, is thoughts: a reply cut off while
    thinking has no text at all. A second opening tag inside thoughts changes nothing.
    """
    thoughts: list[str] = []
    text: list[str] = []
    position, thinking = 0, False
    for tag in _THINK.finditer(raw):
        piece = raw[position : tag.start()]
        position = tag.end()
        (thoughts if thinking else text).append(piece)
        if tag.group(1) and not thinking:  # closes what a chat template opened: all so far was thoughts
            thoughts, text = [*thoughts, *text], []
        thinking = not tag.group(1)
    (thoughts if thinking else text).append(raw[position:])
    return "".join(thoughts).strip(), "".join(text).strip()


def balanced(raw: str) -> bool:
    """Tell whether every thought that is opened is closed, once and in order."""
    opened = False
    for tag in _THINK.finditer(raw):
        if opened is not bool(tag.group(1)):
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
    for tag in ("tool_call", "answer"):
        if text.rfind(f"<{tag}>") > text.rfind(f"</{tag}>"):
            return f"{raw}</{tag}>"
    return raw


def disarm(text: str) -> str:
    """Defuse protocol tags in text from outside, so that a web page cannot speak as the model or as a tool."""
    return _PROTOCOL_TAG.sub(r"‹\1›", text)


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
    """Read one turn of the Executor, thoughts already removed. The first tag decides; a forged observation is cut."""
    text = text.partition("<tool_response>")[0]
    call, answer = text.find("<tool_call>"), text.find("<answer>")
    if call < 0 and answer < 0:
        return Prose(text.strip())
    if answer < 0 or 0 <= call < answer:
        body, closed, _ = text[call + len("<tool_call>") :].partition("</tool_call>")
        return _parse_call(body) if closed else Malformed("The tool call is not closed by </tool_call>.")
    body, closed, _ = text[answer + len("<answer>") :].partition("</answer>")
    if not closed:
        return Malformed("The answer is not closed by </answer>.")
    return Answer(body.strip()) if body.strip() else Malformed("The answer is empty.")


def _parse_call(body: str) -> ToolCall | Malformed:
    fenced = _FENCE.match(body.strip())
    repaired = fenced is not None
    try:
        call = json.loads(fenced.group(1) if fenced else body)
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments, repaired = json.loads(arguments), True
        arguments = _storable(arguments)
    except (ValueError, RecursionError):
        return Malformed("The text between <tool_call> and </tool_call> is not one JSON object.")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return Malformed('The tool call needs a "name" that is a string.')
    if not isinstance(arguments, dict):
        return Malformed('The tool call needs "arguments" that are an object.')
    return ToolCall(name=clean(call["name"]), arguments=arguments, repaired=repaired)


def _storable(value: Any, depth: int = 0) -> Any:
    """Clean every string of a decoded value: an escape can bring what the raw text could not hold."""
    if depth > _DEEPEST:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        return {clean(name): _storable(entry, depth + 1) for name, entry in value.items()}
    if isinstance(value, list):
        return [_storable(entry, depth + 1) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number of JSON")
    return clean(value) if isinstance(value, str) else value


def parse_decision(text: str) -> bool | None:
    """Read a yes or no that stands as the first or the last word; None when neither, or when they contradict."""
    words = re.findall(r"\w+", text.lower())
    if not words:
        return None
    said = {word == "yes" for word in (words[0], words[-1]) if word in ("yes", "no")}
    return said.pop() if len(said) == 1 else None


class ByteCounter:
    """Token counts without a tokenizer: UTF-8 bytes / 3, rounded up, which is too many rather than too few."""

    BYTES_PER_TOKEN = 3

    def count(self, text: str) -> int:
        """Return the estimate for a text."""
        return -(-len(text.encode("utf-8", "replace")) // self.BYTES_PER_TOKEN)

    def cut(self, text: str, tokens: int) -> str:
        """Return the text, or as much of its head as fits with the marker. Cuts between characters."""
        room = max(tokens, 0) * self.BYTES_PER_TOKEN
        data = text.encode("utf-8", "replace")
        if len(data) <= room:
            return text
        marker = CUT.encode()
        if room < len(marker):
            return ""
        return data[: room - len(marker)].decode("utf-8", "ignore") + CUT
