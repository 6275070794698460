"""`rankmon status`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import config_option, load_config, refused_in_words, stored
from monitor.core.types import OVERALL, format_duration

if TYPE_CHECKING:
    from monitor.core.types import Monitor
    from monitor.snapshot import MonitorSnapshot


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def status(config_path: Path, as_json: bool) -> None:
    """What the store knows of each monitor: last success, newest request, newest windows. Needs no running daemon."""
    from monitor.snapshot import take_snapshot

    config, now = load_config(config_path), time.time()
    with stored(config) as store:
        entries = [entry(m, take_snapshot(m, store, now)) for m in config.monitors]
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    for found in entries:
        _show(found, now)


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
    }


def _show(found: dict[str, Any], now: float) -> None:
    from monitor.page import ago

    def since(instant: float | None) -> str:
        return ago(None if instant is None else now - instant)

    if found["last_attempt_at"] is None and found["last_success_at"] is None:
        is_filled = bool(found["windows"])
        click.echo(f"{found['monitor']}: {'backfilled, but ' if is_filled else ''}not run yet; rankmon run does it")
    else:
        success, newest = since(found["last_success_at"]), since(found["newest_source_at"])
        click.echo(f"{found['monitor']}: last success {success}, newest request {newest}")
    if found["last_error"]:
        click.echo(f"  last error: {found['last_error']}")
    for window in found["windows"]:
        click.echo(f"  {window['measure']} {window['window']}: {_value(window)}")
    if refused := refused_in_words(found["refused_rows"], found["unmatched_events"]):
        click.echo(f"  left out of the longest window: {refused}")
    for alert in found["alerts"]:
        if not alert["dimension"] or alert["state"] != "ok":
            click.echo(f"  {_alert(alert)}")
    if found["incident"]:
        click.echo(f"  open incident {found['incident']}: rankmon incidents show {found['incident']}")


def _value(window: dict[str, Any]) -> str:
    from monitor.page import utc

    value = "no data" if window["value"] is None else f"{window['value']:.4f}"
    interval = "" if window["lower"] is None else f" [{window['lower']:.4f}, {window['upper']:.4f}]"
    return f"{value}{interval}, {window['requests']} requests, until {utc(window['end'])}"


def _alert(alert: dict[str, Any]) -> str:
    from monitor.core.messages import utc

    where = f" of {alert['dimension']}={alert['value']}" if alert["dimension"] else ""
    since = "" if alert["since"] is None else f" since {utc(alert['since'])}"
    name, why = f"alert {alert['rule']}{where}", alert["not_judged_because"]
    if why and alert["state"] == "ok":
        return f"{name}: not judged: {why}"
    return f"{name}: {alert['state']}{since}" + (f", not judged now: {why}" if why else "")
