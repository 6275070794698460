"""By what buckets are stored: the rows of series, slices and their places, and the conditions that find them."""

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
"""Conditions on `buckets`: of the series that `identity` names. Refused ones are among them."""
IS_FINE = buckets.c.seconds == 0
FINE = (*OF_SERIES, IS_FINE, buckets.c.mark.is_distinct_from("refused"))
"""The buckets of that series, of its own width, that are stored."""
COARSE = (*OF_SERIES, ~IS_FINE)
"""Those that were rolled up."""


def identity(definition: Definition) -> dict[str, str]:
    """The parameters of a statement that asks for a series.

    Statements that are run in every cycle are built once: to build one takes ten times as long as to run it.
    """
    return {"monitor": definition.monitor, "kernel": definition.kernel, "definition": definition.id}


def table_of(kernel: str) -> sa.Table:
    """What the sums of a kernel, or of the traffic, stand in."""
    return traffic if kernel == TRAFFIC else partials


def fields_of(kernel: str) -> tuple[str, ...]:
    """Their names."""
    return TRAFFIC_FIELDS if kernel == TRAFFIC else FIELDS


@cache
def sums_of(kernel: str, most: int | None = None, overall_only: bool = False) -> sa.Select[Any]:
    """Start, final, dimension, value, and all or `most` fields, by bucket and slice; the caller says of which."""
    table = table_of(kernel)
    query = sa.select(buckets.c.bucket_start, buckets.c.final, slices.c.dimension, slices.c.value)
    query = query.add_columns(*(table.c[f] for f in fields_of(kernel)[:most]))
    query = query.where(table.c.bucket_id == buckets.c.id, table.c.slice_id == slices.c.id)
    is_overall = (slices.c.monitor == MONITOR, slices.c.dimension == OVERALL[0], slices.c.value == OVERALL[1])
    return query.where(*is_overall) if overall_only else query


_NUMBER = sa.select(series.c.id).where(*_NAMED)
_SERIES = sa.select(series.c.id, series.c.kernel, series.c.definition).where(series.c.monitor == MONITOR)
_CURRENT = sa.select(current_series.c.series_id).join(series).where(series.c.monitor == MONITOR)
_SLICES = sa.select(slices.c.dimension, slices.c.value, slices.c.id).where(slices.c.monitor == MONITOR)
_GAPS = (
    sa.select(slices.c.dimension, slices.c.id, slice_gaps.c.until).join(slice_gaps).where(slices.c.monitor == MONITOR)
)


def series_number(connection: sa.Connection, monitor: Monitor, definition: Definition) -> int:
    """The number of a series, which it is given now if it has none yet."""
    found = connection.scalar(_NUMBER, identity(definition))
    more = {"bucket_seconds": monitor.bucket, "defined_as": definition.text}
    return int(found) if found is not None else _added(connection, series, **identity(definition), **more)


def slice_numbers(connection: sa.Connection, monitor: str, read: Partials) -> dict[tuple[str, str], int]:
    """(dimension, value) -> number; slices of a read that have none are given one now."""
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
    """Note from which bucket on newly admitted values have a place that another one had before: not earlier."""
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
    """Numbers of the monitor's series that (are noted as, are) those of its present definitions."""
    wanted, of_it = {(d.kernel, d.id) for d in monitor.definitions}, {"monitor": monitor.name}
    all_of_it = connection.execute(_SERIES, of_it)
    present = {number for number, kernel, definition in all_of_it if (kernel, definition) in wanted}
    return set(connection.scalars(_CURRENT, of_it)), present


def note_current(connection: sa.Connection, monitor: Monitor) -> None:
    """Have `current_series` hold the series of the monitor's present definitions, and no others of it."""
    noted, present = current_numbers(connection, monitor)
    if gone := noted - present:
        connection.execute(current_series.delete().where(current_series.c.series_id.in_(gone)))
    if new := present - noted:
        connection.execute(current_series.insert(), [{"series_id": number} for number in sorted(new)])
