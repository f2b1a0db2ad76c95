"""How well and how fast offline search finds, beside plain bm25s with the same k1 and b in the same run.

    python benchmarks/search_quality.py [--data DIR] [--passages 500000]

Prints one table. DIR holds the public sets `multihop/hotpotqa_pool`, `multihop/musique_pool` and `ir/scifact`, a folder
each with `corpus.jsonl` and `queries.jsonl`; one that is not there is left out, and said so. World facts come with this
repository; the Chinese notes are made here. R@5 is the mean share of a question's gold passages among the first five.

One code and one setting serve all rows. Plain bm25s has its own tokeniser, which drops English stop words, and reads
title and text as one. Latencies are those of one query after the other, `batch` that of 64 given to the service at
once; the index of plain bm25s is in memory. With --passages, as many made-up ones are indexed and searched too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

import bm25s  # type: ignore[import-untyped]
import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from local_search.build import build
from local_search.index import Index
from local_search.service import Search
from mia.runtime.settings import SearchServiceSettings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
DEEPEST = 100
BATCH = 64
NOTES = 1000


@dataclass(frozen=True)
class Collection:
    """A corpus file, and questions with the ids of their gold passages."""

    name: str
    corpus: Path
    questions: list[str]
    gold: list[set[str]]
    measures: tuple[str, ...] = ("R@5",)

    def documents(self) -> list[dict[str, Any]]:
        """Return the passages of the corpus."""
        return read(self.corpus)


@dataclass
class Measured:
    """What one search did on one collection."""

    build_seconds: float
    index_mb: float
    figures: dict[str, float] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)
    batch_per_second: float = 0.0


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def key_of(document: dict[str, Any]) -> str:
    """Return the id of a passage, which BEIR's files call `_id`."""
    return str(document.get("_id", document.get("id")))


def hotpotqa(data: Path) -> Collection:
    """Read the pool of HotpotQA's passages, with questions of two hops."""
    folder = data / "multihop" / "hotpotqa_pool"
    return _supported("HotpotQA pool", folder / "corpus.jsonl", read(folder / "queries.jsonl"))


def musique(data: Path) -> Collection:
    """Read the pool of MuSiQue's passages, with questions of two to four hops."""
    folder = data / "multihop" / "musique_pool"
    return _supported("MuSiQue pool", folder / "corpus.jsonl", read(folder / "queries.jsonl"))


def _supported(name: str, corpus: Path, asked: Sequence[dict[str, Any]]) -> Collection:
    return Collection(
        name, corpus, [each["question"] for each in asked], [set(each["supporting_ids"]) for each in asked]
    )


