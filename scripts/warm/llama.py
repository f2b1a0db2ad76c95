"""A Llama made for warm starts on a CPU: frozen weights, low-rank adapters, and the shared beginning of a batch once.

All but attention works on flat rows of tokens, (tokens, width): the common beginning of the sequences first, then what
follows in each, padded on the right. Padding needs no mask: nothing that counts looks at what comes after it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Linear layers that read the same input are one product.
_FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
TARGETS = tuple(name.rpartition(".")[2] for names in _FUSED.values() for name in names)
_QUERIES = 256  # per product of attention: what lies above the diagonal of its block is not computed
_ROWS = 128  # of the vocabulary's scores at once

Weights = dict[str, Tensor]


class Llama:
    """The frozen model and its trainable adapters.

    `adapters` holds fp32 tensors by the names that PEFT gives them; all arithmetic is in `dtype`.
    """

    def __init__(self, folder: Path, adapters: Weights, alpha: float, dtype: torch.dtype = torch.bfloat16) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.adapters = adapters
        self._dtype = dtype
        self._scale = alpha / rank_of(adapters)
        state = {name: values.to(dtype) for name, values in load_file(folder / "model.safetensors").items()}
        self._embedding = state["model.embed_tokens.weight"]
        self._head = state.get("lm_head.weight", self._embedding)
        self._last_norm = state["model.norm.weight"]
        self._layers = [
            {
                **{
                    group: torch.cat([state.pop(f"{_layer(number)}.{name}.weight") for name in names])
                    for group, names in _FUSED.items()
                },
                "before": state[f"{_layer(number)}.input_layernorm.weight"],
                "after": state[f"{_layer(number)}.post_attention_layernorm.weight"],
            }
            for number in range(self.config["num_hidden_layers"])
        ]
        self._normed: Callable[..., Tensor] = _normed
        self._gated: Callable[..., Tensor] = _gated
        self._turned: Callable[..., Tensor] = _turned

    def compile(self) -> bool:
        """Fuse what is done element by element, and say whether the C++ compiler that this takes works."""
        fused = [torch.compile(each, dynamic=True) for each in (_normed, _gated, _turned)]
        try:
            fused[1](torch.ones(4, 8, dtype=self._dtype))
        except RuntimeError:  # of the compiler, whatever it lacks
            return False
        self._normed, self._gated, self._turned = fused
        return True

    def hidden(self, beginning: Tensor, rest: Tensor) -> Tensor:
        """Return the last hidden state of every token of `rest`, (b, n, width), each row after `beginning`, (p,)."""
        config = self.config
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        epsilon = config["rms_norm_eps"]
        cosine, sine = self._angles(len(beginning), *rest.shape)
        x = functional.embedding(torch.cat([beginning, rest.flatten()]), self._embedding)
        for number, layer in enumerate(self._layers):
            rows = self._projected(self._normed(x, layer["before"], epsilon), number, "qkv")
            rows = rows.view(len(x), heads + 2 * groups, -1)
            turned = self._turned(rows[:, : heads + groups], cosine, sine)
            seen = _Attention.apply(
                turned[:, :heads], turned[:, heads:], rows[:, heads + groups :], len(beginning), len(rest)
            )
            x = x + self._projected(seen, number, "o")
            inner = self._projected(self._normed(x, layer["after"], epsilon), number, "gate_up")
            x = x + self._projected(self._gated(inner), number, "down")
        return self._normed(x[len(beginning) :], self._last_norm, epsilon).view(*rest.shape, -1)

    def loss(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, int]:
        """Return the weighted sum of cross entropies over rows of `hidden`, and how many were right at first rank."""
        total, right = _Loss.apply(hidden, self._head, targets, weights)
        return total, int(right)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Return the log-probability of every next token after rows of `hidden`."""
        return functional.log_softmax((hidden @ self._head.T).float(), -1)

    def _angles(self, shared: int, count: int, length: int) -> tuple[Tensor, Tensor]:
        width = self.config["hidden_size"] // self.config["num_attention_heads"]
        position = torch.cat([torch.arange(shared), torch.arange(shared, shared + length).repeat(count)])
        frequency = self.config["rope_theta"] ** (-torch.arange(0, width, 2) / width)
        angle = (position[:, None] * frequency)[:, None]
        return angle.cos().to(self._dtype), angle.sin().to(self._dtype)

    def _projected(self, x: Tensor, number: int, group: str) -> Tensor:
        names = [f"{_layer(number)}.{name}" for name in _FUSED[group]]
        down = torch.cat([self.adapters[key(name, "A")] for name in names])
        up = torch.block_diag(*(self.adapters[key(name, "B")] for name in names)) * self._scale
        result: Tensor = _Adapted.apply(x, self._layers[number][group], down.to(self._dtype), up.to(self._dtype))
        return result


