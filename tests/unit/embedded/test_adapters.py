"""Adapters of the small model: which role has which, what is refused, and that merged weights compute the same."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from mia.embedded import adapters
from mia.embedded.adapters import OWN, Adapter, lora, main, merge, roles
from mia.embedded.instance import Instance
from mia.embedded.model import DEFAULT, resolve
from mia.embedded.probes import BOUND, check
from mia.errors import ConfigError, InputError, StorageError

pytest.importorskip("gguf", reason="needs the role embedded")
save = pytest.importorskip("safetensors.numpy", reason="needs the role embedded").save_file

import gguf  # noqa: E402 - of an optional extra

from mia.embedded import gguf as conversion  # noqa: E402 - imports it

HIDDEN, INNER, HEADS, GROUPS, LAYERS, RANK, ALPHA = 64, 96, 4, 2, 2, 4, 8
HEAD = HIDDEN // HEADS
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (GROUPS * HEAD, HIDDEN),
    "self_attn.v_proj": (GROUPS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
GGUF_NAMES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
LETTERS = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "th"]
PROMPTS = ["the", "<|im_start|>user", "abcabcab", "a tool call"]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # the server sets it; this puts it back


def tokens_of(text):
    """The tiny tokenizer: specials, one merge, and a letter for each byte; a space is Ġ."""
    if text.startswith("<|im_start|>"):
        return [1, *tokens_of(text.removeprefix("<|im_start|>"))]
    text = text.replace(" ", "Ġ")
    pieces = ["th", *text[2:]] if text.startswith("th") else list(text)
    return [VOCABULARY.index(piece) for piece in pieces]


def rows_of_llama(matrix, heads):
    """Neighbouring rows turn together in llama.cpp: rows i and i + half of a head become 2i and 2i + 1."""
    half = HEAD // 2
    order = [head * HEAD + i + side * half for head in range(heads) for i in range(half) for side in (0, 1)]
    return matrix[order]


def random_model(seed=0):
    random = np.random.default_rng(seed)
    layers = [
        {name: random.normal(0, 1.5 / math.sqrt(shape[1]), shape).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(LAYERS)
    ]
    return {"embedding": random.normal(0, 0.5, (len(VOCABULARY), HIDDEN)).astype(np.float32), "layers": layers}


def random_pairs(seed=1):
    random = np.random.default_rng(seed)
    return {
        (layer, name): (
            random.normal(0, 1 / math.sqrt(inputs), (RANK, inputs)).astype(np.float16),
            random.normal(0, 0.5, (outputs, RANK)).astype(np.float16),
        )
        for layer in range(LAYERS)
        for name, (outputs, inputs) in SHAPES.items()
    }


def changed(model, pairs):
    """The model with the adapter added, in Hugging Face's order of rows."""
    layers = [dict(layer) for layer in model["layers"]]
    for (layer, name), (a, b) in pairs.items():
        layers[layer][name] = layers[layer][name] + ALPHA / RANK * (b.astype(np.float32) @ a.astype(np.float32))
    return {**model, "layers": layers}


