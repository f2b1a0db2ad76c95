import pytest

pytest.importorskip("verl")

import verl.trainer.ppo.v1.replay_buffer as upstream

from mia.training import sampler
from mia.training.config import Groups
from mia.training.sampler import FAILED, CompleteGroups, TooManyDropped

ROLLOUTS = 8


class Queue:
    """What TransferQueue is to the sampler: tags by key, in memory."""

    def __init__(self):
        self.tags = {}

    def kv_list(self, partition_id=None):
        return {"train": self.tags}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            self.tags.pop(key, None)

    def put(self, uid, *, dead=(), short=0):
        tag = {"is_prompt": True, "status": "failure" if dead else "finished", "global_steps": 1}
        self.tags[uid] = tag | {f"{FAILED}{rollout:04}": kind for rollout, kind in dead}
        lost = {rollout for rollout, _ in dead}
        for rollout in range(ROLLOUTS - short):
            if rollout not in lost:
                self.tags[f"{uid}_{rollout}_0"] = {"status": "success", "seq_len": 3}


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    monkeypatch.setattr(sampler, "tq", made)
    monkeypatch.setattr(upstream, "tq", made)
    return made


def buffer(refill=None, again=None, **groups):
    settings = Groups(poll_seconds=0.001, **groups).model_dump() | {"rollouts": ROLLOUTS}
    made = CompleteGroups("sync", {}, 8, "drop", settings, refill_fn=refill)
    made.again = again
    return made


def test_one_dead_rollout_leaves_the_batch_that_there_would_be_without_its_group(queue):
    for uid in ("b", "a"):
        queue.put(uid)
    expected, _ = buffer().sample(1, "train", 2)
    for uid in ("b", "dead", "a"):
        queue.put(uid, dead=[(3, "search")] if uid == "dead" else ())
    rows, told = buffer(dropped="again", again=lambda uid: False).sample(1, "train", 3)
    assert (rows.keys, rows.tags) == (expected.keys, expected.tags)
    assert rows.keys == [f"{uid}_{rollout}_0" for uid in "ab" for rollout in range(ROLLOUTS)]
    assert told == {"mia/groups/dropped": 1.0, "mia/groups/given_up": 1.0, "mia/dropped/search": 1.0}
    assert queue.tags.keys() == set(
        rows.keys
    )  # the trainer clears what it was given; of the dead group nothing is left


def test_a_group_that_is_dropped_is_replaced_by_another_question(queue):
    queue.put("a")
    queue.put("dead", dead=[(0, "judge"), (5, "executor")])
    asked = []

    def refill(number):
        asked.append(number)
        queue.put("c")

    rows, told = buffer(refill).sample(1, "train", 2)
    assert asked == [1]
    assert {key[0] for key in rows.keys} == {"a", "c"}
    assert told == {"mia/groups/dropped": 1.0, "mia/groups/given_up": 0.0, "mia/dropped/judge": 1.0}


def test_a_question_is_tried_again_before_it_is_given_up(queue):
    queue.put("a")
    queue.put("dead1", dead=[(0, "judge")])
    tries = ["dead2", "dead3"]

    def again(uid):
        if not tries:
            return False
        queue.put(tries.pop(0), dead=[(1, "judge")])
        return True

    rows, told = buffer(dropped="again", again=again).sample(1, "train", 2)
    assert len(rows.keys) == ROLLOUTS
    assert told == {"mia/groups/dropped": 3.0, "mia/groups/given_up": 1.0, "mia/dropped/judge": 3.0}


def test_a_finished_group_that_lacks_a_rollout_is_not_complete(queue):
    queue.put("a")
    queue.put("b", short=1)
    _, told = buffer(lambda number: queue.put("c")).sample(1, "train", 2)
    assert told["mia/dropped/incomplete"] == 1.0


def test_a_run_whose_groups_mostly_fail_stops(queue):
    numbers = iter(range(1000))
    queue.put("dead", dead=[(0, "search")])
    with pytest.raises(TooManyDropped, match="search"):
        buffer(lambda number: queue.put(f"dead{next(numbers)}", dead=[(0, "search")])).sample(1, "train", 4)
    queue.tags.clear()
    queue.put("dead", dead=[(0, "search")])
    with pytest.raises(TooManyDropped):
        buffer(dropped="again", again=lambda uid: False).sample(1, "train", 1)


def test_rollouts_are_in_order_where_there_are_more_than_ten(queue, monkeypatch):
    monkeypatch.setitem(globals(), "ROLLOUTS", 12)
    queue.put("a")
    rows, _ = buffer().sample(1, "train", 1)
    assert rows.keys == [f"a_{rollout}_0" for rollout in range(12)]
