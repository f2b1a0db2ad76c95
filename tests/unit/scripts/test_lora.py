"""The trainer on a tiny model: the same sums as PEFT's, the right tokens, runs that go on, files that others read."""

import io
import json
import random
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

REASON = "the packages of the extra `train` are not installed"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
gguf = pytest.importorskip("gguf", reason=REASON)
tokenizers = pytest.importorskip("tokenizers", reason=REASON)

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
import warm_start  # noqa: E402
from warm import adapter, batches, card, from_gguf, llama, lora  # noqa: E402

from mia.errors import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # those of other packages are theirs

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM = "You answer. Dü kannst es."


def dialogue(number, role="executor"):
    chance = random.Random(number)
    words = " ".join(chance.choice(["Paris", "12", "北京", "where?", " <tag>", "it's"]) for _ in range(number % 7 + 2))
    messages = [("system", SYSTEM + role, False), ("user", f"Question: {words}", False), ("assistant", "no", False)]
    messages += [
        ("user", "<tool_response>\nx</tool_response>", False),
        ("assistant", f"<answer>{words}</answer>", True),
    ]
    return {
        "id": str(number),
        "role": role,
        "kind": "right",
        "weight": 0.5 + number % 2,
        "messages": [{"role": by, "content": text, "learn": learn} for by, text, learn in messages],
    }


@pytest.fixture(scope="module")
def weights():
    """Random weights by the names of Hugging Face."""
    torch.manual_seed(0)
    sizes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64), "gate": (96, 64), "up": (96, 64)}
    made = {"model.embed_tokens.weight": torch.randn(300, 64), "model.norm.weight": torch.rand(64) + 0.5}
    for number in range(2):
        at = f"model.layers.{number}"
        for name, size in (sizes | {"down": (64, 96)}).items():
            part = "self_attn" if name in "qkvo" else "mlp"
            made[f"{at}.{part}.{name}_proj.weight"] = torch.randn(size) * 0.1
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{at}.{name}.weight"] = torch.rand(64) + 0.5
    return {name: values.bfloat16().float() for name, values in made.items()}


