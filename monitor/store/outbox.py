"""Notifications on their way. A row leaves the queue when its receiver has said that it has it, or when it is given up.

Of one incident a target gets everything in order: what comes later waits for what came before.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from monitor.core.messages import Notification
from monitor.schema import incidents, outbox
from monitor.store.engine import Connected

LONGEST_ERROR = 500


@dataclass(frozen=True)
class Waiting:
    """A notification that a target has not got yet; real seconds since 1970."""

    id: int
    target: str
    notification: Notification
    created_at: float
    attempts: int


class Outbox(Connected):
    """The table of notifications."""

    def due(self, now: float, targets: Collection[str]) -> list[Waiting]:
        """What is to be sent at `now`: of each target and incident the oldest that waits. Raises StoreError."""
        waiting = sa.and_(outbox.c.sent_at.is_(None), outbox.c.dropped_at.is_(None))
        first = (
            sa.select(sa.func.min(outbox.c.id)).where(waiting).group_by(outbox.c.target, outbox.c.incident)
        ).scalar_subquery()
        query = (
            sa.select(outbox)
            .where(outbox.c.id.in_(first), outbox.c.next_at <= now, outbox.c.target.in_(list(targets)))
            .order_by(outbox.c.id)
        )
        with self.reading() as connection:
            rows = connection.execute(query).all()
        return [
            Waiting(r.id, r.target, Notification.of(json.loads(r.document)), r.created_at, r.attempts) for r in rows
        ]

    def standing(self, target: str) -> list[Notification]:
        """The newest that a target got of each incident that is still open. Raises StoreError."""
        still_open = sa.select(incidents.c.id).where(incidents.c.state == "firing")
        newest = (
            sa.select(sa.func.max(outbox.c.id))
            .where(outbox.c.target == target, outbox.c.sent_at.is_not(None), outbox.c.kind.in_(("firing", "updated")))
            .where(outbox.c.incident.in_(still_open))
            .group_by(outbox.c.incident)
        )
        with self.reading() as connection:
            documents = connection.execute(sa.select(outbox.c.document).where(outbox.c.id.in_(newest))).scalars()
            return [Notification.of(json.loads(document)) for document in documents]

    def sent(self, id_: int, now: float) -> None:
        """The receiver has it. Raises StoreError."""
        self._change(id_, sent_at=now, last_error="")

    def failed(self, id_: int, next_at: float, error: str) -> None:
        """It is to be tried again. Raises StoreError."""
        self._change(id_, attempts=outbox.c.attempts + 1, next_at=next_at, last_error=error[:LONGEST_ERROR])

    def drop(self, id_: int, now: float, error: str) -> None:
        """It is given up; the row stays as evidence. Raises StoreError."""
        self._change(id_, attempts=outbox.c.attempts + 1, dropped_at=now, last_error=error[:LONGEST_ERROR])

    def _change(self, id_: int, **values: object) -> None:
        with self.writing() as connection:
            connection.execute(outbox.update().where(outbox.c.id == id_).values(**values))

    def drop_unknown(self, targets: Collection[str], now: float) -> list[str]:
        """Give up what waits for targets that are no more; their names. Raises StoreError."""
        gone = sa.and_(outbox.c.sent_at.is_(None), outbox.c.dropped_at.is_(None), outbox.c.target.not_in(list(targets)))
        with self.writing() as connection:
            names = list(connection.execute(sa.select(outbox.c.target).where(gone).distinct()).scalars())
            said = "no channel of the configuration has this receiver any more"
            connection.execute(outbox.update().where(gone).values(dropped_at=now, last_error=said))
        return names

    def queues(self) -> dict[str, tuple[int, float]]:
        """Target -> (how many wait for it, since when the oldest does); those without any are left out.

        Raises:
            StoreError: out of reach.
        """
        query = (
            sa.select(outbox.c.target, sa.func.count(), sa.func.min(outbox.c.created_at))
            .where(outbox.c.sent_at.is_(None), outbox.c.dropped_at.is_(None))
            .group_by(outbox.c.target)
        )
        with self.reading() as connection:
            return {target: (int(n), float(oldest)) for target, n, oldest in connection.execute(query)}

    def purge(self, before: float) -> None:
        """Forget what was sent or given up before then, unless its incident is still open. Raises StoreError."""
        done = sa.func.coalesce(outbox.c.sent_at, outbox.c.dropped_at)
        still_open = sa.select(incidents.c.id).where(incidents.c.state == "firing")
        with self.writing() as connection:
            connection.execute(outbox.delete().where(done < before, outbox.c.incident.not_in(still_open)))
