"""Verdicts per step, their checkpoints, baseline resets, and diagnoses of incidents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.codec import decoded, encoded
from monitor.conditions.checkpoint import Announcement, BaselineReset, VerdictCheckpoint, VerdictUpdate
from monitor.conditions.examined import ExaminationCheck, Examined
from monitor.conditions.thresholds import Condition, ConditionName
from monitor.drift.verdicts import Verdict, VerdictPoint
from monitor.store.engine import Connected, upserted
from monitor.store.naming import MONITOR
from monitor.store.schema import (
    announcements,
    baselines,
    diagnoses,
    drift_borders,
    drift_states,
    examinations,
    verdicts,
)

if TYPE_CHECKING:
    from monitor.drift.state import DriftState


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a condition of an incident, or why there is none.

    Attributes:
        taken_at: when it was last tried, real seconds since 1970.
    """

    condition: ConditionName
    taken_at: float
    document: Mapping[str, Any] | None = None
    error: str = ""


class Verdicts(Connected):
    """The tables of verdicts and what belongs to them."""

    def __init__(self, engine: sa.Engine, url: URL) -> None:
        super().__init__(engine, url)
        self._states: dict[str, tuple[bytes, DriftState]] = {}

    def newest_checkpoint(self, monitor: str) -> VerdictCheckpoint | None:
        """A monitor's newest checkpoint; None without one, or if another version wrote it. Raises StoreError."""
        row = next(iter(self.rows(_STATE, monitor=monitor)), None)
        if row is None:
            return None
        with self.documents():
            try:
                state = self._state(monitor, row.state) if row.state else None
            except ValueError:
                return None
        return VerdictCheckpoint(row.identity, row.until, state)

    def oldest_checkpoint(self, monitor: str) -> VerdictCheckpoint | None:
        """Where re-evaluation begins; None if none of a monitor's buckets were rolled up or deleted.

        If another version wrote it, only its place is known. Raises StoreError.
        """
        query = sa.select(drift_borders).where(drift_borders.c.monitor == monitor)
        row = next(iter(self.rows(query)), None)
        if row is None:
            return None
        series = tuple(row.series.split())
        with self.documents():
            try:
                state = _drift_state(row.state) if row.state else None
            except ValueError:
                return VerdictCheckpoint("", row.until, None, series)
            found = {tuple(name): Condition(*fields) for name, fields in json.loads(row.conditions)}
        return VerdictCheckpoint(row.identity, row.until, state, series, found)

    def _state(self, monitor: str, text: str) -> DriftState:
        """A parsed state, cached by its text. Raises ValueError if another version wrote it."""
        known, digest = self._states.get(monitor), blake2b(text.encode(), digest_size=16).digest()
        if known is None or known[0] != digest:
            known = self._states[monitor] = digest, _drift_state(text)
        return known[1]

    def between(self, monitor: str, since: int, until: int) -> list[Verdict]:
        """The verdicts on steps that ended in (since, until], oldest first."""
        query = (
            sa.select(verdicts.c.document)
            .where(verdicts.c.monitor == monitor, verdicts.c.at > since, verdicts.c.at <= until)
            .order_by(verdicts.c.at)
        )
        found = self.rows(query)
        with self.documents():
            return [_verdict(document) for (document,) in found]

    def newest(self, monitor: str, kind: str | None = None) -> Verdict | None:
        """A monitor's newest verdict, or the newest of a kind; None without one."""
        query = _NEWEST if kind is None else _NEWEST.where(verdicts.c.kind == kind)
        document = self.scalar(query, monitor=monitor)
        with self.documents():
            return None if document is None else _verdict(document)

    def drawn(self, monitor: str, since: int, until: int) -> list[VerdictPoint]:
        """The chart points of verdicts on steps that ended in (since, until], oldest first."""
        c = verdicts.c
        query = (
            sa.select(c.at, c.kind, c.observed, c.expected, c.mix_effect)
            .where(c.monitor == monitor, c.at > since, c.at <= until)
            .order_by(c.at)
        )
        return [VerdictPoint(*row) for row in self.rows(query)]

    def baselines(self, monitor: str) -> list[BaselineReset]:
        """A monitor's baseline resets, oldest first."""
        found = self.rows(_BASELINES, monitor=monitor)
        return [BaselineReset(row.since, row.author, row.note, row.judged_until) for row in found]

    def begin_baseline(self, monitor: str, baseline: BaselineReset, now: float) -> None:
        """Reset a monitor's baseline; verdicts use it from the next step on. Raises StoreError.

        Records how far the verdicts are now; for a second reset at the same moment only author, note and time change.
        """
        news = {"author": baseline.author, "note": baseline.note, "set_at": now}
        judged = sa.select(drift_states.c.until).where(drift_states.c.monitor == monitor)
        with self.writing() as connection:
            row = {"monitor": monitor, "since": baseline.since, "judged_until": connection.scalar(judged), **news}
            connection.execute(upserted(self.dialect, baselines, row, news))

    def forget_baseline(self, monitor: str, since: int) -> bool:
        """Undo a baseline reset at `since`, seconds; False if there was none. Raises StoreError."""
        gone = baselines.delete().where(baselines.c.monitor == monitor, baselines.c.since == since)
        return self.change(gone) == 1

    def announced(self, monitor: str) -> list[Announcement]:
        """What people announced for a monitor, oldest first."""
        return [_announcement(row) for row in self.rows(_ANNOUNCED, monitor=monitor)]

    def every_announced(self) -> dict[str, list[Announcement]]:
        """Monitor -> what people announced for it."""
        found = dict[str, list[Announcement]]()
        for row in self.rows(sa.select(announcements)):
            found.setdefault(row.monitor, []).append(_announcement(row))
        return found

    def announce(self, monitor: str, found: Announcement, now: float) -> None:
        """Store an announcement, in the place of one that begins at the same moment. Raises StoreError."""
        row = {"monitor": monitor, **asdict(found), "set_at": now}
        self.change(upserted(self.dialect, announcements, row, row.keys() - {"monitor", "since"}))

    def take_back_announcement(self, monitor: str, since: int) -> bool:
        """Delete the announcement that begins at `since`, seconds; False if there is none. Raises StoreError."""
        gone = announcements.delete().where(announcements.c.monitor == monitor, announcements.c.since == since)
        return self.change(gone) == 1

    def newest_check(self, monitor: str) -> ExaminationCheck | None:
        """A monitor's newest check of where people look; None without one."""
        document = self.scalar(_EXAMINED.limit(1), monitor=monitor)
        with self.documents():
            return None if document is None else ExaminationCheck.of(json.loads(document))

    def examined(self, monitor: str) -> list[Examined]:
        """What a monitor's checks of where people look found, oldest first."""
        c = examinations.c
        query = sa.select(c.at, c.lower, c.upper, c.is_sound).where(c.monitor == monitor).order_by(c.at)
        return [Examined(*row) for row in self.rows(query)]

    def put_check(self, monitor: str, found: ExaminationCheck) -> None:
        """Store a check, in the place of one of the same day. Raises StoreError."""
        news = {**found.found._asdict(), "document": json.dumps(found.plain())}
        self.change(upserted(self.dialect, examinations, {"monitor": monitor, **news}, news.keys() - {"at"}))

    def same_since(self, monitor: str, kind: str) -> int | None:
        """End of the first of the newest consecutive verdicts of a kind, seconds; None without any."""
        of_it = verdicts.c.monitor == monitor
        other = sa.select(sa.func.max(verdicts.c.at)).where(of_it, verdicts.c.kind != kind).scalar_subquery()
        first = sa.select(sa.func.min(verdicts.c.at)).where(of_it, verdicts.c.at > sa.func.coalesce(other, 0))
        return self.integer(first)

    def diagnoses(self, incident: str) -> list[Diagnosis]:
        """The diagnoses of an incident's conditions: overall before slices, then in order of time."""
        c = diagnoses.c
        query = sa.select(diagnoses).where(c.incident == incident)
        found = self.rows(query.order_by(c.dimension != "", c.taken_at, c.rule, c.value))
        with self.documents():
            documents = [json.loads(row.document) if row.document else None for row in found]
        return [
            Diagnosis((row.rule, row.dimension, row.value), row.taken_at, document, row.error)
            for row, document in zip(found, documents, strict=True)
        ]

    def diagnosed(self, incident: str) -> set[ConditionName]:
        """The conditions of an incident that have a diagnosis."""
        c = diagnoses.c
        query = sa.select(c.rule, c.dimension, c.value).where(c.incident == incident, c.document != "")
        return {(row.rule, row.dimension, row.value) for row in self.rows(query)}

    def put_diagnosis(self, incident: str, monitor: str, found: Diagnosis) -> None:
        """Store a condition's diagnosis, or why there is none; an existing document stays. Raises StoreError."""
        document = "" if found.document is None else json.dumps(found.document)
        names = dict(zip(("rule", "dimension", "value"), found.condition, strict=True))
        news = {"taken_at": found.taken_at, "document": document, "error": found.error}
        row = {"incident": incident, "monitor": monitor, **names, **news}
        self.change(upserted(self.dialect, diagnoses, row, news, where=diagnoses.c.document == ""))