def log_probabilities(model, tokens):
    """Llama's forward pass as Hugging Face computes it, for the token after `tokens`."""

    def normed(x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def softmax(x):
        grown = np.exp(x - x.max(-1, keepdims=True))
        return grown / grown.sum(-1, keepdims=True)

    def turned(x):
        angles = np.outer(np.arange(len(tokens)), 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD))
        cos, sin = (np.concatenate([part, part], -1)[:, None] for part in (np.cos(angles), np.sin(angles)))
        first, second = np.split(x, 2, -1)
        return x * cos + np.concatenate([-second, first], -1) * sin

    x = model["embedding"][tokens].astype(np.float64)
    unseen = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for layer in model["layers"]:
        y = normed(x)
        q, k, v = ((y @ layer[f"self_attn.{name}_proj"].T).reshape(len(tokens), -1, HEAD) for name in "qkv")
        q, k, v = turned(q), turned(k).repeat(HEADS // GROUPS, 1), v.repeat(HEADS // GROUPS, 1)
        seen = softmax(np.einsum("qhd,khd->hqk", q, k) / math.sqrt(HEAD) + unseen)
        x = x + np.einsum("hqk,khd->qhd", seen, v).reshape(len(tokens), HIDDEN) @ layer["self_attn.o_proj"].T
        y = normed(x)
        gate = y @ layer["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ layer["mlp.up_proj"].T)) @ layer["mlp.down_proj"].T
    return np.log(softmax(normed(x)[-1] @ model["embedding"].T))


def write_base(path, model, architecture="llama"):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(1024)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(VOCABULARY) - 3))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(value=False)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    writer.add_tensor("token_embd.weight", model["embedding"])
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for number, layer in enumerate(model["layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{number}.{norm}.weight", np.ones(HIDDEN, np.float32))
        for ours, name in zip(layer, GGUF_NAMES, strict=True):
            heads = {"attn_q": HEADS, "attn_k": GROUPS}.get(name)
            matrix = rows_of_llama(layer[ours], heads) if heads else layer[ours]
            writer.add_tensor(f"blk.{number}.{name}.weight", np.ascontiguousarray(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_adapter(folder, model, pairs, **config):
    folder.mkdir(parents=True, exist_ok=True)
    told = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "use_rslora": False, "rank_pattern": {}}
    told["target_modules"] = [name.rpartition(".")[2] for name in SHAPES]
    (folder / "adapter_config.json").write_text(json.dumps({**told, **config}))
    tensors = {
        f"base_model.model.model.layers.{layer}.{name}.lora_{side}.weight": matrix
        for (layer, name), pair in pairs.items()
        for side, matrix in zip("AB", pair, strict=True)
    }
    save(tensors, folder / "adapter_model.safetensors")
    probes = []
    for text in PROMPTS:
        found = log_probabilities(changed(model, pairs), tokens_of(text))
        top = [[int(token), float(found[token])] for token in found.argsort()[::-1][:20]]
        probes.append({"text": text, "tokens": tokens_of(text), "top": top})
    (folder / "probe.json").write_text(json.dumps({"prompts": probes}))
    return folder


@pytest.fixture
def tiny(tmp_path):
    """A base in F32 and an adapter that fits it."""
    model = random_model()
    return write_base(tmp_path / "tiny.gguf", model), write_adapter(tmp_path / "small", model, random_pairs())


def contents(path):
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def test_no_role_has_an_adapter_with_none():
    assert roles("none", "smollm2") == {}


def test_auto_gives_the_default_model_its_own_adapter_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert roles("auto", "smollm2") == {}
    OWN["executor"].mkdir(parents=True)
    assert roles("auto", "smollm2") == {}  # a training that has not ended
    (OWN["executor"] / "adapter_config.json").write_text("{}")
    assert roles("auto", "smollm2") == {"executor": OWN["executor"], "planner": OWN["planner"]}
    assert roles("auto", "other.gguf") == {}


def test_each_role_can_be_given_an_adapter(tiny):
    _, folder = tiny
    assert roles(f"planner={folder}, judge={folder}", "x.gguf") == {"planner": folder, "judge": folder}


@pytest.mark.parametrize("setting", ["cook={}", "planner", "planner=", "", "planner={},planner={}", "planner={}/no"])
def test_a_setting_that_gives_no_role_an_adapter_names_the_forms(tiny, setting):
    with pytest.raises(ConfigError) as caught:
        roles(setting.replace("{}", str(tiny[1])), "smollm2")
    assert "executor, planner, judge, manager" in caught.value.remedy


def test_an_adapter_is_read_whole(tiny):
    adapter = Adapter.read(tiny[1])
    assert (adapter.name, adapter.rank, adapter.scale) == ("small", RANK, ALPHA / RANK)
    assert adapter.pairs.keys() == random_pairs().keys()


@pytest.mark.parametrize("kind", ["use_rslora", "use_dora", "fan_in_fan_out"])
def test_kinds_of_lora_that_compute_otherwise_are_refused(tmp_path, kind):
    with pytest.raises(InputError, match=kind):
        Adapter.read(write_adapter(tmp_path / "odd", random_model(), random_pairs(), **{kind: True}))


def test_another_kind_of_adapter_is_refused(tmp_path):
    with pytest.raises(InputError, match="IA3"):
        Adapter.read(write_adapter(tmp_path / "odd", random_model(), random_pairs(), peft_type="IA3"))


def test_a_config_without_numbers_is_refused(tmp_path):
    with pytest.raises(InputError, match="lora_alpha"):
        Adapter.read(write_adapter(tmp_path / "odd", random_model(), random_pairs(), lora_alpha=None))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_or_broken_file_is_named(tiny, name):
    for damage in (lambda path: path.write_bytes(b"\x01nothing"), lambda path: path.unlink()):
        damage(tiny[1] / name)
        with pytest.raises(InputError, match=name):
            Adapter.read(tiny[1])


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"lora_A.weight": np.zeros((RANK, HIDDEN))}, "only lora_A"),
        ({"lora_A.weight": np.zeros((RANK, HIDDEN)), "lora_B.weight": np.zeros((HIDDEN, RANK + 1))}, "not of rank 4"),
        ({"lora_A.weight": np.full((RANK, 2), np.inf), "lora_B.weight": np.zeros((2, RANK))}, "not finite"),
        ({"lora_magnitude_vector": np.zeros(HIDDEN)}, "no part of a LoRA"),
    ],
)
def test_tensors_that_make_no_lora_are_named(tiny, tensors, said):
    start = "base_model.model.model.layers.0.self_attn.q_proj."
    save({start + name: matrix for name, matrix in tensors.items()}, tiny[1] / "adapter_model.safetensors")
    with pytest.raises(InputError, match=said):
        Adapter.read(tiny[1])


