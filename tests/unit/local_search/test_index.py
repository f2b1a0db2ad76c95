"""Building, opening and searching an index."""

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_search import build as build_module
from local_search import index as index_module
from local_search import parts as parts_module
from local_search import postings as postings_module
from local_search.build import PARTS, build, prepare
from local_search.index import LOCK, MANIFEST, Index, locked, read_manifest, stale
from mia.errors import ConfigError, InputError, StorageError
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
    assert "another language" in stale(settings.model_copy(update={"language": "german"}))
    data = settings.index / manifest.folder / "weights.npy"
    whole = data.read_bytes()
    for damaged in (whole[:-1] + b"\0", whole[:-1]):
        data.write_bytes(damaged)
        assert "weights.npy is damaged" in stale(settings)
    data.unlink()
    assert "weights.npy is damaged or gone" in stale(settings)
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
import local_search.parts as made
from local_search.build import build
from mia.runtime.settings import SearchServiceSettings, load
made.parse = lambda line: os.kill(os.getpid(), signal.SIGKILL)
build(load(SearchServiceSettings, corpus=pathlib.Path({str(settings.corpus)!r}), index=pathlib.Path({str(settings.index)!r})))
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
    (settings.index / manifest.folder / "terms.npy").unlink()
    with pytest.raises(StorageError, match="terms") as caught:
        Index.open(settings)
    assert "build" in caught.value.remedy


def counted(monkeypatch, module, name):
    """Count the calls of a function."""
    calls = []
    function = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: calls.append(given) or function(*given))
    return calls


def test_an_index_as_it_was_built_is_opened_without_reading_it(settings, monkeypatch):
    build(settings)
    read = counted(monkeypatch, index_module, "digest")
    prepare(settings).close()
    assert read == []


def test_an_index_that_was_copied_is_read_and_opened(settings, monkeypatch):
    manifest = build(settings)
    for file in (settings.index / manifest.folder).iterdir():
        os.utime(file, ns=(1, 1))
    read = counted(monkeypatch, index_module, "digest")
    prepare(settings).close()
    assert sorted(file.name for (file,) in read) == sorted(manifest.files)
    assert read_manifest(settings.index) == manifest


def test_damage_that_leaves_no_trace_is_found_by_a_thorough_look(settings):
    manifest = build(settings)
    file = settings.index / manifest.folder / "rows.npy"
    before = file.stat()
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert stale(settings) == ""
    assert "rows.npy is damaged" in stale(settings, thorough=True)


def test_a_corpus_that_changes_while_it_is_read_is_refused(settings, monkeypatch):
    parse = parts_module.parse

    def parse_and_touch(line):
        os.utime(settings.corpus, ns=(1, 1))
        return parse(line)

    monkeypatch.setattr(parts_module, "parse", parse_and_touch)
    with pytest.raises(InputError, match="changed while"):
        build(settings)
    assert [found.name for found in settings.index.iterdir()] == [LOCK]


def many(settings, count=200):
    rows = ({"id": row, "contents": f'"Title {row}"\nWord{row} of {"many words " * (row % 5)}'} for row in range(count))
    written(settings.corpus, [*rows, "{", {"id": 3, "contents": "again"}])


def files_of(settings, manifest):
    return {file.name: file.read_bytes() for file in (settings.index / manifest.folder).iterdir()}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_index_is_the_same_in_whatever_parts_and_blocks_it_was_made(settings, monkeypatch, workers, caplog):
    many(settings)
    settings = settings.model_copy(update={"workers": workers})
    once = files_of(settings, build(settings))
    monkeypatch.setattr(parts_module, "PART_BYTES", 500)
    monkeypatch.setattr(build_module, "PART_BYTES", 500)
    monkeypatch.setattr(postings_module, "BLOCK", 10)
    caplog.clear()
    manifest = build(settings)
    assert files_of(settings, manifest) == once
    assert (manifest.rows, manifest.usable) == (202, 201)
    assert "1 not JSON (line 201)" in caplog.text
    assert "1 repeat an id, and are kept (line 202)" in caplog.text
    assert not (settings.index / PARTS).exists()


def test_lines_that_come_again_are_counted_once_and_found_in_every_place(settings, monkeypatch, caplog):
    line = {"contents": '"Alpha"\nbeta'}
    written(settings.corpus, [line] * 300)
    monkeypatch.setattr(parts_module, "PART_BYTES", 500)
    counted_now = counted(monkeypatch, parts_module, "count")
    with caplog.at_level(logging.INFO):
        manifest = build(settings.model_copy(update={"workers": 1}))
    folders_made = [folder for _, _, folder in counted_now]
    assert len(folders_made) == len(set(folders_made)) == 2  # a full part, and the last
    assert "took over" not in caplog.text
    with closing(Index.open(settings)) as index:
        assert [row for row, _ in index.find("beta", 500)] == list(range(manifest.rows))


