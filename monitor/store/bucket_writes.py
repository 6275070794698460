"""Replaces whole buckets of a series with a read, or keeps them if the read has less than the store.

Runs in the caller's fenced transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from monitor.series.finality import Mark
from monitor.series.partials import TRAFFIC_FIELDS, Partials
from monitor.store.naming import IS_FINE, fields_of, table_of
from monitor.store.schema import buckets, refusals, series, slices, traffic
from monitor.types import OVERALL, TRAFFIC, Definition, Monitor

_BATCH = 500
_COMPARED, _COMPARED_AT_ANY_DEPTH = 5, 2
"""How many of the first `TRAFFIC_FIELDS` must not shrink."""


@dataclass(frozen=True)
class BucketWrite:
    """What a read changes in one series.

    Attributes:
        final, awaited: starts of buckets that become final, and of those after which the source shows nothing.
        counted: start -> the source's rows, by the rows' own times, for some of `final`.
    """

    connection: sa.Connection
    series_id: int
    definition: Definition
    read_at: float
    final: Collection[int]
    awaited: Collection[int]
    counted: Mapping[int, int]

    def replace(self, starts: Sequence[int], read: Partials, slice_ids: Mapping[tuple[str, str], int]) -> None:
        """Replace buckets by the read, all their slices included."""
        is_traffic, wanted, kernel = self.definition.kernel == TRAFFIC, set(starts), self.definition.kernel
        fingerprint = (read.fingerprint or None) if is_traffic else None
        self._delete(starts)
        self._insert(starts, {s: "awaited" for s in starts if s in self.awaited}, fingerprint)
        ids = self._ids(starts)
        cells, kind = (read.traffic, int) if is_traffic else (read.measures[kernel], float)
        _fill(
            self.connection,
            table_of(kernel),
            (
                {"bucket_id": ids[start], "slice_id": slice_ids[key[0], key[1]]}
                | dict(zip(fields_of(kernel), map(kind, sums.tolist()), strict=True))
                for (start, *key), sums in cells.items()
                if start in wanted
            ),
        )
        if is_traffic:
            refused = (
                {"bucket_id": ids[start], "slice_id": slice_ids[key[0], key[1]], "reason": reason, "rows": rows}
                for ((start, *key), reason), rows in read.refused.items()
                if start in wanted
            )
            _fill(self.connection, refusals, refused)

    def hold(self, starts: Sequence[int]) -> None:
        """Keep buckets as they are and record that they were read."""

        def ends(start: int) -> tuple[bool, bool]:
            return start in self.final, start in self.awaited

        for (is_final, is_awaited), some in groupby(sorted(starts, key=ends), ends):
            mark = "awaited" if is_awaited else None
            self._update(list(some), read_at=self.read_at, final=is_final, mark=mark)

    def refuse(self, starts: Sequence[int]) -> None:
        """Mark buckets as refused. Those not final are deleted: they would block the series forever."""
        final = {start for start, is_final in self._each(starts, buckets.c.bucket_start, buckets.c.final) if is_final}
        others = [start for start in starts if start not in final]
        self._delete(others)
        self._insert(others, dict.fromkeys(others, "refused"))

    def count_rows(self, starts: Sequence[int]) -> None:
        """Update the source's row counts of kept buckets."""
        for start in starts:
            self._update([start], rows=self.counted.get(start))

    def _insert(self, starts: Iterable[int], marks: Mapping[int, Mark], fingerprint: str | None = None) -> None:
        same = {"series_id": self.series_id, "seconds": 0, "read_at": self.read_at}
        is_traffic = self.definition.kernel == TRAFFIC
        rows = (
            same
            | {
                "bucket_start": start,
                "final": start in self.final and marks.get(start) != "refused",
                "mark": marks.get(start),
                "rows": self.counted.get(start) if is_traffic else None,
                "fingerprint": fingerprint,
            }
            for start in starts
        )
        _fill(self.connection, buckets, rows)

    def _ids(self, starts: Sequence[int]) -> dict[int, int]:
        return dict(self._each(starts, buckets.c.bucket_start, buckets.c.id))

    def _each(self, starts: Sequence[int], *columns: sa.Column[Any]) -> Iterator[Any]:
        for some in self._these(starts):
            yield from self.connection.execute(sa.select(*columns).where(*some))

    def _delete(self, starts: Sequence[int]) -> None:
        for some in self._these(starts):
            self.connection.execute(buckets.delete().where(*some))

    def _update(self, starts: Sequence[int], **values: object) -> None:
        for some in self._these(starts):
            self.connection.execute(buckets.update().where(*some).values(values))

    def _these(self, starts: Sequence[int]) -> Iterator[tuple[sa.ColumnElement[bool], ...]]:
        of_it = (buckets.c.series_id == self.series_id, buckets.c.seconds == 0)
        return ((*of_it, buckets.c.bucket_start.in_(part)) for part in _batches(starts))