def without(pairs, layer, name):
    return {key: pair for key, pair in pairs.items() if key != (layer, name)}


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (without(random_pairs(), 1, "mlp.up_proj"), "lacks matrices for mlp.up_proj of layer 1"),
        ({**random_pairs(), (2, "mlp.up_proj"): random_pairs()[1, "mlp.up_proj"]}, "of layer 2"),
        ({**random_pairs(), (0, "mlp.router"): random_pairs()[0, "mlp.up_proj"]}, "mlp.router of layer 0"),
        ({**random_pairs(), (0, "mlp.up_proj"): random_pairs()[0, "mlp.down_proj"]}, "64 x 96"),
    ],
)
def test_an_adapter_that_does_not_fit_the_base_is_refused(tiny, tmp_path, pairs, said):
    write_adapter(tiny[1], random_model(), random_pairs())
    tensors = {
        f"base_model.model.model.layers.{layer}.{name}.lora_{side}.weight": matrix
        for (layer, name), pair in pairs.items()
        for side, matrix in zip("AB", pair, strict=True)
    }
    save(tensors, tiny[1] / "adapter_model.safetensors")
    with pytest.raises(InputError, match=said):
        merge(*tiny, tmp_path)
    assert list(tmp_path.glob("*+*")) == []


def test_a_base_of_another_architecture_is_refused(tiny, tmp_path):
    base = write_base(tmp_path / "other.gguf", random_model(), architecture="gemma")
    with pytest.raises(InputError, match="gemma"):
        merge(base, tiny[1], tmp_path)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"junk" * 9), lambda path: path.unlink()])
def test_a_base_that_cannot_be_read_is_an_input_error(tiny, tmp_path, damage):
    damage(tiny[0])
    with pytest.raises(InputError, match=r"tiny\.gguf"):
        merge(*tiny, tmp_path)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tiny, tmp_path):
    with pytest.raises(StorageError):
        merge(*tiny, tmp_path / "tiny.gguf" / "below")


