"""A training run: verl's entry point with our trainer."""

from __future__ import annotations

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils.config import validate_config

from mia.training.checks import check
from mia.training.config import stage_of
from mia.training.trainer import GroupTrainer


@ray.remote
class Runner:
    """The process that holds the trainer."""

    def run(self, config: DictConfig) -> None:
        """Train to the end."""
        OmegaConf.resolve(config)
        config.transfer_queue.enable = True
        tq.init(config.transfer_queue)
        trainer = GroupTrainer(config)
        succeeded = False
        try:
            trainer.init()
            loops = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(loops)
            succeeded = True
        finally:
            if logger := getattr(trainer, "logger", None):
                logger.finish(exit_code=0 if succeeded else 1)
            tq.close()


def train(config: DictConfig) -> None:
    """Check what the run needs, then train.

    Raises:
        ConfigError: something that the run needs is missing.
        InputError: a data file cannot be used.
    """
    stage = stage_of(config)
    check(config, stage)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=Runner)
