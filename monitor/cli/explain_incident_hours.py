"""What came in the hours of an incident on the data, beside what was said of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monitor.cli.explain_incident_versions import shown
from monitor.cli.render import count, number, percent, table
from monitor.conditions.verdict_hours import step_of
from monitor.conditions.verdict_words import NAMES
from monitor.drift.verdicts import SLICE_KINDS
from monitor.messages.words import lasting, utc
from monitor.series.partials import TRAFFIC_FIELDS, Floats, events_per_request, unmatched_share, with_results
from monitor.types import OVERALL, Monitor

if TYPE_CHECKING:
    from monitor.series.windows import SliceKey
    from monitor.store import Store
    from monitor.store.alerts import StoredIncident

BEFORE, AFTER = 4, 3
"""Steps shown from before an incident began and from after it closed. It began with the end of its first step."""

FIRST, LAST = 24, 24
"""Steps shown of a long one."""

HOUR = 3600
STILL_COMING, IN_PART = "labels still coming", "stored in part"


def hours_of(monitor: Monitor, incident: StoredIncident, store: Store) -> list[dict[str, Any]]:
    """Each step (an hour, or a longer bucket) of an incident as far as anything is stored, as JSON data.

    Of all traffic, and of slices where it is about such. Columns: dimension, slice, start and seconds, requests (None:
    not stored, or in coarser buckets alone), labelled (share of the requests, as verdicts count them), events (a
    request, those on nothing too), unmatched (share of them, where they are counted), refused (rows), whole (all
    buckets of the step are stored), final (no more labels are waited for), verdict.

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
    refused = store.refused_by_bucket(monitor.traffic, since, until + step)
    found = []
    for key in _units(incident):
        sums = history.slice(key)
        for start in range(since, until, step):
            rows = history.rows(start, start + step)
            came = sums[rows].sum(axis=0)
            stored = rows.stop - rows.start
            unit = {"dimension": key[0], "slice": key[1], "start": start, "seconds": step}
            of_all = key == OVERALL and stored > 0
            more = {
                "refused": sum(refused.get(s, 0) for s in history.starts[rows].tolist()) if of_all else None,
                "whole": stored * monitor.bucket >= step,
                "final": bool(history.final[rows].all()) and stored > 0,
                "verdict": verdicts.get(start + step),
            }
            found.append(unit | _figures(monitor, came, stored > 0, key) | more)
    return found


def _units(incident: StoredIncident) -> list[SliceKey]:
    """What it is about: all traffic, the slices that its findings name, or both."""
    named = [(s.dimension, s.slice) for f in incident.findings if f.rule in SLICE_KINDS for s in f.slices]
    named += [(f.dimension, f.slice) for f in incident.findings if f.dimension]
    is_about_all = not named or any(f.rule not in SLICE_KINDS and not f.dimension for f in incident.findings)
    return list(dict.fromkeys([OVERALL] * is_about_all + named))


def _figures(monitor: Monitor, traffic: Floats, is_stored: bool, key: SliceKey) -> dict[str, Any]:
    came = dict(zip(TRAFFIC_FIELDS, traffic.tolist(), strict=True))
    return {
        "requests": int(came["requests"]) if is_stored else None,
        "labelled": came["labelled"] / shown if (shown := float(with_results(traffic))) else None,
        "events": events_per_request(traffic) if monitor.has_events else None,
        "unmatched": unmatched_share(traffic) if monitor.counts_unmatched and key == OVERALL else None,
    }


def hour_by_hour(hours: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The steps for people, a table for all traffic and one for each slice."""
    has_events = any(h["events"] is not None for h in hours)
    of_events = ("events", "on nothing") if has_events else ()
    head = ("from (UTC)", "requests", "labelled", *of_events, "refused", "verdict")
    for dimension, value in dict.fromkeys((h["dimension"], h["slice"]) for h in hours):
        mine = [h for h in hours if (h["dimension"], h["slice"]) == (dimension, value)]
        step = mine[0]["seconds"]
        title = "Hour by hour" if step == HOUR else f"In steps of {lasting(step)}"
        of = f", {shown(f'{dimension}={value}')}" if dimension else ""
        which = "those that match, " * bool(dimension)
        yield f"\n{title}{of}" + f"; events are {which}for each request" * has_events + ":"
        rows = [_row(h, has_events) for h in mine]
        if len(rows) > FIRST + LAST:
            left_out = (f"… {len(rows) - FIRST - LAST} more", *[""] * (len(head) - 1))
            rows = [*rows[:FIRST], left_out, *rows[-LAST:]]
        yield from table(head, rows, left=(0, len(head) - 1))


def _row(hour: Mapping[str, Any], has_events: bool) -> tuple[str, ...]:
    is_stored, verdict = hour["requests"] is not None, hour["verdict"]
    said = [] if verdict is None else [NAMES.get(verdict, verdict)]
    if is_stored:
        said += [IN_PART] * (not hour["whole"]) + [STILL_COMING] * (not hour["final"])
    return (
        utc(hour["start"]).removesuffix(" UTC"),
        count(hour["requests"]),
        percent(hour["labelled"]),
        *((number(hour["events"]), percent(hour["unmatched"])) if has_events else ()),
        count(hour["refused"]),
        ", ".join(said) or ("–" if is_stored else "not stored by itself"),
    )
