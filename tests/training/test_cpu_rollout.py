import asyncio

import pytest

pytest.importorskip("verl")

import torch
from engines import byte_tokenizer, engine_of, tiny
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.plugin.platform.platform_manager import get_platform
from verl.utils.tensordict_utils import get_tensordict
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplica, get_rollout_replica_class

import mia.training.cpu
from mia.errors import ConfigError, InputError
from mia.training.cpu.rollout import Server, endings, load
from mia.training.cpu.sampling import Request, Sampling, choose, generate

WINDOW = 64


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny(len(tokenizer))


def request(prompt, *, most=12, chance=None, **sampling):
    sampling = Sampling.model_validate(sampling)
    seeded = torch.Generator().manual_seed(sampling.seed if sampling.seed is not None else 0)
    return Request(prompt, sampling, most, chance or seeded)


def replies(model, tokenizer, *requests, eos=frozenset(), aborted=lambda: False):
    return generate(model, tokenizer, requests, eos, aborted)


def test_log_probabilities_are_the_actors_whatever_filters_and_company(model, tokenizer):
    asked = [
        request([5, 6, 7], temperature=0.7, seed=1),
        request(list(range(30)), temperature=1.3, top_p=0.8, seed=2),
        request([9], top_k=3, seed=3, most=5),
    ]
    for each, reply in zip(asked, replies(model, tokenizer, *asked), strict=True):
        ids = torch.tensor([[*each.prompt, *reply.ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(each.prompt) - 1 : -1] / each.sampling.temperature
        expected = logprobs_from_logits(logits, torch.tensor(reply.ids))
        assert (torch.tensor(reply.log_probs) - expected).abs().max() < 1e-5
        assert len(reply.ids) == each.max_tokens


@pytest.mark.parametrize("seed", range(20))
def test_a_seeded_reply_is_the_same_alone_and_in_company(model, tokenizer, seed):
    others = [request(list(range(length)), seed=seed + length, most=length) for length in (1, 17, 40)]
    alone = replies(model, tokenizer, request([3, 1, 4], seed=seed, top_p=0.95))[0]
    together = replies(model, tokenizer, *others[:2], request([3, 1, 4], seed=seed, top_p=0.95), others[2])[2]
    assert alone.ids == together.ids
    assert alone.log_probs == pytest.approx(together.log_probs, abs=1e-5)
    assert replies(model, tokenizer, request([3, 1, 4], seed=seed + 100))[0].ids != alone.ids


def test_tokens_are_drawn_as_often_as_they_are_probable():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    chance = torch.Generator().manual_seed(0)
    batch = [request([0], chance=chance)] * 1000
    tokens = torch.cat([choose(logits.expand(1000, -1), batch)[0] for _ in range(20)])
    shares = tokens.bincount(minlength=4) / len(tokens)
    assert shares.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.015)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, {2, 3}),
        ({"top_p": 0.5}, {2, 3}),  # 0.4 alone is not yet half
        ({"top_p": 0.39}, {3}),
        ({"top_k": 3, "top_p": 0.45}, {2, 3}),  # of what top_k leaves 0.4 is 0.444
        ({"temperature": 0}, {3}),
        ({}, {0, 1, 2, 3}),
    ],
)
def test_what_is_filtered_out_is_never_drawn(sampling, kept):
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    chance = torch.Generator().manual_seed(0)
    asked = [request([0], chance=chance, **sampling), request([0], chance=chance)] * 500
    tokens, log_probs = choose(logits.expand(1000, -1), asked)
    assert set(tokens[::2].tolist()) == kept
    assert set(tokens[1::2].tolist()) == {0, 1, 2, 3}
    assert log_probs.exp().tolist() == pytest.approx([0.1 * (1 + token) for token in tokens.tolist()], abs=1e-6)


def test_a_reply_ends_with_the_token_that_completes_a_stop_string(model, tokenizer):
    free = replies(model, tokenizer, request([8, 9], seed=4, most=40))[0]
    text = tokenizer.decode(free.ids)
    stop = text[10:14]
    reply = replies(model, tokenizer, request([8, 9], seed=4, most=40, stop=["nowhere to be found", stop]))[0]
    assert reply.ended
    assert stop in tokenizer.decode(reply.ids)
    assert stop not in tokenizer.decode(reply.ids[:-1])
    assert reply.ids == free.ids[: len(reply.ids)]


def test_stop_strings_of_many_bytes_are_found(model, tokenizer):
    class Says:
        """A model that says a text whatever it is asked."""

        def __init__(self, ids):
            self.ids, self.at = ids, -1

        def __call__(self, input_ids, **_):
            self.at += 1
            logits = torch.full((1, 1, 300), -30.0)
            logits[0, 0, self.ids[self.at]] = 30.0
            return type("Output", (), {"logits": logits, "past_key_values": None})

    said = tokenizer.encode("Der Turm 塔</答え> und mehr", add_special_tokens=False)
    reply = replies(Says(said), tokenizer, request([1], most=99, stop=["</答え>"]))[0]
    assert tokenizer.decode(reply.ids) == "Der Turm 塔</答え>"


