"""Show each monitor as stored: last success, newest windows, verdict, alerts. Needs no running daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from monitor.cli.common import command, level_of, pick_monitors, refused_in_words, rendered, store_config, stored
from monitor.cli.options import config_option, monitors_option
from monitor.cli.render import Shown, lines
from monitor.conditions.evidence import Matter
from monitor.conditions.verdict_hours import judged, step_of
from monitor.conditions.verdicts import DEGRADED
from monitor.messages.explanation import announced, begun_lately, title_of
from monitor.messages.tables import number
from monitor.messages.words import (
    ago,
    assumed,
    brief,
    counted,
    decayed,
    lasting,
    named,
    not_judged,
    over_the_last,
    rank_one_missing,
    utc,
)
from monitor.series.finality import CLOCK_TOLERANCE
from monitor.service.retention import baselines_gone, doubt
from monitor.service.snapshot import MonitorSnapshot, RuleReading, take_snapshot
from monitor.store import Store
from monitor.types import OVERALL, Monitor, format_duration
from monitor.units import DAY

State = Mapping[str, Any]
"""A monitor's state as plain data; instants in seconds since 1970."""

MAX_SLICES = 3
"""Slices named in a line."""
INCIDENTS: dict[Matter, str] = {"quality": "incident", "data": "data_incident", "layout": "layout_incident"}
"""Matter -> key of its open incident."""


@command
@config_option
@monitors_option
@rendered("text", "json")
def status(config_path: Path, names: tuple[str, ...]) -> Shown:
    config, now = store_config(config_path), time.time()
    wanted = pick_monitors(config, names)
    with stored(config) as store:
        found, clock = [_status(monitor, store, now) for monitor in wanted], doubt(store, now)
    return Shown(found, lambda: [*lines(found), *([f"clock: {clock}"] if clock else [])])


def _status(monitor: Monitor, store: Store, now: float) -> Shown:
    found = take_snapshot(monitor, store, now, every_slice=False)
    data = {
        "monitor": monitor.name,
        "last_success_at": found.progress.last_success_at,
        "last_attempt_at": found.progress.last_attempt_at,
        "last_error": found.progress.last_error,
        "newest_source_at": found.progress.newest_source_at,
        "provisional_buckets": found.provisional_buckets,
        "refused_rows": dict(found.refused),
        "unmatched_events": found.unmatched,
        "requests": found.requests,
        "without_rank_one": found.without_rank_one,
        "windows": _windows(found),
        "assumed": assumed(monitor.measures) or None,
        "alerts": [_reading(r) for r in found.readings],
        **{name: found.opened[m].incident.id if m in found.opened else None for m, name in INCIDENTS.items()},
        "acknowledged_by": {
            opened.incident.id: opened.acknowledged_by
            for opened in found.opened.values()
            if opened.acknowledged_at is not None
        },
        "verdict": verdict_of(found, store),
        "newcomers": found.newcomers,
        "announced": found.announced,
        "stored": store.retention.holding(monitor.name),
        "not_judged_as": found.not_judged_as or None,
        "baselines_gone": baselines_gone(monitor, store),
        "retraining": found.on_retraining or None,
        "no_retraining_as": found.no_retraining_as or None,
        "restated_in_a_day": store.restated(monitor.name, now - DAY),
        "full_slices": found.full,
        "silenced_until": found.silenced_until,
        "waiting": store.outbox.of_monitor(monitor.name),
    }
    return Shown(data, lambda: _lines(data, now))


def _lines(state: State, now: float) -> Iterator[str]:
    yield f"{state['monitor']}: {_progress(state, now)}"
    parts = (_runs(state, now), _stored(state), _judged(state), _told(state))
    yield from (f"  {line}" for part in parts for line in part if line)


def _progress(state: State, now: float) -> str:
    if state["last_success_at"] is None:
        until = max((w["end"] for w in state["windows"]), default=None)
        stored_until = "" if until is None else f"stored until {utc(until)}, but "
        is_new = state["last_attempt_at"] is None
        return stored_until + ("not run yet; start rankmon run" if is_new else "no run has succeeded yet")
    return f"last success {_ago(state['last_success_at'], now)}, newest request {_ago(state['newest_source_at'], now)}"


def _ago(instant: float | None, now: float) -> str:
    if instant is not None and instant > now + CLOCK_TOLERANCE:
        return f"at {utc(int(instant))}"
    return ago(None if instant is None else now - instant)


