"""verl's platform for machines without an accelerator."""

from __future__ import annotations

import functools
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _device() -> types.ModuleType:
    """Return what verl takes for torch.cuda: torch.cpu lacks most of it."""
    made = types.ModuleType("mia.training.cpu.device")

    def memory(*_: Any) -> int:
        return int(psutil.Process().memory_info().rss)

    def nothing(*_: Any, **__: Any) -> None:
        """Do what an accelerator would have to do."""

    made.is_available = lambda: False  # type: ignore[attr-defined]
    made.device_count = lambda: 1  # type: ignore[attr-defined]
    made.current_device = lambda: torch.device("cpu")  # type: ignore[attr-defined]
    made.get_device_name = lambda *_: "CPU"  # type: ignore[attr-defined]
    made.get_device_capability = lambda *_: (None, None)  # type: ignore[attr-defined]
    made.mem_get_info = lambda *_: (psutil.virtual_memory().available, psutil.virtual_memory().total)  # type: ignore[attr-defined]
    for name in ("get_rng_state", "set_rng_state"):
        setattr(made, name, getattr(torch, name))
    for name in ("Stream", "stream", "current_stream", "amp"):
        setattr(made, name, getattr(torch.cpu, name))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(made, name, memory)
    for name in ("empty_cache", "synchronize", "set_device", "reset_peak_memory_stats", "ipc_collect", "manual_seed"):
        setattr(made, name, nothing)
    for name in ("manual_seed_all", "reset_accumulated_memory_stats", "set_per_process_memory_fraction"):
        setattr(made, name, nothing)
    return made


_DEVICE = _device()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The answers of a machine with CPUs to verl's questions about its accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE

    def is_available(self) -> bool:
        """It is, wherever it is named."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:  # noqa: ARG002, FBT001, FBT002 - verl's signature
        """Never take a machine over that did not name it."""
        return False

    def current_device(self) -> torch.device:
        """Return the device; verl moves tensors to it, so it is no number."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """Return how many there are."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs on its own."""

    def manual_seed(self, seed: int) -> None:
        """Seed the one generator."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        """There are none."""

    def empty_cache(self) -> None:
        """There is none."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: ARG002
        """Return that of no accelerator."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return how ranks talk."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return a name that verl may set."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002
        """Mark nothing."""
        yield

    def profiler_start(self) -> None:
        """Profile nothing."""

    def profiler_stop(self) -> None:
        """Profile nothing."""

    def ray_resource_name(self) -> str:
        """Return what verl counts on each node; Ray is told of logical ones (ray_kwargs.ray_init.num_gpus)."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return what keeps Ray from hiding devices."""
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Tensors do not travel by handle."""
        return False

    def cudart(self) -> None:
        """There is none."""


def _once(start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap init_process_group: verl asks for "cpu:gloo,DEVICE:BACKEND", and torch refuses a device named twice."""

    @functools.wraps(start)
    def started(backend: str | None = None, *arguments: Any, **named: Any) -> Any:
        return start("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *arguments, **named)

    return started


torch.distributed.init_process_group = _once(torch.distributed.init_process_group)