def fresh(folder: Path, rank: int, seed: int) -> Weights:
    """Return adapters that change nothing yet: A drawn as PEFT draws it, B zero."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, rows, columns in shapes(folder):
        bound = 1 / math.sqrt(columns)
        made[key(name, "A")] = torch.empty(rank, columns).uniform_(-bound, bound, generator=generator)
        made[key(name, "B")] = torch.zeros(rows, rank)
    return {name: values.requires_grad_() for name, values in made.items()}


def shapes(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the name, rows and columns of every linear layer that gets an adapter."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width, inner = config["hidden_size"], config["intermediate_size"]
    narrow = width // config["num_attention_heads"] * config["num_key_value_heads"]
    sizes = {"k_proj": (narrow, width), "v_proj": (narrow, width), "down_proj": (width, inner)}
    sizes |= {"gate_proj": (inner, width), "up_proj": (inner, width)}
    for number in range(config["num_hidden_layers"]):
        for name in (name for names in _FUSED.values() for name in names):
            yield f"{_layer(number)}.{name}", *sizes.get(name.rpartition(".")[2], (width, width))


def key(name: str, half: str) -> str:
    """Return the name that PEFT gives to one half (A or B) of the adapter of a linear layer."""
    return f"base_model.model.{name}.lora_{half}.weight"


def rank_of(adapters: Weights) -> int:
    """Return the rank that all adapters share."""
    return next(len(values) for name, values in adapters.items() if ".lora_A." in name)


def _layer(number: int) -> str:
    return f"model.layers.{number}"


def _normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def _gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)


class _Adapted(torch.autograd.Function):
    """x W^T + (x A^T) B^T; gradients flow to x, A and B, not to the frozen W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, frozen: Tensor, down: Tensor, up: Tensor) -> Tensor:
        low = x @ down.T
        ctx.save_for_backward(x, frozen, down, up, low)
        return (x @ frozen.T).addmm_(low, up.T)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, frozen, down, up, low = ctx.saved_tensors
        grad_low = grad @ up
        return (grad @ frozen).addmm_(grad_low, down), None, grad_low.T @ x, (low.T @ grad).T


