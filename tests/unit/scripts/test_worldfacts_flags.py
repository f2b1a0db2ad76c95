"""What the shipped flag questions promise, where parquet files can be read."""

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "data"
FLAGS = DATA / "flags"


@pytest.fixture(scope="module")
def rows():
    parquet = pytest.importorskip("pyarrow.parquet", reason="the packages of the extra `data` are not installed")
    return {split: parquet.read_table(FLAGS / f"{split}.parquet").to_pylist() for split in ("train", "dev", "test")}


def test_every_flag_is_of_one_split_and_every_question_has_an_id_of_its_own(rows):
    countries = [{row["extra_info"]["country"] for row in found} for found in rows.values()]
    assert len(set.union(*countries)) == sum(map(len, countries))
    ids = [row["data_id"] for found in rows.values() for row in found]
    assert len(ids) == len(set(ids)) > 600


def test_the_last_supporting_passage_tells_the_answer(rows):
    lines = (DATA / "worldfacts" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    texts = {row["id"]: row["text"] for row in map(json.loads, lines)}
    for row in (row for found in rows.values() for row in found):
        answers = json.loads(row["reward_model"]["candidate_answers"])
        assert answers[0] == row["reward_model"]["ground_truth"]
        assert answers[0] in texts[row["extra_info"]["supporting_ids"][-1]]
        assert row["prompt"][0]["content"].startswith("<image>\n")


def test_the_picture_is_the_flag(rows):
    for row in (row for found in rows.values() for row in found):
        path = FLAGS / "images" / f"{row['extra_info']['iso2'].lower()}.png"
        assert row["images"] == [{"bytes": path.read_bytes(), "path": path.name}]


def test_the_image_search_of_every_test_question_finds_its_flag_first(rows):
    cache = FLAGS / "image_search_cache"
    assert {path.name for path in cache.iterdir()} == {row["data_id"] for row in rows["test"]}
    for row in rows["test"]:
        found = json.loads((cache / row["data_id"] / "meta.json").read_text(encoding="utf-8"))
        assert row["extra_info"]["country"] in found["search_results"][0]["title"]
        assert (cache / row["data_id"] / "img_000.png").read_bytes() == row["images"][0]["bytes"]
        assert [result["image_url"] for result in found["search_results"]] == found["image_urls"]
