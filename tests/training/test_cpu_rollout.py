import pytest

pytest.importorskip("verl")

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mia.training.cpu.generation import Request, generate

END = 7


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
    )
    return Qwen3ForCausalLM(config).eval()


def decode(ids):
    return "".join(f"<{each}>" for each in ids)


def sample(model, *requests, go_on=lambda: True):
    generate(model, requests, decode, torch.Generator().manual_seed(3), go_on)
    return requests


def asked(prompt, seed=None, **parameters):
    room = parameters.pop("room", 64)
    return Request.of(prompt, {"max_tokens": 12, "seed": seed} | parameters, room, frozenset({END}))


def test_log_probabilities_are_those_that_the_trainer_computes(model):
    first, second = sample(model, asked([1, 2, 3], 5, temperature=0.7), asked([4] * 9, 6))
    for request, temperature in ((first, 0.7), (second, 1.0)):
        ids = torch.tensor([request.prompt + request.ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(request.ids)[:, None])[:, 0]
        assert (expected - torch.tensor(request.log_probs)).abs().max() < 1e-5


def test_what_a_seed_draws_does_not_depend_on_its_company(model):
    (alone,) = sample(model, asked([1, 2, 3], 5))
    _, beside, _ = sample(model, asked([9], 1), asked([1, 2, 3], 5), asked([3] * 20, max_tokens=30))
    assert beside.ids == alone.ids
    assert beside.log_probs == pytest.approx(alone.log_probs, abs=1e-5)
    (other,) = sample(model, asked([1, 2, 3], 6))
    assert other.ids != alone.ids


def test_a_reply_ends_at_an_end_token_a_stop_string_or_its_limit(model):
    (free,) = sample(model, asked([1, 2], 11, ignore_eos=True))
    assert (len(free.ids), free.ended) == (12, "length")
    string = decode(free.ids[3:5])
    (stopped,) = sample(model, asked([1, 2], 11, ignore_eos=True, stop=[string], include_stop_str_in_output=True))
    assert (stopped.ids, stopped.ended) == (free.ids[:5], "completed")
    (ended,) = sample(model, asked([1, 2], 11, ignore_eos=True, stop_token_ids=[free.ids[2]]))
    assert ended.ids == free.ids[: free.ids.index(free.ids[2]) + 1]
    (short,) = sample(model, asked([1, 2], 11, room=2))
    assert len(short.ids) == 2


def test_greedy_top_k_and_top_p_restrict_the_choice(model):
    greedy, again = sample(model, asked([5, 6], 1, temperature=0), asked([5, 6], 2, temperature=0))
    (narrow,) = sample(model, asked([5, 6], 3, top_k=1))
    (nucleus,) = sample(model, asked([5, 6], 4, top_p=1e-6))
    assert greedy.ids == again.ids == narrow.ids == nucleus.ids


def test_what_is_aborted_keeps_what_it_has(model):
    turns = iter([True, True, False])
    (request,) = sample(model, asked([1, 2], 11, ignore_eos=True), go_on=lambda: next(turns))
    assert (len(request.ids), request.ended) == (2, "")
