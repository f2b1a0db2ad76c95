import functools

import pytest

pytest.importorskip("verl")

import numpy as np
import torch
from engines import byte_tokenizer, engine_of, tiny
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.utils.tensordict_utils import get_tensordict
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

ROLLOUTS = 8


def rollout(uid, reward, *, length):
    """Return one rollout as a trainer holds it: a prompt, and replies around something that others said."""
    prompt = torch.randint(0, 200, (7,))
    response = torch.randint(0, 200, (length,))
    mask = torch.ones_like(response)
    mask[2:4] = 0
    ids = torch.cat((prompt, response))
    return {
        "uid": uid,
        "prompts": prompt,
        "responses": response,
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "response_mask": mask,
        "loss_mask": mask,
        "rm_scores": torch.nn.functional.pad(torch.tensor([reward]), (length - 1, 0)),
        "old_log_probs": -torch.rand(length),
    }


def group(uid):
    return [rollout(uid, float(number % 3), length=5 + number) for number in range(ROLLOUTS)]


def padding(like):
    made, tag = construct_minimal_padding_template(like, {}, 0)
    assert tag["is_padding"]
    return made | {"uid": "pad", "old_log_probs": torch.zeros(1)}


def gradient(engine, rows):
    longest = max(len(row["responses"]) for row in rows)
    padded = {
        name: torch.stack([torch.nn.functional.pad(row[name], (0, longest - len(row[name]))) for row in rows])
        for name in ("rm_scores", "response_mask")
    }
    advantages, _ = compute_grpo_outcome_advantage(
        padded["rm_scores"], padded["response_mask"], np.array([row["uid"] for row in rows], dtype=object)
    )
    columns = {name: [row[name] for row in rows] for name in rows[0] if torch.is_tensor(rows[0][name])}
    columns["advantages"] = [row[: len(one["responses"])] for row, one in zip(advantages, rows, strict=True)]
    data = get_tensordict(
        {name: torch.nested.as_nested_tensor(column, layout=torch.jagged) for name, column in columns.items()},
        {"temperature": 1.0, "micro_batch_size_per_gpu": ROLLOUTS, "global_batch_size": 3 * ROLLOUTS}
        | {"use_remove_padding": False, "use_dynamic_bsz": False, "use_fused_kernels": False}
        | {"calculate_entropy": False},
    )
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=ROLLOUTS, ppo_micro_batch_size_per_gpu=ROLLOUTS, use_dynamic_bsz=False
    )
    engine.optimizer_zero_grad()
    with engine.train_mode():
        engine.forward_backward_batch(data, functools.partial(ppo_loss, config), forward_only=False)
        return torch.cat([each.grad.full_tensor().flatten() for each in engine.module.parameters()])


@pytest.mark.usefixtures("alone_in_a_group")
def test_what_stands_in_the_place_of_a_dropped_group_pulls_nowhere(tmp_path):
    """One dead rollout in a group of 8 gives exactly the gradient of the batch without that group."""
    tokenizer = byte_tokenizer()
    tiny(len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = engine_of(str(tmp_path))
    torch.manual_seed(1)
    complete = group("a") + group("b")
    without = gradient(engine, complete)
    assert without.abs().max() > 1e-4
    assert torch.equal(gradient(engine, complete + [padding(complete[0])] * ROLLOUTS), without)
    partial = gradient(engine, complete + group("dead")[:-1] + [padding(complete[0])])  # as verl would train
    assert not torch.allclose(partial, without)