_STATE = sa.select(drift_states).where(drift_states.c.monitor == MONITOR)
_NEWEST = sa.select(verdicts.c.document).where(verdicts.c.monitor == MONITOR).order_by(verdicts.c.at.desc()).limit(1)
_EXAMINED = (
    sa.select(examinations.c.document).where(examinations.c.monitor == MONITOR).order_by(examinations.c.at.desc())
)
_ANNOUNCED = sa.select(announcements).where(announcements.c.monitor == MONITOR).order_by(announcements.c.since)
_BASELINES = sa.select(baselines).where(baselines.c.monitor == MONITOR).order_by(baselines.c.since)


def put(connection: sa.Connection, dialect: str, monitor: str, found: VerdictUpdate) -> None:
    """Store verdicts within a transaction."""
    of_it = verdicts.c.monitor == monitor
    starts = [verdict.end for verdict in found.verdicts]
    if found.restated:
        connection.execute(verdicts.delete().where(of_it, verdicts.c.at > found.kept))
    if starts:
        connection.execute(verdicts.delete().where(of_it, verdicts.c.at >= starts[0]))
        connection.execute(verdicts.insert(), [_row(monitor, verdict) for verdict in found.verdicts])
    _put_checkpoint(connection, dialect, drift_states, monitor, found.checkpoint)


