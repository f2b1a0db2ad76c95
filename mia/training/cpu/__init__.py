"""verl on CPUs: a platform, the training engine and a rollout server, plugged in by verl's own registries.

Every process of a run loads it: VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=mia.training.cpu.
"""

from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplicaRegistry

from mia.training.cpu import platform as platform

ROLLOUT = "cpu"


def _replica() -> type:
    from mia.training.cpu.rollout import Replica  # noqa: PLC0415 - it loads the platform, which is being registered here

    return Replica


RolloutReplicaRegistry.register(ROLLOUT, _replica)
# There is no public way to name the trainer's side of a rollout server.
base._ROLLOUT_REGISTRY[ROLLOUT, "async"] = "mia.training.cpu.rollout.Adapter"  # noqa: SLF001

from mia.training.cpu import engine as engine  # noqa: E402 - asks for the platform
