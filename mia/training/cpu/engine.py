"""verl's FSDP2 engine on the device "cpu", for which verl does not register it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.tensor import DTensor
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def register() -> None:
    """Register the engine of language models."""
    transformer_impl.CPUOffloadPolicy = _unpinned
    EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(Engine)


def _unpinned(*, pin_memory: bool = True) -> CPUOffloadPolicy:  # noqa: ARG001 - verl asks for pinned memory
    """Return the policy of a frozen reference model; memory is pinned only for an accelerator."""
    return CPUOffloadPolicy(pin_memory=False)


class Engine(transformer_impl.FSDPEngineWithLMHead):
    """verl's engine; it rounds merged weights to bfloat16 on their way to the rollout, and this one does not."""

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        with merged_lora_context(self.module, backup_adapters=True):
            for name, tensor in normalize_peft_param_name(self.module.state_dict()).items():
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                yield name, whole.detach().clone()  # what is merged in place is split again at the end
