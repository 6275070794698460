"""By what buckets are stored: the tables and numbers of series, the numbers and places of slices."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from monitor.series.partials import Partials
from monitor.series.slices import BEGINNING
from monitor.store.schema import current_series, partials, series, slice_gaps, slices, traffic
from monitor.types import OVERALL, TRAFFIC, Definition, Monitor


def table_of(definition: Definition) -> sa.Table:
    """What the buckets of a series stand in."""
    return traffic if definition.kernel == TRAFFIC else partials


MONITOR = sa.bindparam("monitor", type_=sa.Text)
IS_NAMED = (series.c.monitor == MONITOR, *(series.c[c] == sa.bindparam(c) for c in ("kernel", "definition")))
"""Conditions on `series`: it is the one that `identity` names."""
_NUMBER = sa.select(series.c.id).where(*IS_NAMED)
NUMBER = _NUMBER.scalar_subquery()
"""The number of the series that `identity` names, as a part of a question."""


_SERIES = sa.select(series.c.id, series.c.kernel, series.c.definition).where(series.c.monitor == MONITOR)
_CURRENT = sa.select(current_series.c.series_id).join(series).where(series.c.monitor == MONITOR)
_SLICES = sa.select(slices.c.dimension, slices.c.value, slices.c.id).where(slices.c.monitor == MONITOR)
_GAPS = (
    sa.select(slices.c.dimension, slices.c.id, slice_gaps.c.until).join(slice_gaps).where(slices.c.monitor == MONITOR)
)


def identity(definition: Definition) -> dict[str, str]:
    """The parameters of a statement that asks for a series.

    Statements that are run in every cycle are built once: to build one takes ten times as long as to run it.
    """
    return {"monitor": definition.monitor, "kernel": definition.kernel, "definition": definition.id}


def series_number(connection: sa.Connection, monitor: Monitor, definition: Definition) -> int:
    """The number of a series, which it is given now if it has none yet."""
    found = connection.execute(_NUMBER, identity(definition)).scalar()
    if found is not None:
        return int(found)
    added = series.insert().values(
        monitor=definition.monitor,
        kernel=definition.kernel,
        definition=definition.id,
        bucket_seconds=monitor.bucket,
        defined_as=definition.text,
    )
    key = connection.execute(added).inserted_primary_key
    return int(key[0]) if key else 0


def slice_numbers(connection: sa.Connection, monitor: str, read: Partials) -> dict[tuple[str, str], int]:
    """(dimension, value) -> number; slices of the read that have none are given one now."""
    found = {(d, v): i for d, v, i in connection.execute(_SLICES, {"monitor": monitor})}
    named = dict.fromkeys([OVERALL, *read.admitted, *((d, v) for _, d, v in read.traffic)])
    for dimension, value in named:
        if (dimension, value) not in found:
            added = slices.insert().values(monitor=monitor, dimension=dimension, value=value)
            key = connection.execute(added).inserted_primary_key
            found[dimension, value] = int(key[0]) if key else 0
    return found


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