def put_oldest(connection: sa.Connection, dialect: str, monitor: str, checkpoint: VerdictCheckpoint) -> None:
    """Store where re-evaluation begins, within a transaction."""
    conditions = [[name, astuple(condition)] for name, condition in checkpoint.conditions.items()]
    more = {"series": " ".join(checkpoint.series), "conditions": json.dumps(conditions)}
    _put_checkpoint(connection, dialect, drift_borders, monitor, checkpoint, **more)


def _put_checkpoint(
    connection: sa.Connection, dialect: str, table: sa.Table, monitor: str, checkpoint: VerdictCheckpoint, **more: str
) -> None:
    state = "" if checkpoint.state is None else json.dumps(checkpoint.state.to_json())
    row = {"monitor": monitor, "identity": checkpoint.identity, "until": checkpoint.until, "state": state} | more
    connection.execute(upserted(dialect, table, row, row.keys() - {"monitor"}))


def forget(connection: sa.Connection, monitor: str) -> None:
    """Delete a monitor's verdicts, within a transaction."""
    for table in (verdicts, drift_states, drift_borders):
        connection.execute(table.delete().where(table.c.monitor == monitor))


def _row(monitor: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "monitor": monitor,
        "at": verdict.end,
        "kind": verdict.kind,
        "requests": round(verdict.requests),
        "observed": verdict.observed,
        "expected": verdict.expected,
        "document": json.dumps(encoded(verdict)),
        "mix_effect": verdict.mix_effect if verdict.mix_shifted else None,
    }


def _drift_state(text: str) -> DriftState:
    from monitor.drift.state import DriftState  # who only reads verdicts does without all that makes them

    return DriftState.from_json(json.loads(text))


def _verdict(document: str) -> Verdict:
    found: Verdict = decoded(Verdict, json.loads(document))
    return found


def _announcement(row: sa.Row[Any]) -> Announcement:
    return Announcement(row.since, row.until, row.author, row.note, row.is_new_level)