def _runs(state: State, now: float) -> Iterator[str]:
    newest = max(state["last_success_at"] or 0.0, state["last_attempt_at"] or 0.0)
    if newest > now + CLOCK_TOLERANCE:
        yield (
            "the store's times are ahead of this machine's clock by "
            f"{lasting(int(newest - now))}: its last run was at {utc(int(newest))}, but this clock says "
            f"{utc(int(now))}; one of the two clocks is or was wrong"
        )
    yield state["last_error"] and f"last error: {state['last_error']}"
    for w in state["windows"]:
        value = "no data" if w["value"] is None else number(w["value"])
        band = "" if w["lower"] is None else f" [{w['lower']:.4f}, {w['upper']:.4f}]"
        yield f"{brief(w['measure'])} {w['window']}: {value}{band}, {w['requests']} requests, until {utc(w['end'])}"
    yield (state["windows"] and state["assumed"] and f"with examination: {state['assumed']}") or ""


def _stored(state: State) -> Iterator[str]:
    requests = state["requests"]
    refused = refused_in_words(state["refused_rows"], state["unmatched_events"], requests)
    yield refused and f"left out of the longest window: {refused}"
    yield rank_one_missing(state["without_rank_one"], requests)
    if again := state["restated_in_a_day"]:
        yield f"final buckets read again in the last 24 h: {again}, for late rankings or on request"
    yield from (f"{full}; see rankmon slices show {state['monitor']}" for full in state["full_slices"])
    if state["stored"].oldest is not None:
        coarse = f", {state['stored'].coarse_rows:,} of them rolled up" if state["stored"].coarse_rows else ""
        yield f"stored: {state['stored'].rows:,} bucket rows{coarse}, the oldest from {utc(state['stored'].oldest)}"


def _judged(state: State) -> Iterator[str]:
    yield "" if state["verdict"] is None else _verdict(state["verdict"])
    yield from (f"new: {begun_lately(one)}" for one in state["newcomers"])
    yield from (f"announced: {announced(one)}" for one in state["announced"])
    yield (state["not_judged_as"] and f"not judged yet: {state['not_judged_as']}") or ""
    skipped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for alert in state["alerts"]:
        if not alert["dimension"] or alert["state"] != "ok":
            yield _alert(alert)
        elif alert["not_judged_because"]:
            skipped.setdefault((alert["rule"], alert["not_judged_because"]), []).append(alert)
    for (rule, why), alerts in skipped.items():
        least = f", fewer than min_requests: {alerts[0]['min_requests']}" if why == "too few requests" else ""
        slices = counted(len(alerts), "slice")
        yield f"alert {rule}: {slices} not judged: {why}{least} ({_named(alerts)})"
    yield from state["baselines_gone"]


def _told(state: State) -> Iterator[str]:
    for matter, key in INCIDENTS.items():
        what, name = "" if matter == "quality" else f" on the {matter}", state[key]
        by = state["acknowledged_by"].get(name)
        known = f", acknowledged by {by}" if by else ""
        yield (name and f"open incident{what} {name}{known}: rankmon incidents show {name}") or ""
    if state["retraining"]:
        yield f"retraining: {state['retraining']}"
    elif state["no_retraining_as"]:
        yield f"retraining is not recommended now: {state['no_retraining_as']}"
    if state["silenced_until"] is not None:
        yield f"silenced until {utc(int(state['silenced_until']))}: new incidents page nobody"
    for queue in state["waiting"]:
        said = f": {queue.said}" if queue.said else ", not tried yet"
        wait = f"{counted(queue.number, 'notification')} {'waits' if queue.number == 1 else 'wait'}"
        yield f"{wait} for {queue.target} since {utc(int(queue.since))}{said}"


def _windows(snapshot: MonitorSnapshot) -> list[dict[str, Any]]:
    names = ("end", "value", "lower", "upper", "requests", "completeness")
    return [
        {"measure": str(s.measure), "window": format_duration(s.length), "definition": s.definition.id}
        | {name: getattr(p, name) for name in names}
        for s in snapshot.series
        for p in s.final
        if (p.dimension, p.slice) == OVERALL
    ]


