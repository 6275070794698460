"""Known days from an iCalendar file (RFC 5545)."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from monitor.database_url import how_to_install
from monitor.types import ZONE

SPAN = (date(1970, 1, 1), date(2100, 1, 1))
"""Endless recurrences are limited to these days."""


def known_days(text: str) -> list[dict[str, str]]:
    """The events of an iCalendar as mappings of `from`, `until` and `note`, oldest first.

    Whole days, and times without a zone, have none here; under `types.ZONE` stands the calendar's zone, if it has one:
    X-WR-TIMEZONE, else its only VTIMEZONE. Raises ValueError.
    """
    try:
        import icalendar
        import recurring_ical_events
    except ImportError as error:
        raise ValueError(f"cannot be read without icalendar; {how_to_install('calendar')}") from error
    try:
        calendar = icalendar.Calendar.from_ical(text)
        zone = _zone(calendar)
        events = recurring_ical_events.of(calendar).between(*SPAN)
    except (ValueError, KeyError) as error:  # a zone that is unknown is a KeyError
        raise ValueError(f"is not an iCalendar file: {error}") from error
    found = [_known_days(one) | zone for one in events if one.get("STATUS") != "CANCELLED"]
    return sorted(found, key=lambda one: one["from"])


def _zone(calendar: Any) -> dict[str, str]:
    if "X-WR-TIMEZONE" in calendar:
        return {ZONE: ZoneInfo(str(calendar["X-WR-TIMEZONE"])).key}
    from icalendar.timezone.windows_to_olson import WINDOWS_TO_OLSON

    names = {str(one.get("TZID")) for one in calendar.walk("VTIMEZONE")}
    name = names.pop() if len(names) == 1 else "UTC"
    try:
        return {ZONE: ZoneInfo(WINDOWS_TO_OLSON.get(name, name)).key}
    except (ValueError, KeyError):
        return {}


def _known_days(event: Any) -> dict[str, str]:
    note = str(event.get("SUMMARY", "")).strip()
    span = {"from": _written(event.start), "until": _written(event.end)}
    return span | ({"note": note} if note else {})


def _written(at: date | datetime) -> str:
    if isinstance(at, datetime) and at.tzinfo is not None:
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return at.isoformat()
