"""A bank of 1,000 questions, half English and half Chinese; fifty of each are asked again in other words."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from mia.runtime.encoder import load_encoder

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "paraphrases.jsonl").read_text(encoding="utf-8").splitlines()
]
PAIRS = [(place, row) for place, row in enumerate(ROWS) if "paraphrase" in row]


def recall(encoder, language, among):
    """Return the share of paraphrases whose original is among the nearest texts of the whole bank."""
    asked = [(place, row["paraphrase"]) for place, row in PAIRS if row["lang"] == language]
    bank = encoder.encode([row["text"] for row in ROWS])
    likeness = encoder.encode([paraphrase for _, paraphrase in asked]) @ bank.T
    own = likeness[np.arange(len(asked)), [place for place, _ in asked]]
    return float(((likeness > own[:, None]).sum(axis=1) < among).mean())


def test_the_data_is_what_the_measure_claims():
    texts = [row["text"] for row in ROWS]
    paraphrases = [row["paraphrase"] for _, row in PAIRS]
    assert len(set(texts + paraphrases)) == 1100
    assert sorted(row["lang"] for row in ROWS) == ["en"] * 500 + ["zh"] * 500
    assert sorted(row["lang"] for _, row in PAIRS) == ["en"] * 50 + ["zh"] * 50


def test_chinese_is_recalled_as_well_as_english():
    if importlib.util.find_spec("wordllama") is None:
        pytest.skip("wordllama is not installed")
    encoder = load_encoder("static")
    english, chinese = recall(encoder, "en", 2), recall(encoder, "zh", 2)
    assert english >= 0.95
    assert chinese >= 0.95 * english
    assert recall(encoder, "en", 1) >= 0.85
    assert recall(encoder, "zh", 1) >= 0.8
