"""Explain an incident: what fell, where, by how much, and which requests lost most.

INCIDENT is its id, as `rankmon incidents list` shows it. First come five lines, then the events in time order, then
tables. Requests and queries were read from the source when a condition started firing. If that failed, it says why and
shows what the store knows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from monitor.cli.commands.incidents import find, judged_until, plain, steps_of
from monitor.cli.common import command, finished, load_config, rendered, source_of, stored
from monitor.cli.incident_report import lines
from monitor.cli.options import config_option
from monitor.cli.render import Shown
from monitor.config import Config
from monitor.evaluation.stored_fall import FiredCondition
from monitor.service.diagnosing import capture, detailed
from monitor.service.explaining import Explainer
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.store.verdicts import Diagnosis
from monitor.types import Monitor


@command
@config_option
@click.argument("incident")
@click.option("--full", is_flag=True, help="Everything: requests, queries, each condition on its own.")
@click.option("--capture", "now", is_flag=True, help="Read the source now, if nothing was captured when it began.")
@rendered("text", "json")
def explain_incident(config_path: Path, incident: str, full: bool, now: bool) -> Shown:
    config = load_config(config_path, unread=() if now else ("sources",))
    with stored(config) as store:
        found = find(store, incident)
        monitor = next((m for m in config.monitors if m.name == found.incident.monitor), None)
        explainer = Explainer(
            monitor, config.path, found, store, partial(_captured, config, store, found) if now else None
        )
        told, hours, steps = list(explainer.each()), explainer.hours(), steps_of(found, store)
        end = judged_until([found], store).get(found.incident.monitor)
    first, *others = told
    page = config.web.page_url()
    link = f"{page}incidents/{found.incident.id}" if page else ""
    document = {**plain(found), **vars(first), "others": others, "hours": hours, "transitions": steps}
    return Shown(document, lambda: lines(found, told, steps, hours, end, link, full))


def _captured(
    config: Config, store: Store, found: StoredIncident, monitor: Monitor, one: FiredCondition
) -> Mapping[str, Any]:
    with source_of(config, monitor) as database:
        pull = Pull(detailed(monitor), database)
        document = finished(capture(monitor, found, one, store, pull, time.time()))
    store.verdicts.put_diagnosis(found.incident.id, monitor.name, Diagnosis(one.name, time.time(), document))
    return document
