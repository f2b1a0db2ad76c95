"""What we use of verl 0.9.1 without its promise: each test names a seam, and its message what breaks without it."""

import asyncio
import inspect
from importlib.metadata import version

import pytest

pytest.importorskip("verl")

import torch
import torch.distributed
import verl.trainer.ppo.v1.agent_loop_tq as loops
import verl.trainer.ppo.v1.replay_buffer as replay
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    AgentLoopWorker,
    DictConfigWrap,
)
from verl.plugin.platform.platform_base import PlatformBase
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import distributed
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder, MergeResult
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.rollout import base
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

import mia.training.cpu
from mia.training.cpu.platform import PlatformCPU
from mia.training.cpu.rollout import Replica, Server

SAMPLER = "mia.training.sampler would not see, drop or order groups"
TRAINER = "mia.training.trainer would not choose questions, count groups or stop"
TOKENS = "mia.training.conversation would build other ids than the model sampled"
SERVER = "the rollout server on CPU would not answer verl"


def told(function):
    return list(inspect.signature(function).parameters)[1:]


def names(function):
    """Return the names that a function looks up, in the comprehensions and functions inside it too."""
    codes, found = [inspect.unwrap(function).__code__], []
    while codes:
        code = codes.pop()
        found += code.co_names
        codes += filter(inspect.iscode, code.co_consts)
    return found


def test_these_seams_are_those_of_the_pinned_version():
    assert version("verl") == "0.9.1", "Look at every seam in this file again, then pin the new version."


def test_the_rollout_registry_maps_name_and_mode_to_a_class():
    assert base._ROLLOUT_REGISTRY["vllm", "async"].rpartition(".")[2] == "ServerAdapter", SERVER
    assert base._ROLLOUT_REGISTRY[mia.training.cpu.ROLLOUT, "async"] == "mia.training.cpu.rollout.WeightSender"
    assert base.get_rollout_class("cpu").__mro__[1] is base.BaseRollout


def test_the_engine_looks_up_the_policy_that_pins_memory_in_its_module():
    looked_up = names(transformer_impl.FSDPEngine._build_fsdp_module)
    assert "CPUOffloadPolicy" in looked_up, (
        "a frozen reference model would pin memory, which fails without an accelerator"
    )
    assert hasattr(transformer_impl, "CPUOffloadPolicy")


def test_the_engine_sends_merged_weights_by_a_method_that_ours_overrides():
    assert "_merged_lora_per_tensor_param" in names(transformer_impl.FSDPEngine.get_per_tensor_param), (
        "an adapter's rollouts on CPU would be sampled by weights rounded to bfloat16"
    )


def test_verl_names_the_backend_of_the_cpu_twice(monkeypatch):
    backends = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **_: backends.append(backend))
    distributed.initialize_global_process_group_ray()
    assert backends == ["cpu:gloo,cpu:gloo"], "mia.training.cpu.platform mends another string; processes would not meet"


def test_processes_meet_though_verl_names_the_backend_twice(monkeypatch, tmp_path):
    monkeypatch.setenv("DIST_INIT_METHOD", f"file://{tmp_path}/meet")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    distributed.initialize_global_process_group_ray()
    try:
        assert torch.distributed.get_rank() == 0
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        assert total.item() == 1
    finally:
        torch.distributed.destroy_process_group()


def test_the_platform_answers_all_that_verl_asks():
    assert not getattr(PlatformCPU, "__abstractmethods__", None)
    assert PlatformBase.__abstractmethods__ <= set(dir(PlatformCPU)), "verl would not start on CPU"
    module = PlatformCPU().device_module
    needed = (
        "current_stream device_count empty_cache get_device_name get_rng_state is_available max_memory_allocated "
        "max_memory_reserved mem_get_info memory_allocated memory_reserved set_device set_per_process_memory_fraction "
        "set_rng_state stream Stream synchronize"
    )
    missing = [name for name in needed.split() if not hasattr(module, name)]
    assert missing == [], "verl calls these of torch.cuda"


def test_verl_forwards_no_variable_that_loads_a_plug_in():
    variables = get_ppo_ray_runtime_env()["env_vars"]
    assert not {"VERL_USE_EXTERNAL_MODULES", "VERL_PLATFORM"} & set(variables), (
        "the CPU overlay need not forward it in ray_kwargs.ray_init.runtime_env any more"
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_sync_metadata_from_transfer_queue", []),
        ("_terminal_eviction_reasons", ["global_steps", "partition_id"]),
        ("_sampleable_terminal_keys", ["partition_id", "eviction_reasons"]),
        ("_select_prompt_uids", ["partition_id", "sampleable_keys", "batch_size"]),
        ("_clear_groups", ["partition_id", "uids"]),
        ("_materialize_batch", ["partition_id", "selected_prompt_uids", "partition_snapshot"]),
        ("_wait_for_next_poll", ["partition_id", "last_debug_time"]),
        ("sample", ["global_steps", "partition_id", "batch_size"]),
    ],
)
def test_the_sampler_overrides_or_calls_of_the_replay_buffer(name, parameters):
    assert told(getattr(ReplayBuffer, name)) == parameters, SAMPLER


