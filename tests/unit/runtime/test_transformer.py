import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mia.errors import ConfigError
from mia.runtime import transformer
from mia.runtime.encoder import load_encoder

TEXTS = ["what is the capital of france", "capital", "the capital of the capital of the capital of france is paris"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT of two layers with weights by chance, as a plain folder of transformers."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    folder.mkdir()
    words = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":", ".", "##s", *" ".join(TEXTS).split()}
    vocabulary = {word: place for place, word in enumerate(sorted(words, key=lambda word: (word[0] != "[", word)))}
    tokenizer = transformers.BertTokenizerFast(vocab=vocabulary, model_max_length=64)
    pytest.importorskip("torch").manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, pad_token_id=vocabulary["[PAD]"], initializer_range=0.5,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(str(folder))


def mean_of_last_layer(folder, text):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.no_grad():
        tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        states = transformers.AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state[0]
    return torch.nn.functional.normalize(states.mean(dim=0), dim=0).numpy()


def test_rows_have_unit_length_and_blank_text_is_zero(encoder):
    vectors = encoder.encode([*TEXTS, "", " \n\t"])
    assert vectors.dtype == np.float32
    assert vectors.shape == (5, encoder.dimensions)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1, 0, 0], abs=1e-5)
    assert encoder.encode([]).shape == (0, 32)


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "x " * 1_000_000, "👩‍👩‍👧", "العربية"])
def test_any_text_is_safe(encoder, text):
    assert np.linalg.norm(encoder.encode([text])) == pytest.approx(1, abs=1e-5)


def test_a_text_encodes_the_same_alone_and_among_others(encoder):
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert encoder.encode(TEXTS) == pytest.approx(alone, abs=1e-5)


def test_threads_may_encode_at_once(encoder):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(encoder.encode, [TEXTS[place % 3 :] for place in range(24)]))
    for place, vectors in enumerate(found):
        assert vectors == pytest.approx(encoder.encode(TEXTS)[place % 3 :], abs=1e-5)


def test_a_plain_model_is_averaged_over_all_positions(encoder, folder):
    for text, vector in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        assert vector == pytest.approx(mean_of_last_layer(folder, text), abs=1e-5)


@pytest.mark.parametrize("name", ["e5-base-v2", "multilingual-E5-small"])
def test_e5_gets_its_prefix(folder, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / name)
    vector = load_encoder(str(copy)).encode(TEXTS[:1])[0]
    assert vector == pytest.approx(mean_of_last_layer(folder, f"query: {TEXTS[0]}"), abs=1e-5)


def test_other_names_get_no_prefix(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "phase5")
    assert load_encoder(str(copy)).encode(TEXTS) == pytest.approx(load_encoder(str(folder)).encode(TEXTS), abs=1e-5)


def test_the_id_knows_the_weights_and_how_they_are_used_but_not_the_place(encoder, folder, tmp_path):
    assert encoder.id.startswith("tiny-bert-32-")
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "tiny-bert")
    assert load_encoder(str(moved)).id == encoder.id
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    other_use = load_encoder(str(moved)).id
    (moved / "config.json").write_text(json.dumps(config))
    model = pytest.importorskip("transformers").AutoModel.from_pretrained(folder)
    with pytest.importorskip("torch").no_grad():
        model.embeddings.word_embeddings.weight[3, 4] += 0.01
    model.save_pretrained(moved)
    assert len({encoder.id, other_use, load_encoder(str(moved)).id}) == 3


def test_a_hugging_face_name_keeps_its_whole_name(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    stored = tmp_path / "models--someone--sup-simcse"
    shutil.copytree(folder, stored / "snapshots" / ("a" * 40))
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("a" * 40)
    named = load_encoder("someone/sup-simcse")
    assert named.id.startswith("someone/sup-simcse-32-")
    assert named.encode(TEXTS) == pytest.approx(load_encoder(str(folder)).encode(TEXTS), abs=1e-5)


def test_a_model_that_cannot_be_loaded_is_a_matter_of_settings(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    broken = shutil.copytree(folder, tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    for name in (tmp_path / "empty", broken):
        with pytest.raises(ConfigError, match="cannot be loaded on cpu") as raised:
            load_encoder(str(name))
        assert "MIA_ENCODER is static, hashed" in raised.value.remedy


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_a_matter_of_settings(folder, device):
    with pytest.raises(ConfigError, match=f"on {device}") as raised:
        load_encoder(str(folder), device)
    assert "MIA_ENCODER_DEVICE" in raised.value.remedy


def test_a_missing_package_names_the_remedy(monkeypatch):
    def refuse(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(transformer, "import_module", refuse)
    with pytest.raises(ConfigError, match="someone/a-model needs a package") as raised:
        load_encoder("someone/a-model")
    assert r"./install.sh search" in raised.value.remedy
