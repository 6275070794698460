"""Which stored buckets a read is not to replace, because it holds less than was read of them before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from monitor.series.partials import TRAFFIC_FIELDS, Partials
from monitor.store.schema import series, slices, traffic
from monitor.types import OVERALL, TRAFFIC, Definition, Monitor

_BATCH = 500
_COMPARED, _COMPARED_AT_ANY_DEPTH = 5, 2
"""How many of `TRAFFIC_FIELDS`, from the first one on, must not shrink."""


def shrinking(
    connection: sa.Connection, monitor: Monitor, targets: Mapping[Definition, Sequence[int]], partials: Partials
) -> tuple[int, ...]:
    """Starts of buckets whose traffic is stored as final and held more than the partials does.

    Traffic counts by whatever definition, so long as rankings and labels are the same: another depth changes how many
    impressions and events there are, but not how many requests, with or without a label.
    """
    found: set[int] = set()
    starts = sorted({start for some in targets.values() for start in some})
    depths = _same_rows(connection, monitor)
    fields = [traffic.c[f] for f in TRAFFIC_FIELDS[:_COMPARED]]
    for at in range(0, len(starts), _BATCH):
        query = (
            sa.select(traffic.c.series_id, traffic.c.bucket_start, *fields)
            .join(slices, slices.c.id == traffic.c.slice_id)
            .where(traffic.c.series_id.in_(depths), traffic.c.final, slices.c.dimension == OVERALL[0])
            .where(traffic.c.bucket_start.in_(starts[at : at + _BATCH]))
        )
        for number, start, *before in connection.execute(query):
            compared = slice(_COMPARED if depths[number] else _COMPARED_AT_ANY_DEPTH)
            now = partials.traffic[start, *OVERALL][compared]
            if any(less < more for less, more in zip(now, before[compared], strict=True)):
                found.add(start)
    return tuple(sorted(found))


def gone(
    connection: sa.Connection, monitor: Monitor, targets: Mapping[Definition, Sequence[int]], partials: Partials
) -> set[int]:
    """Starts of buckets that are open and had requests, of which the read has none: nobody takes back an hour.

    Rankings were purged before their labels had their time, or the table is just being loaded anew.
    """
    starts = sorted({start for some in targets.values() for start in some})
    bare = [start for start in starts if not partials.traffic.get((start, *OVERALL), (0,))[0]]
    if not bare:
        return set()
    c, depths = traffic.c, _same_rows(connection, monitor)
    query = sa.select(c.bucket_start).join(slices, slices.c.id == c.slice_id).where(c.series_id.in_(depths))
    query = query.where(slices.c.dimension == OVERALL[0], c.requests > 0, ~c.final)
    some = (bare[at : at + _BATCH] for at in range(0, len(bare), _BATCH))
    return {start for part in some for start in connection.scalars(query.where(c.bucket_start.in_(part)))}


def _same_rows(connection: sa.Connection, monitor: Monitor) -> dict[int, bool]:
    """Numbers of the traffic series of the same rankings and labels -> whether it is the present one."""
    query = sa.select(series.c.id, series.c.definition, series.c.defined_as).where(
        series.c.monitor == monitor.name, series.c.kernel == TRAFFIC
    )
    present = _rows_of(monitor.traffic.text)
    stored = connection.execute(query).all()
    return {number: id_ == monitor.traffic.id for number, id_, text in stored if _rows_of(text) == present}


def _rows_of(defined_as: str) -> list[Any]:
    """What a definition says of which rows are read, and into which buckets."""
    parts = json.loads(defined_as)
    return [parts.get(name) for name in ("rankings", "recipe", "bucket")]
