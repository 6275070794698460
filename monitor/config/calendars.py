"""Known days from an iCalendar file (RFC 5545)."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from monitor.database_url import how_to_install

SPAN = (date(1970, 1, 1), date(2100, 1, 1))
"""Endless recurrences are limited to these days."""


def known_days(text: str) -> list[dict[str, str]]:
    """The events of an iCalendar as mappings of `from`, `until` and `note`, oldest first.

    Whole days, and times without a zone, are of the calendar's zone (X-WR-TIMEZONE), by default UTC. Raises ValueError.
    """
    try:
        import icalendar
        import recurring_ical_events
    except ImportError as error:
        raise ValueError(f"cannot be read without icalendar; {how_to_install('calendar')}") from error
    try:
        calendar = icalendar.Calendar.from_ical(text)
        zone = ZoneInfo(str(calendar["X-WR-TIMEZONE"])) if "X-WR-TIMEZONE" in calendar else UTC
        events = recurring_ical_events.of(calendar).between(*SPAN)
    except (ValueError, KeyError) as error:  # a zone that is unknown is a KeyError
        raise ValueError(f"is not an iCalendar file: {error}") from error
    found = [_known_days(one, zone) for one in events if one.get("STATUS") != "CANCELLED"]
    return sorted(found, key=lambda one: one["from"])


def _known_days(event: Any, zone: tzinfo) -> dict[str, str]:
    note = str(event.get("SUMMARY", "")).strip()
    span = {"from": _written(event.start, zone), "until": _written(event.end, zone)}
    return span | ({"note": note} if note else {})


def _written(at: date | datetime, zone: tzinfo) -> str:
    moment = at if isinstance(at, datetime) else datetime.combine(at, time())
    placed = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    return placed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