def scifact(data: Path) -> Collection:
    """Read the test topics of SciFact in the layout of BEIR."""
    folder = data / "ir" / "scifact"
    texts = {each["_id"]: each["text"] for each in read(folder / "queries.jsonl")}
    gold: dict[str, set[str]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        topic, document, _ = line.split("\t")
        gold.setdefault(topic, set()).add(document)
    questions = [texts[topic] for topic in gold]
    return Collection("SciFact", folder / "corpus.jsonl", questions, list(gold.values()), ("nDCG@10", "R@100"))


def world_facts() -> Collection:
    """Read the questions of one hop that come with this repository."""
    folder = ROOT / "data" / "worldfacts"
    asked = [each for split in ("train", "dev", "test") for each in read(folder / f"{split}.jsonl")]
    asked = [each for each in asked if each["hops"] == 1 and each["supporting_ids"]]
    return _supported("world facts, 1 hop", folder / "corpus.jsonl", asked)


def chinese(folder: Path) -> Collection:
    """Make notes of long Chinese sentences; the queries are words of two characters and short phrases inside them.

    Gold is every note that has the query's characters in a row, at most five.
    """
    random = Random(7)
    names = [
        surname + given for surname in "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗" for given in "岚峥瑾澜昱彤珩恺霖蔚"
    ]
    places = re.findall("..", "泉州洛阳敦煌大理苏州绍兴襄阳扬州景德武夷平遥凤凰拉萨喀什延安桂林丽江徽州")
    things = re.findall("..", "铜镜折扇砚台古琴瓷瓶茶壶竹笛油灯罗盘算盘绣鞋木匣玉佩书签铁锚风筝陶俑棋盘")
    trades = re.findall("..", "木匠裁缝医生教师船长农夫画家记者厨师邮差石匠猎人")
    lines = []
    for number in range(NOTES):
        first, second = random.sample(names, 2)
        place, other = random.sample(places, 2)
        thing, gift = random.sample(things, 2)
        trade = random.choice(trades)
        text = (
            f"那年秋天，住在{place}老城里的{trade}{first}整理祖父留下的旧屋时，意外发现了一件保存得十分完好的{thing}，"
            f"上面刻着第{random.randrange(1000, 9999)}号的字样。后来{first}写信告诉远在{other}的朋友{second}，"
            f"两个人商量了整整一个冬天，最后决定用一件{gift}把它换给当地的博物馆，好让更多的孩子能够看见它的样子。"
        )
        lines.append({"id": f"note-{number}", "contents": f'"第{number}篇笔记"\n{text}'})
    corpus = folder / "chinese.jsonl"
    corpus.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    holding = {
        each: {line["id"] for line in lines if each in line["contents"]} for each in _phrases(random, lines, names)
    }
    kept = [each for each, found in holding.items() if len(found) <= 5]
    return Collection("Chinese notes", corpus, kept, [holding[each] for each in kept])


def _phrases(random: Random, lines: Sequence[dict[str, str]], names: Sequence[str]) -> Iterator[str]:
    """Yield the names, and what lies around a name in some notes."""
    yield from names
    for line in random.sample(lines, 300):
        text = line["contents"]
        at = min(text.index(name) for name in names if name in text)
        yield text[at - random.randrange(3) : at + 2 + random.randrange(3)]


def made_up(folder: Path, count: int) -> Collection:
    """Make passages of 100 words with the frequencies of prose; each question is some words of one of them."""
    draw = np.random.default_rng(3)
    corpus = folder / "made_up.jsonl"
    questions, gold = [], []
    with corpus.open("w", encoding="utf-8") as file:
        for number in range(count):
            words = [f"w{rank}" for rank in draw.zipf(1.15, 300) if 50 < rank < 500_000][:100]  # the first: stop words
            file.write(
                json.dumps({"id": str(number), "contents": f'"{" ".join(words[:3])}"\n{" ".join(words)}'}) + "\n"
            )
            if number % (count // 200 or 1) == 0:
                questions.append(" ".join(words[5:95:9]))
                gold.append({str(number)})
    return Collection(f"{count:,} made up", corpus, questions, gold)


def recall(found: Sequence[str], gold: set[str], depth: int) -> float:
    """Return the share of gold passages among the first `depth`."""
    return len(gold.intersection(found[:depth])) / len(gold)


def gain(found: Sequence[str], gold: set[str], depth: int) -> float:
    """Return nDCG, gold passages all being worth the same."""
    got = sum(1 / math.log2(place + 2) for place, key in enumerate(found[:depth]) if key in gold)
    return got / sum(1 / math.log2(place + 2) for place in range(min(depth, len(gold))))


MEASURES: dict[str, Callable[[Sequence[str], set[str]], float]] = {
    "R@5": lambda found, gold: 100 * recall(found, gold, 5),
    "nDCG@10": lambda found, gold: gain(found, gold, 10),
    "R@100": lambda found, gold: 100 * recall(found, gold, 100),
}


def judge(collection: Collection, search: Callable[[str, int], Iterable[str]], measured: Measured) -> Measured:
    """Ask every question once for the figures and once, as a caller would, for the time."""
    found = [list(search(question, DEEPEST)) for question in collection.questions]
    for name in collection.measures:
        judged = map(MEASURES[name], found, collection.gold)
        measured.figures[name] = fmean(judged)
    for question in collection.questions:
        began = time.perf_counter()
        search(question, 3)
        measured.milliseconds.append((time.perf_counter() - began) * 1000)
    return measured


def ours(collection: Collection, folder: Path) -> Measured:
    """Measure local_search."""
    settings = load(SearchServiceSettings, corpus=collection.corpus, index=folder / "index")
    began = time.perf_counter()
    build(settings)
    measured = Measured(time.perf_counter() - began, sum(file.stat().st_size for file in folder.rglob("*")) / 1e6)
    index = Index.open(settings)
    judge(collection, lambda query, limit: [key_of(document) for document, _ in index.search(query, limit)], measured)
    measured.batch_per_second = asyncio.run(_batches(index, settings, collection.questions))
    index.close()
    return measured


async def _batches(index: Index, settings: SearchServiceSettings, questions: Sequence[str]) -> float:
    began = time.perf_counter()
    with Search(index, settings) as search:
        for first in range(0, len(questions), BATCH):
            await search.answer(questions[first : first + BATCH], 3)
    return len(questions) / (time.perf_counter() - began)


def plain(collection: Collection, folder: Path) -> Measured:
    """Measure bm25s as it comes."""
    settings = load(SearchServiceSettings)
    documents = collection.documents()
    began = time.perf_counter()
    texts = [f"{each['title']} {each['text']}" if "title" in each else each["contents"] for each in documents]
    peer = bm25s.BM25(k1=settings.k1, b=settings.b)
    peer.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    peer.save(folder / "peer", show_progress=False)
    measured = Measured(time.perf_counter() - began, sum(file.stat().st_size for file in folder.rglob("*")) / 1e6)

    def rows(queries: list[str], limit: int) -> Any:
        tokens = bm25s.tokenize(queries, show_progress=False, return_ids=False)
        found, scores = peer.retrieve(tokens, k=min(limit, len(documents)), show_progress=False)
        return [
            [row for row, score in zip(*each, strict=True) if score > 0] for each in zip(found, scores, strict=True)
        ]

    judge(collection, lambda query, limit: [key_of(documents[row]) for row in rows([query], limit)[0]], measured)
    began = time.perf_counter()
    for first in range(0, len(collection.questions), BATCH):
        rows(collection.questions[first : first + BATCH], 3)
    measured.batch_per_second = len(collection.questions) / (time.perf_counter() - began)
    return measured


def collections(data: Path, folder: Path, console: Console) -> Iterator[Collection]:
    """Yield every collection that is here, and say which is not."""
    for make in (hotpotqa, musique, scifact):
        try:
            yield make(data)
        except FileNotFoundError as error:
            console.print(f"{make.__name__} is left out: there is no {error.filename}.")
    yield world_facts()
    yield chinese(folder)


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the public sets (../shared/data)")
    parser.add_argument("--passages", type=int, default=0, help="made-up passages to index too")
    options = parser.parse_args()
    console = Console()
    table = Table("corpus", "search", "passages", "queries", "quality", "build s", "index MB", "q/s", "q/s batch", "p50 ms", "p95 ms", box=MARKDOWN)  # fmt: skip  # noqa: E501
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        every = list(collections(options.data, folder, console))
        if options.passages:
            every.append(made_up(folder, options.passages))
        for collection in every:
            for search in (ours, plain):
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    measured = search(collection, Path(own))
                figures = ", ".join(f"{name} {value:.4g}" for name, value in measured.figures.items())
                p50, p95 = np.percentile(measured.milliseconds, (50, 95))
                table.add_row(
                    collection.name,
                    "local_search" if search is ours else "bm25s",
                    f"{len(collection.documents()):,}",
                    f"{len(collection.questions):,}",
                    figures,
                    f"{measured.build_seconds:.2f}",
                    f"{measured.index_mb:.1f}",
                    f"{1000 / fmean(measured.milliseconds):,.0f}",
                    f"{measured.batch_per_second:,.0f}",
                    f"{p50:.2f}",
                    f"{p95:.2f}",
                )
    console.width = 200
    console.print(table)


if __name__ == "__main__":
    main()