def _fill(connection: sa.Connection, table: sa.Table, rows: Iterable[dict[str, Any]]) -> None:
    if made := list(rows):
        connection.execute(table.insert(), made)


def _batches(starts: Sequence[int]) -> Iterator[list[int]]:
    return (list(starts[at : at + _BATCH]) for at in range(0, len(starts), _BATCH))


def shrinking(
    connection: sa.Connection, monitor: Monitor, targets: Mapping[Definition, Sequence[int]], read: Partials
) -> set[int]:
    """Starts of buckets stored as final with more traffic than the read has.

    Compares with every definition that reads the same rankings and labels. Another depth changes impressions and
    events, but not the number of requests, with or without a label.
    """
    depths = _same_rows(connection, monitor)
    compared = [traffic.c[f] for f in TRAFFIC_FIELDS[:_COMPARED]]
    query = _overall(depths, buckets.c.series_id, buckets.c.bucket_start, *compared).where(buckets.c.final)
    found = set[int]()
    for part in _batches(_starts(targets)):
        for number, start, *before in connection.execute(query.where(buckets.c.bucket_start.in_(part))):
            some = slice(_COMPARED if depths[number] else _COMPARED_AT_ANY_DEPTH)
            now = read.traffic[start, *OVERALL][some]
            if any(less < more for less, more in zip(now, before[some], strict=True)):
                found.add(start)
    return found


def gone(
    connection: sa.Connection, monitor: Monitor, targets: Mapping[Definition, Sequence[int]], read: Partials
) -> set[int]:
    """Starts of open buckets that had requests, or labels, of which the read has none.

    Rows were purged before the labels were due, or a table or partition is being reloaded.
    """
    now = {start: read.traffic.get((start, *OVERALL), (0, 0))[:2] for start in _starts(targets)}
    bare = [start for start, (_, labelled) in now.items() if not labelled]
    columns = buckets.c.bucket_start, traffic.c.requests, traffic.c.labelled
    query = _overall(_same_rows(connection, monitor) if bare else (), *columns).where(~buckets.c.final)
    found = (connection.execute(query.where(buckets.c.bucket_start.in_(part))) for part in _batches(bare))
    return {
        start
        for part in found
        for start, requests, labelled in part
        if (requests and not now[start][0]) or (labelled and not now[start][1])
    }


def _starts(targets: Mapping[Definition, Sequence[int]]) -> list[int]:
    return sorted({start for some in targets.values() for start in some})


def _overall(numbers: Iterable[int], *columns: sa.Column[Any]) -> sa.Select[Any]:
    query = sa.select(*columns).join_from(traffic, buckets).join(slices)
    return query.where(buckets.c.series_id.in_(list(numbers)), IS_FINE, slices.c.dimension == OVERALL[0])


def _same_rows(connection: sa.Connection, monitor: Monitor) -> dict[int, bool]:
    """Ids of the traffic series of the same rankings and labels -> whether it is the current one."""
    query = sa.select(series.c.id, series.c.definition, series.c.defined_as).where(
        series.c.monitor == monitor.name, series.c.kernel == TRAFFIC
    )
    present = _rows_of(monitor.traffic.text)
    stored = connection.execute(query).all()
    return {number: id_ == monitor.traffic.id for number, id_, text in stored if _rows_of(text) == present}


def _rows_of(defined_as: str) -> list[Any]:
    """The part of a definition that says which rows are read, and into which buckets."""
    parts = json.loads(defined_as)
    return [parts.get(name) for name in ("rankings", "recipe", "bucket")]
