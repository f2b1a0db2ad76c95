"""Building, opening and searching an index."""

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_search import build as build_module
from local_search import index as index_module
from local_search.build import build, prepare
from local_search.index import LOCK, MANIFEST, Index, locked, stale
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


def folders(settings):
    return [found.name for found in settings.index.glob("index-*")]


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


def test_fewer_results_are_the_head_of_more(tmp_path):
    lines = [{"id": number, "contents": "words" if number % 3 else "words words"} for number in range(300)]
    settings = load(SearchServiceSettings, corpus=written(tmp_path / "c.jsonl", lines), index=tmp_path / "i")
    build(settings)
    every = ids(settings, "words", limit=300)
    assert sorted(every) == list(range(300))
    for limit in (1, 2, 3, 50, 150, 299):
        assert ids(settings, "words", limit) == every[:limit]


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
    assert [found.name for found in (tmp_path / "i").iterdir()] == [LOCK]


def test_a_missing_corpus_is_refused(tmp_path):
    with pytest.raises(InputError, match="no corpus"):
        prepare(load(SearchServiceSettings, corpus=tmp_path / "none", index=tmp_path / "i"))


def test_a_fresh_index_is_not_built_again_and_a_touched_corpus_is_the_same_corpus(settings):
    prepare(settings).close()
    before = (settings.index / MANIFEST).read_bytes()
    settings.corpus.touch()
    prepare(settings).close()
    assert (settings.index / MANIFEST).read_bytes() == before


def test_a_changed_corpus_is_noticed_refused_and_rebuilt(settings):
    build(settings)
    written(settings.corpus, [*LINES, {"id": "e", "contents": "Kano"}])
    with pytest.raises(StorageError, match="not the one that was indexed") as caught:
        Index.open(settings)
    assert "build" in caught.value.remedy
    prepare(settings).close()
    assert ids(settings, "Kano") == ["e"]
    assert len(list(settings.index.iterdir())) == 3


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
    prepare(settings).close()
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


def test_a_path_that_the_file_system_refuses_is_the_fault_of_the_corpus(settings, tmp_path):
    for act in (build, prepare, Index.open, stale):
        with pytest.raises(InputError, match="corpus"):
            act(settings.model_copy(update={"corpus": tmp_path / ("x" * 300)}))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_corpus_without_rights_is_the_fault_of_the_corpus(settings):
    build(settings)
    settings.corpus.chmod(0)
    for act in (build, prepare, Index.open, stale):
        with pytest.raises(InputError, match="cannot be read"):
            act(settings)


@pytest.mark.skipif(not Path("/proc/self/mem").is_file(), reason="needs a file that opens and cannot be read")
def test_a_corpus_that_fails_while_it_is_read_is_the_fault_of_the_corpus(settings):
    build(settings)
    broken = settings.model_copy(update={"corpus": Path("/proc/self/mem")})
    for act in (build, prepare, Index.open, stale):
        with pytest.raises(InputError, match="cannot be read") as caught:
            act(broken)
        assert "rights" in caught.value.remedy
    assert stale(settings) == ""
    assert len(folders(settings)) == 1


def test_what_a_killed_build_left_is_removed_by_the_next(settings):
    build(settings)
    for name in ("index-dead", "index-gone"):
        (settings.index / name).mkdir()
        (settings.index / name / "data").write_text("left")
    kept = build(settings).folder
    assert folders(settings) == [kept]


def test_a_build_ended_by_a_signal_keeps_the_index_and_leaves_nothing_after_the_next(settings, tmp_path):
    build(settings)
    script = f"""
import os, pathlib, signal
import local_search.build as made
from mia.runtime.settings import SearchServiceSettings, load
made.terms = lambda text: os.kill(os.getpid(), signal.SIGKILL)
made.build(load(SearchServiceSettings, corpus=pathlib.Path({str(settings.corpus)!r}), index=pathlib.Path({str(settings.index)!r})))
"""
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(folders(settings)) == 2
    assert stale(settings) == ""
    kept = build(settings).folder
    assert folders(settings) == [kept]


def test_builds_and_openings_at_once_never_meet(settings):
    failures = []

    def run(act):
        try:
            for _ in range(8):
                act()
        except (StorageError, OSError) as error:
            failures.append(error)

    def start():
        prepare(settings).close()

    start()
    threads = [
        threading.Thread(target=run, args=(act,))
        for act in (lambda: build(settings), start, lambda: ids(settings, "Aba"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(folders(settings)) == 1


def test_first_starts_at_once_build_one_index(settings, caplog):
    opened = []
    gate = threading.Barrier(4)

    def start():
        gate.wait()
        opened.append(prepare(settings))

    threads = [threading.Thread(target=start) for _ in range(4)]
    with caplog.at_level(logging.INFO):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index in opened:
        index.close()
    assert len({index.manifest.folder for index in opened}) == 1
    assert len(opened) == 4
    assert len(folders(settings)) == 1
    assert caplog.text.count("indexed 4 documents") == 1


def test_a_lock_that_is_never_free_ends_in_a_storage_error(settings, monkeypatch):
    build(settings)
    monkeypatch.setattr(index_module, "LOCK_SECONDS", 0.0)
    with locked(settings.index, alone=True):
        for act in (build, prepare, Index.open):
            with pytest.raises(StorageError, match="Another process") as caught:
                act(settings)
            assert "Wait" in caught.value.remedy
    Index.open(settings).close()


def test_what_the_file_system_refuses_at_opening_is_a_storage_error_with_a_remedy(settings, monkeypatch):
    manifest = build(settings)
    monkeypatch.setattr(index_module, "stale", lambda settings: "")
    (settings.index / manifest.folder / "params.index.json").unlink()
    with pytest.raises(StorageError, match="params") as caught:
        Index.open(settings)
    assert "build" in caught.value.remedy


def test_a_start_reads_every_file_of_the_index_once(settings, monkeypatch):
    manifest = build(settings)
    read = []
    digest = index_module.digest
    monkeypatch.setattr(index_module, "digest", lambda file: read.append(file.name) or digest(file))
    prepare(settings).close()
    assert sorted(read) == sorted(manifest.files)


def test_a_corpus_that_changes_while_it_is_read_is_refused(settings, monkeypatch):
    parse = build_module.parse

    def parse_and_touch(line):
        os.utime(settings.corpus, ns=(1, 1))
        return parse(line)

    monkeypatch.setattr(build_module, "parse", parse_and_touch)
    with pytest.raises(InputError, match="changed while"):
        build(settings)
    assert folders(settings) == []
