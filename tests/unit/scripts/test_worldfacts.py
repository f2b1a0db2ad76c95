"""What the shipped world facts promise, measured on the files as they are."""

import json
import re
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from local_search.build import prepare
from mia.runtime.settings import SearchServiceSettings, load

DATA = Path(__file__).parents[3] / "data" / "worldfacts"
ANSWERED = ("train", "dev", "test", "test_phrasing", "test_composition")
UNANSWERABLE = ("train_unanswerable", "test_unanswerable")
TESTS = ("test", "test_phrasing", "test_composition", "test_unanswerable")
TOP = 5


@cache
def rows(name):
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@cache
def passages():
    return {row["id"]: row for row in rows("corpus")}


@pytest.fixture(scope="module")
def top(tmp_path_factory):
    """The ids of the best passages for a query, from the index that people use."""
    folder = tmp_path_factory.mktemp("index")
    index = prepare(load(SearchServiceSettings, corpus=DATA / "corpus.jsonl", index=folder, port=0))
    yield cache(lambda query: {document["id"] for document, _ in index.search(query, TOP)})
    index.close()


def fold(text):
    plain = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).lower()


def tells(text, part):
    text, part = fold(text), fold(part)
    if len(part) >= 4 or not part.isascii():
        return part in text
    return re.search(rf"(?<![a-z0-9]){re.escape(part)}(?![a-z0-9])", text) is not None


def chains(name):
    return [row for row in rows(name) if row["type"].startswith("chain")]


def test_ids_are_places_among_the_titles():
    titles = sorted(row["title"] for row in rows("corpus"))
    assert {row["title"]: row["id"] for row in rows("corpus")} == {t: f"wf-{i:05d}" for i, t in enumerate(titles)}


def test_no_question_and_no_id_occurs_twice():
    everything = [row for name in (*ANSWERED, *UNANSWERABLE) for row in rows(name)]
    ids = Counter(row["id"] for row in everything)
    assert [row["question"] for row in everything if ids[row["id"]] > 1] == []


def test_there_are_enough_questions():
    assert sum(len(rows(name)) for name in ANSWERED) >= 3000
    assert min(len(rows("test")), len(rows("test_phrasing"))) >= 500
    assert min(len(rows("test_composition")), len(rows("test_unanswerable"))) >= 200


def test_no_anchor_of_a_test_is_known_from_train_or_dev():
    known = {
        anchor for name in ("train", "dev", "train_unanswerable") for row in rows(name) for anchor in row["anchors"]
    }
    assert known.isdisjoint(anchor for name in TESTS for row in rows(name) for anchor in row["anchors"])


def test_wordings_and_chains_that_are_held_out_never_occur_in_train_or_dev():
    trained = [*rows("train"), *rows("dev")]
    families = {row["family"] for row in trained}
    assert families.isdisjoint(row["family"] for row in rows("test_phrasing"))
    assert {row["family"] for row in rows("test")} <= families
    kinds = {row["title"]: row["kind"] for row in rows("corpus")}

    def chain(row):
        return (kinds[row["anchors"][0]], *row["relations"])

    assert {chain(row) for row in trained}.isdisjoint(chain(row) for row in rows("test_composition"))
    known = {relation for row in trained for relation in row["relations"]}
    assert {relation for row in rows("test_composition") for relation in row["relations"]} <= known


def test_every_hop_is_told_by_the_passage_it_names():
    for name in ANSWERED:
        for row in rows(name):
            assert row["decomposition"], row["question"]
            assert row["supporting_ids"] == list(dict.fromkeys(hop["id"] for hop in row["decomposition"]))
            for hop in row["decomposition"]:
                assert fold(hop["object"]) in fold(passages()[hop["id"]]["text"]), (row["question"], hop)


def test_a_chain_ends_in_its_answer_and_nothing_before_tells_it():
    for name in ANSWERED:
        for row in chains(name):
            assert row["decomposition"][-1]["object"] == row["answers"][0]
            assert not any(tells(row["question"], answer) for answer in row["answers"]), row["question"]
            *before, last = row["supporting_ids"]
            assert not any(tells(passages()[each]["text"], row["answers"][0]) for each in before if each != last)


@pytest.mark.parametrize(
    ("answer", "other"),
    [("United Kingdom", "UK"), ("Turkey", "Türkiye"), ("Japanese Yen", "yen"), ("Chinese Yuan", "Renminbi")],
)
def test_names_in_use_are_answers_too(answer, other):
    found = [row["answers"] for name in ANSWERED for row in rows(name) if row["answers"][0] == answer]
    assert found
    assert all(other in answers for answers in found)


def test_unanswerable_questions_say_so_and_why():
    for name in UNANSWERABLE:
        assert {row["reason"] for row in rows(name)} == {"not_recorded", "false_premise", "unknown_entity", "disputed"}
        assert all(row["unanswerable"] and row["answers"] == [] for row in rows(name))


@pytest.mark.parametrize("name", ANSWERED)
def test_no_answer_is_worth_guessing(name):
    answers = Counter(row["answers"][0] for row in rows(name))
    assert max(answers.values()) / len(rows(name)) < 0.03


@pytest.mark.parametrize("name", ANSWERED)
def test_every_family_is_there_in_numbers(name):
    families = Counter(row["family"] for row in rows(name))
    assert len(families) == (3 if name == "test_phrasing" else 8)
    assert all(count >= (5 if family == "chinese" else 12) for family, count in families.items()), families


@pytest.mark.parametrize("name", ANSWERED)
def test_search_hop_by_hop_finds_all_support(name, top):
    found = [all(hop["id"] in top(hop["query"]) for hop in row["decomposition"]) for row in chains(name)]
    assert sum(found) / len(found) >= 0.97


@pytest.mark.parametrize("name", ANSWERED)
def test_one_search_seldom_finds_the_support_of_three_hops(name, top):
    found = [set(row["supporting_ids"]) <= top(row["question"]) for row in chains(name) if row["hops"] == 3]
    assert sum(found) / len(found) < 0.15
