"""Batched sampling from a causal language model: which token comes next, and where a reply ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Sampling(BaseModel):
    """How one request is sampled, by vLLM's names; a parameter that is not honoured here is refused.

    `max_tokens` None is the server's own limit, a `temperature` of 0 takes the most probable token, a `top_k` below 1
    leaves all tokens in. A reply that ends at a stop string is kept up to the token that completes it, whatever
    `include_stop_str_in_output` says: that is about text, and tokens are all that is returned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = -1
    repetition_penalty: float = Field(1.0, ge=1, le=1)  # verl always sends it; the trainer could not account for it
    max_tokens: int | None = Field(None, ge=1, validation_alias=AliasChoices("max_tokens", "max_new_tokens"))
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    seed: int | None = Field(None, ge=0, lt=2**63)
    logprobs: bool = False


@dataclass(frozen=True)
class Request:
    """Token ids to go on from, the most tokens to add, and the chance that decides between them."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int
    chance: torch.Generator


@dataclass
class Reply:
    """Sampled ids (n,), their log-probabilities (n,), and whether the reply ended rather than was aborted."""

    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    ended: bool = False


@torch.inference_mode()
def generate(
    model: Any, tokenizer: Any, requests: Sequence[Request], eos: frozenset[int], aborted: Callable[[], bool]
) -> list[Reply]:
    """Answer all requests in one batch, padded on the left; a request that has ended leaves it.

    Each token is chosen by one number that the request's own `chance` draws, so that a seeded reply does not depend on
    the other requests. It does on rounding, which differs between batches in the last digits: a number that falls so
    near to the border between two tokens (about one in a million) may choose the other one. Alone is exact.
    """
    replies = [Reply() for _ in requests]
    rows = list(range(len(requests)))  # of the batch: the request in each
    ids, mask = _padded([request.prompt for request in requests])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = None
    while rows and not aborted():
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        chosen, log_probs = choose(output.logits[:, -1], [requests[row] for row in rows])
        for row, token, log_prob in zip(rows, chosen.tolist(), log_probs.tolist(), strict=True):
            replies[row].ids.append(token)
            replies[row].log_probs.append(log_prob)
            replies[row].ended = _ends(requests[row], replies[row].ids, eos, tokenizer)
        going = [place for place, row in enumerate(rows) if not replies[row].ended]
        if going and len(going) < len(rows):
            cache.batch_select_indices(torch.tensor(going))
        rows = [rows[place] for place in going]
        ids = chosen[going, None]
        mask = torch.nn.functional.pad(mask[going], (0, 1), value=1)
        positions = positions[going, -1:] + 1
    return replies


def choose(logits: torch.Tensor, requests: Sequence[Request]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for logits (b, v) the tokens (b,) and their log-probabilities (b,).

    The log-probabilities are those of the actor: of logits over temperature, before top_k and top_p.
    """
    temperatures = torch.tensor([[request.sampling.temperature] for request in requests])
    greedy = temperatures.squeeze(-1) == 0
    log_probs = (logits.float() / temperatures.where(temperatures > 0, 1.0)).log_softmax(-1)
    cumulative = _filtered(log_probs, requests).double().exp().cumsum(-1)
    drawn = torch.stack([torch.rand(1, dtype=torch.float64, generator=request.chance) for request in requests])
    sampled = torch.searchsorted(cumulative, drawn * cumulative[:, -1:], right=True).squeeze(-1)
    tokens = log_probs.argmax(-1).where(greedy, sampled.clamp(max=logits.shape[-1] - 1))
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def _filtered(log_probs: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """Return log-probabilities (b, v) in which what top_k and then top_p leave out is minus infinity."""
    size = log_probs.shape[-1]
    wanted = [request.sampling for request in requests]
    top_k = torch.tensor([[each.top_k if each.top_k > 0 else size] for each in wanted])
    # The sum of all probabilities may round to more than 1, beyond which 1 must leave out nothing.
    top_p = torch.tensor([[each.top_p if each.top_p < 1 else math.inf] for each in wanted])
    if (top_k >= size).all() and top_p.isinf().all():
        return log_probs
    ordered, order = log_probs.sort(descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(size) >= top_k, -math.inf)
    probabilities = ordered.softmax(-1)
    ordered = ordered.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, -math.inf)
    return torch.empty_like(log_probs).scatter(-1, order, ordered)


def _ends(request: Request, ids: list[int], eos: frozenset[int], tokenizer: Any) -> bool:
    sampling = request.sampling
    if ids[-1] in sampling.stop_token_ids or (ids[-1] in eos and not sampling.ignore_eos):
        return True
    if len(ids) >= request.max_tokens:
        return True
    if not sampling.stop:
        return False
    # A stop string would have ended the reply before if it did not end here. Each of its tokens holds a byte of it;
    # one more keeps the space that some tokenizers drop from the front of a text.
    reach = 1 + max(len(stop.encode()) for stop in sampling.stop)
    text = tokenizer.decode(ids[-reach:], skip_special_tokens=False)
    return any(stop in text for stop in sampling.stop)


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids (b, longest) and the mask that is 0 where there are none."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask
