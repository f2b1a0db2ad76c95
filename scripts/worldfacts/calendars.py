"""Public holidays that fall on one date every year, where two packages agree on them."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import holidays
from workalendar.exceptions import CalendarError
from workalendar.registry import registry

from worldfacts.world import fold

YEARS = (2024, 2025, 2026)
# Public holidays that say nothing of one country.
COMMON_HOLIDAY = re.compile(
    r"new year|christmas|labo|worker|saint|st\.|assumption|epiphany|immaculate|women|boxing|mother|father|children|"
    r"easter|souls",
    re.IGNORECASE,
)


@cache
def _calendars() -> dict[str, Any]:
    return dict(registry.get_calendars())


def fixed_holidays(code: str) -> tuple[tuple[str, int, int], ...]:
    """Return the holidays that fall on one date every year and that both sources name alike: name, month, day."""
    if code not in _calendars() or code not in holidays.list_supported_countries():
        return ()
    kind = getattr(holidays, code)
    english = {"language": "en_US"} if "en_US" in (kind.supported_languages or ()) else {}
    first = [
        {
            (name, day.month, day.day)
            for day, names in kind(years=year, observed=False, **english).items()
            for name in names.split("; ")
        }
        for year in YEARS
    ]
    calendar = _calendars()[code]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # moving feasts may be wrong, it says; they are not taken
            second = [{(_same(name), day.month, day.day) for day, name in calendar.holidays(year)} for year in YEARS]
    except (CalendarError, KeyError):  # it knows no such year
        return ()
    other = set.intersection(*second)
    agreed = [
        each
        for each in set.intersection(*first)
        if (_same(each[0]), *each[1:]) in other and not COMMON_HOLIDAY.search(each[0])
    ]
    names = [name for name, _, _ in agreed]
    return tuple(sorted((each for each in agreed if names.count(each[0]) == 1), key=lambda each: each[1:]))


def _same(name: str) -> str:
    return re.sub(r"\W+", " ", fold(name)).strip()