def test_a_missing_package_names_the_role_to_install(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mia.embedded.gguf", None)
    with pytest.raises(ConfigError) as caught:
        merge(*tiny, tmp_path)
    assert "./install.sh embedded" in caught.value.remedy


def test_a_merge_keeps_all_that_the_adapter_does_not_change(tiny, tmp_path):
    before, old = contents(tiny[0])
    after, new = contents(merge(*tiny, tmp_path / "models"))
    assert after["general.name"] == "Tiny + small"
    assert after["general.base_model.0.name"] == "Tiny"
    assert after["mia.adapter.sha256"] == Adapter.read(tiny[1]).sha256
    assert after["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    own = {"general.name", "general.file_type"}
    assert {key: after.get(key) for key in before if key not in own} == {
        key: value for key, value in before.items() if key not in own
    }
    assert list(new) == list(old)
    for name, tensor in new.items():
        assert tuple(tensor.shape) == tuple(old[name].shape)
        if tensor.tensor_type != gguf.GGMLQuantizationType.Q8_0:
            assert name.endswith("norm.weight") or name == "token_embd.weight"
            assert tensor.data.tobytes() == old[name].data.tobytes()


def test_a_second_merge_reads_no_weights_and_a_changed_adapter_replaces_the_first(tiny, tmp_path, monkeypatch):
    base, folder = tiny
    first = merge(base, folder, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(adapters, "_write", lambda *_: pytest.fail("merged again"))
        assert merge(base, folder, tmp_path) == first
    twin = write_adapter(tmp_path / "elsewhere" / "small", random_model(), random_pairs(seed=3))
    other = merge(base, twin, tmp_path)  # an adapter of the same name, in another folder, replaces nothing
    write_adapter(folder, random_model(), random_pairs(seed=2))
    second = merge(base, folder, tmp_path)
    assert sorted(tmp_path.glob("tiny+*")) == sorted([other, second])
    assert first != second


def test_merged_weights_compute_what_the_adapter_was_trained_to(tiny, tmp_path):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    assert check(merge(*tiny, tmp_path), tiny[1]) < 0.2
    assert check(tiny[0], tiny[1]) > BOUND


def test_a_merge_that_forgets_the_order_of_rows_fails_the_check(tiny, tmp_path, monkeypatch):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    monkeypatch.setattr(conversion, "permuted", lambda rows, _: rows)
    assert check(merge(*tiny, tmp_path), tiny[1]) > BOUND


def test_a_gguf_lora_computes_the_same_beside_the_base(tiny, tmp_path, monkeypatch):
    library = pytest.importorskip("xllamacpp", reason="needs the role embedded")
    out = lora(*tiny, tmp_path / "lora" / "small.gguf")
    plain = Instance._parameters

    def with_lora(self, loaded):
        parameters = plain(self, loaded)
        parameters.lora_adapters = [library.CommonAdapterLoraInfo(str(out), 1.0)]
        return parameters

    monkeypatch.setattr(Instance, "_parameters", with_lora)
    assert check(tiny[0], tiny[1]) < 0.2
    fields, tensors = contents(out)
    assert (fields["general.type"], fields["adapter.type"], fields["adapter.lora.alpha"]) == ("adapter", "lora", ALPHA)
    assert len(tensors) == 2 * len(random_pairs())


def test_probes_that_are_read_as_other_tokens_are_refused(tiny, tmp_path):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    probes = json.loads((tiny[1] / "probe.json").read_text())
    probes["prompts"][0]["text"] = "thy"
    (tiny[1] / "probe.json").write_text(json.dumps(probes))
    with pytest.raises(InputError, match="thy"):
        check(tiny[0], tiny[1])


@pytest.mark.parametrize("text", ["", "[]", '{"prompts": []}', None])
def test_missing_or_broken_probes_are_an_input_error(tiny, text):
    path = tiny[1] / "probe.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=r"probe\.json"):
        check(tiny[0], tiny[1])


def test_the_command_merges_checks_and_says_so_in_one_line(tiny, tmp_path, capsys, monkeypatch):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    monkeypatch.setattr(sys, "argv", ["adapters", *map(str, tiny), "--check"])
    monkeypatch.setenv("MIA_MODELS", str(tmp_path / "models"))
    main()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(str(tmp_path / "models" / "tiny+small-"))
    assert "nats" in line


def test_the_command_fails_on_weights_beyond_the_bound(tiny, tmp_path, capsys, monkeypatch):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    monkeypatch.setattr(conversion, "permuted", lambda rows, _: rows)
    monkeypatch.setattr(sys, "argv", ["adapters", *map(str, tiny), "--check"])
    monkeypatch.setenv("MIA_MODELS", str(tmp_path / "models"))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == InputError.exit_code
    assert "MIA_ADAPTERS=none" in capsys.readouterr().err


@pytest.mark.model
@pytest.mark.parametrize("name", ["worldfacts", "one-shot"])
def test_the_adapters_that_are_shipped_compute_what_their_trainer_did(tmp_path, name):
    pytest.importorskip("xllamacpp", reason="needs the role embedded")
    root = Path(__file__).parents[3]
    folder = root / "data/adapters" / name
    if not folder.is_dir():
        pytest.skip(f"there is no adapter {name}")
    try:
        base = resolve(DEFAULT, root / "models")
    except ConfigError as error:
        pytest.skip(f"the small model cannot be had: {error.message}")
    assert check(merge(base, folder, tmp_path), folder) < BOUND
