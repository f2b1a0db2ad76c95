"""verl's synchronous trainer with our order of questions, complete groups, metrics and alarms."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import transfer_queue as tq
from omegaconf import open_dict
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils
from verl.utils.dataset.rl_dataset import collate_fn

from mia.training.config import stage_of
from mia.training.dataset import Order
from mia.training.metrics import Collapsed, Watch, summary
from mia.training.sampler import LEARNS, CompleteGroups

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from tensordict import TensorDict
    from transfer_queue import KVBatchMeta


class GroupTrainer(PPOTrainerSync):
    """Trains on complete groups in an order that a checkpoint brings back exactly."""

    def __init__(self, config: DictConfig) -> None:
        self.stage = stage_of(config)
        self._submitted: dict[str, int] = {}  # group -> number of its question
        self._asked: Counter[tuple[int, int]] = Counter()  # (step, question) -> how often
        self._watch = Watch(self.stage.alarms)
        self._collapse = ""
        super().__init__(config)

    def _build_replay_buffer(self) -> CompleteGroups:
        buffer: CompleteGroups = super()._build_replay_buffer()
        buffer.again = self._again
        return buffer

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        with open_dict(self.config):
            self.config.data.gen_batch_size = 1  # a group that is dropped is replaced by one
        data = self.config.data
        self.train_dataloader = Order(len(self.train_dataset), data.get("seed") or 0, shuffle=data.shuffle)

    def _fetch_one_gen_batch(self) -> TensorDict:
        return self._row(self.train_dataloader.next())

    def _row(self, number: int) -> TensorDict:
        """Return one question as a batch; its id is settled by run, step and question, and free of verl's separator."""
        asked = self.global_steps, number
        self._asked[asked] += 1
        name = f"{self.stage.run}/{self.global_steps}/{number}/{self._asked[asked]}"
        uid = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._submitted[uid] = number
        batch = collate_fn([self.train_dataset[number]])
        batch |= {"uid": np.array([uid], dtype=object), LEARNS: np.array([True], dtype=object)}
        return tensordict_utils.get_tensordict(batch)

    def _again(self, uid: str) -> bool:
        """Submit the question of a group once more, unless it was tried often enough."""
        number = self._submitted[uid]
        if self._asked[self.global_steps, number] > self.stage.groups.retries:
            return False
        batch = self._row(number)
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        self._submit_batch_to_rollout(batch)
        return True

    def on_step_begin(self) -> None:
        """Forget what the step before submitted."""
        super().on_step_begin()
        self._submitted.clear()
        self._asked.clear()

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute them, and tell by how much they differ from what the rollout server sampled by.

        A mask or an id that is out of place shows here, since all that was not sampled has log-probability 0 there.
        """
        batch = super()._compute_old_log_prob(batch, metrics)
        names = ["old_log_probs", "rollout_log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names).to_padded_tensor()
        difference = (data["old_log_probs"] - data["rollout_log_probs"]).abs() * data["response_mask"]
        metrics["mia/log_probs/difference"] = difference.max().item()
        return batch

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        metrics.update(summary([fields["reward_extra_info"] for fields in data["extra_fields"]]))
        self._collapse = self._watch.seen(metrics)
        if self._collapse:
            self._save_checkpoint()
            self.total_training_steps = self.global_steps  # the last step, as verl's loop sees it

    def fit(self, agent_loop_manager: Any) -> None:
        """Train, and say why the run stopped early; verl calls `on_train_end` only of a run that skips its last step.

        Raises:
            Collapsed: a sign of collapse lasted, be it to the very last step.
        """
        super().fit(agent_loop_manager)
        if self._collapse:
            steps = self.stage.alarms.steps
            raise Collapsed(
                f"Stopped after step {self.global_steps - 1}, saved: for {steps} steps in a row {self._collapse}.",
                remedy="Go on from an earlier checkpoint with a lower learning rate, or change mia.alarms.",
            )
