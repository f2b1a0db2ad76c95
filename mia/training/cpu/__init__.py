"""verl on machines without an accelerator: `VERL_USE_EXTERNAL_MODULES=mia.training.cpu` loads it in a process.

Importing it makes the process one of the platform "cpu" and registers FSDP2 there and the rollout named "cpu".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia.training.cpu import platform

platform.use()  # first of all: other modules of verl ask for the platform while they load

from verl.workers.rollout.base import _ROLLOUT_REGISTRY  # noqa: E402
from verl.workers.rollout.replica import RolloutReplicaRegistry  # noqa: E402

from mia.training.cpu import engine  # noqa: E402

if TYPE_CHECKING:
    from mia.training.cpu.rollout import Replica

ROLLOUT = "cpu"


def _replica() -> type[Replica]:
    from mia.training.cpu.rollout import Replica  # noqa: PLC0415 - as verl does: only those who serve load it

    return Replica


engine.register()
RolloutReplicaRegistry.register(ROLLOUT, _replica)
_ROLLOUT_REGISTRY[ROLLOUT, "async"] = "mia.training.cpu.rollout.WeightSender"  # has no public way to register
