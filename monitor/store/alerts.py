"""Conditions, incidents with their transitions, silences and requests to retrain.

A judgement and its notifications are stored in one transaction, fenced by the writer's lease.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.conditions.checkpoint import StoredCondition, VerdictUpdate
from monitor.conditions.evidence import Evidence, Matter, evidence_of
from monitor.conditions.incident import Firing, Incident, Label
from monitor.conditions.thresholds import Condition, ConditionName
from monitor.messages.notification import Notification, key
from monitor.store.engine import Connected, upserted
from monitor.store.lease import Lease, Leases
from monitor.store.naming import MONITOR
from monitor.store.schema import (
    conditions,
    diagnoses,
    examinations,
    incidents,
    judged,
    monitors,
    outbox,
    restatements,
    retrains,
    silences,
    transitions,
    verdicts,
)
from monitor.store.verdicts import forget, put

MOST_PURGED = 1000
"""Most incidents deleted in one transaction."""


@dataclass(frozen=True)
class StoredIncident:
    """An incident and what people did about it; instants in seconds.

    Attributes:
        told: whether anybody was notified that it opened.
        findings: the newest evaluation of each condition that fires or fired last.
        label: what people say about it afterwards.
    """

    incident: Incident
    told: bool = False
    findings: tuple[Evidence, ...] = ()
    acknowledged_at: float | None = None
    acknowledged_by: str | None = None
    note: str | None = None
    label: Label | None = None
    labelled_by: str | None = None
    label_note: str | None = None


@dataclass(frozen=True)
class Retrain:
    """A request to retrain; `asked_at` is the end of the window that caused it, seconds."""

    key: str
    incident: str
    asked_at: int


@dataclass(frozen=True)
class AlertState:
    """How far a monitor has been evaluated.

    Attributes:
        until: end of the last evaluated window, seconds; None before the first.
        restated: whether older buckets were stored since.
        open: the open incidents, at most one per matter.
        origin: what ids of incidents are made of, if it is not the monitor's name.
    """

    until: int | None = None
    restated: bool = False
    conditions: Mapping[ConditionName, StoredCondition] = field(default_factory=dict)
    open: Mapping[Matter, StoredIncident] = field(default_factory=dict)
    retrain: Retrain | None = None
    origin: str | None = None


@dataclass(frozen=True)
class Transition:
    """A stored change of a condition; `at` is the end of the window that caused it, seconds."""

    incident: str | None
    rule: str
    dimension: str
    value: str
    was: str
    became: str
    at: int
    recorded_at: float
    reason: str
    evidence: Evidence | None


@dataclass(frozen=True)
class Silence:
    """A period without notifications for a monitor's new incidents; real seconds since 1970."""

    id: int
    monitor: str
    since: float
    until: float
    author: str
    note: str


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Somebody's acknowledgement of an incident; real seconds since 1970."""

    at: float
    by: str | None
    note: str | None


@dataclass(frozen=True)
class Judgement:
    """The changes of one evaluation, stored in one transaction.

    Attributes:
        until: end of the last evaluated window, seconds.
        removed: ids of unannounced incidents that better data have undone.
        restated: the past was evaluated again: these transitions replace the former ones of the same incidents.
        notices: (target, notification) to send.
        drift: new verdicts; None without any.
        has_drift: if False, the monitor has no `drift` and its former verdicts are deleted.
        undone: ids of announced incidents that better data have undone; they stay as people knew them.
        since: where evaluating the past again began, seconds; transitions until then stay.
    """

    monitor: str
    until: int
    conditions: Mapping[ConditionName, StoredCondition]
    incidents: Sequence[StoredIncident] = ()
    removed: Sequence[str] = ()
    restated: bool = False
    transitions: Sequence[Transition] = ()
    notices: Sequence[tuple[str, Notification]] = ()
    retrain: Retrain | None = None
    drift: VerdictUpdate | None = None
    has_drift: bool = False
    undone: Collection[str] = ()
    since: int = 0