@pytest.fixture(scope="module")
def folder(weights, tmp_path_factory):
    """The folder that is made of a GGUF file of these weights, with a vocabulary of bytes."""
    place = tmp_path_factory.mktemp("models")
    writer = gguf.GGUFWriter(place / "tiny.gguf", "llama")
    writer.add_vocab_size(300)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(512)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()) + ["th"]
    tokens += [f"<unused{number}>" for number in range(300 - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(special) + [1] * (300 - len(special)))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    outside = {ours: theirs for theirs, ours in from_gguf._OUTSIDE.items()}
    inside = {ours: theirs for theirs, ours in from_gguf._INSIDE.items()}
    for name, values in weights.items():
        called = outside.get(name)
        if called is None:
            number, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            called = f"blk.{number}.{inside[part]}.weight"
            if part[-6:] in ("q_proj", "k_proj"):  # as llama.cpp orders the rows: neighbours are turned together
                heads = {"q": 4, "k": 2}[part[-6]]
                rows = values.view(heads, 2, -1, 64).transpose(1, 2).reshape(values.shape)
                writer.add_tensor(called, rows.numpy())
                continue
        writer.add_tensor(called, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from_gguf.convert(place / "tiny.gguf", place / "tiny")
    return place / "tiny"


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def traces(tmp_path):
    path = tmp_path / "traces.jsonl"
    rows = [dialogue(number, "executor" if number % 3 else "planner") for number in range(24)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def trainer(folder, traces, out, **plan):
    plan = lora.Plan(**{"minutes": 1e9, "epochs": 1e9, "steps": 6, "rank": 2, "tokens": 1500} | plan)
    return lora.Trainer(folder, [traces], out, plan, Console(file=io.StringIO()))


def test_the_base_has_the_weights_of_the_gguf_file_in_the_order_of_hugging_face(folder, weights):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = model.state_dict()
    assert all(torch.equal(state[name], values) for name, values in weights.items())
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_the_tokens_are_those_of_the_chat_template_and_only_what_is_to_be_learnt_counts(tokenizer):
    for number in range(8):
        trace = dialogue(number)
        found = batches.encode(tokenizer, trace)
        assert [*found.opening, *found.rest] == tokenizer.apply_chat_template(trace["messages"], return_dict=False)
        assert tokenizer.decode(list(found.opening)).startswith(f"<|im_start|>system\n{SYSTEM}")
        learnt = [token for token, weight in zip(found.rest, found.weights, strict=True) if weight]
        assert tokenizer.decode(learnt) == trace["messages"][-1]["content"] + "<|im_end|>"
        assert set(found.weights) == {0.0, trace["weight"]}


def test_batches_hold_every_sequence_once_and_share_their_opening(tokenizer):
    sequences = [batches.encode(tokenizer, dialogue(number, "ab"[number % 2])) for number in range(40)]
    made = batches.arrange(sequences, 1000, "0")
    assert sorted(each for batch in made for each in batch) == list(range(40))
    assert made == batches.arrange(sequences, 1000, "0") != batches.arrange(sequences, 1000, "1")
    for batch in made:
        assert len({sequences[each].opening for each in batch}) == 1
        found = batches.collate([sequences[each] for each in batch], 2)
        assert len(batch) == 1 or len(found.beginning) + found.rest.numel() <= 1000


def test_loss_and_gradients_are_those_of_peft(folder, tokenizer, monkeypatch):
    peft = pytest.importorskip("peft", reason=REASON)
    monkeypatch.setattr(llama, "_QUERIES", 16)  # several blocks
    adapters = llama.fresh(folder, 3, 0)
    for name, values in adapters.items():
        if ".lora_B." in name:
            values.data.normal_(0, 0.1)
    sequences = [batches.encode(tokenizer, dialogue(number)) for number in range(5)]
    batch = batches.collate(sequences, 2)
    ours = llama.Llama(folder, adapters, 6, torch.float32)
    counts = batch.weights[:, 1:] > 0
    hidden = ours.hidden(batch.beginning, batch.rest)[:, :-1]
    loss, _ = ours.loss(hidden[counts], batch.rest[:, 1:][counts], batch.weights[:, 1:][counts])
    loss.backward()

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(model, config)
    peft.set_peft_model_state_dict(theirs, {name: values.detach() for name, values in adapters.items()})
    total = 0.0
    for each in sequences:
        ids = torch.tensor([[*each.opening, *each.rest]])
        weights = torch.tensor([0.0] * len(each.opening) + each.weights)
        scores = theirs(input_ids=ids).logits[0, :-1]
        total += (torch.nn.functional.cross_entropy(scores, ids[0, 1:], reduction="none") * weights[1:]).sum()
    total.backward()
    assert torch.allclose(loss, total, rtol=1e-4)
    gradients = {name.replace(".default", ""): each.grad for name, each in theirs.named_parameters()}
    for name, values in adapters.items():
        assert torch.allclose(values.grad, gradients[name], rtol=1e-3, atol=1e-4 * gradients[name].abs().max())


def test_a_run_learns_and_its_files_are_read_by_peft_with_the_probes_it_tells(folder, traces, tmp_path):
    peft = pytest.importorskip("peft", reason=REASON)
    out = tmp_path / "adapter"
    run = trainer(folder, traces, out, steps=60, rate=2e-2)
    run.run({})
    losses = [loss for _, _, loss, _ in run.progress.history]
    assert losses[-1] < 0.7 * losses[0]
    adapter.write_probes(out, folder, run.traces, run.tokenizer)
    model = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), out
    )
    probes = json.loads((out / "probe.json").read_text(encoding="utf-8"))["prompts"]
    assert len(probes) == 8
    for probe in probes:
        assert run.tokenizer(probe["text"])["input_ids"] == probe["tokens"]
        chances = model(input_ids=torch.tensor([probe["tokens"]])).logits[0, -1].log_softmax(-1)
        assert all(abs(chances[token].item() - told) < 1e-3 for token, told in probe["top"])
    assert not (out / lora.CHECKPOINT).exists()
    roles = ["executor" if SYSTEM + "executor" in probe["text"] else "planner" for probe in probes]
    assert roles == ["executor", "planner"] * 4
    with pytest.raises(InputError, match="finished"):
        trainer(folder, traces, out)


def test_a_finished_adapter_is_refused_before_traces_are_made(folder, traces, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "adapter"
    trainer(folder, traces, out, steps=1).run({})
    arguments = warm_start._parser().parse_args(["all", "--out", str(out)])
    with pytest.raises(InputError, match="finished"):
        arguments.run(arguments, Console(file=io.StringIO()))
    assert not (tmp_path / "runs").exists()


def test_the_probes_and_the_card_of_an_adapter_can_be_written_anew(folder, traces, tmp_path, monkeypatch):
    out = tmp_path / "adapter"
    run = trainer(folder, traces, out, steps=1)
    run.run({"command": "python scripts/warm_start.py train"})
    adapter.write_probes(out, folder, run.traces, run.tokenizer)
    before = (out / "probe.json").read_bytes()
    (out / "probe.json").unlink()
    monkeypatch.setattr(from_gguf, "prepare", lambda _: folder)
    arguments = warm_start._parser().parse_args(["finish", str(out), "--traces", str(traces)])
    arguments.run(arguments, Console(file=io.StringIO()))
    assert (out / "probe.json").read_bytes() == before
    assert "python scripts/warm_start.py train" in (out / "README.md").read_text(encoding="utf-8")


def test_a_plan_that_trains_nothing_is_refused():
    with pytest.raises(InputError, match="minutes above 0"):
        lora.Plan(minutes=0)


def test_a_stopped_run_goes_on_to_what_an_uninterrupted_one_gives(folder, traces, tmp_path):
    trainer(folder, traces, tmp_path / "whole").run({})
    stopped = trainer(folder, traces, tmp_path / "parts")
    step = stopped._step

    def last_step():
        if stopped.progress.step == 3:
            signal.raise_signal(signal.SIGTERM)
        return step()

    stopped._step = last_step
    with pytest.raises(lora.Interrupted):
        stopped.run({})
    with pytest.raises(InputError, match=r"rate was 0\.001, is 0\.1"):
        trainer(folder, traces, tmp_path / "parts", rate=0.1)
    rest = trainer(folder, traces, tmp_path / "parts")
    assert rest.progress.step == 4
    rest.run({})
    whole, parts = (adapter.read(tmp_path / name)[0] for name in ("whole", "parts"))
    assert all(torch.allclose(values, parts[name], atol=1e-6) for name, values in whole.items())


def test_other_traces_are_not_gone_on_with(folder, traces, tmp_path):
    run = trainer(folder, traces, tmp_path / "out")
    run._step()
    run._save()
    with traces.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dialogue(99)) + "\n")
    with pytest.raises(InputError, match="the traces differ"):
        trainer(folder, traces, tmp_path / "out")


def test_the_card_tells_data_command_losses_and_scores(folder, traces, tmp_path):
    run = trainer(folder, traces, tmp_path, steps=2)
    run.run({"command": "python scripts/warm_start.py train", "data": {"worldfacts/train.jsonl": "abc"}})
    (tmp_path / "scores.json").write_text('[{"split": "test", "n": 40, "right": "39 (98 %)"}]', encoding="utf-8")
    text = card.write(tmp_path).read_text(encoding="utf-8")
    assert run.digests["traces.jsonl"] in text
    assert "the Executor and the Planner" in text.replace(
        "the Planner and the Executor", "the Executor and the Planner"
    )
    assert "| test | 40 | 39 (98 %) |" in text
    assert "| worldfacts/train.jsonl | `abc` |" in text
    assert "python scripts/warm_start.py train" in text


@pytest.mark.parametrize(
    "line", ["no json", '{"messages": []}', '{"messages": [{"role": "assistant", "learn": false}]}']
)
def test_a_broken_file_of_traces_is_named(tmp_path, line):
    path = tmp_path / "broken.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"broken\.jsonl"):
        batches.read([path])
