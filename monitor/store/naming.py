"""Rows and conditions that identify series, slices and their places."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, Partials
from monitor.series.slices import BEGINNING
from monitor.store.schema import buckets, current_series, partials, series, slice_gaps, slices, traffic
from monitor.types import OVERALL, TRAFFIC, Definition, Monitor

MONITOR = sa.bindparam("monitor", type_=sa.Text)
SINCE, UNTIL = (sa.bindparam(name, type_=sa.BigInteger) for name in ("since", "until"))

_NAMED = (series.c.monitor == MONITOR, *(series.c[c] == sa.bindparam(c) for c in ("kernel", "definition")))
OF_SERIES = (*_NAMED, buckets.c.series_id == series.c.id)
"""Conditions on `buckets`: of the series that `identity` names, refused ones included."""
IS_FINE = buckets.c.seconds == 0
FINE = (*OF_SERIES, IS_FINE, buckets.c.mark.is_distinct_from("refused"))
"""The stored buckets of that series at its own width."""
COARSE = (*OF_SERIES, ~IS_FINE)
"""Its rolled-up buckets."""


def identity(definition: Definition) -> dict[str, str]:
    """Statement parameters that identify a series.

    Statements run in every cycle are built once: building one takes ten times as long as running it.
    """
    return {"monitor": definition.monitor, "kernel": definition.kernel, "definition": definition.id}


def table_of(kernel: str) -> sa.Table:
    """The table with the sums of a kernel, or of the traffic."""
    return traffic if kernel == TRAFFIC else partials


def fields_of(kernel: str) -> tuple[str, ...]:
    """The field names of that table."""
    return TRAFFIC_FIELDS if kernel == TRAFFIC else FIELDS


@cache
def sums_of(kernel: str, most: int | None = None, overall_only: bool = False) -> sa.Select[Any]:
    """A query of start, final, dimension, value, and all or `most` fields; the caller filters buckets and slices."""
    table = table_of(kernel)
    query = sa.select(buckets.c.bucket_start, buckets.c.final, slices.c.dimension, slices.c.value)
    query = query.add_columns(*(table.c[f] for f in fields_of(kernel)[:most]))
    query = query.where(table.c.bucket_id == buckets.c.id, table.c.slice_id == slices.c.id)
    is_overall = (slices.c.monitor == MONITOR, slices.c.dimension == OVERALL[0], slices.c.value == OVERALL[1])
    return query.where(*is_overall) if overall_only else query


_NUMBER = sa.select(series.c.id).where(*_NAMED)
_SERIES = sa.select(series.c.id, series.c.kernel, series.c.definition).where(series.c.monitor == MONITOR)
_DEFINED = (
    sa.select(series.c.kernel, series.c.definition, series.c.defined_as, current_series.c.series_id.is_not(None))
    .join_from(series, current_series, isouter=True)
    .where(series.c.monitor == MONITOR)
)
_CURRENT = sa.select(current_series.c.series_id).join(series).where(series.c.monitor == MONITOR)
_SLICES = sa.select(slices.c.dimension, slices.c.value, slices.c.id).where(slices.c.monitor == MONITOR)
_GAPS = (
    sa.select(slices.c.dimension, slices.c.id, slice_gaps.c.until).join(slice_gaps).where(slices.c.monitor == MONITOR)
)


def series_number(connection: sa.Connection, monitor: Monitor, definition: Definition) -> int:
    """The id of a series, inserted if new."""
    found = connection.scalar(_NUMBER, identity(definition))
    more = {"bucket_seconds": monitor.bucket, "defined_as": definition.text}
    return int(found) if found is not None else _added(connection, series, **identity(definition), **more)


def slice_numbers(connection: sa.Connection, monitor: str, read: Partials) -> dict[tuple[str, str], int]:
    """(dimension, value) -> id; new slices of a read are inserted."""
    found = {(d, v): i for d, v, i in connection.execute(_SLICES, {"monitor": monitor})}
    for dimension, value in dict.fromkeys([OVERALL, *read.admitted, *((d, v) for _, d, v in read.traffic)]):
        if (dimension, value) not in found:
            number = _added(connection, slices, monitor=monitor, dimension=dimension, value=value)
            found[dimension, value] = number
    return found


def _added(connection: sa.Connection, table: sa.Table, **row: object) -> int:
    key = connection.execute(table.insert().values(row)).inserted_primary_key
    return int(key[0]) if key else 0


def note_places(
    connection: sa.Connection, monitor: str, read: Partials, numbers: Mapping[tuple[str, str], int]
) -> None:
    """Record the first bucket in which newly admitted values hold a place that another value had before."""
    gaps = connection.execute(_GAPS, {"monitor": monitor}).all()
    released, pending = {dimension for dimension, _, _ in gaps}, {number for _, number, until in gaps if until is None}
    for key in (key for key in read.admitted if key[0] in released):
        first = min(start for start, *of in read.traffic if tuple(of) == key)
        if numbers[key] in pending:
            ended = slice_gaps.update().where(slice_gaps.c.slice_id == numbers[key], slice_gaps.c.until.is_(None))
            connection.execute(ended.values(until=first))
        else:
            connection.execute(slice_gaps.insert().values(slice_id=numbers[key], since=BEGINNING, until=first))


def current_numbers(connection: sa.Connection, monitor: Monitor) -> tuple[set[int], set[int]]:
    """Ids of the monitor's series that (are recorded as, are) current."""
    wanted, of_it = {(d.kernel, d.id) for d in monitor.definitions}, {"monitor": monitor.name}
    all_of_it = connection.execute(_SERIES, of_it)
    present = {number for number, kernel, definition in all_of_it if (kernel, definition) in wanted}
    return set(connection.scalars(_CURRENT, of_it)), present


def replaced_series(connection: sa.Connection, monitor: Monitor) -> dict[str, str]:
    """Kernel -> definition in full of each current series that the monitor does not continue, but replaces."""
    wanted = {d.kernel: d.id for d in monitor.definitions}
    stored = connection.execute(_DEFINED, {"monitor": monitor.name}).all()
    continued = {kernel for kernel, id_, *_ in stored if wanted.get(kernel) == id_}
    return {
        kernel: text
        for kernel, _, text, is_current in stored
        if is_current and kernel in wanted and kernel not in continued
    }


def note_current(connection: sa.Connection, monitor: Monitor) -> None:
    """Make `current_series` hold exactly the monitor's current series."""
    noted, present = current_numbers(connection, monitor)
    if gone := noted - present:
        connection.execute(current_series.delete().where(current_series.c.series_id.in_(gone)))
    if new := present - noted:
        connection.execute(current_series.insert(), [{"series_id": number} for number in sorted(new)])
