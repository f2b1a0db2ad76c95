"""The platform "cpu" of verl: what it asks of an accelerator, answered for a machine that has none."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry, set_platform

if TYPE_CHECKING:
    from collections.abc import Iterator

_TWICE, _ONCE = "cpu:gloo,cpu:gloo", "cpu:gloo"


def use() -> None:
    """Make this process one of this platform.

    verl names a backend for the CPU and one for the device; PyTorch refuses two for one.
    """
    set_platform(PlatformCPU())
    start = torch.distributed.init_process_group

    @wraps(start)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        start(_ONCE if backend == _TWICE else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _nothing(*_: Any, **__: Any) -> None:
    """Do what there is to do where memory is the host's and nothing runs asynchronously."""


def _most_resident(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_and_total(*_: Any) -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def _device_module() -> ModuleType:
    """Return what verl uses of `torch.cuda`; `torch.cpu` has only a part of it."""
    module = ModuleType("mia.training.cpu.device")
    for name in ("empty_cache", "set_device", "set_per_process_memory_fraction", "synchronize"):
        setattr(module, name, _nothing)
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, _most_resident)
    for name in ("Stream", "current_stream", "stream"):
        setattr(module, name, getattr(torch.cpu, name))
    for name in ("get_rng_state", "set_rng_state"):
        setattr(module, name, getattr(torch, name))
    module.mem_get_info = _free_and_total  # type: ignore[attr-defined]
    module.is_available = lambda: False  # type: ignore[attr-defined] # of an accelerator: there are no caches to empty
    module.device_count = lambda: 1  # type: ignore[attr-defined]
    module.get_device_name = lambda *_: "CPU"  # type: ignore[attr-defined]
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One CPU device per process. To Ray it is a logical GPU, which is all that verl places workers by."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        """Return that there is a CPU."""
        return True

    def current_device(self) -> torch.device:
        """Return the device; verl hands it to `Tensor.to`, for which an index would be one of an accelerator."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """Return the devices of this process."""
        return 1

    def manual_seed(self, seed: int) -> None:
        """Seed PyTorch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed PyTorch."""
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: ARG002 - verl's signature
        """Return that there is no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return the backend of collectives."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that Ray sets for a logical GPU."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002 - verl's signature
        """Mark nothing."""
        yield

    def ray_resource_name(self) -> str:
        """Return the resource of Ray that stands for a device; `ray_kwargs.ray_init.num_gpus` says how many."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return that Ray need not be kept from anything."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return that no memory is shared with a rollout engine."""
        return False
