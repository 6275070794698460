"""Moves everything stored about a monitor to a new name, or deletes it: tables identify monitors by name."""

from __future__ import annotations

import sqlalchemy as sa

from monitor.errors import InputError
from monitor.store.engine import upserted
from monitor.store.lease import UNNAMED, Lease
from monitor.store.schema import buckets, current_series, incidents, leases, metadata, monitors, series, slices
from monitor.store.store import Store

PARKED = 3000.0
"""Seconds for which nobody may run a monitor under its old name, as a daemon with the old configuration would."""

_TABLES = [table for table in metadata.sorted_tables if "monitor" in table.c and table is not leases]


def take_over(store: Store, lease: Lease, former: str) -> bool:
    """Rename a monitor to that of the lease, with its incidents as they are; whether anything had the former name.

    The ids of its incidents, past and future, are made of the first name that it had, so receivers know them still.

    Raises:
        InputError: both have a history.
        LeaseLost: another process writes the former one, or this one by now.
        StoreError: the store failed; nothing is renamed.
    """
    if not _has_series(store, former):
        return False
    name = lease.monitor
    if _has_series(store, name):
        text = f"monitor {name}: it has its own history, so it cannot take over that of {former}"
        raise InputError(f"{text}; remove `renamed_from:`, or delete the history of {name}: rankmon remove {name}")
    with store.hold(former) as was, store.leases.fenced(lease) as connection:
        for table in reversed(_TABLES):
            connection.execute(table.delete().where(table.c.monitor == name))
        connection.execute(upserted(store.dialect, monitors, {"monitor": former}))  # a backfill alone leaves no row
        for table in _TABLES:
            values = {"monitor": name}
            if table in (incidents, monitors):
                values["origin"] = sa.func.coalesce(table.c.origin, former)  # type: ignore[assignment]
            connection.execute(table.update().where(table.c.monitor == former).values(values))
        store.leases.park(connection, was, f"{UNNAMED}, which renamed it to {name},", PARKED)
    return True


def remove(store: Store, lease: Lease) -> int:
    """Delete all that is stored of a monitor; returns the number of buckets. Raises LeaseLost, StoreError."""
    mine = sa.select(series.c.id).where(series.c.monitor == lease.monitor)
    with store.leases.fenced(lease) as connection:
        number = connection.execute(buckets.delete().where(buckets.c.series_id.in_(mine))).rowcount
        connection.execute(current_series.delete().where(current_series.c.series_id.in_(mine)))
        for table in reversed(_TABLES):
            connection.execute(table.delete().where(table.c.monitor == lease.monitor))
    return number


def names(store: Store) -> set[str]:
    """Monitors of which anything is stored. Raises StoreError."""
    queries = (sa.select(table.c.monitor) for table in (series, slices, monitors, incidents))
    return {name for (name,) in store.rows(sa.union(*queries))}


def _has_series(store: Store, monitor: str) -> bool:
    return store.scalar(sa.select(series.c.id).where(series.c.monitor == monitor).limit(1)) is not None
