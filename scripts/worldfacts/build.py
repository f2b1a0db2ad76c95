"""The whole world, in the order in which titles are given."""

from __future__ import annotations

from worldfacts import cities, countries, things
from worldfacts.countries import Places
from worldfacts.world import World


def build_world() -> World:
    """Build all entities with their passages and facts."""
    places = Places(World())
    countries.add_countries(places)
    things.add_currencies(places)
    things.add_languages(places)
    countries.add_continents(places)
    cities.add_cities(places)
    cities.link_capitals(places)
    cities.add_timezones(places)
    cities.add_airports(places)
    things.add_states(places)
    things.add_elements(places)
    return places.world
