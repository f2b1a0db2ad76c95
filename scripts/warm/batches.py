"""Traces as tokens: which of them carry loss, and batches of sequences that begin alike and are about as long."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mia.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_JITTER = 40  # tokens: sequences of about one length find other company in every epoch


@dataclass(frozen=True)
class Sequence:
    """One trace as tokens: `weights` says how much the prediction of each counts, `opening` is its first message."""

    opening: tuple[int, ...]
    rest: list[int]
    weights: list[float]  # of `rest`


@dataclass(frozen=True)
class Batch:
    """What sequences share at their beginning, (p,), and what follows in each, (b, n), padded on the right.

    `tokens` counts those of all sequences; what is shared counts each time, padding does not.
    """

    beginning: Tensor
    rest: Tensor
    weights: Tensor
    tokens: int


def read(paths: list[Path]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return all traces of some files, and the sha256 of each file.

    Raises:
        InputError: a file cannot be read, a line is no trace, or no trace says what is to be learnt.
    """
    traces: list[dict[str, Any]] = []
    digests = {}
    remedy = "Make it anew: python scripts/warm_start.py traces"
    for path in paths:
        try:
            content = path.read_bytes()
            digests[path.name] = hashlib.sha256(content).hexdigest()
            # Not splitlines: JSON leaves separators of other alphabets inside a line.
            read_here = [json.loads(line) for line in content.decode("utf-8").split("\n") if line]
            sound = all(_learnt(trace) for trace in read_here)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read as traces: {error!r}.", remedy=remedy) from error
        if not (read_here and sound):
            raise InputError(f"{path} has a trace that teaches nothing, or none at all.", remedy=remedy)
        traces += read_here
    return traces, digests


def _learnt(trace: dict[str, Any]) -> list[int]:
    """Return the numbers of the messages that are to be learnt."""
    return [number for number, each in enumerate(trace["messages"]) if each["role"] == "assistant" and each["learn"]]


def encode(tokenizer: Any, trace: dict[str, Any]) -> Sequence:
    """Return a trace as the tokens of its dialogue in the tokenizer's own chat template.

    What counts is the content of the assistant's messages to learn, and the mark that ends each.

    Raises:
        InputError: the template does not keep a message as it is.
    """
    messages = trace["messages"]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    spans = []
    for number in _learnt(trace):
        said = messages[number]["content"] + tokenizer.eos_token
        start = len(tokenizer.apply_chat_template(messages[:number], tokenize=False, add_generation_prompt=True))
        if not text.startswith(said, start):
            raise InputError(
                f"The chat template changes message {number} of the trace {trace['id']}.",
                remedy="Leave no blanks at the ends of messages.",
            )
        spans.append((start, start + len(said)))
    opening = len(tokenizer.apply_chat_template(messages[:1], tokenize=False))
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = found["input_ids"], found["offset_mapping"]
    shared = sum(end <= opening for _, end in offsets)
    weights = [
        trace["weight"] if any(first <= start and end <= last for first, last in spans) else 0.0
        for start, end in offsets[shared:]
    ]
    return Sequence(tuple(ids[:shared]), ids[shared:], weights)


def arrange(sequences: list[Sequence], budget: int, seed: str) -> list[list[int]]:
    """Return all sequences in batches that compute at most `budget` tokens each, in an order that `seed` settles."""
    chance = random.Random(seed)  # noqa: S311 - an order, not a secret
    length = [len(each.rest) + chance.random() * _JITTER for each in sequences]
    made: list[list[int]] = []
    for each in sorted(range(len(sequences)), key=lambda each: (sequences[each].opening, length[each])):
        opening = sequences[each].opening
        last = made[-1] if made and sequences[made[-1][0]].opening == opening else []
        longest = max(len(sequences[one].rest) for one in [*last, each])
        if last and len(opening) + (len(last) + 1) * longest <= budget:
            last.append(each)
        else:
            made.append([each])
    chance.shuffle(made)
    return made


def collate(sequences: list[Sequence], padding: int) -> Batch:
    """Return sequences of one opening as tensors."""
    length = max(len(each.rest) for each in sequences)
    opening = sequences[0].opening
    return Batch(
        torch.tensor(opening),
        torch.tensor([each.rest + [padding] * (length - len(each.rest)) for each in sequences]),
        torch.tensor([each.weights + [0.0] * (length - len(each.rest)) for each in sequences]),
        sum(len(opening) + len(each.rest) for each in sequences),
    )
