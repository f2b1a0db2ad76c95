"""Countries, territories and continents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worldfacts import sources
from worldfacts.world import Entity, Fact, Key, Measure, World, join, number, pick

if TYPE_CHECKING:
    from worldfacts.sources import Country

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WITH_ARTICLE = frozenset({"Netherlands", "Philippines", "Bahamas", "Gambia", "Maldives", "Seychelles", "Comoros"})
# The first that a country has is the one that questions are about.
HOLIDAYS = ("Independence Day", "Republic Day", "National Day", "Constitution Day", "Statehood Day", "Liberation Day")


@dataclass
class Places:
    """What the other kinds need to know of the places built so far."""

    world: World
    countries: list[Country] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    """City title by GeoNames id."""


def spoken(name: str) -> str:
    """Return a country's name as it stands within a sentence."""
    article = (
        name in WITH_ARTICLE
        or name.startswith(
            ("United ", "U.S. ", "British Virgin", "Dominican Rep", "Central African", "Isle of", "Vatican C")
        )
        or name.endswith(("Islands", "Territory", "Territories"))
        or "Republic of" in name
    )
    return f"the {name}" if article and name != "Vatican City" else name


def country_key(country: Country) -> Key:
    """Return the key of a country."""
    return "country", country.name


def add_countries(places: Places) -> None:
    """Add all countries and territories."""
    places.countries = sources.countries()
    names = sources.country_names()
    by_area = sorted(places.countries, key=lambda each: -each.area)
    by_population = sorted(places.countries, key=lambda each: -each.population)
    for country in places.countries:
        entity = _country(country, names)
        density = country.population / country.area if country.area else 0.0
        if density >= 1:
            entity.measures["density"] = Measure(round(density), number(density))
            entity.tell(
                f"With about {number(density)} inhabitants per square kilometre, it is number "
                f"{by_area.index(country) + 1} by area and number {by_population.index(country) + 1} by population of "
                "the countries and territories described here."
            )
        places.world.add(entity)


def _country(country: Country, names: dict[str, str]) -> Entity:
    said = spoken(country.name)
    said_first = said[0].upper() + said[1:]
    entity = Entity("country", country.name, country.name, said, country.aliases)
    entity.chinese = sources.CHINESE.territories.get(country.iso2, "")
    neighbours = [spoken(names[code]) for code in country.neighbours]
    languages = [sources.ENGLISH.languages[code] for code in country.languages]
    currency = sources.ENGLISH.currencies[country.currency] if country.currency else None
    where = f", in the subregion of {country.subregion}" if country.subregion else ""
    capital = pick(("Its capital is {}.", "The capital is {}.", "{} is its capital."), "capital", country.name)
    entity.tell(
        f"{said_first} is a country or territory in {country.continent}{where}.",
        capital.format(country.capital) if country.capital else "",
        f"It has a population of about {number(country.population)} and covers an area of "
        f"{number(country.area)} square kilometres.",
        f"The official currency is the {currency}." if currency else "",
        f"Its official language{'s are' if len(languages) > 1 else ' is'} {join(languages)}." if languages else "",
        f"It shares land borders with {join(neighbours)}." if neighbours else f"{said_first} has no land borders.",
        f"The demonym, a word for its people and what is theirs, is {country.demonym}." if country.demonym else "",
        f"The country-code top-level domain is {country.tld}." if country.tld else "",
        f"The ISO 3166-1 alpha-3 code is {country.iso3}"
        + (f" and the international calling code is {country.calling}." if country.calling else "."),
        f"In statistics its ISO 3166-1 numeric code is {country.numeric}." if country.numeric else "",
        _holiday_sentence(country),
    )
    entity.facts = _country_facts(country, names)
    entity.measures = {
        "population": Measure(country.population, number(country.population)),
        "area": Measure(country.area, number(country.area)),
    }
    no_single = country.neighbours_agree and len(neighbours) != 1
    entity.not_single = frozenset(
        (["only_neighbour"] if no_single else []) + (["only_language"] if len(languages) > 1 else [])
    )
    entity.disputed = frozenset(
        (["capital"] if country.capital_disputed else []) + ([] if country.currency else ["currency"])
    )
    return entity


def _holiday_sentence(country: Country) -> str:
    if not country.holidays:
        return ""
    shown = [f"{name} ({day} {MONTHS[month - 1]})" for name, month, day in country.holidays]
    return f"Public holidays on a fixed date include {join(shown)}."


def _country_facts(country: Country, names: dict[str, str]) -> dict[str, Fact]:
    facts = {
        "continent": Fact(country.continent, aliases=sources.chinese_continent(country.continent))
        if country.continent_agrees
        else None,
        "tld": Fact(country.tld, aliases=(country.tld.lstrip("."),)) if country.tld else None,
        "calling": Fact(country.calling, aliases=(country.calling[1:],)) if country.calling else None,
        "iso3": Fact(country.iso3),
        "numeric": Fact(country.numeric) if country.numeric else None,
        "demonym": Fact(country.demonym) if country.demonym else None,
        "capital": Fact(country.capital) if country.capital else None,
        "holiday": _holiday(country),
    }
    if country.currency:
        name = sources.ENGLISH.currencies[country.currency]
        facts["currency"] = Fact(name, ("currency", name))
    if len(country.languages) == 1 and country.languages_agree:
        name = sources.ENGLISH.languages[country.languages[0]]
        facts["language"] = Fact(name, ("language", name))
    if len(country.neighbours) == 1 and country.neighbours_agree:
        name = names[country.neighbours[0]]
        facts["only_neighbour"] = Fact(name, ("country", name))
    return {relation: fact for relation, fact in facts.items() if fact}


def _holiday(country: Country) -> Fact | None:
    ranked = sorted(
        country.holidays, key=lambda each: HOLIDAYS.index(each[0]) if each[0] in HOLIDAYS else len(HOLIDAYS)
    )
    if not ranked:
        return None
    name, month, day = ranked[0]
    word = MONTHS[month - 1]
    return Fact(f"{day} {word}", aliases=(f"{word} {day}", f"{month}月{day}日"), detail=name)


def add_continents(places: Places) -> None:
    """Add the continents."""
    known = sources.geonames().get_continents()
    for code, name in sources.CONTINENTS.items():
        population = known.get(code, {}).get("population")
        members = [country for country in places.countries if country.continent == name]
        entity = Entity("continent", name, name, name)
        entity.tell(
            f"{name} is a continent" + (f" with a population of about {number(population)}." if population else ".")
        )
        if members:
            largest = max(members, key=lambda each: each.area)
            entity.tell(
                f"It contains {len(members)} of the countries and territories described in this corpus. "
                f"Of these, {spoken(largest.name)} covers the largest area."
            )
        places.world.add(entity)
