"""Questions of the train split in further words of our own; none is a wording of the held-out families."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warm.compare import weigh
from warm.oracle import names_of, right_of, values_of
from warm.world import HOLIDAY

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from warm.world import Hop, World

_PATHS = {
    ("city", "country", "area"): "airport_country_area",
    ("city", "population"): "airport_city_population",
    ("country", "population"): "city_country_population",
    ("sole_user", "area"): "currency_country_area",
    ("city", "country"): "airport_country",
    ("country", "currency"): "city_currency",
    ("timezone", "offset"): "city_offset",
    ("continent",): "country_continent",
    ("series",): "element_series",
}


class Rewording:
    """Puts a question's chain or comparison into other words, at times with a wrapper or an aside around it."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._words: dict[str, Any] = tomllib.loads(
            Path(__file__).with_name("phrasings.toml").read_text(encoding="utf-8")
        )

    def question(self, row: dict[str, Any]) -> str | None:
        """Return a question of the same meaning; None if its answer would stand in it."""
        hops = self._world.hops(row)
        text = self._comparison(row, hops) if "comparison" in row["type"] else self._chain(hops)
        if text is None:
            return None
        text = self._framed(text[0].upper() + text[1:])
        given = text.casefold()
        if "comparison" not in row["type"] and any(answer.casefold() in given for answer in row["answers"]):
            return None
        return text

    def _chain(self, hops: Sequence[Hop]) -> str:
        subject = hops[0].said
        for hop in hops[:-1]:
            subject = self._fill(hop, self._chance.choice(self._words[hop.kind][hop.relation]["phrase"]), subject)
        last = hops[-1]
        words = self._words[last.kind][last.relation]
        if self._chance.random() < 0.25:
            phrase = self._fill(last, self._chance.choice(words["phrase"]), subject)
            ask = self._chance.choice(("what is {x}?", "tell me {x}.", "{x}?", "find {x}.", "I need {x}.", "name {x}."))
            return ask.replace("{x}", phrase)
        return self._fill(last, self._chance.choice(words["ask"]), subject)

    def _fill(self, hop: Hop, words: str, subject: str) -> str:
        return words.replace("{x}", subject).replace("{holiday}", HOLIDAY.sub("", hop.label))

    def _comparison(self, row: dict[str, Any], hops: Sequence[Hop]) -> str | None:
        path = tuple(row["relations"])
        half = len(hops) // 2
        names = hops[0].said, hops[half].said
        if row["answers"][0] in ("yes", "no"):
            asks = self._words["same"][_PATHS[path]]["ask"]
        else:
            found = (
                self._words["compare_path"].get(_PATHS.get(path, "")) or self._words["compare"][hops[0].kind][path[0]]
            )
            asks = found["more" if self._more(row, hops) else "less"]
        return str(self._chance.choice(asks)).replace("{a}", names[0]).replace("{b}", names[1])

    def _more(self, row: dict[str, Any], hops: Sequence[Hop]) -> bool:
        names = names_of(row)
        return names[weigh(names, values_of(hops)).larger] == right_of(row, names)

    def not_recorded(self) -> dict[str, Any]:
        """Return a question about something that passages of its kind do not tell."""
        kind, words = self._chance.choice(sorted(self._words["not_recorded"].items()))
        place = self._chance.randrange(len(words["ask"]))
        title = self._chance.choice(sorted(self._world.anchors[kind]))
        said = self._world.said(title)
        text = str(words["ask"][place]).replace("{x}", said)
        return {
            "id": f"untold-{kind}-{place}",
            "question": self._framed(text[0].upper() + text[1:]),
            "answers": [],
            "unanswerable": True,
            "type": "unanswerable",
            "reason": "not_recorded",
            "anchors": [title],
            "relations": [words["label"][place]],
        }

    def _framed(self, text: str) -> str:
        """Put something harmless around a question, at times."""
        turn = self._chance.random()
        if turn < 0.25:
            return str(self._chance.choice(self._words["frames"]["wrap"])).replace("{q}", text)
        if turn < 0.4:
            other = self._chance.choice([key for key in self._world.kinds if len(key) < 30])
            aside = str(self._chance.choice(self._words["frames"]["aside"]))
            return aside.replace("{other}", other).replace("{q}", text)
        return text
