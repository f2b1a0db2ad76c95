"""What a model tells of a question before it is looked up: a caption of its images, its category; each found once."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from mia.errors import InputError, OutOfRoom, StorageError, UpstreamError
from mia.memory.compress import count_words, cut_words
from mia.memory.threads import waited
from mia.prompts import fill
from mia.text import disarm
from mia.types import CATEGORIES, OTHERS, Message, Want

if TYPE_CHECKING:
    from mia.protocols import Models, Role
    from mia.types import Question, Said

CAPTION_WORDS = 50
SYSTEM = "You describe images and sort questions for the memory of a research agent."

_MAX_TOKENS = 1024  # most of it is for models that think first
_SECONDS = 60.0
_CATEGORY = re.compile(rf"[\W_]*({'|'.join(CATEGORIES)})[\W_]*")

_Kind = Literal["caption", "category"]


class Notes(Protocol):
    """Keeps what was found out. Called from several threads; may raise StorageError."""

    def note(self, kind: str, key: str) -> str | None:
        """Return what is known under a key."""
        ...

    def keep_note(self, kind: str, key: str, text: str, model: str) -> None:
        """Keep what `model` said; once this returns it is on disk, in the place of what was there."""
        ...


class Description(NamedTuple):
    """What the Memory goes by besides the text of a question."""

    caption: str
    category: str


class _Inquiry(NamedTuple):
    """What is asked of which model, and the key its answer is kept under."""

    kind: _Kind
    key: str
    role: Role
    message: Message


class Describer:
    """Asks for captions and categories as far as each is wanted.

    `role` is the model that sees images, the Manager's model names categories. `failures` counts, by kind, requests
    that brought nothing usable: those are not kept, so the next question asks again.
    """

    def __init__(
        self, models: Models, notes: Notes, *, captions: bool, categories: bool, role: Role = "executor"
    ) -> None:
        self._models = models
        self._notes = notes
        self._captions = captions
        self._categories = categories
        self._role = role
        self._asking: dict[tuple[_Kind, str], asyncio.Task[str]] = {}
        self.failures: Counter[str] = Counter()

    async def describe(self, question: Question) -> Description:
        """Return the question's caption, its own or one of at most 50 words, and one of `CATEGORIES`.

        What the model cannot tell is an empty caption and "others".

        Raises:
            StorageError: the notes cannot be read or written.
        """
        caption, category = question.caption, ""
        if self._captions and question.images and not caption.strip():
            key = _key(*(image.sha256 for image in question.images))
            message = Message(role="user", text=fill("caption"), images=question.images)
            caption = await self._find(_Inquiry("caption", key, self._role, message))
        if self._categories:
            text = fill("category", question=disarm(question.text), caption=disarm(caption) or "(none)")
            message = Message(role="user", text=text)
            inquiry = _Inquiry("category", _key(question.text, caption), "manager", message)
            category = await self._find(inquiry)
        return Description(caption, category or OTHERS)

    async def _find(self, inquiry: _Inquiry) -> str:
        """Return an answer that all who need it at the same time share, and that none of them ends by giving up."""
        at = inquiry.kind, inquiry.key
        if at not in self._asking:
            self._asking[at] = task = asyncio.create_task(self._ask(inquiry))
            task.add_done_callback(lambda _: self._asking.pop(at))
        return await asyncio.shield(self._asking[at])

    async def _ask(self, inquiry: _Inquiry) -> str:
        known = await waited(None, self._notes.note, inquiry.kind, inquiry.key)
        if known is not None:
            return known
        # The seed is the question's own, not an episode's: whichever of its rollouts asks first gets the same answer.
        want = Want(max_tokens=_MAX_TOKENS, deadline=_SECONDS, seed=int(inquiry.key[:8], 16) >> 1)
        try:
            said = await self._models.open(inquiry.role, SYSTEM).say(inquiry.message, want)
        except (UpstreamError, OutOfRoom, InputError, StorageError):  # the latter two: no vision, or no such image
            self.failures[inquiry.kind] += 1
            return ""
        text = parse_caption(said) if inquiry.kind == "caption" else parse_category(said.text)
        if text:
            await waited(None, self._notes.keep_note, inquiry.kind, inquiry.key, text, said.model)
        else:
            self.failures[inquiry.kind] += 1
        return text


def parse_caption(said: Said) -> str:
    """Read a caption: one line of at most 50 words; empty when the reply was cut off before it had as many."""
    line = " ".join(said.text.split())
    whole = said.finish == "stop" or count_words(line) >= CAPTION_WORDS
    return cut_words(line, CAPTION_WORDS) if whole else ""


def parse_category(text: str) -> str:
    """Read a category: one name and nothing else, empty otherwise. A sentence that holds one is no category."""
    match = _CATEGORY.fullmatch(text.lower())
    return match.group(1) if match else ""


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
