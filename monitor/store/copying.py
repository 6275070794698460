"""Copies a store into another database."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa

from monitor.errors import InputError
from monitor.store.engine import as_store_errors
from monitor.store.schema import leases, metadata, series
from monitor.store.store import Store

COPY_ROWS = 5_000
"""Rows copied at a time; PostgreSQL ends a transaction that waits for longer than half a lease."""
_ONE_STATE: dict[str, dict[str, Any]] = {
    "sqlite": {"rankmon_reads": True},
    "postgresql": {"isolation_level": "REPEATABLE READ"},
}
"""Options of a transaction that sees the store as it was at its beginning."""


def copy(source: Store, target: Store) -> dict[str, int]:
    """Copy all rows into an empty store, in one transaction; returns table -> rows.

    Raises:
        InputError: the target holds rows already.
        LeaseLost: a process writes a monitor of the source.
        StoreError: one of the two failed; nothing is copied. The target is migrated first.
    """
    target.schema.migrate()
    with ExitStack() as unwritten:
        for (monitor,) in source.rows(sa.select(series.c.monitor).distinct()):
            unwritten.enter_context(source.hold(monitor))
        with as_store_errors(source.url), source.engine.connect() as plain, target.writing() as writer:
            reader = plain.execution_options(**_ONE_STATE[source.dialect])
            _refuse_rows(target, writer)
            found = {table.name: _copied(table, reader, writer) for table in metadata.sorted_tables}
            writer.execute(leases.update().values(expires_at=0.0))
    return found


def _refuse_rows(target: Store, writer: sa.Connection) -> None:
    for table in metadata.sorted_tables:
        if writer.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
            named = target.url.render_as_string(hide_password=True)
            raise InputError(f"{named} already has rows in {table.name}; set store.url to a new database")


def _copied(table: sa.Table, reader: sa.Connection, writer: sa.Connection) -> int:
    number = 0
    for rows in reader.execute(sa.select(table), execution_options={"yield_per": COPY_ROWS}).mappings().partitions():
        writer.execute(table.insert(), [dict(row) for row in rows])
        number += len(rows)
    if number and writer.dialect.name == "postgresql" and table.autoincrement_column is not None:
        # Rows that come later must not be given the numbers of copied ones.
        newest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
        writer.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, "id"), newest)))
    return number
