"""The trainer of adapters: budget, steps, progress and checkpoints."""

from __future__ import annotations

import ctypes
import json
import math
import resource
import signal
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoTokenizer

from mia.errors import InputError, MiaError
from warm import adapter
from warm.batches import arrange, collate, encode, read
from warm.card import RECORD, machine
from warm.from_gguf import PUBLIC_NAME, write_json
from warm.llama import Llama, Weights, fresh, rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

CHECKPOINT = "checkpoint.safetensors"
_LOG_SECONDS = 10.0
_SAVE_SECONDS = 180.0
_WARM_UP = 10  # steps
_LOWEST = 0.05  # of the learning rate, at the end
_BETAS = (0.9, 0.99)
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


class Interrupted(MiaError):  # noqa: N818 - named for what it says
    """The run was told to stop; its checkpoint is on the disk."""

    exit_code = 130


@dataclass(frozen=True)
class Plan:
    """What a run is, apart from its traces: two runs of one plan give the same adapter, but for the time they have.

    The run ends when the first of `minutes`, `epochs` and `steps` (0: no limit) is used up.
    """

    minutes: float = 90.0
    epochs: float = 3.0
    steps: int = 0
    rank: int = 12
    rate: float = 1e-3
    tokens: int = 4096
    seed: int = 0
    start: str = ""
    """A folder with an adapter to train on; empty begins with a fresh one."""

    def __post_init__(self) -> None:
        """Raise InputError if nothing could be trained."""
        for name in ("minutes", "epochs", "rank", "rate", "tokens"):
            if getattr(self, name) <= 0:
                text = f"A run needs {name} above 0, not {getattr(self, name)}."
                raise InputError(text, remedy="`warm_start.py train --help` tells what is usual.")

    @property
    def alpha(self) -> int:
        """The numerator of the adapter's scale."""
        return 2 * self.rank


