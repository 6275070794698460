"""By what buckets are stored: the tables and numbers of series, the numbers and places of slices."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from monitor.core.places import BEGINNING
from monitor.core.tally import Tally
from monitor.core.types import OVERALL, TRAFFIC, Definition, Monitor
from monitor.schema import current_series, partials, series, slice_gaps, slices, traffic


def table_of(definition: Definition) -> sa.Table:
    """What the buckets of a series stand in."""
    return traffic if definition.kernel == TRAFFIC else partials


def is_of(definition: Definition) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on `series`: it is the one of this definition."""
    return (
        series.c.monitor == definition.monitor,
        series.c.kernel == definition.kernel,
        series.c.definition == definition.id,
    )


def number_of(definition: Definition) -> sa.ScalarSelect[int]:
    """The number of a series, as a part of a question."""
    return sa.select(series.c.id).where(*is_of(definition)).scalar_subquery()


def series_number(connection: sa.Connection, monitor: Monitor, definition: Definition) -> int:
    """The number of a series, which it is given now if it has none yet."""
    found = connection.execute(sa.select(series.c.id).where(*is_of(definition))).scalar()
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


def slice_numbers(connection: sa.Connection, monitor: str, tally: Tally) -> dict[tuple[str, str], int]:
    """(dimension, value) -> number; slices of the tally that have none are given one now."""
    query = sa.select(slices.c.dimension, slices.c.value, slices.c.id).where(slices.c.monitor == monitor)
    found = {(d, v): i for d, v, i in connection.execute(query)}
    named = dict.fromkeys([OVERALL, *tally.admitted, *((d, v) for _, d, v in tally.traffic)])
    for dimension, value in named:
        if (dimension, value) not in found:
            added = slices.insert().values(monitor=monitor, dimension=dimension, value=value)
            key = connection.execute(added).inserted_primary_key
            found[dimension, value] = int(key[0]) if key else 0
    return found


def note_places(connection: sa.Connection, monitor: str, tally: Tally, numbers: Mapping[tuple[str, str], int]) -> None:
    """Note from which bucket on newly admitted values have a place that another one had before: not earlier."""
    query = sa.select(slices.c.dimension, slices.c.id, slice_gaps.c.until).join(slice_gaps)
    gaps = connection.execute(query.where(slices.c.monitor == monitor)).all()
    released, pending = {dimension for dimension, _, _ in gaps}, {number for _, number, until in gaps if until is None}
    for key in (key for key in tally.admitted if key[0] in released):
        first = min(start for start, *of in tally.traffic if tuple(of) == key)
        if numbers[key] in pending:
            ended = slice_gaps.update().where(slice_gaps.c.slice_id == numbers[key], slice_gaps.c.until.is_(None))
            connection.execute(ended.values(until=first))
        else:
            connection.execute(slice_gaps.insert().values(slice_id=numbers[key], since=BEGINNING, until=first))


def current_numbers(connection: sa.Connection, monitor: Monitor) -> tuple[set[int], set[int]]:
    """Numbers of the monitor's series that (are noted as, are) those of its present definitions."""
    of_it = sa.select(series.c.id, series.c.kernel, series.c.definition).where(series.c.monitor == monitor.name)
    wanted = {(d.kernel, d.id) for d in monitor.definitions}
    noted = sa.select(current_series.c.series_id).join(series).where(series.c.monitor == monitor.name)
    present = {number for number, kernel, definition in connection.execute(of_it) if (kernel, definition) in wanted}
    return set(connection.scalars(noted)), present


def note_current(connection: sa.Connection, monitor: Monitor) -> None:
    """Have `current_series` hold the series of the monitor's present definitions, and no others of it."""
    noted, present = current_numbers(connection, monitor)
    if gone := noted - present:
        connection.execute(current_series.delete().where(current_series.c.series_id.in_(gone)))
    if new := present - noted:
        connection.execute(current_series.insert(), [{"series_id": number} for number in sorted(new)])
