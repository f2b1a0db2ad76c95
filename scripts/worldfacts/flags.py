"""Questions about flags, where the picture stands for the country's name, and the image search over them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from worldfacts import questions, sources, wording
from worldfacts.chains import example_of, walk
from worldfacts.questions import DEV, TEST, TRAIN, split_of
from worldfacts.wording import Step
from worldfacts.world import Entity, World, digest, pick, shuffled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SIZE = (32, 24)
LOOK_ALIKE = 10.0
"""Flags whose pixels differ by less than this on average, out of 255, cannot be told apart for sure."""
PER_FLAG = 3
FOUND = 3
SAID = (
    "the country whose flag is shown",
    "the country this flag stands for",
    "the country or territory with this flag",
    "the country you see the flag of",
)
SAID_CHINESE = "图中旗帜所属的国家或地区"
CHAINS = tuple(
    tuple(line.split())
    for line in (
        "capital", "currency", "language", "tld", "calling", "iso3", "demonym", "only_neighbour", "holiday",
        "currency code", "language script", "capital timezone", "only_neighbour capital", "only_neighbour currency",
    )
)  # fmt: skip
WITHOUT_NAME = frozenset({"possessive"})
"""A family that would need the country's name."""

SCHEMA = pa.schema(
    [
        ("data_id", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        ("ability", pa.string()),
        ("data_source", pa.string()),
        ("image_urls", pa.null()),
        ("modality", pa.string()),
        (
            "reward_model",
            pa.struct([("style", pa.string()), ("ground_truth", pa.string()), ("candidate_answers", pa.string())]),
        ),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),
                    ("split", pa.string()),
                    ("country", pa.string()),
                    ("iso2", pa.string()),
                    ("relation", pa.string()),
                    ("family", pa.string()),
                    ("supporting_ids", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)


@dataclass(frozen=True)
class Flag:
    """A picture and what it stands for; `country` is None where the corpus does not describe it."""

    code: str
    path: Path
    name: str
    country: Entity | None
    alike: tuple[str, ...]
    """The codes of all other flags, the most similar first."""
    mistakable: bool


def read_flags(folder: Path, world: World) -> list[Flag]:
    """Read the pictures of a folder, named by two letters each."""
    names = sources.country_names()
    paths = sorted(folder.glob("*.png"))
    codes = [path.stem.upper() for path in paths]
    distances = _distances(paths)
    flags = []
    for place, (code, path) in enumerate(zip(codes, paths, strict=True)):
        country = world.entities.get(("country", names.get(code, "")))
        order = np.argsort(distances[place], kind="stable")
        others = [
            other
            for other in range(len(codes))
            if other != place
            and distances[place][other] < LOOK_ALIKE
            and ("country", names.get(codes[other], "")) in world.entities
        ]
        alike = tuple(codes[other] for other in order if other != place and codes[other] in names)
        flags.append(Flag(code, path, names.get(code, code), country, alike, bool(others)))
    return flags


def _distances(paths: Sequence[Path]) -> np.ndarray[Any, np.dtype[np.float64]]:
    pixels = []
    for path in paths:
        with Image.open(path) as image:
            flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        pixels.append(np.asarray(flat.convert("RGB").resize(SIZE, Image.Resampling.BOX), dtype=np.float64).ravel())
    stack = np.stack(pixels)
    return np.stack([np.abs(stack - row).mean(axis=1) for row in stack])


def write_flags(folder: Path, pictures: Path, world: World) -> dict[str, int]:
    """Write the parquet files and the image search cache of the test questions; return how many questions each has."""
    flags = read_flags(pictures, world)
    by_code = {flag.code: flag for flag in flags}
    folder.mkdir(parents=True, exist_ok=True)
    cache = folder / "image_search_cache"
    shutil.rmtree(cache, ignore_errors=True)
    counts = {}
    for split in (TRAIN, DEV, TEST):
        rows = list(_rows(world, flags, split))
        for index, row in enumerate(rows):
            row["extra_info"]["index"] = index
            if split == TEST:
                flag = by_code[row["extra_info"]["iso2"]]
                _write_search(cache / row["data_id"], [flag, *(by_code[code] for code in flag.alike[: FOUND - 1])])
        pq.write_table(
            pa.Table.from_pylist(rows, schema=SCHEMA),
            folder / f"{split}.parquet",
            compression="zstd",
            dictionary_pagesize_limit=1 << 23,  # a picture is stored once, however many questions it has
        )
        counts[split] = len(rows)
    return counts


def _rows(world: World, flags: Sequence[Flag], split: str) -> Iterator[dict[str, Any]]:
    """Make the rows of a split: of every flag that can be told apart, a few questions, mixed."""
    families = [family for family in wording.trained_families() if family not in WITHOUT_NAME]
    if split == TEST:
        families += [family for family in wording.held_out_families() for _ in range(6)]
    rows = [
        row
        for flag in flags
        if flag.country and not flag.mistakable and split_of(flag.country.title) == split
        for row in _rows_of(world, flag, flag.country, families)
    ]
    yield from sorted(rows, key=lambda row: digest(row["data_id"]))


def _rows_of(world: World, flag: Flag, country: Entity, families: Sequence[str]) -> Iterator[dict[str, Any]]:
    ids = world.ids()
    made = 0
    for path in shuffled(CHAINS, "flag", flag.code):
        steps = walk(world, country, path)
        choice = f"flag|{flag.code}|{' '.join(path)}"
        family = pick(families, "family", choice)
        example = example_of(world, steps, choice) if steps and family == "analogy" else None
        if not steps or made == PER_FLAG or (family == "analogy" and example is None):
            continue
        said = pick(SAID, "said", choice)
        shown = replace(country, name=SAID_CHINESE if family == "chinese" else said, said=said, chinese="")
        text = wording.compose(family, [Step(shown, path[0], steps[0].fact), *steps[1:]], choice, example)
        answers = questions.answers_of(world, steps[-1], chinese=family == "chinese")
        if questions.gives_itself_away(steps, text, answers):
            continue
        made += 1
        yield {
            "data_id": f"flag_{flag.code.lower()}_{'_'.join(path)}",
            "prompt": [{"role": "user", "content": f"<image>\n{text}"}],
            "images": [{"bytes": flag.path.read_bytes(), "path": flag.path.name}],
            "ability": "fact-reasoning",
            "data_source": "worldfacts_flags",
            "image_urls": None,
            "modality": "image",
            "reward_model": {
                "style": "rule",
                "ground_truth": answers[0],
                "candidate_answers": json.dumps(answers, ensure_ascii=False),
            },
            "extra_info": {
                "split": split_of(country.title),
                "country": country.title,
                "iso2": flag.code,
                "relation": " ".join(path),
                "family": family,
                "supporting_ids": list(dict.fromkeys(ids[step.subject.title] for step in steps)),
            },
        }


def _write_search(folder: Path, found: Sequence[Flag]) -> None:
    """Write what an image search for the first flag finds: itself and its look-alikes."""
    folder.mkdir(parents=True)
    urls = [f"images/{flag.path.name}" for flag in found]
    results = [
        {"title": f"Flag of {flag.country.said if flag.country else flag.name}", "image_url": url}
        for flag, url in zip(found, urls, strict=True)
    ]
    text = json.dumps({"search_results": results, "image_urls": urls}, ensure_ascii=False, indent=1)
    (folder / "meta.json").write_text(f"{text}\n", encoding="utf-8")
    for place, flag in enumerate(found):
        (folder / f"img_{place:03d}.png").write_bytes(flag.path.read_bytes())