def test_end_tokens_end_a_reply_unless_they_are_ignored(model, tokenizer):
    free = replies(model, tokenizer, request([8, 9], seed=5, most=20))[0].ids
    third = frozenset({free[2]})
    first = free.index(free[2]) + 1
    assert replies(model, tokenizer, request([8, 9], seed=5, most=20), eos=third)[0].ids == free[:first]
    assert replies(model, tokenizer, request([8, 9], seed=5, most=20, ignore_eos=True), eos=third)[0].ids == free
    named = request([8, 9], seed=5, most=20, ignore_eos=True, stop_token_ids=list(third))
    assert replies(model, tokenizer, named)[0].ids == free[:first]


def test_an_abort_returns_what_there_is(model, tokenizer):
    left = iter([False, False, False, True])
    reply = replies(model, tokenizer, request([8], seed=1), aborted=lambda: next(left))[0]
    assert (len(reply.ids), len(reply.log_probs), reply.ended) == (3, 3, False)


def test_end_tokens_are_those_of_tokenizer_and_generation_config(tokenizer):
    several = type("Config", (), {"eos_token_id": [3, 4]})
    one = type("Config", (), {"eos_token_id": 3})
    assert endings(tokenizer, several) == {tokenizer.eos_token_id, 3, 4}
    assert endings(tokenizer, one) == {tokenizer.eos_token_id, 3}
    assert endings(tokenizer, None) == {tokenizer.eos_token_id}


