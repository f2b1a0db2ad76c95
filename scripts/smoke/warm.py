"""The warm start of the tiny Planner: a short training on dialogues that are mostly wrong, and what it knows then."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import cross_entropy
from warm.batches import encode

from mia.planner.memories import NONE_FOUND
from mia.prompts import fill
from mia.transcript import transcript
from mia.types import StopReason, Trajectory
from smoke.tiny import build_model, build_tokenizer

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from mia.types import Message
    from smoke.rehearsal import Plays, Probe

BATCH = 4
_RATE = 3e-3
_RISING = 20  # steps


class Course(NamedTuple):
    """Steps: on dialogues that are right, by which the model learns what to copy, then on mixed ones."""

    right: int = 220
    mixed: int = 120


class Warm(NamedTuple):
    """A model after its warm start."""

    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast


def start(plays: Plays, course: Course, seed: int, chance: random.Random) -> Warm:
    """Build a model and teach it."""
    tokenizer = build_tokenizer(texts(plays))
    model = build_model(tokenizer, seed)
    right, some = ([lesson(tokenizer, messages) for messages in taught] for taught in (plays.right, plays.mixed))
    batches = [chance.sample(right, BATCH) for _ in range(course.right)]
    train(model, batches + [chance.sample(some, BATCH) for _ in range(course.mixed)])
    return Warm(model, tokenizer)


def texts(plays: Plays) -> Iterator[str]:
    """Yield all that a vocabulary must hold: what was said, and what is said only when something goes wrong."""
    dialogues = [
        *plays.right,
        *plays.mixed,
        *(each for probe in (*plays.training, *plays.validation) for each in probe),
    ]
    yield from {message.text for messages in dialogues for message in messages}
    yield from (NONE_FOUND, fill("plan_again"))
    yield from (transcript("", Trajectory(steps=(), answer=None, stop=reason)) for reason in StopReason)


class Lesson(NamedTuple):
    """A dialogue as tokens; `replies` are the places of each reply in it, the mark that ends it included."""

    tokens: list[int]
    replies: list[range]


def lesson(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message]) -> Lesson:
    """Return a dialogue in the tokenizer's chat template."""
    lines = [{"role": each.role, "content": each.text, "learn": each.role == "assistant"} for each in messages]
    found = encode(tokenizer, {"id": "", "weight": 1.0, "messages": lines})
    tokens = [*found.opening, *found.rest]
    learnt = [False] * len(found.opening) + [weight > 0 for weight in found.weights]
    edges = [place for place in range(1, len(tokens)) if learnt[place] != learnt[place - 1]]
    return Lesson(tokens, [range(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True)])


def train(model: Qwen3ForCausalLM, batches: Sequence[Sequence[Lesson]]) -> list[float]:
    """Take one step of AdamW a batch, on the replies alone, at a rate that rises and falls; return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.99), weight_decay=0.0)
    losses = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min((step + 1) / _RISING, 1 - step / len(batches))
        loss = -torch.cat(log_probabilities(model, batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def log_probabilities(model: Qwen3ForCausalLM, lessons: Sequence[Lesson]) -> list[Tensor]:
    """Return the log-probability of every token of every reply: one tensor a reply, lesson by lesson."""
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(each.tokens) for each in lessons], batch_first=True)
    places = [(row, place) for row, each in enumerate(lessons) for reply in each.replies for place in reply]
    rows, columns = torch.tensor(places).unbind(1)
    # What is padded on the right changes nothing before it, so there is no mask.
    states = model.model(tokens).last_hidden_state[rows, columns - 1]
    found = -cross_entropy(model.lm_head(states), tokens[rows, columns], reduction="none")
    return list(found.split([len(reply) for each in lessons for reply in each.replies]))


class Odds(NamedTuple):
    """How likely a model is to be right at temperature 1: means over questions, and what they are worth.

    Each is worked out from the probabilities of the replies themselves, so nothing is sampled.
    """

    plan: float
    worst_plan: float
    """Of the question whose right plan is least likely."""
    content: float
    """Says no after a right answer."""
    doubting: float
    """Says yes after a wrong one."""
    revised: float
    """Then writes the right plan."""
    plain: float
    """Says yes or no, and nothing else."""
    final: float
    reward: float


def odds(warm: Warm, probes: Sequence[Probe]) -> Odds:
    """Measure a model."""
    lessons = [lesson(warm.tokenizer, messages) for probe in probes for messages in probe]
    with torch.no_grad():
        found = [reply.sum().exp() for reply in log_probabilities(warm.model, lessons)]
    plan, content, _, doubted, again, _, doubting, revised = torch.stack(found).view(len(probes), 8).unbind(1)
    plain = content + doubted
    final = plan * (content + (1 - content) * again) + (1 - plan) * doubting * revised
    decision = plan * content + (1 - plan) * doubting
    reward = 0.7 * final + 0.2 * plan + 0.05 * decision + 0.05 * plain
    means = (each.mean().item() for each in (content, doubting, revised, plain, final, reward))
    return Odds(plan.mean().item(), plan.min().item(), *means)
