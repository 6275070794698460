"""`rankmon explain-incident`: where a fall came from, as far as it is known."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import config_option, load_config, stored
from monitor.cli.explain_incident_page import lines
from monitor.cli.incidents import plain
from monitor.core.types import Monitor
from monitor.errors import InputError

if TYPE_CHECKING:
    from monitor.config import Config
    from monitor.store import Store
    from monitor.store.alerts import StoredIncident


@click.command("explain-incident")
@config_option
@click.argument("incident")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--capture", "now", is_flag=True, help="Read the source now if nobody did when the incident opened.")
def explain_incident(config_path: Path, incident: str, output: str, now: bool) -> None:
    """Say what an incident came from: what fell, where, by how much, and who lost most.

    INCIDENT is its id, as `rankmon incidents list` has it. Single requests and queries were read from the source when
    the incident opened; where that did not come about it says why, and shows what the store knows.
    """
    config = load_config(config_path)
    with stored(config) as store:
        found = store.alerts.incident(incident)
        if found is None:
            raise InputError(f"there is no incident {incident!r}; rankmon incidents list names them")
        document, missing = _document(config, found, store, now)
        about = found.incident
        steps = store.alerts.transitions(about.monitor, about.began_at, about.closed_at)
    steps = [step for step in steps if step.incident in (None, about.id)]
    if output == "json":
        history = [asdict(step) for step in steps]
        parts = {**plain(found), "diagnosis": document, "missing": missing, "transitions": history}
        click.echo(json.dumps(parts, indent=2))
        return
    click.echo("\n".join(lines(found, document, missing, steps)))


def _document(config: Config, found: StoredIncident, store: Store, now: bool) -> tuple[Mapping[str, Any] | None, str]:
    """(the diagnosis, or what of it the store knows; why there is no more of it, empty if there is all)."""
    about = found.incident
    monitor = next((m for m in config.monitors if m.name == about.monitor), None)
    known = store.verdicts.diagnosis(about.id)
    if known is not None:
        return _shown(known, monitor), ""
    if about.matter == "data":
        return None, "it is about the data, not the model: no request or slice is to blame"
    if monitor is None:
        text = f"monitor {about.monitor!r} is not in {config.path}; with it there, what the store knows can be told"
        return None, text
    if now:
        return _shown(_captured(config, monitor, found, store), monitor), ""
    return _partly(monitor, found, store)


def _partly(monitor: Monitor, found: StoredIncident, store: Store) -> tuple[Mapping[str, Any], str]:
    from monitor.diagnosing import stored_part

    if found.incident.is_open:
        why = "the source was not read yet; rankmon run does it with its next cycles, --capture does it now"
    else:
        why = "the incident closed before the source was read; --capture reads what the source still holds"
    return stored_part(monitor, found, store), why


def _captured(config: Config, monitor: Monitor, found: StoredIncident, store: Store) -> Mapping[str, Any]:
    """Read the source, and keep what was found. Raises SourceError, StoreError."""
    from monitor.diagnosing import capture, detailed
    from monitor.source.engine import Database
    from monitor.source.pull import Pull

    source = config.source(monitor.source)
    database = Database(source.name, source.url, source.statement_timeout)
    steps = capture(monitor, found, store, Pull(detailed(monitor), database), time.time())
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        document: Mapping[str, Any] = ended.value
    finally:
        database.close()
    store.verdicts.put_diagnosis(found.incident.id, monitor.name, document, time.time())
    return document


def _shown(document: Mapping[str, Any], monitor: Monitor | None) -> Mapping[str, Any]:
    """Without the texts of queries, unless they are switched on now too."""
    captured = document.get("captured")
    is_on = monitor is not None and monitor.drift is not None and monitor.drift.show_queries
    if is_on or captured is None or captured["queries"] is None:
        return document
    worst = [{name: value for name, value in q.items() if name != "text"} for q in captured["queries"]["worst"]]
    return {**document, "captured": {**captured, "queries": {**captured["queries"], "worst": worst}}}
