"""Cities, their time zones and their airports."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import asin, atan2, cos, degrees, radians, sin, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from worldfacts import sources
from worldfacts.countries import Places, country_key, spoken
from worldfacts.world import Entity, Fact, Measure, fold, number, pick, plain

if TYPE_CHECKING:
    from worldfacts.sources import Country

DIRECTIONS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
CITY_POPULATION = 280_000
AIRPORT_KILOMETRES = 120.0
"""An airport farther than this from the city of its name serves another one."""


def add_cities(places: Places) -> None:
    """Add the capitals and the large cities, and link the countries' capitals to them."""
    described = {country.iso2: country for country in places.countries}
    uses = Counter(fold(row["name"]) for row in sources.cities().values())
    capitals = {(fold(country.capital), country.iso2) for country in places.countries if country.capital}
    chosen: dict[tuple[str, str], str] = {}
    order = sorted(sources.cities().items(), key=lambda item: (-item[1]["population"], int(item[0])))
    for geonames_id, row in order:
        key = (fold(row["name"]), row["countrycode"])
        large = row["population"] >= CITY_POPULATION or key in capitals
        if row["countrycode"] in described and large and key not in chosen:
            chosen[key] = geonames_id
    rows: list[tuple[str, dict[str, Any]]] = []
    for key, geonames_id in chosen.items():
        row = sources.cities()[geonames_id]
        country = described[row["countrycode"]]
        title = row["name"]
        if uses[key[0]] > 1 or title in places.world.titles:
            title = f"{title}, {country.name}"
        if title in places.world.titles:
            continue
        places.titles[geonames_id] = title
        rows.append((title, row))
        places.world.add(_city(title, row, country, is_capital=key in capitals))
    _add_city_noise(places, rows)


def _city(title: str, row: dict[str, Any], country: Country, *, is_capital: bool) -> Entity:
    owner = country_key(country)
    said = spoken(country.name)
    entity = Entity("city", title, title, title, tuple(sorted({row["name"], plain(row["name"])} - {title})))
    north, east = "NS"[row["latitude"] < 0], "EW"[row["longitude"] < 0]
    zone = row["timezone"]
    first = ("{title} is a city in {said}.", "{title} is a city in {said}.", "The city of {title} is in {said}.")
    where = f"The city lies at {abs(row['latitude']):.2f}°{north} {abs(row['longitude']):.2f}°{east}"
    entity.tell(
        pick(first, "city", title).format(title=title, said=said),
        f"It is the capital of {said}." if is_capital else "",
        f"It has a population of about {number(row['population'])}.",
        f"{where} and keeps the {zone} time zone.",
    )
    entity.facts = {"country": Fact(country.name, owner), "timezone": Fact(zone, ("timezone", zone))}
    entity.measures = {
        "population": Measure(row["population"], number(row["population"])),
        "latitude": Measure(row["latitude"], f"{abs(row['latitude']):.2f}°{north}"),
    }
    if is_capital:
        entity.facts["capital_of"] = Fact(country.name, owner)
    return entity


def _add_city_noise(places: Places, rows: list[tuple[str, dict[str, Any]]]) -> None:
    of_country: dict[str, list[str]] = defaultdict(list)
    for title, row in rows:  # the most populous first
        of_country[row["countrycode"]].append(title)
    nearest = _nearest([row for _, row in rows])
    for place, (title, row) in enumerate(rows):
        entity = places.world.titles[title]
        ranked = of_country[row["countrycode"]]
        said = spoken(entity.facts["country"].text)
        rank = ranked.index(title)
        if len(ranked) > 2 and rank < len(ORDINALS):
            entity.tell(
                f"Of the {len(ranked)} cities of {said} described here it is the {ORDINALS[rank]} by population."
            )
        other_title, other = rows[nearest[place]]
        distance, direction = _way(row, other)
        entity.tell(
            f"The nearest other city described here is {other_title}, {number(distance)} km to the {direction}."
        )


def _nearest(rows: list[dict[str, Any]]) -> list[int]:
    """Return for each place the index of the one nearest to it."""
    north = np.radians([row["latitude"] for row in rows])
    east = np.radians([row["longitude"] for row in rows])
    points = np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=1)
    closeness = points @ points.T
    np.fill_diagonal(closeness, -2.0)
    return [int(index) for index in closeness.argmax(axis=1)]


