"""A rollout server on plain transformers: ids in, ids out, on the weights that the trainer sends."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import ray
import torch
from transformers import AutoModelForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from mia.training.cpu.generation import Request, generate

if TYPE_CHECKING:
    from collections.abc import Sequence

_GATHER = 0.002  # seconds in which the rollouts of a group arrive


class Server:
    """The process that samples: requests queue up, and one thread takes them a batch at a time."""

    def __init__(self, config: Any, model_config: Any, rank: int) -> None:
        self._config: RolloutConfig = omega_conf_to_dataclass(config)
        described: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self._tokenizer = described.tokenizer
        dtype = torch.bfloat16 if self._config.dtype == "bfloat16" else torch.float32
        self._model = AutoModelForCausalLM.from_config(described.hf_config, dtype=dtype).eval()
        self._ends = _end_ids(described)
        self._shared = torch.Generator().manual_seed(self._config.seed + rank)
        # "Deterministic" is one request at a time: the company in a batch changes the last digits of logits.
        self._most = 1 if self._config.full_determinism else self._config.max_num_seqs
        self._steps: int | None = None
        self._waiting: list[tuple[Request, asyncio.Future[None], asyncio.AbstractEventLoop]] = []
        self._changed = threading.Condition()
        self._paused = False
        self._weights = threading.Lock()
        threading.Thread(target=self._work, daemon=True).start()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        **_: Any,
    ) -> TokenOutput:
        """Return what is sampled after some ids.

        Raises:
            ValueError: the prompt leaves no room in the window.
        """
        window = self._config.max_model_len or self._config.prompt_length + self._config.response_length
        room = window - len(prompt_ids)
        if room < 1:
            raise ValueError(f"A prompt of {len(prompt_ids)} tokens leaves no room in a window of {window}.")
        request = Request.of([int(each) for each in prompt_ids], sampling_params, room, self._ends)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        with self._changed:
            self._waiting.append((request, done, loop))
            self._changed.notify()
        await done
        return TokenOutput(
            token_ids=request.ids,
            log_probs=request.log_probs if sampling_params.get("logprobs") else None,
            stop_reason="aborted" if not request.ended else "completed",
            num_preempted=0,
            extra_fields={"global_steps": self._steps},
        )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting and not self._paused)
                self._changed.wait(_GATHER)
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            error: Exception | None = None
            try:
                with self._weights:
                    generate(
                        self._model,
                        [each for each, _, _ in batch],
                        self._decode,
                        self._shared,
                        lambda: not self._paused,
                    )
            except Exception as raised:  # noqa: BLE001 - it is the requests', which raise it
                error = raised
            for _, done, loop in batch:
                loop.call_soon_threadsafe(_settle, done, error)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    async def load(self, weights: list[tuple[str, torch.Tensor]], global_steps: int | None) -> None:
        """Take new weights between two batches."""

        def copy() -> None:
            with self._weights, torch.no_grad():
                own = self._model.state_dict()
                for name, values in weights:
                    own[name].copy_(values)
                self._steps = global_steps

        await asyncio.to_thread(copy)

    async def set_global_steps(self, global_steps: int) -> None:
        """Note the version of the weights."""
        self._steps = global_steps

    async def abort_all_requests(self, **_: Any) -> None:
        """End what runs where it is, and wait until it has."""
        with self._changed:
            self._paused = True
            waiting, self._waiting = self._waiting, []
        for _, done, loop in waiting:
            loop.call_soon_threadsafe(_settle, done, None)
        await asyncio.to_thread(lambda: self._weights.acquire() and self._weights.release())

    async def resume_generation(self) -> None:
        """Take requests again."""
        with self._changed:
            self._paused = False
            self._changed.notify()

    async def wake_up(self, *_: Any, **__: Any) -> None:
        """Nothing was put to sleep: weights and caches stay in memory."""

    sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = wake_up


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.cancelled():
        return
    if error:
        done.set_exception(error)
    else:
        done.set_result(None)


def _end_ids(described: HFModelConfig) -> frozenset[int]:
    """Return the tokens that end a reply, by the tokenizer and by the model's generation settings."""
    told = described.generation_config.eos_token_id if described.generation_config else None
    ids = told if isinstance(told, list) else [told]
    return frozenset(each for each in (described.tokenizer.eos_token_id, *ids) if each is not None)


class Replica(RolloutReplica):
    """verl's handle of one server."""

    async def launch_servers(self) -> None:
        """Start the server."""
        name = f"mia_cpu_rollout_{self.replica_rank}{self.name_suffix}"
        actor = ray.remote(Server).options(name=name, num_cpus=0, max_concurrency=self.max_concurrency)
        self._server_handle = actor.remote(self.config, self.model_config, self.replica_rank)
        self.servers = [self._server_handle]
        self._server_address = name  # verl tells servers apart by it; nothing listens there

    async def abort_all_requests(self, reject_request: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - verl's signature
        """End what runs on the server."""
        await asyncio.gather(*(server.abort_all_requests.remote() for server in self.servers))


class Adapter(BaseRollout):
    """The trainer's side: it sends the weights through Ray's object store."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        size = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = torch.distributed.get_rank()
        self._name = f"mia_cpu_rollout_{replica_rank if replica_rank >= 0 else rank // size}"
        self._leads = rank % size == 0

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """Memory is not shared with the trainer."""

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        """Send all weights; every rank takes part in gathering them."""
        kept = [
            (name, values.detach().cpu())
            async for name, values in ensure_async_iterator(weights)
            if self._leads or not name
        ]
        if self._leads:
            await ray.get_actor(self._name).load.remote(kept, global_steps)
