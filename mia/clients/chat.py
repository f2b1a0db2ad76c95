"""Conversations with OpenAI-compatible chat endpoints: vLLM, llama.cpp, hosted APIs."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mia.clients.profiles import PROFILES, Profile, recognise
from mia.clients.tokens import Tokenizer
from mia.errors import ConfigError, InputError, ModelUnavailable, OutOfRoom, UpstreamError
from mia.text import ByteCounter, clean, close, image_tokens, split_thoughts, stop_at
from mia.types import IMAGE_MARK, Message, Said

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mia.protocols import Role, TokenCounter
    from mia.runtime.http import Service
    from mia.types import ImageRef, Want

_DEFAULT_WINDOW = 32768
_PER_MESSAGE = 8  # tokens that a chat template puts around a message
_SMALLEST_REPLY = 16
_PER_DIALOGUE = 32  # tokens that a chat template begins with
_COUNTING = 5.0  # seconds for the counts of one prompt
# How vLLM, SGLang, llama.cpp, OpenAI, Gemini and TGI say that a request is longer than the window.
_TOO_LONG = (
    *("context length", "context size", "context_length", "context window", "model length", "prompt is too long"),
    *("reduce the length", "input token count", "input tokens exceed", "`inputs` tokens"),
)
_REFUSED = (400, 413, 422)
_FINISH = {"stop": "stop", "tool_calls": "stop", "length": "length"}


@dataclass
class Endpoint:
    """One model behind one URL. `connect` fills in what the endpoint itself knows best.

    Of the models served, it is the one named `role`, or else the one named `model`, or else the only one.
    """

    service: Service
    role: str = ""
    model: str = ""
    profile: str = "auto"
    window: int = 0
    vision: bool = False
    weights: str = field(default="", init=False)
    tokenizer: Tokenizer | None = field(default=None, init=False)
    counter: TokenCounter = field(default_factory=ByteCounter, init=False)

    async def connect(self, deadline: float = 10.0) -> None:
        """Ask the endpoint for its models: name, window and dialect; and how many tokens texts are to it.

        Raises:
            ModelUnavailable: nothing answers, or not as a model server does.
            ConfigError: the model asked for is not served there.
        """
        listing = await self.service.get("/models", deadline=deadline)
        served = [entry for entry in _list(listing.get("data")) if isinstance(entry, dict) and "id" in entry]
        if not served:
            raise ModelUnavailable(
                f"{self.service.url} answers, but not as a model server: it lists no models.",
                service="model",
                status=200,
                retryable=False,
                remedy="Point the setting at the base URL of an OpenAI-compatible server, usually ending in /v1.",
            )
        names = [str(entry["id"]) for entry in served]
        if self.role in names:
            self.model = self.role
        if self.model not in names and (self.model or len(names) > 1):
            raise ConfigError(
                f"{self.service.url} serves {len(names)} model(s), and none of them is named {self.model!r}.",
                remedy="Set MIA_MODEL_NAME, or MIA_PLANNER_MODEL and the like for single roles, to one of: "
                f"{', '.join(names[:8])}.",
            )
        entry = served[names.index(self.model)] if self.model else served[0]
        self.model = str(entry["id"])
        self.weights = str(entry.get("root") or self.model)  # vLLM and our own server tell what a name stands for
        if self.profile == "auto":
            self.profile = recognise(str(entry.get("owned_by", "")), self.service.url)
        meta = _object(entry.get("meta"))
        self.window = self.window or _whole(entry.get("max_model_len")) or _whole(meta.get("n_ctx")) or _DEFAULT_WINDOW
        await self._learn_to_count(deadline)

    async def _learn_to_count(self, deadline: float) -> None:
        """Count by the endpoint's /tokenize from now on, if it has one."""
        if not self.dialect.tokenize:
            return
        tokenizer = Tokenizer(self.service, self.model, self.dialect.tokenize)
        try:
            self.counter = await tokenizer.fit(deadline)
        except ModelUnavailable:
            return
        self.tokenizer = tokenizer

    @property
    def dialect(self) -> Profile:
        """What the endpoint accepts."""
        return PROFILES["plain" if self.profile == "auto" else self.profile]


class ChatModels:
    """Opens conversations, each role with its endpoint."""

    def __init__(self, endpoints: Mapping[Role, Endpoint], image_url: Callable[[ImageRef], str]) -> None:
        self._endpoints = endpoints
        self._image_url = image_url

    def model(self, role: Role) -> str:
        """Return the name of the model that plays a role, as its server gives it."""
        return self._endpoints[role].model

    def weights(self, role: Role) -> str:
        """Return what that name stands for, where the server tells it: a file or a folder of weights."""
        return self._endpoints[role].weights

    def window(self, role: Role) -> int:
        """Return the tokens that a dialogue of a role has room for."""
        return self._endpoints[role].window

    def counter(self, role: Role) -> TokenCounter:
        """Return how long texts are to the model of a role."""
        return self._endpoints[role].counter

    def open(self, role: Role, system: str, history: Sequence[Message] = ()) -> ChatConversation:
        """Start a dialogue for a role, or go on with one; an empty system message is none."""
        messages = [*([Message(role="system", text=system)] if system else []), *history]
        return ChatConversation(self._endpoints[role], messages, self._image_url)


