"""The rollout named "cpu": a Ray actor that samples with plain transformers, token ids in, token ids out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ray
import torch
import torch.distributed
from pydantic import ValidationError
from transformers import AutoModelForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator, get_max_position_embeddings

from mia.errors import ConfigError, InputError
from mia.training.cpu.sampling import Reply, Request, Sampling, generate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from verl.workers.config import RolloutConfig

_GATHER = 0.005  # seconds in which requests that come together become one batch


def _name(replica_rank: int, suffix: str = "") -> str:
    return f"cpu_server_{replica_rank}{suffix}"


class Server:
    """Answers requests batch by batch; with `rollout.full_determinism` one at a time, in the order in which they came.

    Its weights are those that the trainer sent last.
    """

    def __init__(self, config: RolloutConfig, model_config: Any, replica_rank: int) -> None:
        known = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        if config.full_determinism:
            torch.set_num_threads(1)
        self._config = config
        self._most = 1 if config.full_determinism else config.max_num_seqs
        self._window = min(
            config.max_model_len or config.prompt_length + config.response_length,
            get_max_position_embeddings(known.hf_config),
        )
        self._tokenizer = known.tokenizer
        self._eos = endings(known.tokenizer, known.generation_config)
        self._model = AutoModelForCausalLM.from_config(
            known.hf_config, dtype=PrecisionType.to_dtype(config.dtype)
        ).eval()
        self._chance = torch.Generator().manual_seed(config.seed + replica_rank)
        self._step: int | None = None
        self._waiting: list[tuple[Request, asyncio.Future[TokenOutput]]] = []
        self._draining: asyncio.Task[None] | None = None
        self._model_in_use = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._aborting = self._rejecting = False

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str, **media: Any
    ) -> TokenOutput:
        """Sample what follows some ids.

        Raises:
            InputError: the request cannot be served: it leaves no room, has images, or unknown parameters.
            ConfigError: no weights have come yet.
        """
        if any(media.values()):
            raise InputError(f"Request {request_id} is not of text alone.", remedy="Train with images on a GPU.")
        request = self._request(list(prompt_ids), sampling_params)
        while not self._open.is_set():
            if self._rejecting:
                return self._output(request, Reply())
            await self._open.wait()
        if self._step is None:
            raise ConfigError("The rollout server has no weights yet.", remedy="Let the trainer send them first.")
        output: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, output))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        return await output

    def _request(self, prompt: list[int], sampling_params: Mapping[str, Any]) -> Request:
        try:
            sampling = Sampling.model_validate({"ignore_eos": self._config.ignore_eos, **sampling_params})
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise InputError(
                f"The rollout on CPU cannot sample so: {told}.", remedy="Correct actor_rollout_ref.rollout."
            ) from error
        room = self._window - len(prompt)
        if not prompt or room < 1:
            raise InputError(
                f"A prompt of {len(prompt)} tokens leaves no room for a reply in a window of {self._window}.",
                remedy="Shorten the prompt or raise actor_rollout_ref.rollout.max_model_len.",
            )
        most = min(sampling.max_tokens or self._config.response_length, room)
        chance = self._chance if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
        return Request(prompt, sampling, most, chance)

    async def _drain(self) -> None:
        await asyncio.sleep(_GATHER)
        while self._waiting:
            async with self._model_in_use:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                if batch:
                    await self._answer(batch)

    async def _answer(self, batch: list[tuple[Request, asyncio.Future[TokenOutput]]]) -> None:
        requests = [request for request, _ in batch]
        work = asyncio.create_task(
            asyncio.to_thread(generate, self._model, self._tokenizer, requests, self._eos, lambda: self._aborting)
        )
        await asyncio.wait([work])
        error = work.exception()  # is that of these requests; the server goes on
        for place, (request, output) in enumerate(batch):
            if output.done():
                continue
            if error:
                output.set_exception(error)
            else:
                output.set_result(self._output(request, work.result()[place]))

    def _output(self, request: Request, reply: Reply) -> TokenOutput:
        return TokenOutput(
            token_ids=reply.ids,
            log_probs=reply.log_probs if request.sampling.logprobs else None,
            stop_reason="completed" if reply.ended else "aborted",
            extra_fields={"global_steps": self._step},
        )

    async def load_weights(self, weights: Mapping[str, torch.Tensor], step: int) -> None:
        """Take the weights of a step, between two batches."""
        async with self._model_in_use:
            await asyncio.to_thread(load, self._model, weights)
            self._step = step

    async def abort_all_requests(
        self,
        reset_prefix_cache: bool = True,  # noqa: ARG002, FBT001, FBT002 - verl's signature; there is no such cache
        reject_request: bool = False,  # noqa: FBT001, FBT002 - verl's signature
    ) -> dict[str, int]:
        """Return what was sampled so far to all who wait; new requests wait for `resume_generation` or are rejected."""
        self._open.clear()
        self._aborting, self._rejecting = True, reject_request
        waiting, self._waiting = self._waiting, []
        for request, output in waiting:
            if not output.done():
                output.set_result(self._output(request, Reply()))
        async with self._model_in_use:  # the batch at work has ended
            self._aborting = False
        return {"aborted_count": len(waiting)}

    async def resume_generation(self) -> None:
        """Take requests again."""
        self._rejecting = False
        self._open.set()


def endings(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    """Return the ids that end a reply, by the tokenizer and by the model's generation config."""
    more = getattr(generation_config, "eos_token_id", None)
    found = [tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
    return frozenset(each for each in found if each is not None)


def load(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into a model, in its own precision.

    Raises:
        ConfigError: some are unknown to the model or missing.
    """
    state = model.state_dict()
    unknown = sorted(weights.keys() - state.keys())
    told = {state[name].data_ptr() for name in weights.keys() & state.keys()}
    missing = [name for name, tensor in state.items() if tensor.data_ptr() not in told]  # tied weights are one
    if unknown or missing:
        raise ConfigError(
            f"The trainer's weights do not fit the rollout's model: unknown {unknown[:3]}, missing {missing[:3]}.",
            remedy="Use a model class that transformers itself has.",
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            state[name].copy_(tensor)


class Replica(RolloutReplica):
    """verl's handle of one server."""

    async def launch_servers(self) -> None:
        """Start the server and wait until it has its model."""
        name = _name(self.replica_rank, self.name_suffix)
        actor = ray.remote(Server).options(name=name, num_cpus=0, max_concurrency=self.max_concurrency)
        server = actor.remote(self.config, self.model_config, self.replica_rank)
        await server.__ray_ready__.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name  # verl only tells servers apart by it: there is no HTTP

    async def _nothing(self, **_: Any) -> None:
        """Do nothing: memory is the host's, and a cache lives no longer than its batch."""

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = _nothing


class WeightSender(BaseRollout):
    """The server's counterpart in the trainer's workers: sends weights through Ray's object store."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        size = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        replica, place = divmod(torch.distributed.get_rank(), size)
        self._server = _name(replica if replica_rank < 0 else replica_rank)
        self._leads = place == 0
        self._dtype = PrecisionType.to_dtype(self.config.dtype)

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", *, global_steps: int, peft_config: Any = None, **_: Any
    ) -> None:
        """Send all weights, in the rollout's precision.

        Raises:
            ConfigError: an adapter is sent rather than merged weights, or parts of tensors.
        """
        if peft_config is not None:
            raise ConfigError("The rollout on CPU takes no adapters.", remedy="Set model.lora.merge to true.")
        if wire_format != "named_tensors":
            raise ConfigError(f"The rollout on CPU takes no {wire_format}.", remedy="Use checkpoint_engine naive.")
        taken = {}
        async for name, tensor in ensure_async_iterator(weights):  # every rank takes part in gathering a tensor
            if self._leads:
                taken[name] = tensor.detach().to("cpu", self._dtype)
        if self._leads:
            await ray.get_actor(self._server).load_weights.remote(taken, global_steps)

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: the server's memory is its own."""

    async def release(self) -> None:
        """Do nothing: the server's memory is its own."""