class _Attention(torch.autograd.Function):
    """Causal attention as plain batched products over blocks of queries; heads that share keys are one product.

    On CPUs this is faster than the fused kernel at some hundred tokens, and what lies above the diagonal is left out.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor, shared: int, count: int) -> Tensor:
        """Take (tokens, heads, width), keys and values with fewer heads; return (tokens, heads * width)."""
        out = torch.empty_like(query)
        kept = []
        for rows, before, many in _parts(shared, count):
            q, k, v = _parted(query, keys, values, rows, before, many)
            found = torch.empty_like(q)
            for start, end in _blocks(q.shape[2]):
                scores = torch.bmm(q[:, :, start:end].flatten(1, 2), k[:, : before + end].transpose(1, 2))
                above = scores.view(*q.shape[:2], end - start, -1)[..., before + start :]
                above.add_(torch.full(above.shape[-2:], -torch.inf, dtype=scores.dtype).triu(1))
                chance = scores.softmax(-1)
                kept.append(chance)
                found[:, :, start:end] = torch.bmm(chance, v[:, : before + end]).view_as(found[:, :, start:end])
            out[rows] = _in_rows(found, many)
        ctx.save_for_backward(query, keys, values, *kept)
        ctx.split = shared, count
        return out.flatten(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, *kept = ctx.saved_tensors
        grad = grad.view_as(query)
        to_query, to_keys, to_values = torch.empty_like(query), torch.zeros_like(keys), torch.zeros_like(values)
        chances = iter(kept)
        for rows, before, many in _parts(*ctx.split):
            q, k, v = _parted(query, keys, values, rows, before, many)
            from_out = _by_group(grad[rows], many, keys.shape[1])
            to_q, to_k, to_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
            for start, end in _blocks(q.shape[2]):
                chance, seen = next(chances), slice(0, before + end)
                out = from_out[:, :, start:end].flatten(1, 2)
                to_v[:, seen] += torch.bmm(chance.transpose(1, 2), out)
                to_chance = torch.bmm(out, v[:, seen].transpose(1, 2))
                to_scores = torch.ops.aten._softmax_backward_data(to_chance, chance, -1, chance.dtype)  # noqa: SLF001
                to_q[:, :, start:end] = torch.bmm(to_scores, k[:, seen]).view_as(q[:, :, start:end])
                to_k[:, seen] += torch.bmm(to_scores.transpose(1, 2), q[:, :, start:end].flatten(1, 2))
            to_query[rows] = _in_rows(to_q, many) * _sharpness(query)
            to_keys[: rows.stop] += _disjoined(to_k, before, many)
            to_values[: rows.stop] += _disjoined(to_v, before, many)
        return to_query, to_keys, to_values, None, None


class _Loss(torch.autograd.Function):
    """The sum of weighted cross entropies over the vocabulary, some rows at a time, gradient included."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        total, right, grad = torch.zeros(()), torch.zeros((), dtype=torch.long), torch.empty_like(hidden)
        for start in range(0, len(hidden), _ROWS):
            rows = slice(start, start + _ROWS)
            scores = (hidden[rows] @ head.T).float()
            target, weight = targets[rows, None], weights[rows, None]
            right += (scores.argmax(-1, keepdim=True) == target).sum()
            chances = scores.sub_(scores.logsumexp(-1, keepdim=True))
            total -= (chances.gather(-1, target) * weight).sum()
            chances.exp_().scatter_add_(-1, target, -torch.ones_like(weight)).mul_(weight)
            grad[rows] = chances.to(head.dtype) @ head
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(right)
        return total, right

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (inner,) = ctx.saved_tensors
        return inner * grad.to(inner.dtype), None, None, None


def _parts(shared: int, count: int) -> Iterator[tuple[slice, int, int]]:
    """Yield which rows ask, how many tokens of the beginning they see besides, and how many sequences they are."""
    if shared:
        yield slice(0, shared), 0, 1
    yield slice(shared, None), shared, count


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    for start in range(0, length, _QUERIES):
        yield start, min(length, start + _QUERIES)


def _parted(
    query: Tensor, keys: Tensor, values: Tensor, rows: slice, before: int, many: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scaled queries (sequences * groups, heads of one, n, width), keys and values (.., before + n, width)."""
    asked = _by_group(query[rows] * _sharpness(query), many, keys.shape[1])
    return asked, _joined(keys[: rows.stop], before, many), _joined(values[: rows.stop], before, many)


def _sharpness(query: Tensor) -> float:
    return 1 / math.sqrt(query.shape[-1])


def _by_group(rows: Tensor, many: int, groups: int) -> Tensor:
    """Turn (many * n, heads, width) into (many * groups, heads of one group, n, width)."""
    return rows.unflatten(0, (many, -1)).unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1).contiguous()


def _in_rows(found: Tensor, many: int) -> Tensor:
    """Undo `_by_group`."""
    return found.unflatten(0, (many, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)


def _joined(rows: Tensor, before: int, many: int) -> Tensor:
    """Give each of the sequences the beginning: (before + many * n, groups, width) to (many * groups, .., width)."""
    first = rows[:before].transpose(0, 1).expand(many, -1, -1, -1)
    own = rows[before:].unflatten(0, (many, -1)).transpose(1, 2)
    return torch.cat([first, own], 2).flatten(0, 1)


def _disjoined(grad: Tensor, before: int, many: int) -> Tensor:
    """Undo `_joined`; the beginning gets the sum over all sequences."""
    each = grad.unflatten(0, (many, -1))
    return torch.cat([each[:, :, :before].sum(0).transpose(0, 1), each[:, :, before:].transpose(1, 2).flatten(0, 1)])