def test_the_replay_buffer_takes_from_the_trainer_what_the_sampler_reads():
    buffer = ReplayBuffer("sync", {}, 1, "drop", {"any": 1}, poll_interval=0.5, refill_fn=print)
    assert (buffer.poll_interval, buffer.refill_fn, buffer.sampler_kwargs) == (0.5, print, {"any": 1}), SAMPLER
    assert all(hasattr(buffer, name) for name in ("partitions", "finished_keys", "failure_keys")), SAMPLER
    assert "sampler_kwargs" in names(PPOTrainer._build_replay_buffer), SAMPLER
    assert "poll_interval" in names(ReplayBuffer._wait_for_next_poll), "polls of 2 s would take most of a step"


def test_a_prompt_is_told_from_its_rollouts_by_its_tag_and_a_key_is_split_at_underscores(monkeypatch):
    tags = {
        "a": {"is_prompt": True, "status": "finished", "global_steps": 3},
        "b": {"is_prompt": True, "status": "failure", "global_steps": 3},
        "a_0_0": {"status": "success"},
        "a_1_0": {"status": "success"},
    }
    cleared = []
    queue = type("Queue", (), {"kv_list": lambda: {"train": tags}, "kv_clear": lambda **kwargs: cleared.append(kwargs)})
    monkeypatch.setattr(replay, "tq", queue)
    buffer = ReplayBuffer("sync", {}, 1, "drop", {})
    buffer._sync_metadata_from_transfer_queue()
    assert (buffer.finished_keys["train"], buffer.failure_keys["train"]) == ({"a"}, {"b"}), SAMPLER
    assert list(buffer.partitions["train"]) == ["a_0_0", "a_1_0"], SAMPLER
    batch = buffer._materialize_batch("train", ["a"], buffer.partitions["train"])
    assert batch.keys == ["a_0_0", "a_1_0"], SAMPLER
    buffer._clear_groups("train", {"a"})
    assert sorted(cleared[-1]["keys"]) == ["a", "a_0_0", "a_1_0"], SAMPLER


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_build_replay_buffer", []),
        ("_init_dataloader", []),
        ("_fetch_one_gen_batch", []),
        ("_next_train_batch", ["num_prompts"]),
        ("_submit_batch_to_rollout", ["batch"]),
        ("_add_prompts_to_generate", ["num_prompts"]),
        ("_compute_old_log_prob", ["batch", "metrics"]),
        ("_compute_metrics", ["batch", "metrics", "timing_raw", "global_steps", "epoch"]),
        ("_validate", []),
        ("_save_checkpoint", []),
        ("on_step_begin", []),
        ("fit", ["agent_loop_manager"]),
    ],
)
def test_the_trainer_overrides_or_calls_of_verls(name, parameters):
    assert told(getattr(PPOTrainerSync, name)) == parameters, TRAINER


@pytest.mark.parametrize(
    ("caller", "called"),
    [
        ("_next_train_batch", "_fetch_one_gen_batch"),
        ("_add_prompts_to_generate", "_next_train_batch"),
        ("_add_prompts_to_generate", "_submit_batch_to_rollout"),
        ("_build_replay_buffer", "_add_prompts_to_generate"),
        ("_step_once", "_compute_old_log_prob"),
        ("_save_checkpoint", "train_dataloader"),
        ("_load_checkpoint", "train_dataloader"),
        ("fit", "_compute_metrics"),
        ("fit", "total_training_steps"),
        ("fit", "on_step_begin"),
    ],
)
def test_verls_trainer_reaches_what_is_overridden(caller, called):
    assert called in names(getattr(PPOTrainer, caller)), TRAINER


class Rendered:
    """A tokenizer of letters."""

    def apply_chat_template(self, messages, *, add_generation_prompt=False, **_):
        text = "".join(f"({each['role'][0]}{each['content']})" for each in messages) + "(a" * add_generation_prompt
        return [ord(letter) for letter in text]


def test_a_loop_is_made_with_these_keywords_and_has_a_token_builder():
    rollout = type("Node", (), {"rollout": "rollout"})
    config = type("Config", (), {"actor_rollout_ref": rollout})
    keywords = {
        "trainer_config",
        "server_manager",
        "tokenizer",
        "processor",
        "dataset_cls",
        "data_config",
        "hf_model_type",
    }
    assert keywords <= set(told(AgentLoopBase.__init__)), "mia.training.loops would not be built"

    class Loop(AgentLoopBase):
        async def run(self, sampling_params, **kwargs):
            """Play."""

    async def made():
        return Loop(
            trainer_config=DictConfigWrap(config),
            server_manager="servers",
            tokenizer=Rendered(),
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap({}),
            more="ignored",
        )

    loop = asyncio.run(made())
    assert isinstance(loop.continuous_token_builder, ContinuousTokenBuilder), TOKENS
    assert (loop.config, loop.rollout_config, loop.server_manager) == (config, "rollout", "servers")


