"""What came in the hours of an incident on the data, beside what was said of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monitor.cli.explain_incident_versions import shown
from monitor.cli.tables import count, number, percent, table
from monitor.core.buckets import TRAFFIC_FIELDS
from monitor.core.types import OVERALL, Events, Judgments, Monitor
from monitor.core.verdict_hours import step_of
from monitor.core.verdict_words import NAMES
from monitor.core.words import utc

if TYPE_CHECKING:
    from monitor.core.windows import SliceKey
    from monitor.store import Store
    from monitor.store.alerts import StoredIncident

BEFORE, AFTER = 3, 3
"""Steps shown of the time before it and after it, for comparison."""

FIRST, LAST = 24, 24
"""Steps shown of a long one."""

MOST_SLICES = 3


def hours_of(monitor: Monitor, incident: StoredIncident, store: Store) -> list[dict[str, Any]]:
    """Each step of an incident, as JSON data; of a slice where it is about slices, else of all traffic.

    Columns: dimension, slice, start (seconds), requests (None: not stored), labelled (share of the requests, or of the
    items shown where labels are judgments), events (a request), unmatched (share of the events), verdict.

    Raises:
        StoreError: out of reach.
    """
    about, step = incident.incident, step_of(monitor.bucket)
    since = about.began_at - about.began_at % step - BEFORE * step
    newest = store.newest_bucket(monitor.traffic)
    until = max(about.closed_at or about.opened_at, 0 if newest is None else newest + monitor.bucket)
    if about.closed_at is not None:
        until = min(until, about.closed_at + AFTER * step)
    verdicts = {v.end: v.kind for v in store.verdicts.between(monitor.name, since, until + step)}
    history = store.history(monitor.traffic, since, until + step)
    found = []
    for key in _units(incident):
        sums = history.slice(key)
        for start in range(since, until, step):
            rows = history.rows(start, start + step)
            came = dict(zip(TRAFFIC_FIELDS, sums[rows].sum(axis=0).tolist(), strict=True))
            is_read = rows.stop > rows.start
            unit = {"dimension": key[0], "slice": key[1], "start": start}
            found.append(unit | _figures(monitor, came, is_read, key) | {"verdict": verdicts.get(start + step)})
    return found


def _units(incident: StoredIncident) -> list[SliceKey]:
    """What it is about: the slices that its findings name, or all traffic."""
    named = [(s.dimension, s.slice) for f in incident.findings if f.rule.startswith("slice_") for s in f.slices]
    return list(dict.fromkeys(named))[:MOST_SLICES] or [OVERALL]


def _figures(monitor: Monitor, came: Mapping[str, float], is_read: bool, key: SliceKey) -> dict[str, Any]:
    of, label = ("impressions", "judged") if isinstance(monitor.recipe, Judgments) else ("requests", "labelled")
    by_events, every = isinstance(monitor.recipe, Events), came["events"] + came["unmatched"]
    counts_unmatched = by_events and key == OVERALL and every > 0
    return {
        "requests": int(came["requests"]) if is_read else None,
        "labelled": came[label] / came[of] if came[of] else None,
        "events": came["events"] / came["requests"] if by_events and came["requests"] else None,
        "unmatched": came["unmatched"] / every if counts_unmatched else None,
    }


def hour_by_hour(hours: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The steps for people, a table for each slice."""
    units = dict.fromkeys((h["dimension"], h["slice"]) for h in hours)
    head = ("hour (UTC)", "requests", "labelled", "events", "on nothing", "verdict")
    for dimension, value in units:
        rows = [_row(h) for h in hours if (h["dimension"], h["slice"]) == (dimension, value)]
        of = f" of {shown(f'{dimension}={value}')}" if dimension else ""
        yield f"\nHour by hour{of}; events are for each request:"
        if len(rows) > FIRST + LAST:
            left_out = (f"… {len(rows) - FIRST - LAST} more", *[""] * (len(head) - 1))
            rows = [*rows[:FIRST], left_out, *rows[-LAST:]]
        yield from table(head, rows, left=(0, 5))


def _row(hour: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = hour["verdict"]
    return (
        utc(hour["start"]).removesuffix(" UTC"),
        "not stored" if hour["requests"] is None else count(hour["requests"]),
        percent(hour["labelled"]),
        number(hour["events"]),
        percent(hour["unmatched"]),
        "–" if verdict is None else NAMES.get(verdict, verdict),
    )
