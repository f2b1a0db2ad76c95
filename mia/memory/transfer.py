"""Whole banks at once: taking in what a file holds, and moving to another encoder."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mia.memory.reading import EMBEDDED
from mia.memory.twins import twin
from mia.memory.writing import Fresh, Vectors
from mia.types import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mia.memory.reading import Unembedded
    from mia.memory.storage import Storage
    from mia.protocols import Encoder
    from mia.types import PlanPair, Workflow

    T = TypeVar("T")

CHUNK = 256


class Taken(NamedTuple):
    """How much of a file was new, and how much was known already."""

    memories: int
    pairs: int
    known: int


def take_in(
    storage: Storage,
    encoder: Encoder,
    workflows: Sequence[Workflow],
    pairs: Sequence[PlanPair],
    done: Callable[[int], None],
) -> Taken:
    """Add memories and plan pairs as they are, counts and repetitions included; `done` is told of each that is done.

    What was taken in before, by its `episode` or its plans, is passed over and not encoded again: an import that was
    broken off goes on.

    Raises:
        StorageError: the bank cannot be written; whole chunks of it are kept.
    """
    copies: Counter[str] = Counter()
    keyed_pairs = [(_pair_key(pair, copies), pair) for pair in pairs]
    memories = added = 0
    for some in _chunks(workflows):
        new = {workflow.episode: workflow for workflow in some if not storage.remembers(workflow.episode)}
        vectors = _encode(encoder, [(workflow.question, workflow.caption) for workflow in new.values()])
        with storage.writing() as writing:
            fresh = writing.take_in(new)
            kept = [
                Fresh(workflow, _twin(workflow), each)
                for workflow, each in zip(new.values(), vectors, strict=True)
                if workflow.episode in fresh
            ]
            memories += len(writing.add(kept))
        done(len(some))
    for chunk in _chunks(keyed_pairs):
        unseen = {key: pair for key, pair in chunk if not storage.remembers(key)}
        vectors = _encode(encoder, [(pair.question, pair.caption) for pair in unseen.values()])
        with storage.writing() as writing:
            fresh = writing.take_in(unseen)
            zipped = zip(unseen.items(), vectors, strict=True)
            added += len(writing.add_pairs([(pair, each) for (key, pair), each in zipped if key in fresh]))
        done(len(chunk))
    return Taken(memories, added, len(workflows) + len(pairs) - memories - added)


def reembed(storage: Storage, encoder: Encoder, done: Callable[[int], None]) -> None:
    """Give every row of a bank vectors of another encoder, then read the bank by those; `done` is told of each.

    Until the end the bank is read and written as before, and a run that was broken off goes on. Afterwards processes
    that have the former encoder loaded go on reading what they knew; what they add is refused.

    Raises:
        StorageError: the bank cannot be read or written.
    """
    with storage.writing() as writing:
        writing.drop_vectors(but=encoder.id)
    while True:
        for subject, some in _missing(storage, encoder):
            vectors = _encode(encoder, [(each.question, each.caption) for each in some])
            with storage.writing() as writing:
                writing.embed(subject, dict(zip((each.row for each in some), vectors, strict=True)), encoder.id)
            done(len(some))
        with storage.writing() as writing:
            if writing.change_encoder(encoder.id):  # unless something was added meanwhile
                return


def _missing(storage: Storage, encoder: Encoder) -> Iterator[tuple[str, Sequence[Unembedded]]]:
    for subject in EMBEDDED:
        last = 0
        while some := storage.unembedded(subject, encoder.id, last, CHUNK):
            yield subject, some
            last = some[-1].row


def _encode(encoder: Encoder, texts: Sequence[tuple[str, str]]) -> list[Vectors]:
    flat = encoder.encode([text for pair in texts for text in pair]) if texts else ()
    return [Vectors(question, caption) for question, caption in zip(flat[::2], flat[1::2], strict=True)]


def _twin(workflow: Workflow) -> str:
    return twin(Question(id=workflow.question_id, text=workflow.question, caption=workflow.caption))


def _pair_key(pair: PlanPair, copies: Counter[str]) -> str:
    """Return what a pair is known by; equal ones of one file are numbered."""
    parts = (pair.question_id, pair.question, pair.caption, pair.correct_plan, pair.incorrect_plan)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    copies[digest] += 1
    return f"import/{pair.source}/pair/{digest}/{copies[digest] - 1}"


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]
