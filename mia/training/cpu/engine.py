"""verl's FSDP2 engine for CPUs: what it registers for accelerators, without pinned memory."""

from __future__ import annotations

from typing import Any
from unittest import mock

from torch.distributed.fsdp import CPUOffloadPolicy
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngine(transformer_impl.FSDPEngineWithLMHead):
    """A frozen reference model is offloaded into pinned memory, which needs an accelerator."""

    def _build_fsdp_module(self, module: Any) -> Any:
        unpinned = CPUOffloadPolicy(pin_memory=False)
        with mock.patch.object(transformer_impl, "CPUOffloadPolicy", return_value=unpinned):
            return super()._build_fsdp_module(module)
