"""The files of a build, and its figures."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from worldfacts.generate import PLANS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from worldfacts.questions import Collection, Question
    from worldfacts.world import World


def write_text(folder: Path, world: World, made: dict[str, Collection]) -> dict[str, Any]:
    """Write corpus, questions and stats.json; return the stats."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = world.ids()
    passages = (
        {
            "id": ids[title],
            "contents": f'"{title}"\n{world.titles[title].text}',
            "title": title,
            "text": world.titles[title].text,
            "kind": world.titles[title].kind,
        }
        for title in sorted(world.titles)
    )
    _write_lines(folder / "corpus.jsonl", passages)
    for plan in PLANS:
        _write_lines(folder / f"{plan.name}.jsonl", made[plan.name].rows(ids, plan.split))
    figures = stats(world, made)
    text = json.dumps(figures, ensure_ascii=False, indent=1)
    (folder / "stats.json").write_text(f"{text}\n", encoding="utf-8")
    return figures


def stats(world: World, made: dict[str, Collection]) -> dict[str, Any]:
    """Count passages and facts, and the questions of each file by hops, type and family."""
    return {
        "passages": len(world.titles),
        "kinds": _count(entity.kind for entity in world.titles.values()),
        "facts": sum(len(entity.facts) + len(entity.measures) for entity in world.titles.values()),
        "relations": len({(entity.kind, relation) for entity in world.titles.values() for relation in entity.facts}),
        "questions": sum(len(collection.questions) for collection in made.values()),
        "files": {name: _figures(collection.questions) for name, collection in made.items()},
    }


def _figures(questions: list[Question]) -> dict[str, Any]:
    return {
        "questions": len(questions),
        "hops": _count(str(question.hops) for question in questions),
        "types": _count(question.type for question in questions),
        "families": _count(question.family for question in questions),
        "reasons": _count(question.unanswerable for question in questions if question.unanswerable),
    }


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