@dataclass
class Progress:
    """How far a run is; what a checkpoint keeps besides tensors."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    tokens: int = 0
    seconds: float = 0.0
    history: list[tuple[float, int, float, float]] = field(default_factory=list)
    """Minutes, tokens, loss and accuracy since the entry before."""


class Trainer:
    """One run: an adapter for the traces, in a folder that also keeps the checkpoint until it is done."""

    def __init__(self, base: Path, traces: list[Path], out: Path, plan: Plan, console: Console) -> None:
        adapter.check_unfinished(out)
        self.plan, self.out, self._console = plan, out, console
        keep_memory()
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.traces, self.digests = read(traces)
        self.sequences = [encode(self.tokenizer, trace) for trace in self.traces]
        self.progress = Progress()
        self._arranged: tuple[int, list[list[int]]] | None = None
        self.model = Llama(base, self._first(base), plan.alpha)
        # Fused: one pass over all of some hundred small tensors.
        self._optimizer = torch.optim.AdamW(
            self.model.adapters.values(), lr=plan.rate, betas=_BETAS, weight_decay=0.0, fused=True
        )
        self._identity = json.dumps({"plan": asdict(plan), "traces": self.digests}, sort_keys=True)
        if (out / CHECKPOINT).exists():
            self._resume()
        epoch = self._epoch(0)
        self._scale = len(epoch) / sum(sum(each.weights) for each in self.sequences)
        self._console.print(
            f"{len(self.traces):,} traces, {self.total:,} tokens, {len(epoch):,} steps an epoch, "
            f"{sum(values.numel() for values in self.model.adapters.values()):,} weights to learn"
        )

    def _first(self, base: Path) -> Weights:
        """Return the weights that the run begins with.

        Raises:
            InputError: the adapter to train on is of another rank or scale.
        """
        plan = self.plan
        if not plan.start:
            return fresh(base, plan.rank, plan.seed)
        weights, alpha = adapter.read(Path(plan.start))
        if (rank_of(weights), alpha) != (plan.rank, plan.alpha):
            raise InputError(f"{plan.start} has rank {rank_of(weights)}.", remedy="Name the same with --rank.")
        for values in weights.values():
            values.requires_grad_(requires_grad=True)
        return weights

    @property
    def total(self) -> int:
        """The tokens of one epoch."""
        return sum(len(each.opening) + len(each.rest) for each in self.sequences)

    @property
    def share(self) -> float:
        """How much of the budget is used: the largest share of minutes, epochs and steps."""
        done, plan = self.progress, self.plan
        steps = done.step / plan.steps if plan.steps else 0.0
        return max(done.seconds / 60 / plan.minutes, done.tokens / (self.total * plan.epochs), steps)

    def run(self, about: dict[str, Any]) -> None:
        """Train until the budget is used, with a line of progress now and then; a signal to stop saves and raises.

        Args:
            about: what the record of the run tells besides, such as its `command`.

        Raises:
            Interrupted: by SIGTERM or SIGINT; the same call goes on from there.
        """
        done, recent = self.progress, deque[tuple[float, int, int]]()
        started, logged, saved = time.monotonic() - done.seconds, time.monotonic(), time.monotonic()
        tokens = done.tokens
        with _stopping() as stopped:
            while self.share < 1:
                recent.append(self._step())
                now = time.monotonic()
                done.seconds = now - started
                if now - logged > _LOG_SECONDS or done.step <= 2 or self.share >= 1:
                    self._log(recent, (done.tokens - tokens) / (now - logged))
                    logged, tokens = now, done.tokens
                    recent.clear()
                if stopped:
                    self._save()
                    raise Interrupted(f"Stopped at step {done.step}.", remedy="The same command goes on from there.")
                if now - saved > _SAVE_SECONDS:
                    self._save()
                    saved = now
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(self.out / RECORD, self._record() | about)
        adapter.write(self.out, self.model.adapters, self.plan.alpha)
        (self.out / CHECKPOINT).unlink(missing_ok=True)

    def _record(self) -> dict[str, Any]:
        """Return what the card of the adapter tells of the run."""
        return {
            "base": PUBLIC_NAME,
            "roles": list(dict.fromkeys(trace["role"] for trace in self.traces)),
            "traces": self.digests,
            "epoch_tokens": self.total,
            "plan": asdict(self.plan),
            "machine": machine(torch.get_num_threads()),
            "peak_gb": round(peak_memory(), 1),
            "progress": asdict(self.progress),
        }

    def _epoch(self, number: int) -> list[list[int]]:
        return arrange(self.sequences, self.plan.tokens, f"{self.plan.seed}-{number}")

    def _step(self) -> tuple[float, int, int]:
        """Learn from the next batch; return its loss summed over tokens, and how many were right and counted."""
        done, order = self.progress, self._order()
        batch = collate([self.sequences[each] for each in order[done.position]], self.tokenizer.pad_token_id)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        hidden = self.model.hidden(batch.beginning, batch.rest)[:, :-1]
        counts = batch.weights[:, 1:] > 0
        loss, right = self.model.loss(hidden[counts], batch.rest[:, 1:][counts], batch.weights[:, 1:][counts])
        # Every learnt token of an epoch pulls by its weight, whatever company its batch gives it.
        (loss * self._scale).backward()
        torch.nn.utils.clip_grad_norm_(self.model.adapters.values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        done.step, done.position, done.tokens = done.step + 1, done.position + 1, done.tokens + batch.tokens
        if done.position == len(order):
            done.epoch, done.position = done.epoch + 1, 0
        return loss.item() / batch.weights[:, 1:].sum().item(), right, int(counts.sum())

    def _order(self) -> list[list[int]]:
        """Return the batches of this epoch, made once."""
        if self._arranged is None or self._arranged[0] != self.progress.epoch:
            self._arranged = self.progress.epoch, self._epoch(self.progress.epoch)
        return self._arranged[1]

    def _rate(self) -> float:
        falling = 0.5 * (1 + math.cos(math.pi * self.share))
        return self.plan.rate * min(1.0, (self.progress.step + 1) / _WARM_UP) * (_LOWEST + (1 - _LOWEST) * falling)

    def _log(self, recent: Iterable[tuple[float, int, int]], speed: float) -> None:
        done = self.progress
        counted = sum(count for _, _, count in recent)
        loss = sum(loss * count for loss, _, count in recent) / counted
        accuracy = sum(right for _, right, _ in recent) / counted
        left = done.seconds / 60 * (1 - self.share) / self.share
        done.history.append((round(done.seconds / 60, 2), done.tokens, round(loss, 5), round(accuracy, 5)))
        self._console.print(
            f"step {done.step:,}  loss {loss:.4f}  right {accuracy:.3f}  {speed:,.0f} tokens/s  "
            f"{done.seconds / 60:.1f} min, {max(left, 0):.0f} left  {peak_memory():.1f} GB"
        )

    def _save(self) -> None:
        """Write adapter, optimizer and position; a kill meanwhile leaves the checkpoint before."""
        tensors = {f"weights/{name}": values.detach() for name, values in self.model.adapters.items()}
        for name, values in self.model.adapters.items():
            tensors |= {f"{kind}/{name}": kept for kind, kept in self._optimizer.state[values].items()}
        self.out.mkdir(parents=True, exist_ok=True)
        scratch = self.out / f".{CHECKPOINT}"
        notes = {"identity": self._identity, "progress": json.dumps(asdict(self.progress))}
        save_file(tensors, scratch, metadata=notes)
        scratch.replace(self.out / CHECKPOINT)

    def _resume(self) -> None:
        path = self.out / CHECKPOINT
        with safe_open(path, "pt") as kept:
            notes = kept.metadata()
            differs = _differences(json.loads(notes["identity"]), json.loads(self._identity))
            if differs:
                raise InputError(
                    f"The checkpoint in {self.out} is of another run: {differs}.",
                    remedy="Name another --out, or remove the checkpoint.",
                )
            for name, values in self.model.adapters.items():
                values.data.copy_(kept.get_tensor(f"weights/{name}"))
                self._optimizer.state[values] = {
                    kind: kept.get_tensor(f"{kind}/{name}") for kind in ("step", "exp_avg", "exp_avg_sq")
                }
        self.progress = Progress(**json.loads(notes["progress"]))
        self._console.print(f"Going on at step {self.progress.step:,}.")


def keep_memory() -> None:
    """Tell the C library to keep what is freed: every step needs it again, and fresh pages cost more than the sums."""
    with suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def peak_memory() -> float:
    """Return the most memory this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Say what differs between two runs."""
    named = [
        f"{name} was {before['plan'].get(name)}, is {value}"
        for name, value in now["plan"].items()
        if before["plan"].get(name) != value
    ]
    return "; ".join(named + ["the traces differ"] * (before["traces"] != now["traces"]))


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """Collect the first signal to stop; a second one ends the process at once."""
    seen: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _: object) -> None:
        seen.append(number)
        signal.signal(number, before[number])

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, note)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
