"""What is known about an incident: its conditions as diagnosed, and for a data incident its hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monitor.arrays import Floats
from monitor.causes.diagnosis import moved
from monitor.conditions.thresholds import ConditionName
from monitor.conditions.verdict_hours import step_of
from monitor.drift.verdicts import SLICE_KINDS
from monitor.evaluation.stored_fall import FiredCondition, StoredFall, fired, first_fired, is_over_by_now
from monitor.messages.diagnosis import FAILED, Told
from monitor.messages.words import utc
from monitor.series.partials import TRAFFIC_FIELDS, events_per_request, unmatched_share, with_results
from monitor.series.windows import SliceKey
from monitor.service.diagnosing import MOST
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.store.verdicts import Diagnosis
from monitor.types import OVERALL, Monitor

BEFORE, AFTER = 4, 3
"""Steps shown before an incident on the data began and after it closed."""

Capture = Callable[[Monitor, FiredCondition], Mapping[str, Any]]


@dataclass(frozen=True)
class Explainer:
    """Collects what is known of an incident.

    Attributes:
        monitor: None if it is not in the configuration, which is at `path`.
        capture: reads the source now for what was not captured; None: nothing is read but the store.
    """

    monitor: Monitor | None
    path: Path
    found: StoredIncident
    store: Store
    capture: Capture | None = None

    def each(self) -> Iterator[Told]:
        """Conditions that fired, at least one: the most severe still firing first, then by time of firing."""
        first, began = first_fired(self.found, self.store), {f.name: f for f in fired(self.found, self.store)}
        if (matter := self.found.incident.matter) != "quality":
            why = f"it is about the {matter}, not the model"
            yield Told(first.name, first.at, missing=why)
            return
        taken = {one.condition: one for one in self.store.verdicts.diagnoses(self.found.incident.id)}
        wanted = [first, *list(began.values())[:MOST], *(one for one in began.values() if one.name in taken)]
        # The data were read again since: other conditions may have opened the incident.
        wanted += [replace(first, name=name) for name, one in taken.items() if one.document and name not in began]
        others = sorted({f.name: f for f in wanted if f.name != first.name}.values(), key=lambda f: (f.at, f.name))
        yield from (self._told(f, taken.get(f.name), began) for f in (first, *others))

    def hours(self) -> list[dict[str, Any]]:
        """See `hours_of`; none of an incident that is not on the data."""
        if self.found.incident.matter != "data" or self.monitor is None:
            return []
        return hours_of(self.monitor, self.found, self.store)

    def _told(
        self, one: FiredCondition, taken: Diagnosis | None, began: Mapping[ConditionName, FiredCondition]
    ) -> Told:
        document, missing = self._document(one, taken)
        then = None if document is None or taken is None or taken.document is None else document["fell"]
        now = began[one.name].finding if one.name in began else None
        restated = moved(then, now) if then is not None and began else None
        is_over = self.found.incident.is_open and is_over_by_now(one, self.found)
        return Told(one.name, one.at, document, missing, restated, is_over)

    def _document(self, one: FiredCondition, taken: Diagnosis | None) -> tuple[Mapping[str, Any] | None, str]:
        monitor = self.monitor
        if taken is not None and taken.document is not None:
            return _shown(taken.document, monitor), ""
        if monitor is None:
            name = self.found.incident.monitor
            return None, f"monitor {name!r} is not in {self.path}; add it to see what the store knows"
        if self.capture is not None:
            return _shown(self.capture(monitor, one), monitor), ""
        return StoredFall(monitor, one, self.store).document(self.found.incident), self._why(taken)

    def _why(self, taken: Diagnosis | None) -> str:
        is_open = self.found.incident.is_open
        if taken is not None:
            more = "it will retry with the next cycles" if is_open else "the incident has closed"
            return f"{FAILED}: {taken.error} (last tried at {utc(int(taken.taken_at))}; {more}; --capture does it now)"
        if is_open:
            return "the source has not been read yet; rankmon run reads it with its next cycles, --capture reads it now"
        return "the incident closed before the source was read; --capture reads what the source still holds"


def _shown(document: Mapping[str, Any], monitor: Monitor | None) -> Mapping[str, Any]:
    """Without query texts, unless they are enabled now too."""
    captured = document.get("captured")
    is_on = monitor is not None and monitor.drift is not None and monitor.drift.show_queries
    if is_on or captured is None or captured["queries"] is None:
        return document
    worst = [{name: value for name, value in q.items() if name != "text"} for q in captured["queries"]["worst"]]
    return {**document, "captured": {**captured, "queries": {**captured["queries"], "worst": worst}}}


# ---- hours of an incident on the data -------------------------------------------------------------------------------


def hours_of(monitor: Monitor, incident: StoredIncident, store: Store) -> list[dict[str, Any]]:
    """Each step (an hour, or a longer bucket) of an incident that is stored in any part, as JSON data.

    Of all traffic, of slices, or both, as the incident concerns. Fields: dimension, slice, start and seconds, requests
    (None: not stored, or only in coarser buckets), labelled (share of the requests, as verdicts count them), events (a
    request, including those on nothing), unmatched (share of them, where counted), refused (rows), whole (all buckets
    of the step are stored), final (labels are complete), verdict.
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