@pytest.mark.parametrize("tied", [False, True])
def test_weights_must_be_all_of_the_models_and_no_others(tied):
    source, target = tiny(40, seed=1, tied=tied), tiny(40, seed=2, tied=tied)
    weights = dict(source.state_dict())
    if tied:
        del weights["lm_head.weight"]
    load(target, {name: tensor.bfloat16() for name, tensor in weights.items()})
    assert torch.equal(target.lm_head.weight, source.lm_head.weight.bfloat16().float())
    with pytest.raises(ConfigError, match=r"missing \['model\.norm\.weight'\]"):
        load(target, {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"})
    with pytest.raises(ConfigError, match=r"unknown \['model\.more'\]"):
        load(target, weights | {"model.more": torch.zeros(1)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer, model):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def server(folder, **config):
    ours = {"max_model_len": WINDOW, "prompt_length": 40, "response_length": 24, "dtype": "float32", "max_num_seqs": 8}
    known = HFModelConfig(path=folder, override_config={"attn_implementation": "sdpa"})
    return Server(RolloutConfig(name="cpu", **(ours | config)), known, 0)


def ask(server, prompt=(1, 2, 3), **sampling):
    return server.generate(list(prompt), {"logprobs": True} | sampling, "request")


def test_a_server_answers_as_verl_expects(folder, model, tokenizer):
    async def talk():
        made = server(folder)
        with pytest.raises(ConfigError, match="no weights yet"):
            await ask(made)
        await made.load_weights(model.state_dict(), 7)
        return await asyncio.gather(*(ask(made, seed=seed) for seed in range(20)), ask(made, logprobs=False))

    *found, plain = asyncio.run(talk())
    for seed, output in enumerate(found):
        expected = replies(model, tokenizer, request([1, 2, 3], seed=seed, most=24), eos={tokenizer.eos_token_id})[0]
        assert output.token_ids == expected.ids
        assert output.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
        assert (output.stop_reason, output.extra_fields) == ("completed", {"global_steps": 7})
    assert plain.log_probs is None


@pytest.mark.parametrize(
    ("prompt", "sampling", "told"),
    [
        (range(WINDOW), {}, "leaves no room for a reply in a window of 64"),
        ((), {}, "A prompt of 0 tokens"),
        ((1,), {"min_p": 0.1}, "min_p: Extra inputs are not permitted"),
        ((1,), {"repetition_penalty": 1.1}, "repetition_penalty"),
        ((1,), {"temperature": -1}, "temperature"),
    ],
)
def test_a_server_refuses_what_it_cannot_do(folder, prompt, sampling, told):
    with pytest.raises(InputError, match=told):
        asyncio.run(ask(server(folder), prompt, **sampling))


def test_a_server_refuses_images(folder):
    with pytest.raises(InputError, match="not of text alone"):
        asyncio.run(server(folder).generate([1], {}, "request", image_data=[object()]))


def test_a_reply_fits_into_the_window(folder, model):
    async def talk():
        made = server(folder)
        await made.load_weights(model.state_dict(), 1)
        return await ask(made, range(60), ignore_eos=True, max_tokens=1000)

    assert len(asyncio.run(talk()).token_ids) == 4


def test_a_deterministic_server_takes_one_request_at_a_time(folder, model, monkeypatch):
    seen = []

    def noted(model, tokenizer, requests, *more):
        seen.append([each.prompt[0] for each in requests])
        return generate(model, tokenizer, requests, *more)

    monkeypatch.setattr("mia.training.cpu.rollout.generate", noted)

    async def talk(**config):
        made = server(folder, **config)
        await made.load_weights(model.state_dict(), 1)
        await asyncio.gather(*(ask(made, [number], seed=0, max_tokens=2) for number in range(5)))

    asyncio.run(talk())
    assert seen == [[0, 1, 2, 3, 4]]
    seen.clear()
    asyncio.run(talk(full_determinism=True))
    assert seen == [[0], [1], [2], [3], [4]]


def test_an_error_is_that_of_its_batch_alone(folder, model):
    async def talk():
        made = server(folder)
        await made.load_weights(model.state_dict(), 1)
        failed = await asyncio.gather(ask(made, [10_000]), ask(made), return_exceptions=True)
        return failed, await ask(made)

    failed, answered = asyncio.run(talk())
    assert [type(each) for each in failed] == [IndexError, IndexError]
    assert answered.stop_reason == "completed"


def test_an_abort_ends_all_and_new_requests_wait(folder, model):
    async def talk():
        made = server(folder, max_model_len=500, response_length=400, max_num_seqs=1)
        await made.load_weights(model.state_dict(), 3)
        asked = [asyncio.create_task(ask(made, ignore_eos=True)) for _ in range(2)]
        await asyncio.sleep(0.1)
        await made.abort_all_requests()
        cut = await asyncio.gather(*asked)
        late = asyncio.create_task(ask(made, max_tokens=2, ignore_eos=True))
        await asyncio.sleep(0.05)
        assert not late.done()
        await made.load_weights(model.state_dict(), 4)
        await made.resume_generation()
        answered = await late
        await made.abort_all_requests(reject_request=True)
        return cut, answered, await ask(made)

    (first, second), answered, rejected = asyncio.run(talk())
    assert first.stop_reason == second.stop_reason == rejected.stop_reason == "aborted"
    assert len(first.token_ids) == len(first.log_probs) < 400
    assert second.token_ids == rejected.token_ids == []
    assert (answered.stop_reason, len(answered.token_ids), answered.extra_fields) == (
        "completed",
        2,
        {"global_steps": 4},
    )


def test_loading_the_package_makes_the_process_one_of_the_platform():
    assert get_platform().device_name == mia.training.cpu.ROLLOUT == "cpu"
    assert issubclass(get_rollout_replica_class("cpu"), RolloutReplica)
    assert get_rollout_class("cpu").__name__ == "WeightSender"
    engine = EngineRegistry.get_engine_cls(model_type="language_model", backend="fsdp2")
    assert issubclass(engine, transformer_impl.FSDPEngineWithLMHead)
    assert isinstance(transformer_impl.CPUOffloadPolicy(pin_memory=True), CPUOffloadPolicy)
    assert not transformer_impl.CPUOffloadPolicy(pin_memory=True).pin_memory


@pytest.mark.parametrize("kind", ["trained", "frozen", "adapted"])
@pytest.mark.usefixtures("alone_in_a_group")
def test_verls_engine_computes_the_log_probabilities_that_the_server_sampled_by(folder, kind):
    engine = engine_of(folder, frozen=kind == "frozen", rank=4 if kind == "adapted" else 0)
    for name, tensor in engine.module.named_parameters():
        if "lora_B" in name:  # zero in the beginning, when there is nothing to merge
            tensor.data.fill_(0.1)
    prompts = [[1, 2, 3], list(range(20)), [7] * 9]

    async def talk():
        made = server(folder)
        weights, _ = engine.get_per_tensor_param(base_sync_done=True)
        await made.load_weights(dict(weights), 1)
        return await asyncio.gather(*(ask(made, prompt, temperature=0.7, top_p=0.9, seed=5) for prompt in prompts))

    outputs = asyncio.run(talk())
    rows = [[*prompt, *output.token_ids] for prompt, output in zip(prompts, outputs, strict=True)]
    for prompt, output, log_probs in zip(prompts, outputs, trainers(engine, rows, 0.7), strict=True):
        sampled = log_probs[len(prompt) - 1 : len(prompt) - 1 + len(output.token_ids)]
        assert sampled.tolist() == pytest.approx(output.log_probs, abs=1e-5)


def trainers(engine, rows, temperature):
    """Return the log-probabilities that the trainer computes for each of some rows of ids."""
    ids = [torch.tensor(row) for row in rows]
    columns = {"input_ids": ids, "position_ids": [torch.arange(len(row)) for row in rows], "loss_mask": ids}
    settings = {"use_remove_padding": False, "use_dynamic_bsz": False, "use_fused_kernels": False}
    data = get_tensordict(
        {name: torch.nested.as_nested_tensor(column, layout=torch.jagged) for name, column in columns.items()},
        {"temperature": temperature, "micro_batch_size_per_gpu": len(rows), "calculate_entropy": False} | settings,
    )
    with engine.eval_mode():
        return engine.infer_batch(data)["model_output"]["log_probs"].unbind()