class ChatConversation:
    """An append-only dialogue with one endpoint."""

    def __init__(self, endpoint: Endpoint, messages: list[Message], image_url: Callable[[ImageRef], str]) -> None:
        self._endpoint = endpoint
        self._messages = messages
        self._image_url = image_url
        self._counted = _PER_DIALOGUE
        self._uncounted = messages

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, system message first if there is one."""
        return tuple(self._messages)

    @property
    def room(self) -> int:
        """Tokens left: exact once the endpoint has counted a prompt, an estimate before."""
        return self._endpoint.window - self._counted - sum(map(self._estimate, self._uncounted))

    async def say(self, message: Message, want: Want) -> Said:
        """Append a message and return the reply, shortened to what the window has room for."""
        if message.images and not self._endpoint.vision:
            raise InputError(
                f"The model {self._endpoint.model!r} does not read images.",
                remedy="Serve a vision model and set MIA_EXECUTOR_URL to it and MIA_VISION=true.",
            )
        ends = time.monotonic() + want.deadline
        prompt = self._counted + await self._measure([*self._uncounted, message], want)
        max_tokens = min(want.max_tokens, self._endpoint.window - prompt)
        if max_tokens < _SMALLEST_REPLY:
            raise OutOfRoom(f"A prompt of {prompt} tokens leaves no room in a window of {self._endpoint.window}.")
        messages = [*self._messages, message]
        body = {"model": self._endpoint.model, "messages": [self._wire(entry) for entry in messages]}
        body |= self._endpoint.dialect.parameters(want, max_tokens)
        started = time.time()
        reply = await self._post(body, max(ends - time.monotonic(), 0.0))
        said = self._said(reply, want, started, prompt)
        self._messages = [*messages, Message(role="assistant", text=said.raw)]
        self._counted, self._uncounted = said.prompt_tokens + said.new_tokens + _PER_MESSAGE, []
        return said

    async def _measure(self, messages: list[Message], want: Want) -> int:
        """Return the tokens of messages: counted where the window may be too short for them, else estimated.

        So it is, too, where /tokenize does not answer in time.
        """
        tokenizer = self._endpoint.tokenizer
        # No tokenizer makes more tokens of a text than it has bytes.
        most = sum(len(message.text.encode("utf-8", "replace")) + _around(message) for message in messages)
        if tokenizer is not None and self._counted + most + want.max_tokens > self._endpoint.window:
            texts = [message.text for message in messages]
            with suppress(ModelUnavailable):  # no reply is lost for a count: what does not fit, the server refuses
                counts = await tokenizer.count_all(texts, min(want.deadline / 2, _COUNTING))
                return sum(counts) + sum(map(_around, messages))
        return min(sum(map(self._estimate, messages)), most)

    async def _post(self, body: dict[str, Any], deadline: float) -> dict[str, Any]:
        try:
            return await self._endpoint.service.post("/chat/completions", body, deadline=deadline)
        except UpstreamError as error:
            if error.status in _REFUSED and any(sign in error.message.lower() for sign in _TOO_LONG):
                raise OutOfRoom(error.message) from error
            raise

    def _said(self, reply: dict[str, Any], want: Want, started: float, estimate: int) -> Said:
        choices = _list(reply.get("choices"))
        choice = _object(choices[0]) if choices else {}
        answer = choice.get("message")
        if not isinstance(answer, dict):
            raise ModelUnavailable(
                f"{self._endpoint.service.url} answered with something that is not a chat completion.",
                service="model",
                status=200,
                retryable=False,
                remedy="Check that the URL is that of an OpenAI-compatible chat server.",
            )
        content = answer.get("content")
        finish = _FINISH.get(str(choice.get("finish_reason")), "aborted")
        raw = stop_at(clean(content if isinstance(content, str) else ""), want.stop)
        if finish == "stop" and want.stop and not self._endpoint.dialect.keeps_stop:
            raw = close(raw)
        apart = answer.get("reasoning_content") or answer.get("reasoning")
        if isinstance(apart, str) and apart.strip():
            raw = f"<think>\n{clean(apart).strip()}\n</think>\n\n{raw}"
        thoughts, text = split_thoughts(raw)
        usage = _object(reply.get("usage"))
        return Said.model_validate(
            {
                "raw": raw,
                "text": text,
                "thoughts": thoughts,
                "finish": finish,
                "prompt_tokens": _whole(usage.get("prompt_tokens")) or estimate,
                "new_tokens": _whole(usage.get("completion_tokens")) or self._endpoint.counter.count(raw),
                "model": self._endpoint.model,
                "started": started,
                "seconds": time.time() - started,
            }
        )

    def _estimate(self, message: Message) -> int:
        return self._endpoint.counter.count(message.text) + _around(message)

    def _wire(self, message: Message) -> dict[str, Any]:
        if not message.images:
            return {"role": message.role, "content": message.text}
        pieces = message.text.split(IMAGE_MARK)
        if len(pieces) != len(message.images) + 1:
            pieces = [message.text, *[""] * len(message.images)]
        parts: list[dict[str, Any]] = [{"type": "text", "text": pieces[0]}] if pieces[0] else []
        for image, piece in zip(message.images, pieces[1:], strict=True):
            parts.append({"type": "image_url", "image_url": {"url": self._image_url(image)}})
            parts += [{"type": "text", "text": piece}] if piece else []
        return {"role": message.role, "content": parts}


def _around(message: Message) -> int:
    """Return the tokens of a message besides its text: what a chat template puts around it, and images."""
    return _PER_MESSAGE + image_tokens(message.images)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
