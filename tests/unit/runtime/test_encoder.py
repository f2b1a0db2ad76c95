import importlib.util
import logging
import subprocess
import sys

import numpy as np
import pytest

from mia.errors import ConfigError
from mia.runtime import encoder as module
from mia.runtime.encoder import HashedEncoder, load_encoder


@pytest.fixture(scope="module", params=["hashed", "static"])
def encoder(request):
    if request.param == "static" and importlib.util.find_spec("wordllama") is None:
        pytest.skip("wordllama is not installed")
    return load_encoder(request.param)


def test_rows_have_unit_length_and_blank_text_is_zero(encoder):
    vectors = encoder.encode(["What is the capital of France?", "", " \n\t", "法国的首都是哪里?"])
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, encoder.dimensions)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 0, 1], abs=1e-6)


def test_no_texts_give_no_rows(encoder):
    assert encoder.encode([]).shape == (0, encoder.dimensions)


@pytest.mark.parametrize(
    "text", ["\ud800", "a\x00b", "x" * 1_000_000, "\ufdfa" * 1_000_000, "👩‍👩‍👧", "\u0301", "العربية"]
)
def test_any_text_is_safe(encoder, text):
    vector = encoder.encode([text])
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_a_text_encodes_the_same_alone_and_among_others(encoder):
    texts = ["What is 敦煌莫高窟, or العاصمة?", "x", "Who discovered actinium, and in which year was that?"]
    assert (encoder.encode(texts)[0] == encoder.encode(texts[:1])[0]).all()


def test_case_and_width_do_not_matter(encoder):
    plain, other = encoder.encode(["What is ABC?", "what  is abc?"])
    assert plain @ other == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("question", "paraphrase", "stranger"),
    [
        ("What is the capital of France?", "Which city is France's capital?", "How many moons does Jupiter have?"),
        ("法国的首都是哪里?", "法国首都是哪座城市?", "木星有多少颗卫星?"),
        ("古筝有多少根弦?", "一架古筝上有几条弦?", "琵琶是什么时候传入中国的?"),
        ("豆腐は何から作られますか?", "豆腐の原料は何ですか?", "木星には衛星がいくつありますか?"),
        ("Какая столица Франции?", "Столица Франции — какой город?", "Сколько спутников у Юпитера?"),
        ("ما هي عاصمة المغرب؟", "أي مدينة هي عاصمة المغرب؟", "كم عدد أقمار المشتري؟"),
        ("한글은 누가 만들었습니까?", "누가 한글을 만들었나요?", "목성의 위성은 몇 개입니까?"),
    ],
)
def test_a_paraphrase_is_nearer_than_a_stranger(encoder, question, paraphrase, stranger):
    vectors = encoder.encode([question, paraphrase, stranger])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1


def test_letters_that_the_table_lacks_tell_questions_apart():
    if importlib.util.find_spec("wordllama") is None:
        pytest.skip("wordllama is not installed")
    zither, lute, koto = load_encoder("static").encode(["古筝有多少根弦?", "琵琶有多少根弦?", "筝有多少根弦?"])
    assert zither @ koto > zither @ lute + 0.2


def test_vectors_do_not_depend_on_the_process(encoder):
    name = "static" if encoder.id.startswith("static") else "hashed"
    code = (
        "from mia.runtime.encoder import load_encoder as load; "
        f"print(load({name!r}).encode(['Grüße aus 東京, 敦煌']).tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == encoder.encode(["Grüße aus 東京, 敦煌"]).tobytes().hex()


def test_loading_leaves_the_root_logger_alone(encoder):
    before = list(logging.getLogger().handlers)
    load_encoder("static" if encoder.id.startswith("static") else "hashed")
    assert logging.getLogger().handlers == before


def test_a_missing_package_names_the_remedy(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install\.sh embedded") as raised:
        load_encoder("static")
    assert isinstance(raised.value.__cause__, ImportError)


def test_ids_tell_encoders_apart(encoder):
    assert encoder.id != (HashedEncoder.id if encoder.dimensions == 256 else "")
    assert str(encoder.dimensions) in encoder.id