class Alerts(Connected):
    """The tables of conditions, incidents and what belongs to them."""

    def __init__(self, engine: sa.Engine, url: URL, leases: Leases) -> None:
        super().__init__(engine, url)
        self._leases = leases

    def state(self, monitor: str) -> AlertState:
        """How far a monitor has been evaluated. Raises StoreError."""
        with self.at_once():
            row = next(iter(self.rows(_JUDGED, monitor=monitor)), None)
            found = {(r.rule, r.dimension, r.value): _kept(r) for r in self.rows(_CONDITIONS, monitor=monitor)}
            asked = next(iter(self.rows(_RETRAINED, monitor=monitor)), None)
            origin = self.scalar(_ORIGIN, monitor=monitor)
        return AlertState(
            until=None if row is None else row.until,
            restated=row is not None and bool(row.restated),
            conditions=found,
            open={s.incident.matter: s for s in self.incidents(monitor, "firing")},
            retrain=None if asked is None else Retrain(asked.key, asked.incident, asked.asked_at),
            origin=origin,
        )

    def save(self, lease: Lease, judgement: Judgement, now: float) -> None:
        """Store a judgement and its notifications. Raises LeaseLost, StoreError."""
        with self._leases.fenced(lease) as connection:
            row = {"monitor": judgement.monitor, "until": judgement.until, "restated": False}
            connection.execute(upserted(self.dialect, judged, row, ("until", "restated")))
            self._replace_conditions(connection, judgement)
            self._put_incidents(connection, judgement)
            self._clear_transitions(connection, judgement)
            if judgement.transitions:
                connection.execute(transitions.insert(), [_plain(t, judgement.monitor) for t in judgement.transitions])
            if judgement.retrain is not None:
                asked = {"monitor": judgement.monitor, **_fields(judgement.retrain)}
                connection.execute(upserted(self.dialect, retrains, asked))
            if judgement.drift is not None:
                put(connection, self.dialect, judgement.monitor, judgement.drift)
            elif not judgement.has_drift:
                forget(connection, judgement.monitor)
            enqueue(connection, self.dialect, judgement.notices, now)

    def _replace_conditions(self, connection: sa.Connection, judgement: Judgement) -> None:
        connection.execute(conditions.delete().where(conditions.c.monitor == judgement.monitor))
        rows = [
            dict(zip(("rule", "dimension", "value"), name, strict=True))
            | {"monitor": judgement.monitor, "identity": kept.identity, **_fields(kept.condition)}
            for name, kept in judgement.conditions.items()
        ]
        if rows:
            connection.execute(conditions.insert(), rows)

    def _clear_transitions(self, connection: sa.Connection, judgement: Judgement) -> None:
        if judgement.restated:
            found = (s.incident.id for s in judgement.incidents if s.incident.id not in judgement.undone)
            replaced = [*judgement.removed, *found]
            some = sa.or_(transitions.c.incident.is_(None), transitions.c.incident.in_(replaced))
            of_it = transitions.c.monitor == judgement.monitor, transitions.c.at > judgement.since
            connection.execute(transitions.delete().where(*of_it, some))

    def _put_incidents(self, connection: sa.Connection, judgement: Judgement) -> None:
        for gone in judgement.removed:
            connection.execute(incidents.delete().where(incidents.c.id == gone))
            connection.execute(diagnoses.delete().where(diagnoses.c.incident == gone))
        for stored in judgement.incidents:
            row = _incident_row(stored)
            connection.execute(upserted(self.dialect, incidents, row, row.keys() - {"id", "monitor"}))

    def incidents(
        self, monitor: str | None = None, state: str | None = None, most: int | None = 100
    ) -> list[StoredIncident]:
        """The newest incidents first, all if `most` is None; of all monitors and in any state by default."""
        query = _incidents(monitor is not None, state is not None, most is not None)
        return self._read(query, monitor=monitor, state=state, most=most)

    def incident(self, id_: str) -> StoredIncident | None:
        return next(iter(self._read(sa.select(incidents).where(incidents.c.id == id_))), None)

    def _read(self, query: sa.Select[Any], **parameters: Any) -> list[StoredIncident]:
        found = self.rows(query, **parameters)
        with self.documents():
            return [_stored(row) for row in found]

    def transitions(self, monitor: str, since: int = 0, until: int | None = None, most: int = 1000) -> list[Transition]:
        """The newest transitions of a monitor in [since, until) seconds, oldest first."""
        query = sa.select(transitions).order_by(transitions.c.at.desc(), transitions.c.id.desc()).limit(most)
        query = query.where(transitions.c.monitor == monitor, transitions.c.at >= since)
        query = query if until is None else query.where(transitions.c.at <= until)
        found = self.rows(query)
        with self.documents():
            return [_transition(row) for row in reversed(found)]

    def watched(self) -> list[str]:
        """Names of the monitors with an open incident."""
        query = sa.select(incidents.c.monitor).where(incidents.c.state == "firing").distinct()
        return [name for (name,) in self.rows(query)]

    def told(self, incident: str) -> list[str]:
        """The targets that were notified of an incident."""
        query = sa.select(outbox.c.target).where(outbox.c.incident == incident, outbox.c.kind != "retrain").distinct()
        return [target for (target,) in self.rows(query)]

    def notices(self, incident: str) -> tuple[int, Notification | None]:
        """(number of notifications of an incident, the newest one)."""
        number = self.integer(sa.select(sa.func.count(outbox.c.key.distinct())).where(outbox.c.incident == incident))
        return number or 0, self._notice(outbox.c.id.desc(), outbox.c.incident == incident)

    def opening(self, incident: str) -> Notification | None:
        """The notification that an incident opened; None if there was none, or it is no longer stored."""
        return self._notice(outbox.c.id, outbox.c.incident == incident, outbox.c.kind == "firing")

    def _notice(self, order: sa.ColumnElement[int], *only: sa.ColumnElement[bool]) -> Notification | None:
        document = self.scalar(sa.select(outbox.c.document).where(*only).order_by(order).limit(1))
        with self.documents():
            return None if document is None else Notification.of(json.loads(document))

    def unanswered(self) -> list[StoredIncident]:
        """The open incidents that were notified and that nobody has acknowledged. Raises StoreError."""
        query = sa.select(incidents).where(incidents.c.state == "firing", incidents.c.acknowledged_at.is_(None))
        query = query.where(incidents.c.told.is_(True)).order_by(incidents.c.opened_at, incidents.c.id)
        return self._read(query)

    def notify(self, lease: Lease, notices: Sequence[tuple[str, Notification]], now: float) -> None:
        """Queue notifications in one transaction. Raises LeaseLost, StoreError."""
        with self._leases.fenced(lease) as connection:
            enqueue(connection, self.dialect, notices, now)

    def acknowledge(self, id_: str, by: str, note: str, now: float, targets: Collection[str] = ()) -> bool:
        """Record an acknowledgement, and queue it for those of `targets` that were notified of the open incident.

        False if there is no such incident. An empty note keeps the existing one.
        """
        told, (_, last) = set(targets).intersection(self.told(id_)), self.notices(id_)
        change = incidents.update().where(incidents.c.id == id_).values(acknowledged_at=now, acknowledged_by=by)
        with self.writing() as connection:
            is_known = connection.execute(change.values(note=note) if note else change).rowcount == 1
            if last is not None and last.kind not in ("resolved", "withdrawn", "acknowledged"):
                notice = replace(last, kind="acknowledged", key=key(id_, "acknowledged", last.key))
                enqueue(connection, self.dialect, [(target, notice) for target in sorted(told)], now)
        return is_known

    def label(self, id_: str, label: Label, by: str, note: str) -> bool:
        """Record what people say about an incident; False if there is none. A new label replaces the old one."""
        values = {"label": label, "labelled_by": by, "label_note": note or None}
        return self.change(incidents.update().where(incidents.c.id == id_).values(values)) == 1

    def labels(self, monitor: str) -> dict[str, int]:
        """Label -> number of a monitor's incidents with it. Raises StoreError."""
        return {label: int(number) for label, number in self.rows(_LABELS, monitor=monitor)}

    def acknowledged(self, ids: Sequence[str]) -> dict[str, Acknowledgement]:
        """Incident -> its acknowledgement, if any."""
        c = incidents.c
        wanted = sa.select(c.id, c.acknowledged_at, c.acknowledged_by, c.note)
        found = self.rows(wanted.where(c.id.in_(ids), c.acknowledged_at.is_not(None)))
        return {id_: Acknowledgement(at, by, note) for id_, at, by, note in found}

    def silence(self, monitor: str, now: float, until: float, author: str, note: str) -> None:
        """Suppress notifications of a monitor's new incidents until `until`, real seconds since 1970."""
        row = {"monitor": monitor, "since": now, "until": until, "author": author, "note": note}
        self.change(silences.insert().values(row))

    def unsilence(self, monitor: str, now: float) -> int:
        """End a monitor's silences; returns how many."""
        change = silences.update().where(silences.c.monitor == monitor, silences.c.until > now).values(until=now)
        return self.change(change)

    def silences(self, now: float) -> list[Silence]:
        """The silences in force at `now`, real seconds since 1970."""
        return [Silence(*row) for row in self.rows(_SILENCES, now=now)]

    def silenced(self, now: float) -> dict[str, float]:
        """Monitor -> end of its last silence, of those that are silenced at `now`. Real seconds since 1970."""
        by_end = sorted(self.silences(now), key=lambda silence: silence.until)
        return {silence.monitor: silence.until for silence in by_end}

    def purge(self, before: float) -> int:
        """Delete what ended before `before`, seconds; returns the number of incidents. Raises StoreError.

        What a backfill recorded ages from when it was recorded. Each monitor's newest request to retrain stays, because
        the cooldown counts from it.
        """
        with self.writing() as connection:
            expired = connection.scalars(_expired(before).limit(MOST_PURGED)).all()
            for table in (transitions, diagnoses):
                connection.execute(table.delete().where(table.c.incident.in_(expired)))
            connection.execute(incidents.delete().where(incidents.c.id.in_(expired)))
            of = transitions.c.incident
            of_none = sa.or_(of.is_(None), of.not_in(sa.select(incidents.c.id)))
            connection.execute(transitions.delete().where(transitions.c.recorded_at < before, of_none))
            newest = sa.select(sa.func.max(retrains.c.asked_at)).group_by(retrains.c.monitor)
            old = (retrains.c.asked_at < before, retrains.c.asked_at.not_in(newest))
            connection.execute(retrains.delete().where(*old))
            for ended in (silences.c.until, verdicts.c.at, examinations.c.at, restatements.c.restated_at):
                connection.execute(sa.delete(ended.table).where(ended < before))
        return len(expired)


