"""What is over and was kept long enough: incidents with all that belongs to them, silences, and verdicts."""

from __future__ import annotations

import sqlalchemy as sa

from monitor.store.engine import Connected
from monitor.store.schema import diagnoses, incidents, restatements, retrains, silences, transitions, verdicts

AT_ONCE = 1000
"""Most incidents that are forgotten in one transaction."""


class Records(Connected):
    """The tables of what has been, as far as nothing is decided by it any more."""

    def purge(self, before: float) -> int:
        """Forget the incidents that were over before then, in seconds; how many. Raises StoreError.

        What a backfill records of the past counts from when it was recorded. The newest request to retrain of each
        monitor stays, for the next one keeps its distance from it.
        """
        with self.writing() as connection:
            expired = connection.execute(_expired(before).limit(AT_ONCE)).scalars().all()
            for table in (transitions, diagnoses):
                connection.execute(table.delete().where(table.c.incident.in_(expired)))
            connection.execute(incidents.delete().where(incidents.c.id.in_(expired)))
            connection.execute(transitions.delete().where(transitions.c.recorded_at < before, _of_no_incident()))
            newest = sa.select(sa.func.max(retrains.c.asked_at)).group_by(retrains.c.monitor)
            old = (retrains.c.asked_at < before, retrains.c.asked_at.not_in(newest))
            connection.execute(retrains.delete().where(*old))
            connection.execute(silences.delete().where(silences.c.until < before))
            connection.execute(verdicts.delete().where(verdicts.c.at < before))
            connection.execute(restatements.delete().where(restatements.c.restated_at < before))
        return len(expired)

    def restated(self, monitor: str, since: float) -> int:
        """How many final buckets were read again from `since` on, in seconds. Raises StoreError."""
        c = restatements.c
        query = sa.select(sa.func.sum(c.buckets)).where(c.monitor == monitor, c.restated_at >= since)
        with self.reading() as connection:
            return int(connection.scalar(query) or 0)


def _expired(before: float) -> sa.Select[tuple[str]]:
    newer = sa.select(transitions.c.incident).where(transitions.c.recorded_at >= before)
    is_over = sa.and_(incidents.c.state != "firing", incidents.c.closed_at < before)
    return sa.select(incidents.c.id).where(
        is_over, incidents.c.id.not_in(newer.where(transitions.c.incident.is_not(None)))
    )


def _of_no_incident() -> sa.ColumnElement[bool]:
    return sa.or_(transitions.c.incident.is_(None), transitions.c.incident.not_in(sa.select(incidents.c.id)))
