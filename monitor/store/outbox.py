"""Notifications on their way. A row leaves the queue when its receiver confirms it, or when it is dropped.

A target gets the notifications of one incident in order: later ones wait for earlier ones.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from monitor.conditions.rules import Severity
from monitor.messages.notification import ENDS, Notification
from monitor.messages.prior import PriorDelivery
from monitor.messages.words import storable
from monitor.store.engine import Connected, upserted
from monitor.store.schema import incidents, outbox

LONGEST_ERROR = 500
MOST_DUE = 100
"""Most notifications fetched at once."""

LONGEST_WAIT = 600.0
"""Longest retry delay, seconds: anything later was set by a clock that ran ahead, and is due."""


@dataclass(frozen=True)
class Waiting:
    """A notification that a target has not received yet; real seconds since 1970.

    `attempts`: failed ones; `begun_at`: when the first began, whatever its outcome.
    """

    id: int
    target: str
    incident: str
    kind: str
    document: str
    created_at: float
    attempts: int
    begun_at: float | None

    @property
    def notification(self) -> Notification:
        return Notification.of(json.loads(self.document))


@dataclass(frozen=True)
class OutboxEntry:
    """What a target was or will be notified of an open incident; real seconds since 1970, None if not sent yet."""

    target: str
    created_at: float
    sent_at: float | None
    notification: Notification


@dataclass(frozen=True)
class TargetQueue:
    """A target's queue for one monitor.

    Attributes:
        since: when the oldest entry was queued, real seconds since 1970.
        said: the last error; empty before the first try.
    """

    target: str
    number: int
    since: float
    said: str


_WAITING = (outbox.c.sent_at.is_(None), outbox.c.dropped_at.is_(None))
_TRIED = outbox.c.begun_at.is_not(None)
_OPEN = sa.select(incidents.c.id).where(incidents.c.state == "firing")
TELLING = ("firing", "updated")
_STANDING = (outbox.c.kind.in_(TELLING), outbox.c.incident.in_(_OPEN))
"""The state of an open incident: each such notification repeats all that those before it said."""
NOBODYS = "no channel has this receiver any more"


def _newest(*some: sa.ColumnElement[bool]) -> sa.Select[tuple[int]]:
    """The id of the newest of some notifications of each incident."""
    return sa.select(sa.func.max(outbox.c.id)).where(*some).group_by(outbox.c.incident)


def _owed(target: str) -> sa.ColumnElement[bool]:
    """Given up but still due: the newest of open incidents, ends of those the target may know, requests to retrain."""
    mine, is_open = outbox.c.target == target, outbox.c.incident.in_(_OPEN)
    standing = outbox.c.id.in_(_newest(mine, *_STANDING))
    asked = sa.and_(outbox.c.kind == "retrain", is_open)
    told = sa.select(outbox.c.incident).where(mine, outbox.c.kind.in_(TELLING), _TRIED)
    last = _newest(mine, outbox.c.kind.in_((*TELLING, *ENDS)))
    end = sa.and_(outbox.c.kind.in_(ENDS), outbox.c.id.in_(last), outbox.c.incident.in_(told), ~is_open)
    return sa.and_(mine, outbox.c.dropped_at.is_not(None), sa.or_(standing, asked, end))


def _pending_since(now: float) -> dict[str, Any]:
    """Values of a row as if it was queued just now and not tried yet."""
    return {"created_at": now, "attempts": 0, "next_at": 0.0, "last_error": "", "dropped_at": None}


class Outbox(Connected):
    """The table of notifications."""

    def due(self, now: float, targets: Collection[str]) -> list[Waiting]:
        """What is due at `now`: the oldest waiting of each target and incident. Raises StoreError."""
        first = (
            sa.select(sa.func.min(outbox.c.id))
            .where(*_WAITING, outbox.c.target.in_(list(targets)))
            .group_by(outbox.c.target, outbox.c.incident)
        )
        is_due = sa.or_(outbox.c.next_at <= now, outbox.c.next_at > now + LONGEST_WAIT)
        query = (
            sa.select(*(outbox.c[name] for name in Waiting.__dataclass_fields__))
            .where(outbox.c.id.in_(first.scalar_subquery()), is_due)
            .order_by(outbox.c.id)
            .limit(MOST_DUE)
        )
        return [Waiting(*row) for row in self.rows(query)]

    def next_at(self, now: float, target: str) -> float | None:
        """When a target's next notification is due, `now` if already; None if nothing waits. Raises StoreError."""
        first = sa.select(sa.func.min(outbox.c.id)).where(*_WAITING, outbox.c.target == target)
        query = sa.select(outbox.c.next_at).where(outbox.c.id.in_(first.group_by(outbox.c.incident)))
        found = [at for (at,) in self.rows(query)]
        return min((now if at > now + LONGEST_WAIT else max(at, now) for at in found), default=None)

    def standing(self, target: str, sent_by: float | None = None) -> list[Notification]:
        """The newest notification a target got of each open incident, if sent by `sent_by`. Raises StoreError."""
        newest = _newest(outbox.c.target == target, outbox.c.sent_at.is_not(None), *_STANDING)
        known = sa.select(outbox.c.document).where(outbox.c.id.in_(newest))
        return self._notifications(known if sent_by is None else known.where(outbox.c.sent_at <= sent_by))

    def is_waiting(self, id_: int) -> bool:
        """Whether it is neither sent nor given up. Raises StoreError."""
        return self.scalar(sa.select(outbox.c.id).where(*_WAITING, outbox.c.id == id_)) is not None

    def ended(self, target: str, since: float, until: float, incident: str | None = None) -> list[Notification]:
        """The ends a target got in [since, until), or that of one incident, unless a similar incident is open.

        A successor's alert looks the same and must not end. Raises StoreError.
        """
        query = sa.select(outbox.c.document).where(outbox.c.target == target, outbox.c.kind.in_(ENDS))
        query = query.where(outbox.c.sent_at.between(since, until))
        query = query if incident is None else query.where(outbox.c.incident == incident)
        found = self._notifications(query)
        on = {(one.monitor, one.matter) for one in self.standing(target)} if found else set()
        return [one for one in found if (one.monitor, one.matter) not in on]

    def told(self, target: str, incident: str) -> PriorDelivery:
        """What a target was, or may have been, notified of: a response can be lost. Raises StoreError."""
        mine = (outbox.c.target == target, outbox.c.incident == incident)
        query = sa.select(outbox.c.document).where(*mine, _TRIED, outbox.c.kind.in_(TELLING))
        severities = set[Severity]()
        for (document,) in self.rows(query):
            with suppress(ValueError, KeyError):  # a broken one was never delivered
                severities.add(json.loads(document)["severity"])
        newest = sa.select(outbox.c.receipt).where(*mine, outbox.c.receipt.isnot(None)).order_by(outbox.c.id.desc())
        return PriorDelivery(severities, self.scalar(newest.limit(1)) or "")

    def history(self, incident: str) -> list[OutboxEntry]:
        """All notifications of an incident while it was open, oldest first. Raises StoreError."""
        query = sa.select(outbox.c.target, outbox.c.created_at, outbox.c.sent_at, outbox.c.document)
        found = self.rows(query.where(outbox.c.incident == incident, outbox.c.kind.in_(TELLING)).order_by(outbox.c.id))
        with self.documents():
            return [
                OutboxEntry(target, at, sent, Notification.of(json.loads(text))) for target, at, sent, text in found
            ]

    def finish(self, target: str, now: float) -> int:
        """Queue the ends a target is due because it was notified while they were being queued; returns how many."""
        mine = outbox.c.target == target
        told = sa.select(outbox.c.incident).where(
            mine, outbox.c.kind.in_(TELLING), outbox.c.dropped_at.is_(None) | _TRIED
        )
        over = sa.select(outbox.c.incident).where(mine, outbox.c.kind.in_(ENDS))
        closed = sa.select(incidents.c.id).where(incidents.c.state != "firing")
        owed = (outbox.c.incident.in_(told), outbox.c.incident.not_in(over), outbox.c.incident.in_(closed))
        found = [id_ for (id_,) in self.rows(_newest(outbox.c.kind.in_(ENDS), *owed))]
        if found:  # checked often, rarely found
            with self.writing() as connection:
                self._copy(connection, outbox.c.id.in_(found), target, now)
        return len(found)

    def _notifications(self, query: sa.Select[tuple[str]]) -> list[Notification]:
        found = self.rows(query)
        with self.documents():
            return [Notification.of(json.loads(document)) for (document,) in found]

    def lacking(self, key: str, targets: Sequence[str]) -> list[str]:
        """Those of `targets` that a notification was never queued for. Raises StoreError."""
        query = sa.select(outbox.c.target).where(outbox.c.key == key)
        had = {target for (target,) in self.rows(query)} if targets else ()
        return [target for target in targets if target not in had]

    def is_open(self, incident: str) -> bool:
        return self.scalar(_OPEN.where(incidents.c.id == incident)) is not None

    def is_outdated(self, waiting: Waiting) -> bool:
        """Whether a newer waiting notification says all that this one says. Raises StoreError."""
        return waiting.kind in TELLING and self._has_newer(waiting, *_WAITING, outbox.c.kind.in_(TELLING))

    def is_newest(self, waiting: Waiting) -> bool:
        """Whether no newer notification of the incident was queued for the same target. Raises StoreError."""
        return not self._has_newer(waiting)

    def _has_newer(self, waiting: Waiting, *only: sa.ColumnElement[bool]) -> bool:
        same = (outbox.c.target == waiting.target, outbox.c.incident == waiting.incident)
        return self.scalar(sa.select(outbox.c.id).where(*same, outbox.c.id > waiting.id, *only)) is not None

    def begin(self, id_: int, now: float) -> None:
        """Record that an attempt begins: its answer may never be heard. Raises StoreError."""
        self._change(id_, begun_at=now)

    def sent(self, id_: int, now: float, receipt: str | None = None) -> None:
        """Record delivery and what the receiver returned. Raises StoreError."""
        self._change(id_, sent_at=now, last_error="", receipt=receipt)

    def received(self, id_: int, receipt: str) -> None:
        """Record what the receiver knows a delivered one by from now on. Raises StoreError."""
        self._change(id_, receipt=receipt)

    def failed(self, id_: int, next_at: float, error: str) -> None:
        """Record a failure and schedule a retry. Raises StoreError."""
        self._change(id_, attempts=outbox.c.attempts + 1, next_at=next_at, last_error=storable(error)[:LONGEST_ERROR])

    def drop(self, id_: int, now: float, error: str) -> None:
        """Give up; the row stays as evidence. Raises StoreError."""
        self._change(id_, attempts=outbox.c.attempts + 1, dropped_at=now, last_error=storable(error)[:LONGEST_ERROR])

    def _change(self, id_: int, **values: object) -> None:
        self.change(outbox.update().where(outbox.c.id == id_).values(**values))

    def strangers(self, targets: Collection[str]) -> dict[str, float]:
        """Other targets with waiting notifications -> the time of their last sign of life.

        That is a new entry, a delivery or the next attempt: none is old for a target that some daemon serves.
        """
        waiting = sa.select(outbox.c.target).where(*_WAITING, outbox.c.target.not_in(list(targets)))
        signs = (outbox.c.created_at, outbox.c.next_at, sa.func.coalesce(outbox.c.sent_at, 0.0))
        query = (
            sa.select(outbox.c.target, *(sa.func.max(sign) for sign in signs))
            .where(outbox.c.target.in_(waiting))
            .group_by(outbox.c.target)
        )
        return {target: float(max(at)) for target, *at in self.rows(query)}

    def retire(self, gone: str, heirs: Collection[str], now: float) -> int:
        """Give up what waits for a removed target once `heirs` have copies of it; returns how many waited."""
        waiting = sa.and_(*_WAITING, outbox.c.target == gone)
        said = "handed on to the channel's receivers" if heirs else NOBODYS
        with self.writing() as connection:
            for heir in heirs:
                self._copy(connection, waiting, heir, now)
            given_up = outbox.update().where(waiting).values(dropped_at=now, last_error=said)
            return connection.execute(given_up).rowcount

    def introduce(self, target: str, channel: str, now: float) -> None:
        """Queue for a new target its channel's announced open incidents, and what it is owed. Raises StoreError."""
        others = sa.or_(outbox.c.target == channel, outbox.c.target.startswith(f"{channel} ", autoescape=True))
        known = sa.select(outbox.c.incident).where(outbox.c.target == target)
        newest = _newest(others, outbox.c.target != target, outbox.c.incident.not_in(known), *_STANDING)
        with self.writing() as connection:
            connection.execute(outbox.update().where(_owed(target)).values(_pending_since(now)))
            self._copy(connection, outbox.c.id.in_(newest), target, now)

    def take_back(self, target: str, now: float) -> int:
        """Requeue what a target is owed that others gave up as ownerless; returns how many. Raises StoreError.

        A target that was away for long, or whose receiver was down, must not lose it.
        """
        lost = sa.and_(_owed(target), outbox.c.last_error == NOBODYS)
        found = [id_ for (id_,) in self.rows(sa.select(outbox.c.id).where(lost))]
        if not found:  # checked often, rarely found
            return 0
        return self.change(outbox.update().where(outbox.c.id.in_(found), lost).values(_pending_since(now)))

    def _copy(self, connection: sa.Connection, some: sa.ColumnElement[bool], target: str, now: float) -> None:
        names = ("incident", "kind", "key", "document")
        for row in connection.execute(sa.select(*(outbox.c[n] for n in names)).where(some).order_by(outbox.c.id)).all():
            copied = {**row._mapping, "target": target, **_pending_since(now)}
            connection.execute(upserted(self.dialect, outbox, copied))

    def queues(self) -> dict[str, tuple[int, float]]:
        """Target -> (queue length, when its oldest entry was queued); empty queues are left out. Raises StoreError."""
        query = (
            sa.select(outbox.c.target, sa.func.count(), sa.func.min(outbox.c.created_at))
            .where(*_WAITING)
            .group_by(outbox.c.target)
        )
        return {target: (int(n), float(oldest)) for target, n, oldest in self.rows(query)}

    def of_monitor(self, monitor: str) -> list[TargetQueue]:
        """The queues of a monitor, by target. Raises StoreError."""
        query = (
            sa.select(outbox.c.target, outbox.c.created_at, outbox.c.last_error)
            .join(incidents, incidents.c.id == outbox.c.incident)
            .where(*_WAITING, incidents.c.monitor == monitor)
            .order_by(outbox.c.target, outbox.c.id)
        )
        return [_queue(target, list(some)) for target, some in groupby(self.rows(query), key=lambda row: row.target)]

    def purge(self, before: float) -> None:
        """Delete what was sent or given up before `before`, unless its incident is open or has more waiting."""
        done = sa.func.coalesce(outbox.c.sent_at, outbox.c.dropped_at)
        goes_on = outbox.c.incident.in_(_OPEN) | outbox.c.incident.in_(sa.select(outbox.c.incident).where(*_WAITING))
        self.change(outbox.delete().where(done < before, ~goes_on))


def _queue(target: str, rows: Sequence[Any]) -> TargetQueue:
    said = next((row.last_error for row in reversed(rows) if row.last_error), "")
    return TargetQueue(target, len(rows), min(row.created_at for row in rows), said)
