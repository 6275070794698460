"""What verdicts have come to: one for each step, where they stand, baselines begun anew, and diagnoses of incidents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from monitor.core.drift.state import State
from monitor.core.drift.verdicts import Verdict
from monitor.schema import baselines, diagnoses, drift_states, verdicts
from monitor.store.engine import Connected, upserting


@dataclass(frozen=True)
class Standing:
    """Where the verdicts on a monitor stand.

    Attributes:
        identity: of what is judged and how; see `types.Monitor.drift_identity`.
        until: end of the last step that was looked at, seconds.
    """

    identity: str
    until: int
    state: State | None


@dataclass(frozen=True)
class Judged:
    """What judging more steps came to.

    Attributes:
        verdicts: of the new steps, oldest first.
        anew: all former ones are undone.
    """

    standing: Standing
    verdicts: Sequence[Verdict] = ()
    anew: bool = False


@dataclass(frozen=True)
class Baseline:
    """Where somebody had the baseline begin anew; `since` in seconds."""

    since: int
    author: str
    note: str


class Verdicts(Connected):
    """The tables of verdicts and what belongs to them."""

    def standing(self, monitor: str) -> Standing | None:
        """Where the verdicts on a monitor stand; None if there are none, or of another version. Raises StoreError."""
        query = sa.select(drift_states).where(drift_states.c.monitor == monitor)
        with self.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        try:
            state = State.from_json(json.loads(row.state)) if row.state else None
        except ValueError:
            return None
        return Standing(row.identity, row.until, state)

    def between(self, monitor: str, since: int, until: int) -> list[Verdict]:
        """The verdicts on steps that ended in (since, until], oldest first."""
        query = (
            sa.select(verdicts.c.document)
            .where(verdicts.c.monitor == monitor, verdicts.c.at > since, verdicts.c.at <= until)
            .order_by(verdicts.c.at)
        )
        with self.reading() as connection:
            return [_reader().validate_json(document) for document in connection.scalars(query)]

    def newest(self, monitor: str, kind: str | None = None) -> Verdict | None:
        """The newest verdict on a monitor, or the newest of a kind; None if there is none."""
        query = sa.select(verdicts.c.document).where(verdicts.c.monitor == monitor)
        query = query if kind is None else query.where(verdicts.c.kind == kind)
        with self.reading() as connection:
            document = connection.scalar(query.order_by(verdicts.c.at.desc()).limit(1))
        return None if document is None else _reader().validate_json(document)

    def drawn(self, monitor: str, since: int, until: int) -> list[tuple[int, str, float | None, float | None]]:
        """(end, kind, observed, expected) of the verdicts on steps that ended in (since, until], oldest first."""
        query = (
            sa.select(verdicts.c.at, verdicts.c.kind, verdicts.c.observed, verdicts.c.expected)
            .where(verdicts.c.monitor == monitor, verdicts.c.at > since, verdicts.c.at <= until)
            .order_by(verdicts.c.at)
        )
        with self.reading() as connection:
            return [tuple(row) for row in connection.execute(query)]

    def baseline(self, monitor: str) -> Baseline | None:
        """Where somebody had the baseline of a monitor begin anew; None if nobody did."""
        query = sa.select(baselines).where(baselines.c.monitor == monitor)
        with self.reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else Baseline(row.since, row.author, row.note)

    def begin_baseline(self, monitor: str, baseline: Baseline, now: float) -> None:
        """Have the baseline of a monitor begin anew; the verdicts follow with the next step. Raises StoreError."""
        row = {"monitor": monitor, **asdict(baseline), "set_at": now}
        with self.writing() as connection:
            added = upserting(self.dialect, baselines).values(row)
            connection.execute(added.on_conflict_do_update(index_elements=[baselines.c.monitor], set_=row))

    def diagnosis(self, incident: str) -> Mapping[str, Any] | None:
        """What was found out of an incident when it opened; None if nothing was."""
        query = sa.select(diagnoses.c.document).where(diagnoses.c.incident == incident)
        with self.reading() as connection:
            document = connection.scalar(query)
        return None if document is None else json.loads(document)

    def put_diagnosis(self, incident: str, monitor: str, document: Mapping[str, Any], now: float) -> None:
        """Keep what was found out of an incident; the first that was found stays. Raises StoreError."""
        row = {"incident": incident, "monitor": monitor, "taken_at": now, "document": json.dumps(document)}
        with self.writing() as connection:
            connection.execute(upserting(self.dialect, diagnoses).values(row).on_conflict_do_nothing())


def put(connection: sa.Connection, dialect: str, monitor: str, found: Judged) -> None:
    """Store verdicts as part of a transaction."""
    of_it, standing = verdicts.c.monitor == monitor, found.standing
    starts = [verdict.end for verdict in found.verdicts]
    if found.anew:
        connection.execute(verdicts.delete().where(of_it))
    elif starts:
        connection.execute(verdicts.delete().where(of_it, verdicts.c.at >= starts[0]))
    if starts:
        connection.execute(verdicts.insert(), [_row(monitor, verdict) for verdict in found.verdicts])
    state = "" if standing.state is None else json.dumps(standing.state.to_json())
    row = {"monitor": monitor, "identity": standing.identity, "until": standing.until, "state": state}
    added = upserting(dialect, drift_states).values(row)
    connection.execute(added.on_conflict_do_update(index_elements=[drift_states.c.monitor], set_=row))


def forget(connection: sa.Connection, monitor: str) -> None:
    """Undo the verdicts on a monitor, as part of a transaction."""
    for table in (verdicts, drift_states):
        connection.execute(table.delete().where(table.c.monitor == monitor))


def _row(monitor: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "monitor": monitor,
        "at": verdict.end,
        "kind": verdict.kind,
        "requests": round(verdict.requests),
        "observed": verdict.observed,
        "expected": verdict.expected,
        "document": _reader().dump_json(verdict).decode(),
    }


@cache
def _reader() -> TypeAdapter[Verdict]:
    return TypeAdapter(Verdict)
