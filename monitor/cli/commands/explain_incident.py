"""Explain an incident: what fell, where, by how much, and which requests lost most.

INCIDENT is its id, as `rankmon incidents list` shows it. Single requests and queries were read from the source when
a condition began to fire. If that failed, it says why and shows what the store knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.commands.incidents import judged_until, plain, steps_of
from monitor.cli.common import command, config_option, format_option, load_config, stored
from monitor.cli.explain_incident_hours import hours_of
from monitor.cli.explain_incident_page import FAILED, Told, lines
from monitor.errors import InputError
from monitor.messages.words import utc
from monitor.types import Monitor

if TYPE_CHECKING:
    from monitor.conditions.thresholds import ConditionName
    from monitor.config import Config
    from monitor.service.diagnosing import FiredCondition
    from monitor.store import Store
    from monitor.store.alerts import StoredIncident
    from monitor.store.verdicts import Diagnosis


@command
@config_option
@click.argument("incident")
@format_option("text", "json")
@click.option("--capture", "now", is_flag=True, help="Read the source now, if nothing was captured when it began.")
def explain_incident(config_path: Path, incident: str, style: str, now: bool) -> None:
    config = load_config(config_path, with_sources=now)
    with stored(config) as store:
        found = store.alerts.incident(incident)
        if found is None:
            raise InputError(f"there is no incident {incident!r}; rankmon incidents list names them")
        teller = _Teller(config, found, store, now)
        told, hours = teller.all(), teller.hours()
        steps = steps_of(found, store)
        end = judged_until([found], store).get(found.incident.monitor)
    if style == "json":
        first, *others = (_plain(one) for one in told)
        history = [asdict(step) for step in steps]
        click.echo(
            json.dumps({**plain(found), **first, "others": others, "hours": hours, "transitions": history}, indent=2)
        )
        return
    click.echo("\n".join(lines(found, told, steps, hours, end)))


def _plain(one: Told) -> dict[str, Any]:
    names = {"condition": list(one.condition), "fired_at": one.fired_at}
    found = {"diagnosis": one.document, "missing": one.missing, "restated": one.restated}
    return {**names, **found, "is_over": one.is_over}


@dataclass(frozen=True)
class _Teller:
    """Puts together what there is to tell of an incident; `now`: reads the source for what nobody read."""

    config: Config
    found: StoredIncident
    store: Store
    now: bool

    @cached_property
    def _monitor(self) -> Monitor | None:
        """As it is configured now."""
        return next((m for m in self.config.monitors if m.name == self.found.incident.monitor), None)

    def all(self) -> list[Told]:
        """Of each condition that fired, at least of one: the gravest that still fires, then by when they fired."""
        from monitor.service.diagnosing import MOST, fired, first_fired

        first, began = first_fired(self.found, self.store), {f.name: f for f in fired(self.found, self.store)}
        if self.found.incident.matter == "data":
            why = "it is about the data, not the model: no request or slice is to blame"
            return [Told(first.name, first.at, missing=why)]
        taken = {one.condition: one for one in self.store.verdicts.diagnoses(self.found.incident.id)}
        wanted = [first, *list(began.values())[:MOST], *(one for one in began.values() if one.name in taken)]
        # As the data were read again since, others may have begun it.
        wanted += [replace(first, name=name) for name, one in taken.items() if one.document and name not in began]
        others = sorted({f.name: f for f in wanted if f.name != first.name}.values(), key=lambda f: (f.at, f.name))
        return [self._told(f, taken.get(f.name), began) for f in (first, *others)]

    def hours(self) -> list[dict[str, Any]]:
        """The hours of an incident on the data, as JSON data."""
        if self.found.incident.matter != "data" or self._monitor is None:
            return []
        return hours_of(self._monitor, self.found, self.store)

    def _told(
        self, one: FiredCondition, taken: Diagnosis | None, began: Mapping[ConditionName, FiredCondition]
    ) -> Told:
        from monitor.causes.diagnosis import moved
        from monitor.service.diagnosing import is_over_by_now

        document, missing = self._document(one, taken)
        then = None if document is None or taken is None or taken.document is None else document["fell"]
        now = began[one.name].finding if one.name in began else None
        restated = moved(then, now) if then is not None and began else None
        is_over = self.found.incident.is_open and is_over_by_now(one, self.found)
        return Told(one.name, one.at, document, missing, restated, is_over)

    def _document(self, one: FiredCondition, taken: Diagnosis | None) -> tuple[Mapping[str, Any] | None, str]:
        """(the diagnosis, or what of it the store knows; why there is no more of it, empty if there is all)."""
        from monitor.service.diagnosing import stored_part

        monitor = self._monitor
        if taken is not None and taken.document is not None:
            return _shown(taken.document, monitor), ""
        if monitor is None:
            name, path = self.found.incident.monitor, self.config.path
            return None, f"monitor {name!r} is not in {path}; with it there, what the store knows can be told"
        if self.now:
            return _shown(self._captured(monitor, one), monitor), ""
        return stored_part(monitor, self.found, one, self.store), self._why(taken)

    def _why(self, taken: Diagnosis | None) -> str:
        """Why nothing was captured."""
        is_open = self.found.incident.is_open
        if taken is not None:
            more = "it is tried again with the next cycles" if is_open else "the incident closed since"
            return f"{FAILED}: {taken.error} (tried last at {utc(int(taken.taken_at))}; {more}; --capture does it now)"
        if is_open:
            return "the source was not read yet; rankmon run does it with its next cycles, --capture does it now"
        return "the incident closed before the source was read; --capture reads what the source still holds"

    def _captured(self, monitor: Monitor, one: FiredCondition) -> Mapping[str, Any]:
        """Read the source, and keep what was found. Raises SourceError, StoreError."""
        from monitor.service.diagnosing import capture, detailed
        from monitor.source.engine import Database
        from monitor.source.pull import Pull
        from monitor.store.verdicts import Diagnosis

        source = self.config.source(monitor.source)
        database = Database(source.name, source.url, source.statement_timeout)
        steps = capture(monitor, self.found, one, self.store, Pull(detailed(monitor), database), time.time())
        try:
            while True:
                next(steps)
        except StopIteration as ended:
            document: Mapping[str, Any] = ended.value
        finally:
            database.close()
        found = Diagnosis(one.name, time.time(), document)
        self.store.verdicts.put_diagnosis(self.found.incident.id, monitor.name, found)
        return document


def _shown(document: Mapping[str, Any], monitor: Monitor | None) -> Mapping[str, Any]:
    """Without the texts of queries, unless they are switched on now too."""
    captured = document.get("captured")
    is_on = monitor is not None and monitor.drift is not None and monitor.drift.show_queries
    if is_on or captured is None or captured["queries"] is None:
        return document
    worst = [{name: value for name, value in q.items() if name != "text"} for q in captured["queries"]["worst"]]
    return {**document, "captured": {**captured, "queries": {**captured["queries"], "worst": worst}}}
