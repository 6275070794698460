"""Requests to retrain: when one is due, and its evidence.

Retraining is recommended for a fall that has lasted, unless the data may have broken: a model trained on broken data is
worse than the current one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from monitor.conditions.assessment import Assessment
from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.evidence import Matter
from monitor.conditions.incident import Incident
from monitor.conditions.verdicts import DEGRADED
from monitor.drift.constants import SETTLING_DAYS
from monitor.drift.verdicts import Verdict
from monitor.messages.explanation import held_back_by
from monitor.messages.notification import key
from monitor.messages.words import lasting, utc
from monitor.series import partials as b
from monitor.series.windows import History
from monitor.store import Store
from monitor.store.alerts import Retrain, StoredIncident
from monitor.types import OVERALL, Monitor
from monitor.units import DAY, HOUR

if TYPE_CHECKING:
    from monitor.causes.diagnosis import Subject
    from monitor.evaluation.stored_fall import UnsavedEvaluation

SENT_SPAN = 14 * DAY
"""Seconds of past windows sent with a request."""

LARGEST = 60_000
"""Most bytes of the evidence as JSON; half of the windows are dropped while it is larger."""

LONGEST_TEXT = 4_000
"""Most characters of a definition's text."""

MOST_OF_VERDICT = 20
"""Most alarms, changes and slices per list of the newest verdict sent with a request."""

VERSION = 1
"""Version of the evidence format, raised when a field changes its meaning."""

_OF_DIAGNOSIS = ("window", "compared", "left_out", "split", "slices", "slices_by_z", "versions", "coverage")


def due(
    monitor: Monitor,
    last: Retrain | None,
    end: int,
    opened: Mapping[Matter, StoredIncident],
    accepted: Sequence[BaselineReset] = (),
) -> Retrain | None:
    """The request to retrain that is due now: something asks for it and nothing is `in_the_way`."""
    current = opened.get("quality")
    if current is None or not asks(current) or in_the_way(monitor, last, end, opened, accepted):
        return None
    return Retrain(key("retrain", monitor.name, current.incident.id)[:16], current.incident.id, end)


def in_the_way(
    monitor: Monitor,
    last: Retrain | None,
    end: int,
    opened: Mapping[Matter, StoredIncident],
    accepted: Sequence[BaselineReset] = (),
) -> str:
    """Why no retraining is requested although a condition asks for it; empty if nothing is in the way or none asks.

    A request needs all of: the condition is not recovering and has asked for `retrain.after`; no incident on data is
    open; neither lost labels nor another concurrent change may explain the fall; by the verdicts the mean of all
    traffic is not rising; nobody accepted the new level; the incident has not asked yet, and the last one that did is
    `retrain.cooldown` ago.

    Args:
        last: the monitor's newest request.
        end: of the last evaluated window, seconds.
        opened: the incidents that are open now.
        accepted: baseline resets.
    """
    current = opened.get("quality")
    if current is None or not asks(current):
        return ""
    incident = current.incident
    if "data" in opened or Assessment(current.findings).labels_are_suspect:
        return "the data are broken"
    if (changed := Assessment(current.findings).concurrent) is not None:
        return held_back_by(changed)
    if any(_is_taken(incident, said) for said in accepted):
        return "somebody accepted its level as the new baseline"
    if last is not None and last.incident == incident.id:
        return f"it was already requested, {utc(last.asked_at)}"
    # Whatever its slices do: what makes the whole rise may be the remedy.
    whole = max((f.well_for for f in current.findings if f.verdict == DEGRADED and not f.dimension), default=0)
    if whole:
        return f"the mean of all traffic may have been rising again for {lasting(whole)}"
    recovering = {f.name for f in current.findings if f.well_for}
    asking = [f.since for name, f in (incident.firing or {}).items() if f.retrain and name not in recovering]
    if not asking:
        return "every condition that asks for it is recovering"
    lasts = end - asking_since(incident, asking)
    if lasts < monitor.retrain.after:
        return f"it has lasted {lasting(max(lasts, 0))} of {lasting(monitor.retrain.after)}"
    if last is not None and end - last.asked_at < monitor.retrain.cooldown:
        return f"the last request, {utc(last.asked_at)}, is less than {lasting(monitor.retrain.cooldown)} ago"
    return ""


def asking_since(incident: Incident, asking: Iterable[int]) -> int:
    """When an incident began to ask for retraining, seconds: not before it opened, nor before the fall of what asks.

    Args:
        asking: when each asking condition fell.
    """
    return max(incident.opened_at, min(asking))


def asks(current: StoredIncident) -> bool:
    """Whether a firing condition of an incident asks for retraining."""
    return any(firing.retrain for firing in (current.incident.firing or {}).values())


def _is_taken(incident: Incident, said: BaselineReset) -> bool:
    """Whether a reset made with knowledge of an incident takes the fall into the new level."""
    knew = said.judged_until is not None and said.judged_until >= incident.opened_at
    return knew and said.since + SETTLING_DAYS * DAY > incident.began_at