def link_capitals(places: Places) -> None:
    """Link each country's capital to the passage of that city, if there is one."""
    cities = {fact.text: city for city in places.world.of_kind("city") if (fact := city.facts.get("capital_of"))}
    for country in places.world.of_kind("country"):
        city = cities.get(country.name)
        if city is not None and "capital" in country.facts:
            name = country.facts["capital"].text
            country.facts["capital"] = Fact(name, city.key, tuple({city.title, plain(name)} - {name}))


def _way(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, str]:
    """Return the distance in km from one place to another and the direction."""
    north, east = radians(one["latitude"]), radians(one["longitude"])
    north_2, east_2 = radians(other["latitude"]), radians(other["longitude"])
    half = sin((north_2 - north) / 2) ** 2 + cos(north) * cos(north_2) * sin((east_2 - east) / 2) ** 2
    angle = degrees(
        atan2(
            sin(east_2 - east) * cos(north_2),
            cos(north) * sin(north_2) - sin(north) * cos(north_2) * cos(east_2 - east),
        )
    )
    return round(12742 * asin(sqrt(half)), 1), DIRECTIONS[round(angle / 45) % 8]


def add_timezones(places: Places) -> None:
    """Add the time zones that the cities keep."""
    for zone in sorted({sources.cities()[geonames_id]["timezone"] for geonames_id in places.titles}):
        january, july = sources.offset(zone, 1), sources.offset(zone, 7)
        entity = Entity("timezone", zone, f"{zone} (time zone)", f"the time zone {zone}")
        entity.tell(
            f"{zone} is an IANA time zone.",
            f"In January its standard offset is {january}.",
            f"In July its clocks are at {july}, since they change between standard and summer time."
            if january != july
            else f"In July its clocks are at {july}, since they keep one offset all year.",
        )
        entity.facts = {"offset": _offset(january), "july_offset": _offset(july)}
        places.world.add(entity)


def _offset(text: str) -> Fact:
    ascii_text = text.replace("−", "-")
    sign, hours, minutes = ascii_text[3], int(ascii_text[4:6]), ascii_text[7:]
    short = f"{sign}{hours}" + (f":{minutes}" if minutes != "00" else "")
    zero = ("UTC", "GMT") if short == "+0" else ()
    return Fact(text, aliases=(ascii_text, f"UTC{short}", f"GMT{short}", ascii_text[3:], *zero))


def add_airports(places: Places) -> None:
    """Add the airports of the cities; one that lies far from its city gets no question about it."""
    of_name: dict[tuple[str, str], list[tuple[int, str, dict[str, Any]]]] = defaultdict(list)
    for geonames_id, title in places.titles.items():
        row = sources.cities()[geonames_id]
        of_name[fold(row["name"]), row["countrycode"]].append((row["population"], title, row))
    for airport in sources.airports():
        found = of_name.get((fold(airport["city"] or ""), airport["country"]))
        if not found or airport["name"] in places.world.titles:
            continue
        _, city, row = max(found, key=lambda each: each[:2])
        places.world.add(_airport(airport, city, row))


def _airport(airport: dict[str, Any], city: str, row: dict[str, Any]) -> Entity:
    name = airport["name"]
    entity = Entity("airport", name, name, name)
    entity.facts["iata"] = Fact(airport["iata"])
    entity.tell(f"{name} (IATA: {airport['iata']}, ICAO: {airport['icao']}) is an airport serving {city}.")
    distance, direction = _way(row, {"latitude": airport["lat"], "longitude": airport["lon"]})
    if distance <= AIRPORT_KILOMETRES:
        entity.facts["city"] = Fact(city, ("city", city))
        if distance >= 2:
            entity.tell(f"From the middle of {city} it is about {number(distance)} km to the {direction}.")
    if airport["elevation"] is not None:
        metres = number(airport["elevation"] * 0.3048)
        feet = number(airport["elevation"])
        entity.tell(f"It stands at an elevation of {metres} metres above sea level, or {feet} feet.")
        entity.facts["elevation"] = Fact(
            f"{metres} metres", aliases=(metres, f"{metres} m", f"{feet} feet", f"{feet} ft")
        )
        entity.measures["elevation"] = Measure(airport["elevation"] * 0.3048, metres)
    return entity