def test_the_token_builder_appends_and_aligns():
    builder = ContinuousTokenBuilder(Rendered())
    said = [{"role": "user", "content": "x"}]
    prompt = builder.build_initial_tokens(said)
    assert bytes(prompt) == b"(ux)(a", TOKENS
    replied = builder.merge_assistant_tokens(prompt, [1, 2])
    assert replied.token_ids == [*prompt, 1, 2], TOKENS
    assert builder.align_response_metadata(replied, [], [], assistant_logprobs=[-1.0, -2.0]) == ([1, 1], [-1.0, -2.0])
    after = [*said, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    merged = builder.merge_context_tokens(after[:2], after, replied.token_ids)
    assert merged.token_ids[: len(prompt) + 2] == replied.token_ids, TOKENS
    mask, log_probs = builder.align_response_metadata(merged, [1, 1], [-1.0, -2.0])
    appended = len(merged.token_ids) - len(replied.token_ids)
    assert (mask, log_probs) == ([1, 1] + [0] * appended, [-1.0, -2.0] + [0.0] * appended), TOKENS
    assert set(MergeResult.__dataclass_fields__) >= {"token_ids", "removed_prefix_token_count", "inserted_token_ids"}


def test_a_loops_output_has_the_fields_that_we_fill():
    filled = {
        *("prompt_ids", "response_ids", "response_mask", "response_logprobs"),
        *("reward_score", "num_turns", "metrics", "extra_fields"),
    }
    assert filled <= set(AgentLoopOutput.model_fields), "mia.training.loops would lose what it says of a rollout"
    assert {"generate_sequences", "tool_calls"} <= set(AgentLoopMetrics.model_fields)


def test_a_rollout_that_is_graded_needs_no_reward_worker_and_is_stored_with_its_versions(monkeypatch):
    stored = {}

    async def put(**kwargs):
        stored.update(kwargs)

    monkeypatch.setattr(loops, "tq", type("Queue", (), {"async_kv_batch_put": put}))
    worker = object.__new__(loops.AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    assert isinstance(worker, AgentLoopWorker)
    worker.reward_loop_worker_handles = [None]  # one that is called fails
    worker.distillation_enabled, worker.processor = False, None
    output = AgentLoopOutput(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        response_mask=[1, 0, 1],
        response_logprobs=[-1.0, 0.0, -3.0],
        reward_score=0.75,
        metrics=AgentLoopMetrics(),
        extra_fields={"min_global_steps": 4, "max_global_steps": 5, "reward_extra_info": {"final": 1.0}},
    )
    row = {"uid": "a", "session_id": 6, "global_steps": 5, "learns": True}
    asyncio.run(worker._agent_loop_postprocess(output, validate=False, **row))
    fields, [tag] = stored["fields"], stored["tags"]
    assert isinstance(fields, TensorDict)
    assert (stored["keys"], stored["partition_id"]) == (["a_6_0"], "train")
    assert fields["rm_scores"][0].tolist() == [0, 0, 0.75], "our reward would not reach the trainer"
    assert fields["loss_mask"][0].tolist() == [1, 0, 1], "tokens that nobody sampled would be trained on"
    assert fields["rollout_log_probs"][0].tolist() == [-1.0, 0.0, -3.0], TOKENS
    assert (tag["min_global_steps"], tag["max_global_steps"]) == (4, 5)
    assert fields["extra_fields"][0]["reward_extra_info"] == {"final": 1.0}, "mia.training.metrics would find no facts"


def test_a_servers_reply_has_the_fields_that_verl_reads():
    assert {"token_ids", "log_probs", "stop_reason", "extra_fields"} <= set(TokenOutput.model_fields), SERVER
    assert {"request_id", "prompt_ids", "sampling_params"} <= set(told(Server.generate)), SERVER
    assert {"min_global_steps", "max_global_steps"} <= set(
        inspect.unwrap(LLMServerClient.generate).__code__.co_consts
    ), "rollouts would not say by which weights they were sampled"


def test_verl_calls_of_a_server_only_what_it_has():
    inherited = {
        name
        for name, member in vars(RolloutReplica).items()
        if inspect.isfunction(member) and "remote" in names(member)
    } - set(vars(Replica))
    called = {"abort_all_requests", "resume_generation"}
    assert inherited - {"get_ray_class_with_init_args"} == called, SERVER
    assert all(inspect.iscoroutinefunction(getattr(Server, name)) for name in called), SERVER


def test_verl_tells_servers_apart_by_an_address_that_need_not_answer():
    assert {"_server_address", "_server_handle"} <= set(names(LLMServerManager._initialize_llm_servers)), SERVER
