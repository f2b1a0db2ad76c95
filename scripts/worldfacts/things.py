"""Currencies, languages, states of the United States and chemical elements."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from babel import Locale, UnknownLocaleError

from worldfacts import sources
from worldfacts.countries import Places, country_key, spoken
from worldfacts.world import Entity, Fact, Measure, fold, join, plain

MOST_USERS = 30
MOST_SPEAKERS = 25
DISCOVERY_PLACES = {"England": "United Kingdom", "Scotland": "United Kingdom", "USA": "United States"}


def add_currencies(places: Places) -> None:
    """Add the official currencies."""
    users = defaultdict(list)
    for country in places.countries:
        if country.currency:
            users[country.currency].append(country)
    units = Counter(_unit(sources.ENGLISH.currencies[code]) for code in users)
    for code, countries in sorted(users.items()):
        name = sources.ENGLISH.currencies[code]
        if name in places.world.titles:
            continue
        counted = sources.ENGLISH._data["currency_names_plural"].get(code)  # noqa: SLF001 - babel has no other way to it
        plural = counted.get("other") if counted else None
        aliases = {counted[form] for form in ("one", "other") if counted and form in counted} - {name}
        aliases |= {*sources.known_as("currency", name), *([_unit(name)] if units[_unit(name)] == 1 else [])}
        entity = Entity("currency", name, name, f"the {name}", tuple(sorted(aliases)))
        entity.chinese = sources.CHINESE.currencies.get(code, "")
        symbol = sources.ENGLISH.currency_symbols.get(code)
        decimals = sources.currency_decimals(code)
        names = [spoken(country.name) for country in countries]
        since = sources.currency_since(code, countries[0].iso2) if len(countries) == 1 else None
        entity.tell(
            f"The {name} is a currency with the ISO 4217 code {code}"
            + (f" and the symbol {symbol}." if symbol and symbol != code else "."),
            (
                f"It is the official currency of {join(names)}."
                if len(names) <= MOST_USERS
                else f"It is used in {len(names)} countries and territories."
            )
            + (f" It has been current there since {since}." if since else ""),
            f"Amounts in {plural} are written with {decimals or 'no'} decimal places." if plural else "",
        )
        entity.facts["code"] = Fact(code)
        if len(countries) == 1:
            entity.facts["sole_user"] = Fact(countries[0].name, country_key(countries[0]))
        else:
            entity.not_single = frozenset({"sole_user"})
        places.world.add(entity)


def _unit(currency: str) -> str:
    """Return the last word of a currency's name, such as yen."""
    return fold(currency.rsplit(maxsplit=1)[-1])


def add_languages(places: Places) -> None:
    """Add the official languages."""
    speakers = defaultdict(list)
    for country in places.countries:
        for code in country.languages:
            speakers[sources.ENGLISH.languages[code]].append(country)
    codes = {name: code for code, name in sources.ENGLISH.languages.items()}
    for name, countries in sorted(speakers.items()):
        code = codes[name]
        entity = Entity("language", name, f"{name} language", f"the {name} language")
        entity.aliases = (f"{name} language", *sources.known_as("language", name))
        entity.chinese = sources.CHINESE.languages.get(code, "")
        script, script_chinese = sources.script_of(code) or ("", "")
        han = script in ("Simplified", "Traditional")
        names = [spoken(country.name) for country in countries]
        try:
            locale = Locale.parse(code)
            own, leftwards = locale.get_language_name(), locale.text_direction == "rtl"
        except (UnknownLocaleError, ValueError):
            own, leftwards = None, False
        entity.tell(
            f'{name} is a language whose ISO 639 code is "{code}".',
            f"It is usually written in the {script}{' Han' if han else ''} script." if script else "",
            "Its lines run from right to left." if leftwards else "",
            f"Its name in the language itself is {own}." if own and own.lower() != name.lower() else "",
            f"It is an official language of {join(names[:MOST_SPEAKERS])}.",
            f"In all {len(names)} countries and territories described here give it that rank."
            if len(names) > 1
            else "",
        )
        entity.facts["code"] = Fact(code)
        if script:
            others = (
                (script, f"{script} Chinese", "Han", "Chinese") if han else (f"{script} script", f"{script} alphabet")
            )
            written = f"{script} Han" if han else script
            entity.facts["script"] = Fact(written, aliases=tuple(filter(None, (*others, script_chinese))))
        if len(countries) == 1 and countries[0].languages_agree:
            entity.facts["sole_country"] = Fact(countries[0].name, country_key(countries[0]))
        elif len(countries) > 1:
            entity.not_single = frozenset({"sole_country"})
        places.world.add(entity)


