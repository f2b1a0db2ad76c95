"""Dialogues with the policy as token ids: appended, never rendered again, so what was sampled is what is trained on."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mia.errors import ConfigError, InputError, ModelUnavailable, OutOfRoom
from mia.text import CUT, border, clean, split_thoughts
from mia.types import Message, Said

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from mia.protocols import Models, Role
    from mia.types import Want

_MARK = "\ue000"  # a letter of nobody's: where a reply would stand in the text of a template
_LEAST = 1  # token of a reply


class Generated(NamedTuple):
    """What the rollout server sampled: ids (n,) and their log-probabilities (n,); `version` is the step of weights."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    aborted: bool
    version: str


class Generate(Protocol):
    """The rollout server: samples what follows some ids."""

    def __call__(self, ids: list[int], sampling: dict[str, Any]) -> Coroutine[Any, Any, Generated]:
        """Return the ids that follow."""
        ...


class Builder(Protocol):
    """Of verl's continuous-token builders what a dialogue needs."""

    def build_initial_tokens(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the ids of the first prompt."""
        ...

    def merge_context_tokens(
        self, previous_messages: list[dict[str, str]], updated_messages: list[dict[str, str]], ids: list[int]
    ) -> Any:
        """Return ids with the messages appended."""
        ...

    def merge_assistant_tokens(self, ids: list[int], new: list[int]) -> Any:
        """Return ids with a reply appended."""
        ...

    def align_response_metadata(self, merged: Any, mask: list[int], log_probs: list[float], **more: Any) -> Any:
        """Return mask and log-probabilities that fit the merged ids."""
        ...


@dataclass
class Tokens:
    """A dialogue as a trainer takes it: `prompt` (p,), then `response` (n,) with a mask and log-probabilities (n,).

    The mask is 1 on what the policy sampled and 0 on all else, where the log-probability is 0.
    """

    prompt: list[int] = field(default_factory=list)
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """All ids in order."""
        return self.prompt + self.response


@dataclass(frozen=True)
class Policy:
    """The model that learns: how it is reached, and how long its dialogues may be.

    `prompt_tokens` bounds what stands before the first reply, `response_tokens` everything from there on; verl cuts
    what is longer off without a word, so a dialogue ends before. `seeded` passes each request's own seed on.
    """

    builder: Builder
    tokenizer: Any
    generate: Generate
    prompt_tokens: int
    response_tokens: int
    sampling: dict[str, Any]
    seeded: bool = False

    def ending(self) -> int | None:
        """Return the id by which the chat template ends a reply, if it is one of the tokenizer's special ones."""
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        rest = self.tokenizer.apply_chat_template(said, tokenize=False).rpartition(_MARK)[2]
        ids = self.tokenizer.encode(rest, add_special_tokens=False)
        return ids[0] if ids and ids[0] in self.tokenizer.all_special_ids else None


class TokenModels:
    """Opens the dialogues of one episode: the policy's role with the policy, other roles where they live."""

    def __init__(self, policy: Policy, role: Role, others: Models | None = None) -> None:
        self._policy = policy
        self._role = role
        self._others = others
        self.opened: TokenConversation | None = None

    def open(self, role: Role, system: str, history: Sequence[Message] = ()) -> Any:
        """Start a dialogue. The policy has one, begun here: nothing that it has not said itself is learnt."""
        if role != self._role:
            if self._others is None:
                raise ConfigError(f"No model plays the {role} in this training.", remedy="Set the URL of that role.")
            return self._others.open(role, system, history)
        if history or self.opened is not None:
            raise InputError("The policy has one dialogue per episode, from its beginning.")
        first = [Message(role="system", text=system)] if system else []
        self.opened = TokenConversation(self._policy, first)
        return self.opened


class TokenConversation:
    """An append-only dialogue with the policy."""

    def __init__(self, policy: Policy, messages: list[Message]) -> None:
        self._policy = policy
        self._messages = messages
        self._ending = policy.ending()
        self.tokens = Tokens()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, system message first if there is one."""
        return tuple(self._messages)

    @property
    def room(self) -> int:
        """Tokens left: of the prompt before the first reply, of the response after it."""
        if self.tokens.prompt:
            return self._policy.response_tokens - len(self.tokens.response)
        said = [self._wire(message) for message in self._messages]
        return self._policy.prompt_tokens - (len(self._policy.builder.build_initial_tokens(said)) if said else 0)

    async def say(self, message: Message, want: Want) -> Said:
        """Append a message and sample the reply.

        Raises:
            OutOfRoom: there is no room for the message and a reply; nothing was appended.
            ConfigError: constrained output was asked of a policy, whose every token must be its own choice.
            ModelUnavailable: the rollout server does not answer in time.
        """
        if want.schema_ is not None:
            raise ConfigError("A policy's output is not constrained.", remedy="Constrain the output of frozen roles.")
        if message.images:
            raise InputError("This dialogue carries no images.", remedy="Give the caption of the image.")
        asked = await asyncio.to_thread(self._appended, message)
        room = self._policy.response_tokens - len(asked.response)
        if len(asked.prompt) > self._policy.prompt_tokens or room < _LEAST:
            raise OutOfRoom(
                f"A prompt of {len(asked.prompt)} and a response of {len(asked.response)} tokens do not fit into "
                f"{self._policy.prompt_tokens} and {self._policy.response_tokens}."
            )
        sampling = dict(self._policy.sampling) | {"max_tokens": min(want.max_tokens, room)}
        if want.stop:
            sampling |= {"stop": list(want.stop), "include_stop_str_in_output": True}
        if self._policy.seeded and want.seed is not None:
            sampling["seed"] = want.seed
        started = time.time()
        new = await self._sample(asked.ids, sampling, want.deadline)
        self.tokens = self._replied(asked, new)
        said = self._said(new, asked, want, started)
        self._messages = [*self._messages, message, Message(role="assistant", text=said.raw)]
        return said

    async def _sample(self, ids: list[int], sampling: dict[str, Any], seconds: float) -> Generated:
        try:
            return await asyncio.wait_for(self._policy.generate(ids, sampling), seconds)
        except TimeoutError as error:
            raise ModelUnavailable(
                f"The policy did not reply within {seconds:g} s.",
                service="policy",
                remedy="Lower the rollouts at once, or raise mia.turn_seconds.",
            ) from error

    def _appended(self, message: Message) -> Tokens:
        """Return the tokens of the dialogue with one more message, up to where the reply begins."""
        before = [self._wire(each) for each in self._messages]
        after = [*before, self._wire(message)]
        now = self.tokens
        if not now.prompt:
            return Tokens(prompt=list(self._policy.builder.build_initial_tokens(after)))
        builder, response, mask, log_probs = self._policy.builder, now.response, now.mask, now.log_probs
        if self._ending is not None and response[-1:] != [self._ending]:
            # Cut off, or stopped at a string: the template ends the reply all the same, and the policy did not.
            response, mask, log_probs = [*response, self._ending], [*mask, 0], [*log_probs, 0.0]
        merged = builder.merge_context_tokens(before, after, now.prompt + response)
        mask, log_probs = builder.align_response_metadata(merged, mask, log_probs)
        return Tokens(now.prompt, list(merged.token_ids[len(now.prompt) :]), list(mask), list(log_probs))

    def _replied(self, asked: Tokens, new: Generated) -> Tokens:
        builder = self._policy.builder
        merged = builder.merge_assistant_tokens(asked.ids, list(new.ids))
        mask, log_probs = builder.align_response_metadata(
            merged, asked.mask, asked.log_probs, assistant_logprobs=list(new.log_probs)
        )
        return Tokens(asked.prompt, list(merged.token_ids[len(asked.prompt) :]), list(mask), list(log_probs))

    def _said(self, new: Generated, asked: Tokens, want: Want, started: float) -> Said:
        ids = list(new.ids)
        ended = bool(ids) and ids[-1] in (self._ending, self._policy.tokenizer.eos_token_id)
        raw = clean(self._policy.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False))
        thoughts, text = split_thoughts(raw)
        stopped = ended or raw.endswith(want.stop)
        return Said(
            raw=raw,
            text=text,
            thoughts=thoughts,
            finish="aborted" if new.aborted else "stop" if stopped else "length",
            prompt_tokens=len(asked.ids),
            new_tokens=len(ids),
            model="policy",
            version=new.version,
            started=started,
            seconds=time.time() - started,
        )

    @staticmethod
    def _wire(message: Message) -> dict[str, str]:
        return {"role": message.role, "content": message.text}


class PolicyCounter:
    """Exact token counts by the policy's own tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return the tokens of a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def cut(self, text: str, tokens: int) -> str:
        """Return the text, or as much of its head as fits with the marker. Cuts between characters as read."""
        if self.count(text) <= tokens:
            return text
        if self.count(CUT) > tokens:
            return ""
        fits = bisect_right(range(len(text)), tokens, key=lambda end: self.count(text[:end] + CUT)) - 1
        return text[: border(text, max(fits, 0))] + CUT