_JUDGED = sa.select(judged).where(judged.c.monitor == MONITOR)
_ORIGIN = sa.select(
    sa.func.coalesce(
        sa.select(monitors.c.origin).where(monitors.c.monitor == MONITOR).scalar_subquery(),
        # A new monitor under the former name of another one: the same hour must not give both the same incident.
        sa.case((sa.exists().where(monitors.c.origin == MONITOR), MONITOR + " again")),
    )
)
_LABELS = (
    sa.select(incidents.c.label, sa.func.count())
    .where(incidents.c.monitor == MONITOR, incidents.c.label.is_not(None))
    .group_by(incidents.c.label)
)
_CONDITIONS = sa.select(conditions).where(conditions.c.monitor == MONITOR)
_RETRAINED = sa.select(retrains).where(retrains.c.monitor == MONITOR).order_by(retrains.c.asked_at.desc()).limit(1)
_NOW = sa.bindparam("now", type_=sa.Double)
_SILENCES = sa.select(silences).where(silences.c.since <= _NOW, silences.c.until > _NOW).order_by(silences.c.id)


@cache
def _incidents(of_one: bool, in_a_state: bool, is_limited: bool) -> sa.Select[Any]:
    query = sa.select(incidents).order_by(incidents.c.opened_at.desc(), incidents.c.id)
    query = query.limit(sa.bindparam("most", type_=sa.Integer)) if is_limited else query
    query = query.where(incidents.c.monitor == MONITOR) if of_one else query
    return query.where(incidents.c.state == sa.bindparam("state")) if in_a_state else query


