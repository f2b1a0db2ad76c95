"""Building, opening and searching an index."""

import gzip
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_search.build import build, prepare
from local_search.index import MANIFEST, Index, stale
from mia.errors import InputError, StorageError
from mia.runtime.settings import SearchServiceSettings, load

LINES = [
    {"id": "a", "contents": '"Aba"\nAba is a city in Nigeria.'},
    {"id": "b", "contents": '"Lagos"\nLagos is the largest city of Nigeria.'},
    {"id": "c", "contents": '"巴黎"\n巴黎是法国的首都和最大城市。'},
    {"id": "d", "contents": '"Nigeria"\nA country in Africa.'},
]


def written(path, lines):
    text = "".join((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n" for line in lines)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def settings(tmp_path):
    return load(
        SearchServiceSettings, corpus=written(tmp_path / "corpus.jsonl", LINES), index=tmp_path / "deep" / "index"
    )


def ids(settings, query, limit=10):
    index = Index.open(settings)
    try:
        return [document["id"] for document, _ in index.search(query, limit)]
    finally:
        index.close()


def test_the_best_document_comes_first_in_any_language(settings):
    build(settings)
    assert ids(settings, "Which country is Aba in?")[0] == "a"
    assert ids(settings, "largest cities") == ["b", "a"]
    assert ids(settings, "法国首都是哪里？") == ["c"]
    assert ids(settings, "Nigeria")[0] == "d"
    assert ids(settings, "Nigeria", limit=1) == ["d"]
    assert ids(settings, "quantum") == []


def test_scores_fall_and_ties_keep_the_order_of_the_corpus(tmp_path):
    corpus = written(tmp_path / "c.jsonl", [{"id": number, "contents": "same words"} for number in range(20)])
    settings = load(SearchServiceSettings, corpus=corpus, index=tmp_path / "i")
    build(settings)
    assert ids(settings, "words", limit=20) == list(range(20))


def test_a_query_that_is_a_title_finds_its_page_before_pages_that_mention_it_more(tmp_path):
    lines = [{"id": number, "contents": f'"China {number}, China"\nIn China.'} for number in range(9)]
    lines.append({"id": "own", "contents": '"China"\nA country of long description: ' + "many other words " * 20})
    settings = load(SearchServiceSettings, corpus=written(tmp_path / "c.jsonl", lines), index=tmp_path / "i")
    build(settings)
    assert ids(settings, "china", limit=1) == ["own"]


def test_a_gzipped_corpus_is_searched_the_same(settings, tmp_path):
    packed = written(tmp_path / "corpus.jsonl.gz", LINES)
    settings = load(SearchServiceSettings, corpus=packed, index=settings.index)
    build(settings)
    assert ids(settings, "法国首都") == ["c"]
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(InputError, match="gzip"):
        prepare(settings)


def test_bad_lines_keep_their_rows_and_are_reported_once(tmp_path, caplog):
    lines = [
        "{",
        LINES[0],
        "",
        {"id": "x"},
        LINES[1],
        {"id": "a", "contents": "Aba again"},
        {"id": "y", "contents": "!?"},
    ]
    settings = load(SearchServiceSettings, corpus=written(tmp_path / "c.jsonl", lines), index=tmp_path / "i")
    with caplog.at_level(logging.WARNING):
        manifest = build(settings)
    assert (manifest.rows, manifest.usable) == (7, 3)
    assert len(caplog.records) == 1
    assert "2 not JSON (lines 1, 3), 1 without text (line 4), 1 without a word (line 7)" in caplog.text
    assert "1 repeat an id, and are kept (line 6)" in caplog.text
    assert ids(settings, "Aba") == ["a", "a"]
    assert ids(settings, "Lagos") == ["b"]


@pytest.mark.parametrize("lines", [[], ["", "{"], [{"id": "x"}]])
def test_a_corpus_without_a_usable_line_is_refused_and_leaves_nothing(tmp_path, lines):
    settings = load(SearchServiceSettings, corpus=written(tmp_path / "c.jsonl", lines), index=tmp_path / "i")
    with pytest.raises(InputError, match="no line that can be found") as caught:
        build(settings)
    assert "contents" in caught.value.remedy
    assert list((tmp_path / "i").iterdir()) == []


def test_a_missing_corpus_is_refused(tmp_path):
    with pytest.raises(InputError, match="no corpus"):
        prepare(load(SearchServiceSettings, corpus=tmp_path / "none", index=tmp_path / "i"))


def test_a_fresh_index_is_not_built_again_and_a_touched_corpus_is_the_same_corpus(settings):
    prepare(settings)
    before = (settings.index / MANIFEST).read_bytes()
    settings.corpus.touch()
    prepare(settings)
    assert (settings.index / MANIFEST).read_bytes() == before


def test_a_changed_corpus_is_noticed_refused_and_rebuilt(settings):
    build(settings)
    written(settings.corpus, [*LINES, {"id": "e", "contents": "Kano"}])
    with pytest.raises(StorageError, match="not the one that was indexed") as caught:
        Index.open(settings)
    assert "build" in caught.value.remedy
    prepare(settings)
    assert ids(settings, "Kano") == ["e"]
    assert len(list(settings.index.iterdir())) == 2


def test_other_settings_damage_and_absence_are_noticed(settings):
    assert "none yet" in stale(settings)
    manifest = build(settings)
    assert stale(settings) == ""
    assert "k1" in stale(settings.model_copy(update={"k1": 1.5}))
    data = settings.index / manifest.folder / "data.csc.index.npy"
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    assert "data.csc.index.npy" in stale(settings)
    (settings.index / MANIFEST).write_text("{}")
    assert MANIFEST in stale(settings)
    prepare(settings)
    assert stale(settings) == ""


def test_an_index_folder_that_cannot_be_made_is_a_storage_error(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        build(settings.model_copy(update={"index": tmp_path / "file"}))


def test_no_query_is_too_odd(settings):
    build(settings)
    index = Index.open(settings)

    @given(st.text(alphabet=st.characters()))
    def search(query):
        assert len(index.search(query, 3)) <= 3

    search()
    for query in ("\ud800", "a\0b", "x" * 1_000_000, "城" * 1_000_000, "the of", "\u202e\ufeff"):
        index.search(query, 3)
    index.close()
