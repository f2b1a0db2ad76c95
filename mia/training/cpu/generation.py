"""Batched sampling from a causal model: stop strings, seeds of single requests, log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TAIL = 16  # tokens in which a stop string is looked for


@dataclass
class Request:
    """One prompt and how to go on with it; `ids` and `log_probs` are what was sampled, `ended` why no more is."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    generator: torch.Generator | None = None
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    ended: str = ""

    @classmethod
    def of(cls, prompt: Sequence[int], parameters: dict[str, Any], room: int, ends: frozenset[int]) -> Request:
        """Read verl's sampling parameters; `room` is what the window has left, `ends` are the model's end tokens."""
        wanted = parameters.get("max_tokens") or parameters.get("max_new_tokens") or room
        stop = parameters.get("stop") or ()
        seed = parameters.get("seed")
        return cls(
            list(prompt),
            max(1, min(int(wanted), room)),
            float(parameters.get("temperature", 1.0)),
            float(parameters.get("top_p", 1.0)),
            int(parameters.get("top_k", -1)),
            (stop,) if isinstance(stop, str) else tuple(stop),
            frozenset(parameters.get("stop_token_ids") or ()) | (frozenset() if parameters.get("ignore_eos") else ends),
            None if seed is None else torch.Generator().manual_seed(int(seed)),
        )

    def take(self, token: int, log_prob: float, decode: Callable[[list[int]], str]) -> None:
        """Add a sampled token, and see whether it is the last."""
        self.ids.append(token)
        self.log_probs.append(log_prob)
        if token in self.stop_ids or (self.stop and self._stops(decode)):
            self.ended = "completed"
        elif len(self.ids) >= self.max_tokens:
            self.ended = "length"

    def _stops(self, decode: Callable[[list[int]], str]) -> bool:
        tail = decode(self.ids[-_TAIL:])
        return any(string in tail for string in self.stop)


@torch.inference_mode()
def generate(
    model: Any,
    requests: Sequence[Request],
    decode: Callable[[list[int]], str],
    shared: torch.Generator,
    go_on: Callable[[], bool],
) -> None:
    """Sample for all requests in one batch until each has ended, or `go_on` says no.

    Prompts are padded on the left. A request with a seed draws by its own generator, so the others of its batch change
    no draw of it; they may change the last digits of its logits.
    """
    longest = max(len(request.prompt) for request in requests)
    ids = torch.tensor([[0] * (longest - len(each.prompt)) + each.prompt for each in requests])
    mask = torch.tensor([[0] * (longest - len(each.prompt)) + [1] * len(each.prompt) for each in requests])
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = None
    while go_on():
        out = model(input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        drawn = [_draw(row, each, shared) for row, each in zip(out.logits[:, -1].float(), requests, strict=True)]
        for (token, log_prob), each in zip(drawn, requests, strict=True):
            if not each.ended:
                each.take(token, log_prob, decode)
        if all(each.ended for each in requests):
            return
        ids = torch.tensor([[token] for token, _ in drawn])
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        places = places[:, -1:] + 1


def _draw(logits: torch.Tensor, request: Request, shared: torch.Generator) -> tuple[int, float]:
    """Return a token and its log-probability at the temperature, as the trainer computes it, over all tokens."""
    if request.ended:
        return 0, 0.0
    log_probs = torch.log_softmax(logits / (request.temperature or 1.0), -1)
    if request.temperature == 0:
        token = int(log_probs.argmax())
    else:
        token = int(torch.multinomial(_allowed(log_probs.exp(), request), 1, generator=request.generator or shared))
    return token, float(log_probs[token])


def _allowed(probabilities: torch.Tensor, request: Request) -> torch.Tensor:
    """Keep what top-k and top-p allow."""
    if request.top_k > 0:
        least = probabilities.topk(min(request.top_k, len(probabilities))).values[-1]
        probabilities = probabilities.where(probabilities >= least, 0.0)
    if request.top_p < 1:
        ordered, places = probabilities.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= request.top_p
        probabilities = probabilities.index_fill(0, places[beyond], 0.0)
    return probabilities