def enqueue(connection: sa.Connection, dialect: str, notices: Sequence[tuple[str, Notification]], now: float) -> None:
    """Put notifications into the outbox within a transaction; existing ones are left unchanged."""
    for target, notice in notices:
        row = {
            "target": target,
            "incident": notice.incident,
            "kind": notice.kind,
            "key": notice.key,
            "document": json.dumps(notice.plain()),
            "created_at": now,
            "attempts": 0,
            "next_at": 0.0,
            "last_error": "",
        }
        connection.execute(upserted(dialect, outbox, row))


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _kept(row: Any) -> StoredCondition:
    return StoredCondition(row.identity, Condition(row.state, row.since, row.streak, row.known))


def _plain(transition: Transition, monitor: str) -> dict[str, Any]:
    evidence = "" if transition.evidence is None else json.dumps(transition.evidence.plain())
    return {**_fields(transition), "monitor": monitor, "evidence": evidence}


def _transition(row: Any) -> Transition:
    fields = {name: getattr(row, name) for name in Transition.__dataclass_fields__}
    return Transition(**{**fields, "evidence": evidence_of(json.loads(row.evidence)) if row.evidence else None})


def _incident_row(stored: StoredIncident) -> dict[str, Any]:
    """All columns but those that people set."""
    incident = stored.incident
    firing = [
        {"rule": name[0], "dimension": name[1], "value": name[2], **_fields(f)}
        for name, f in (incident.firing or {}).items()
    ]
    summary = {"firing": firing, "findings": [f.plain() for f in stored.findings]}
    names = ["id", "monitor", "matter", "state", "severity", "retrain", "began_at", "opened_at", "closed_at", "origin"]
    return {name: getattr(incident, name) for name in names} | {"told": stored.told, "summary": json.dumps(summary)}


def _stored(row: Any) -> StoredIncident:
    summary, severity = json.loads(row.summary), row.severity
    firing = {
        (f["rule"], f["dimension"], f["value"]): Firing(f["severity"], f["retrain"], f["since"])
        for f in summary["firing"]
    }
    at = (row.began_at, row.opened_at)
    judged = Incident(row.monitor, *at, row.state, severity, bool(row.retrain), row.closed_at, firing, row.matter)
    incident = replace(judged, origin=row.origin)
    findings = tuple(evidence_of(f) for f in summary["findings"])
    of_people = (row.acknowledged_at, row.acknowledged_by, row.note, row.label, row.labelled_by, row.label_note)
    return StoredIncident(incident, bool(row.told), findings, *of_people)


def _expired(before: float) -> sa.Select[tuple[str]]:
    newer = sa.select(transitions.c.incident).where(transitions.c.recorded_at >= before)
    is_over = sa.and_(incidents.c.state != "firing", incidents.c.closed_at < before)
    return sa.select(incidents.c.id).where(
        is_over, incidents.c.id.not_in(newer.where(transitions.c.incident.is_not(None)))
    )