def evidence(
    monitor: Monitor, current: StoredIncident, end: int, unsaved: UnsavedEvaluation, store: Store
) -> dict[str, Any]:
    """The evidence of a request to retrain, as JSON data, without query texts and request ids. Raises StoreError.

    Args:
        end: of the last evaluated window, seconds.
        unsaved: the current evaluation; in a first run the incident is only there.
    """
    from monitor.evaluation.stored_fall import StoredFall, first_fired

    first, verdicts = first_fired(current, store, unsaved), unsaved.verdicts
    stored = StoredFall(monitor, first, store, unsaved)
    fell = stored.subject
    taken = {one.condition: one.document for one in store.verdicts.diagnoses(current.incident.id)}
    known = taken.get(first.name) or stored.document(current.incident)
    newest = verdicts[-1] if verdicts else store.verdicts.newest(monitor.name)
    definition = monitor.definition(fell.measure)
    window = _window(monitor, fell)
    history = store.history(definition, end - SENT_SPAN - window, end, overall_only=fell.key == OVERALL)
    return _bounded(
        {
            "version": VERSION,
            "measure": str(fell.measure),
            "dimension": fell.key[0],
            "slice": fell.key[1],
            "window_seconds": window,
            "series": _series(monitor, fell, window, history, end),
            "expected": _expected(monitor, end, verdicts, store),
            "verdict": None if newest is None else _verdict(newest),
            "diagnosis": {name: known.get(name) for name in _OF_DIAGNOSIS} | {"comparison": _comparison(known)},
            "definitions": [_definition(d.kernel, d.id, d.text) for d in (definition, monitor.traffic)],
        }
    )


def _window(monitor: Monitor, fell: Subject) -> int:
    """Seconds of the shown windows: as judged, or the monitor's first."""
    return monitor.windows[0] if fell.finding is None or fell.finding.verdict else fell.finding.window


def _series(monitor: Monitor, fell: Subject, window: int, history: History, end: int) -> list[dict[str, Any]]:
    """The windows that ended in the last two weeks, oldest first."""
    step = max(monitor.bucket, HOUR)
    partials, found = history.slice(fell.key), []
    for at in range(end - (SENT_SPAN // step - 1) * step, end + 1, step):
        rows = history.rows(at - window, at)
        sums = partials[rows].sum(axis=0)
        value = float(b.read_as(fell.measure, sums))
        is_whole = (rows.stop - rows.start) * monitor.bucket >= monitor.min_completeness * window
        if is_whole and not np.isnan(value):
            found.append({"end": at, "value": round(value, 6), "requests": int(sums[b.REQUESTS])})
    return found


def _expected(monitor: Monitor, end: int, verdicts: Sequence[Verdict], store: Store) -> list[dict[str, Any]]:
    """What the verdicts measured and expected in the last two weeks, oldest first."""
    stored = store.verdicts.drawn(monitor.name, end - SENT_SPAN, end)
    rows = {one.end: (one.observed, one.expected) for one in stored}
    rows |= {v.end: (v.observed, v.expected) for v in verdicts if end - SENT_SPAN < v.end <= end}
    known = sorted((at, *both) for at, both in rows.items() if None not in both)
    return [{"end": at, "observed": round(o or 0.0, 6), "expected": round(e or 0.0, 6)} for at, o, e in known]


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """The newest verdict without its split (see the diagnosis), long lists cut; `totals` has their full lengths."""
    found = {name: value for name, value in asdict(verdict).items() if name != "split"}
    lists = {name: value for name, value in found.items() if isinstance(value, tuple)}
    first = {name: value[:MOST_OF_VERDICT] for name, value in lists.items()}
    return found | first | {"totals": {name: len(value) for name, value in lists.items()}}


def _comparison(known: Mapping[str, Any]) -> Any:
    captured = known.get("captured")
    return None if captured is None else captured.get("comparison")


def _definition(measure: str, id_: str, text: str) -> dict[str, str]:
    shown = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."
    return {"measure": measure, "id": id_, "text": shown}


def _bounded(found: dict[str, Any]) -> dict[str, Any]:
    while len(json.dumps(found)) > LARGEST and len(found["series"]) + len(found["expected"]) > 2:
        found |= {name: found[name][::-2][::-1] for name in ("series", "expected")}
    diagnosis = found["diagnosis"]
    while len(json.dumps(found)) > LARGEST and len(diagnosis["slices"]) > 1:
        for name in ("slices", "slices_by_z", "versions"):
            diagnosis[name] = diagnosis[name][: max(1, len(diagnosis[name]) // 2)]
        if diagnosis["split"] is not None:
            diagnosis["split"]["parts"] = diagnosis["split"]["parts"][: len(diagnosis["slices"])]
    return found
