"""Memory: the bank, its encoder, and what writes workflows into it."""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from mia.memory.bank import Bank
from mia.memory.compress import ExtractiveCompressor, ModelCompressor, TraceCompressor
from mia.memory.describe import Describer
from mia.memory.manager import Manager
from mia.memory.nothing import NoMemory
from mia.memory.recall import RecallRule
from mia.memory.storage import Storage
from mia.runtime.encoder import load_encoder
from mia.transcript import fitted, record
from mia.wiring.budgets import plan_budget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia.clients.chat import ChatModels
    from mia.memory.compress import Compressor
    from mia.protocols import Encoder, Memory
    from mia.runtime.settings import RoleSettings
    from mia.types import Episode


def storage(settings: RoleSettings, encoder: Encoder | None = None) -> Storage:
    """Open the durable memory: without an encoder for looking at and editing, with one for adding too."""
    return Storage(settings.memory_path, encoder.id if encoder else None)


def encoder(settings: RoleSettings) -> Encoder:
    """Load what turns questions into vectors."""
    return load_encoder(settings.encoder, settings.encoder_device)


@contextmanager
def memory(settings: RoleSettings, chat: ChatModels) -> Iterator[Memory]:
    """Open the Memory that the settings name."""
    if settings.memory == "none":
        yield NoMemory()
        return
    vectors = encoder(settings)
    with manager(settings, chat, vectors, captions=settings.caption == "auto" and settings.vision) as kept:
        yield kept


@contextmanager
def manager(settings: RoleSettings, chat: ChatModels, vectors: Encoder, *, captions: bool) -> Iterator[Manager]:
    """Open the bank with its Manager; with `captions` the vision model describes images that come without words."""
    rule = RecallRule(
        score=settings.score,
        each=settings.recall_each,
        floor=settings.recall_floor,
        exclude_same_question=settings.benchmark,
        by_category=settings.categories == "model",
    )
    bank = Bank.open(settings.memory_path, vectors)
    describer = Describer(chat, bank.storage, captions=captions, categories=rule.by_category)
    with closing(Manager(bank, vectors, _compressor(settings, chat), rule, describer)) as kept:
        yield kept


def _compressor(settings: RoleSettings, chat: ChatModels) -> Compressor:
    if settings.compression == "extractive":
        return ExtractiveCompressor()
    modelled = settings.compression == "model"
    counter = chat.counter("manager" if modelled else "planner")
    shown = plan_budget(settings, chat.window("planner")).memory_tokens
    tokens = chat.window("manager") // 2 if modelled else shown

    def trace(episode: Episode) -> str:
        render = partial(record, episode)
        return fitted(render, tokens, each=tokens // 4, count=counter.count, cut=counter.cut)

    if not modelled:
        return TraceCompressor(trace)
    return ModelCompressor(chat, trace, seconds=settings.turn_seconds)
