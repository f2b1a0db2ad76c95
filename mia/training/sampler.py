"""Complete groups: of a step's questions only those whose rollouts all ended and were graded are trained on."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from mia.errors import MiaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transfer_queue import KVBatchMeta

LEARNS = "learns"  # of a row: a group of the training partition
FAILED = "failed_"  # begins the tag by which a rollout tells why it failed
_WATCHED = 100  # groups

_log = logging.getLogger(__name__)


class TooManyDropped(MiaError):  # noqa: N818 - named for what it says
    """Most groups cannot be trained on, so that a service must be down or broken."""


class CompleteGroups(ReplayBuffer):
    """The trainer's view of finished rollouts: verl's own takes groups in which some have failed.

    `sampler_kwargs` are `mia.training.config.Groups` and `rollouts`, the size of a group. `again` submits a question
    once more and returns whether it may; the trainer sets it.
    """

    again: Callable[[str], bool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = self.sampler_kwargs
        self.poll_interval = settings["poll_seconds"]
        self._rollouts: int = settings["rollouts"]
        self._refills = settings["dropped"] == "refill"
        self._most: float = settings["most_dropped"]
        self._outcomes: deque[bool] = deque(maxlen=_WATCHED)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """Return the rows of `batch_size` complete groups, sorted, and what was dropped meanwhile by kind of error.

        Where questions are tried again rather than replaced, groups that are given up make the batch smaller.

        Raises:
            TooManyDropped: most groups fail, or all of a step.
        """
        if partition_id == "val":
            found: tuple[KVBatchMeta, dict[str, float]] = super().sample(global_steps, partition_id, batch_size)
            return found
        dropped: Counter[str] = Counter()
        given_up, waited = 0, 0.0
        while True:
            self._sync_metadata_from_transfer_queue()
            lost = self._lost(partition_id)
            for uid, kind in lost.items():
                dropped[kind] += 1
                self._outcomes.append(False)
                self._clear_groups(partition_id, {uid})
            for uid in lost:
                given_up += self._replaced(uid)
            if lost:
                self._check(dropped, batch_size, given_up)
                continue
            if len(self.finished_keys[partition_id]) >= batch_size - given_up:
                break
            waited = self._wait_for_next_poll(partition_id, waited)
        uids, snapshot, _ = self._select_prompt_uids(
            partition_id, self.finished_keys[partition_id], batch_size - given_up
        )
        self._outcomes.extend([True] * len(uids))
        rows = self._materialize_batch(partition_id, uids, dict(sorted(snapshot.items(), key=_place)))
        told = {f"mia/dropped/{kind}": float(count) for kind, count in dropped.items()}
        return rows, {"mia/groups/dropped": float(dropped.total()), "mia/groups/given_up": float(given_up), **told}

    def _lost(self, partition_id: str) -> dict[str, str]:
        """Return the groups that ended but are not complete, each with the kind of its first error."""
        failed = dict.fromkeys(self.failure_keys[partition_id], "unknown")
        if failed:
            for uid, tag in (tq.kv_list(partition_id) or {}).get(partition_id, {}).items():
                told = sorted(name for name in tag if name.startswith(FAILED))
                if uid in failed and told:
                    failed[uid] = tag[told[0]]
        sizes = Counter(key.split("_")[0] for key in self.partitions[partition_id])
        short = {uid: "incomplete" for uid in self.finished_keys[partition_id] if sizes[uid] != self._rollouts}
        return dict(sorted((failed | short).items()))

    def _replaced(self, uid: str) -> int:
        """Submit something in the place of a group; return 1 if the step has to do without."""
        if self._refills:
            self.refill_fn(1)
            return 0
        return 0 if self.again(uid) else 1

    def _check(self, dropped: Counter[str], batch_size: int, given_up: int) -> None:
        share = self._outcomes.count(False) / len(self._outcomes)
        enough = len(self._outcomes) >= min(_WATCHED, 2 * batch_size)
        _log.warning("Groups dropped in this step: %s", dict(dropped))
        if (enough and share > self._most) or given_up == batch_size:
            raise TooManyDropped(
                f"{share:.0%} of the last {len(self._outcomes)} groups could not be trained on: {dict(dropped)}.",
                remedy="See which service is down; the run goes on from its last checkpoint when started again.",
            )


def _place(item: tuple[str, Any]) -> tuple[str, int, int]:
    uid, session, index = item[0].rsplit("_", 2)
    return uid, int(session), int(index)
