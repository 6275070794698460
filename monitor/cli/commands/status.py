"""Show each monitor as stored: last success, newest windows, verdict, alerts. Needs no running daemon."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import (
    command,
    config_option,
    format_option,
    level_of,
    load_config,
    monitors_option,
    pick_monitors,
    refused_in_words,
    stored,
)
from monitor.types import OVERALL, format_duration

if TYPE_CHECKING:
    from monitor.service.snapshot import MonitorSnapshot
    from monitor.store import Store
    from monitor.types import Monitor

DAY = 86_400
MOST_SLICES = 3
"""That a line names."""


@command
@config_option
@monitors_option
@format_option("text", "json")
def status(config_path: Path, names: tuple[str, ...], style: str) -> None:
    from monitor.service.retention import baselines_gone, doubt
    from monitor.service.snapshot import take_snapshot

    config, now = load_config(config_path, with_sources=False), time.time()
    wanted = pick_monitors(config, names)
    with stored(config) as store:
        shown = [(m, take_snapshot(m, store, now)) for m in wanted]
        entries = [
            entry(m, found)
            | {"verdict": verdict_of(found, store), "stored": asdict(store.retention.holding(m.name))}
            | {"not_judged_as": found.not_judged_as or None, "baselines_gone": baselines_gone(m, store)}
            | {"retraining": found.on_retraining or None, "no_retraining_as": found.no_retraining_as or None}
            | {"restated_in_a_day": store.records.restated(m.name, now - DAY)}
            | {"full_slices": [asdict(one) for one in found.full]}
            | {"silenced_until": found.silenced_until, "waiting": [asdict(q) for q in store.outbox.of_monitor(m.name)]}
            for m, found in shown
        ]
        doubted = doubt(store, now)
    if style == "json":
        click.echo(json.dumps(entries, indent=2))
        return
    for found in entries:
        _show(found, now)
    if doubted:
        click.echo(f"clock: {doubted}")


def entry(monitor: Monitor, snapshot: MonitorSnapshot) -> dict[str, Any]:
    """A monitor's state as plain data; instants in seconds since 1970."""
    progress = snapshot.progress
    return {
        "monitor": monitor.name,
        "last_success_at": progress.last_success_at,
        "last_attempt_at": progress.last_attempt_at,
        "last_error": progress.last_error,
        "newest_source_at": progress.newest_source_at,
        "provisional_buckets": snapshot.provisional_buckets,
        "refused_rows": dict(snapshot.refused),
        "unmatched_events": snapshot.unmatched,
        "windows": [
            {
                "measure": str(s.measure),
                "window": format_duration(s.length),
                "definition": s.definition.id,
                "end": p.end,
                "value": p.value,
                "lower": p.lower,
                "upper": p.upper,
                "requests": p.requests,
                "completeness": p.completeness,
            }
            for s in snapshot.series
            for p in s.final
            if (p.dimension, p.slice) == OVERALL
        ],
        "alerts": [
            {
                "rule": r.rule.name,
                "dimension": r.key[0],
                "value": r.key[1],
                "state": r.condition.state,
                "since": r.condition.since,
                "not_judged_because": r.evaluation.unknown,
            }
            for r in snapshot.readings
        ],
        "incident": None if snapshot.incident is None else snapshot.incident.incident.id,
        "data_incident": None if snapshot.data_incident is None else snapshot.data_incident.incident.id,
    }


def verdict_of(snapshot: MonitorSnapshot, store: Store) -> dict[str, Any] | None:
    """The newest verdict as plain data, instants in seconds since 1970; None without `drift`.

    Raises:
        StoreError: the store is out of reach.
    """
    from monitor.conditions.verdict_conditions import DEGRADED
    from monitor.conditions.verdict_hours import judged, step_of

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
    if snapshot.verdict_kind != verdict.kind:  # of what does not arrive now
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


def _show(found: dict[str, Any], now: float) -> None:
    from monitor.messages.words import utc
    from monitor.series.slices import FullDimension

    _show_runs(found, now)
    for window in found["windows"]:
        click.echo(f"  {window['measure']} {window['window']}: {_value(window)}")
    if refused := refused_in_words(found["refused_rows"], found["unmatched_events"]):
        click.echo(f"  left out of the longest window: {refused}")
    if again := found["restated_in_a_day"]:
        click.echo(f"  final buckets read again in the last 24 h: {again}, for rankings that came late or by hand")
    for full in found["full_slices"]:
        click.echo(f"  {FullDimension(**full)}; see rankmon slices show {found['monitor']}")
    if (oldest := found["stored"]["oldest"]) is not None:
        click.echo(f"  {_stored(found['stored'], oldest)}")
    if found["verdict"] is not None:
        click.echo(f"  {_verdict(found['verdict'])}")
    if found["not_judged_as"]:
        click.echo(f"  not judged yet: {found['not_judged_as']}")
    for alert in found["alerts"]:
        if not alert["dimension"] or alert["state"] != "ok":
            click.echo(f"  {_alert(alert)}")
    for text in found["baselines_gone"]:
        click.echo(f"  {text}")
    for kind, what in (("incident", ""), ("data_incident", " on the data")):
        if found[kind]:
            click.echo(f"  open incident{what} {found[kind]}: rankmon incidents show {found[kind]}")
    if found["retraining"]:
        click.echo(f"  retraining: {found['retraining']}")
    elif found["no_retraining_as"]:
        click.echo(f"  no retraining is asked for now: {found['no_retraining_as']}")
    if (until := found["silenced_until"]) is not None:
        click.echo(f"  silenced until {utc(int(until))}: nobody is told of new incidents")
    for queue in found["waiting"]:
        click.echo(f"  {_waiting(queue)}")