def test_a_search_that_fails_leaves_nothing_to_the_next(settings, monkeypatch):
    build(settings)
    with closing(Index.open(settings)) as index:
        expected = index.find("city in Nigeria", 3)
        with monkeypatch.context() as patch:
            patch.setattr(postings_module.np, "concatenate", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                index.find("city in Nigeria", 3)
        assert index.find("city in Nigeria", 3) == expected


def test_a_build_that_was_stopped_goes_on(settings, monkeypatch):
    many(settings)
    monkeypatch.setattr(parts_module, "PART_BYTES", 500)
    count = parts_module.count
    done = []

    def count_some(lines, language, folder):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(folder)
        count(lines, language, folder)

    monkeypatch.setattr(parts_module, "count", count_some)
    with pytest.raises(KeyboardInterrupt):
        build(settings)
    assert folders(settings) == []
    (done[0] / "terms.npy").write_bytes(b"")
    monkeypatch.setattr(parts_module, "count", count)
    counted_now = counted(monkeypatch, parts_module, "count")
    stopped = files_of(settings, build(settings))
    assert done[0] in {folder for _, _, folder in counted_now}
    assert not {folder for _, _, folder in counted_now} & set(done[1:])
    assert files_of(settings, build(settings)) == stopped


@pytest.mark.parametrize("limit", [1, 3, 20, 500])
def test_scores_are_those_of_bm25s_whatever_is_left_unread(settings, limit):
    random = Random(limit)
    words = [f"w{int(1.2**power)}x{power}" for power in range(30) for _ in range(2 ** (power // 4))]
    rows = [" ".join(random.choices(words, k=random.randrange(1, 40))) for _ in range(500)]
    written(settings.corpus, [{"contents": f'""\n{text}'} for text in rows])
    settings = settings.model_copy(update={"language": "none"})
    build(settings)
    peer = bm25s.BM25(k1=settings.k1, b=settings.b)
    peer.index([[*row.split(), "="] for row in rows], show_progress=False)
    with closing(Index.open(settings)) as index:
        for _ in range(40):
            query = random.choices(words, k=random.randrange(1, 9))
            expected = peer.get_scores(query)
            best = np.sort(expected[expected > 0])[::-1][:limit]
            found = index.find(" ".join(query), limit)
            assert [score for _, score in found] == pytest.approx(best.tolist(), rel=1e-4)
            assert [score for _, score in found] == pytest.approx([expected[row] for row, _ in found], rel=1e-4)


def test_a_language_is_told_or_given_and_kept(settings):
    lines = [
        {"id": "h", "contents": '"Häuser"\nDie Häuser der Stadt und die Straßen in der Nacht sind nicht sehr hell.'}
    ]
    written(settings.corpus, lines)
    assert build(settings).language == "german"
    assert ids(settings, "Haus") == ["h"]
    assert build(settings.model_copy(update={"language": "none"})).language == "none"
    assert ids(settings, "Haus") == []
    with pytest.raises(ConfigError, match="no language") as caught:
        build(settings.model_copy(update={"language": "klingon"}))
    assert "german" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("東京タワーは東京都港区にある電波塔で、高さは三百三十三メートルです。", "電波塔"),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและมีแม่น้ำเจ้าพระยาไหลผ่าน", "เจ้าพระยา"),
        ("서울은 대한민국의 수도이며 한강이 도시를 가로지른다.", "한강"),
        ("Αθήνα είναι η πρωτεύουσα της Ελλάδας", "ΠΡΩΤΕΎΟΥΣΑ"),
        ("Київ — столиця України", "столиця"),
    ],
)
def test_words_inside_sentences_of_any_script_are_found(settings, text, query):
    written(settings.corpus, [*LINES, {"id": "x", "contents": text}])
    build(settings)
    assert ids(settings, query)[0] == "x"


def test_a_counting_process_that_is_ended_from_outside_is_a_storage_error(monkeypatch):
    monkeypatch.setattr(parts_module, "count", os._exit)
    with pytest.raises(StorageError, match="ended from outside") as caught:
        parts_module.count_all([(9,), (9,)], 2)
    assert "MIA_SEARCH_WORKERS=1" in caught.value.remedy


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads the state of a process from /proc")
def test_counting_processes_do_not_outlive_a_build_that_was_killed(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text("""
import multiprocessing, os, signal, sys, time
from local_search import parts

def count(path, *_):
    path.write_text(str(os.getpid()))
    time.sleep(60)

def tasks(folder):
    yield (folder / "one",)
    while not (folder / "one").exists() or not (folder / "one").read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from pathlib import Path
    parts.count = count
    parts.count_all(tasks(Path(sys.argv[1])), 2)
""")
    subprocess.run([sys.executable, str(script), str(tmp_path)], timeout=60, check=False)
    process = Path("/proc") / (tmp_path / "one").read_text()
    for _ in range(1000):
        state = (process / "stat").read_text().split()[2] if process.exists() else "Z"
        if state == "Z":
            break
        time.sleep(0.01)
    assert state == "Z"
