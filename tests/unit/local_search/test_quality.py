"""How well search finds, on every collection that is here, with the one setting."""

import importlib.util
import sys
from pathlib import Path

import pytest

from local_search.build import build
from local_search.index import Index
from mia.runtime.settings import SearchServiceSettings, load

PATH = Path(__file__).parents[3] / "benchmarks" / "search_quality.py"
spec = importlib.util.spec_from_file_location("search_quality", PATH)
benchmark = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = benchmark
spec.loader.exec_module(benchmark)


def figures(collection, folder):
    settings = load(SearchServiceSettings, corpus=collection.corpus, index=folder / "index")
    build(settings)
    index = Index.open(settings)
    measured = benchmark.judge(
        collection,
        lambda query, limit: [benchmark.key_of(document) for document, _ in index.search(query, limit)],
        benchmark.Measured(0, 0),
    )
    index.close()
    return measured.figures


def shared(folder):
    if not (benchmark.DATA / folder).is_dir():
        pytest.skip(f"the public set {folder} is not here")
    return benchmark.DATA


@pytest.mark.shared
def test_hotpotqa(tmp_path):
    found = figures(benchmark.hotpotqa(shared("multihop/hotpotqa_pool")), tmp_path)
    assert found["R@5"] >= 82


@pytest.mark.shared
def test_musique(tmp_path):
    found = figures(benchmark.musique(shared("multihop/musique_pool")), tmp_path)
    assert found["R@5"] >= 48


@pytest.mark.shared
def test_scifact(tmp_path):
    found = figures(benchmark.scifact(shared("ir/scifact")), tmp_path)
    assert found["nDCG@10"] >= 0.67
    assert found["R@100"] >= 91


def test_world_facts(tmp_path):
    assert figures(benchmark.world_facts(), tmp_path)["R@5"] >= 98


def test_words_of_two_characters_inside_long_chinese_sentences(tmp_path):
    assert figures(benchmark.chinese(tmp_path), tmp_path)["R@5"] >= 95