def _show_runs(found: dict[str, Any], now: float) -> None:
    click.echo(f"{found['monitor']}: {_progress(found, now)}")
    if (told := _ahead(found, now)) != "":
        click.echo(f"  {told}")
    if found["last_error"]:
        click.echo(f"  last error: {found['last_error']}")


def _progress(found: dict[str, Any], now: float) -> str:
    from monitor.messages.words import utc
    from monitor.page import ago
    from monitor.series.finality import CLOCK_TOLERANCE

    def since(instant: float | None) -> str:
        if instant is not None and instant > now + CLOCK_TOLERANCE:
            return f"at {utc(int(instant))}"
        return ago(None if instant is None else now - instant)

    if found["last_attempt_at"] is None and found["last_success_at"] is None:
        return f"{'backfilled, but ' if found['windows'] else ''}not run yet; rankmon run does it"
    return f"last success {since(found['last_success_at'])}, newest request {since(found['newest_source_at'])}"


def _ahead(found: dict[str, Any], now: float) -> str:
    """That the times of a monitor's runs lie ahead of this machine's clock, and what that may come from; or nothing."""
    from monitor.messages.words import lasting, utc
    from monitor.series.finality import CLOCK_TOLERANCE

    newest = max(found["last_success_at"] or 0.0, found["last_attempt_at"] or 0.0)
    if newest <= now + CLOCK_TOLERANCE:
        return ""
    told = f"the store's times lie ahead of this machine's clock by {lasting(int(newest - now))}: its last run was of "
    return f"{told}{utc(int(newest))}, by this clock it is {utc(int(now))}; one of the two clocks is or was wrong"


def _waiting(queue: dict[str, Any]) -> str:
    from monitor.messages.words import counted, utc

    said = f": {queue['said']}" if queue["said"] else ", not tried yet"
    wait = "waits" if queue["number"] == 1 else "wait"
    number, since = counted(queue["number"], "notification"), utc(int(queue["since"]))
    return f"{number} {wait} for {queue['target']} since {since}{said}"


def _value(window: dict[str, Any]) -> str:
    from monitor.page import utc

    value = "no data" if window["value"] is None else f"{window['value']:.4f}"
    interval = "" if window["lower"] is None else f" [{window['lower']:.4f}, {window['upper']:.4f}]"
    return f"{value}{interval}, {window['requests']} requests, until {utc(window['end'])}"


def _stored(told: dict[str, Any], oldest: int) -> str:
    from monitor.messages.words import utc

    coarse = f", {told['coarse_rows']:,} of them rolled up" if told["coarse_rows"] else ""
    return f"stored: {told['rows']:,} rows of buckets{coarse}, the oldest of {utc(oldest)}"


def _verdict(told: dict[str, Any]) -> str:
    """A verdict in a line: what, since when, where, the last day's mean against what is expected, until when."""
    from monitor.conditions.verdict_words import NAMES, decayed, named, not_judged
    from monitor.messages.words import over_the_last, utc

    name = f"verdict on {told['measure']}"
    if told["kind"] is None:
        return f"{name}: none yet; there is no final bucket"
    dimension, observed, expected = told["dimension"] or "", told["observed"], told["expected"]
    slices = {
        "slice_missing": told["missing"],
        "slice_labels_suspect": told["lost"],
        "slice_labels_collapsed": told["lost"],
        "degraded": [a["slice"] for a in told["alarms"]],
    }.get(told["kind"], [])
    where = ", ".join(named(dimension, value) if value else "all traffic" for value in slices[:MOST_SLICES])
    more = f" and {len(slices) - MOST_SLICES} more" if len(slices) > MOST_SLICES else ""
    parts = [f"{NAMES[told['kind']]} since {utc(told['since'])}" + (f" ({where}{more})" if where else "")]
    if observed is not None and expected is not None:
        apart = f" ({100 * (observed / expected - 1):+.1f} %)" if expected else ""
        over = over_the_last(told["observed_seconds"])
        parts.append(f"{observed:.4f} {over}, {expected:.4f} expected{apart}")
    if told["mix_shifted"]:
        parts.append(f"the mix of {dimension} moves the mean by {100 * told['mix_effect']:+.1f} %")
    if told["is_better_on_offer"]:
        parts.append("a better baseline is on offer, see rankmon baseline")
    if told["has_decayed"]:
        parts.append(decayed(told["level_change"], told["labels_change"]))
    parts += not_judged(told["unjudged"])
    if told["lacks"]:
        parts.append(f"lacks {told['lacks']}")
    return f"{name}: {'; '.join(parts)}; until {utc(told['end'])}"


def _alert(alert: dict[str, Any]) -> str:
    from monitor.conditions.verdict_words import named
    from monitor.messages.words import utc

    where = f" of {named(alert['dimension'], alert['value'])}" if alert["dimension"] else ""
    since = "" if alert["since"] is None else f", too low since {utc(alert['since'])}"
    name, why = f"alert {alert['rule']}{where}", alert["not_judged_because"]
    if why and alert["state"] == "ok":
        return f"{name}: not judged: {why}"
    return f"{name}: {alert['state']}{since}" + (f", not judged now: {why}" if why else "")