def add_states(places: Places) -> None:
    """Add the states of the United States."""
    capitals = {
        city.name: city for city in places.world.of_kind("city") if city.facts["country"].text == "United States"
    }
    for state in sources.states():
        entity = Entity("state", state.name, f"{state.name} (U.S. state)", f"the U.S. state of {state.name}")
        entity.tell(
            f"{state.name} is a state of the United States, abbreviated {state.abbr}.",
            f"It was admitted to the Union in {state.statehood_year}.",
            f"The state capital is {state.capital}.",
            f"It has {len(state.counties)} counties or county equivalents.",
            f"Newspapers shorten its name to {state.ap_abbr}{'' if state.ap_abbr.endswith('.') else '.'}"
            if state.ap_abbr != state.name
            else "Newspapers do not shorten its name.",
            f"Its FIPS code is {state.fips}.",
        )
        city = capitals.get(state.capital) or capitals.get(f"{state.capital}, United States")
        agreed = city is not None and city.facts["timezone"].text == state.capital_tz
        entity.facts = {
            "capital": Fact(state.capital, city.key if city is not None and agreed else None),
            "year": Fact(str(state.statehood_year)),
            "abbreviation": Fact(state.abbr),
            "counties": Fact(str(len(state.counties))),
        }
        entity.measures = {
            "year": Measure(state.statehood_year, str(state.statehood_year)),
            "counties": Measure(len(state.counties), str(len(state.counties))),
        }
        places.world.add(entity)


def add_elements(places: Places) -> None:
    """Add the chemical elements and their series."""
    rows, series = sources.elements()
    for row in rows:
        name = row["name"]
        title = f"{name} (element)" if name in places.world.titles else name
        entity = Entity("element", name, title, name.lower())
        country = DISCOVERY_PLACES.get(row["discovery_location"], row["discovery_location"])
        group = f", group {row['group_id']}." if row["group_id"] else "."
        by = (row["discoverers"] or "").rstrip(".")
        year = row["discovery_year"]
        found = bool(year and by and "ancient" not in by.lower())
        described = ("country", country) in places.world.entities
        where = f" in {spoken(country.replace('/', ' and '))}." if country else "."
        origin = (row["name_origin"] or "").strip()
        entity.tell(
            f"{name} is a chemical element with the symbol {row['symbol']} and atomic number {row['atomic_number']}.",
            f"It belongs to the {series[row['series_id']].lower()} series, period {row['period']}{group}",
            (
                f"It was discovered in {year} by {by}{where}"
                if found
                else "It has been known since ancient times."
                if by
                else ""
            ),
            origin if not origin or origin.endswith(".") else f"{origin}.",
            row["uses"] or "",
            f"Its atomic weight is {row['atomic_weight']:.5g} and it is in the {row['block']}-block.",
            f"It melts at about {row['melting_point']:.0f} kelvin." if row["melting_point"] else "",
        )
        entity.facts = {
            "symbol": Fact(row["symbol"]),
            "number": Fact(str(row["atomic_number"])),
            "series": Fact(series[row["series_id"]].lower()),
        }
        entity.measures["number"] = Measure(row["atomic_number"], str(row["atomic_number"]))
        if row["melting_point"]:
            entity.measures["melting_point"] = Measure(row["melting_point"], f"{row['melting_point']:.0f}")
        if found and _years_agree(row):
            entity.facts["year"] = Fact(str(year))
            entity.facts["discoverer"] = Fact(by, aliases=_people(by))
            entity.measures["year"] = Measure(year, str(year))
            if described:
                entity.facts["country"] = Fact(country, ("country", country))
        places.world.add(entity)
    for number, name in series.items():
        members = [row["name"] for row in rows if row["series_id"] == number]
        if members and name not in places.world.titles:
            entity = Entity("series", name, f"{name} (chemical series)", f"the {name.lower()}")
            entity.tell(
                f"{name} is a series of chemical elements.",
                f"Its members include {join(members[:40])}.",
                f"In all it has {len(members)} members.",
            )
            places.world.add(entity)


def _years_agree(row: dict[str, object]) -> bool:
    """Say whether the description of an element names no other year of discovery than its table."""
    told = re.search(r"[Dd]iscovered\D{0,60}?(1[5-9]\d\d|20\d\d)", str(row["description"] or ""))
    return told is None or told.group(1) == str(row["discovery_year"])


def _people(names: str) -> tuple[str, ...]:
    """Return other ways to write who discovered an element."""
    found = {names, sources.respelled(names)}
    found |= {each.replace("Sir ", "") for each in found}
    found |= {re.sub(r"\.(?=\w)", ". ", each) for each in found}
    found |= {re.sub(r"[,;]\s*(?=[^,;]*$)", " and ", each) for each in found}
    found |= {plain(each) for each in found}
    return tuple(sorted(found - {names}))