def _reading(reading: RuleReading) -> dict[str, Any]:
    return {
        "rule": reading.rule.name,
        "dimension": reading.key[0],
        "value": reading.key[1],
        "state": reading.condition.state,
        "since": reading.condition.since,
        "not_judged_because": reading.evaluation.unknown,
        "min_requests": reading.rule.min_requests,
    }


def verdict_of(snapshot: MonitorSnapshot, store: Store) -> dict[str, Any] | None:
    """The newest verdict as plain data, instants in seconds since 1970; None without `drift`."""
    monitor, verdict = snapshot.monitor, snapshot.verdict
    if monitor.drift is None:
        return None
    told: dict[str, Any] = {
        "measure": str(judged(monitor.drift.measure)),
        "dimension": monitor.drift.mix_by,
        "kind": None,
    }
    if verdict is None:
        return told
    step = step_of(monitor.bucket)
    alarms = [
        {"slice": a.unit, "since": a.fell_at + step, "opened_at": a.opened_at, "value": a.value, "expected": a.before}
        for a in verdict.alarms
    ]
    since = store.verdicts.same_since(monitor.name, verdict.kind)
    if verdict.kind == DEGRADED:
        since = min((a.fell_at + step for a in verdict.alarms), default=since)
    if snapshot.verdict_kind != verdict.kind:  # data that do not arrive now
        since = snapshot.verdict_conditions[snapshot.verdict_kind, "", ""].since or since
    return told | {
        "kind": snapshot.verdict_kind,
        "since": since,
        "end": verdict.end,
        "observed": verdict.observed,
        "expected": verdict.expected,
        "observed_seconds": verdict.observed_span,
        "alarms": alarms,
        "missing": list(verdict.missing),
        "lost": [lost.slice for lost in verdict.lost],
        "mix_shifted": verdict.mix_shifted,
        "mix_effect": verdict.mix_effect,
        "unjudged": verdict.unjudged,
        "lacks": verdict.lacks,
        **level_of(verdict),
    }


def _verdict(told: dict[str, Any]) -> str:
    name = f"verdict on {brief(told['measure'])}"
    if told["kind"] is None:
        return f"{name}: none yet; there is no final bucket"
    dimension, observed, expected = told["dimension"] or "", told["observed"], told["expected"]
    slices = {
        "slice_missing": told["missing"],
        "slice_labels_suspect": told["lost"],
        "slice_labels_collapsed": told["lost"],
        "degraded": [a["slice"] for a in told["alarms"]],
    }.get(told["kind"], [])
    where = ", ".join(named(dimension, value) if value else "all traffic" for value in slices[:MAX_SLICES])
    more = f" and {len(slices) - MAX_SLICES} more" if len(slices) > MAX_SLICES else ""
    parts = [f"{title_of(told['kind'])} since {utc(told['since'])}" + (f" ({where}{more})" if where else "")]
    if observed is not None and expected is not None:
        apart = f" ({100 * (observed / expected - 1):+.1f} %)" if expected else ""
        over = over_the_last(told["observed_seconds"])
        parts.append(f"{observed:.4f} {over}, {expected:.4f} expected{apart}")
    if told["mix_shifted"]:
        parts.append(f"the mix of {dimension} moves the mean by {100 * told['mix_effect']:+.1f} %")
    if told["is_better_on_offer"]:
        parts.append("a better baseline is available, see rankmon baseline")
    if told["has_decayed"]:
        parts.append(decayed(told["level_change"], told["labels_change"]))
    parts += not_judged(told["unjudged"])
    if told["lacks"]:
        parts.append(f"still needs {told['lacks']}")
    return f"{name}: {'; '.join(parts)}; until {utc(told['end'])}"


def _alert(alert: dict[str, Any]) -> str:
    where = f" for {named(alert['dimension'], alert['value'])}" if alert["dimension"] else ""
    since = "" if alert["since"] is None else f", beyond its threshold since {utc(alert['since'])}"
    name, why = f"alert {alert['rule']}{where}", alert["not_judged_because"]
    if why and alert["state"] == "ok":
        return f"{name}: not judged: {why}"
    return f"{name}: {alert['state']}{since}" + (f", not judged now: {why}" if why else "")


def _named(alerts: list[dict[str, Any]]) -> str:
    more = ["…"] * (len(alerts) > MAX_SLICES)
    return ", ".join([*(named(a["dimension"], a["value"]) for a in alerts[:MAX_SLICES]), *more])
