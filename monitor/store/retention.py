"""Rolls up old buckets and deletes expired ones, in short transactions fenced by the lease.

An interrupted step has no effect; a repeated one finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.conditions.checkpoint import VerdictCheckpoint
from monitor.series.finality import CLOCK_TOLERANCE
from monitor.series.partials import bucket_of
from monitor.series.windows import History, SliceKey
from monitor.store.engine import Connected
from monitor.store.lease import Lease, Leases
from monitor.store.naming import COARSE, FINE, IS_FINE, MONITOR, SINCE, UNTIL, fields_of, identity, sums_of, table_of
from monitor.store.schema import buckets, monitors, partials, refusals, series, traffic
from monitor.store.verdicts import put_oldest
from monitor.types import FARTHEST, TRAFFIC, Definition
from monitor.units import DAY, Span

WITNESSES = 7
"""Days with requests that must be stored before anything counts as old."""

_start, _end = buckets.c.bucket_start, buckets.c.bucket_start + buckets.c.seconds


@dataclass(frozen=True)
class Holding:
    """How much is stored for a monitor, including former definitions.

    Attributes:
        rows: of partials and traffic, one per series, bucket and slice.
        oldest: start of the oldest bucket, seconds; None without any.
    """

    rows: int = 0
    coarse_rows: int = 0
    oldest: int | None = None


class _Series(NamedTuple):
    id: int
    width: int
    kernel: str
    definition: str

    @property
    def fine(self) -> tuple[sa.ColumnElement[bool], ...]:
        return buckets.c.series_id == self.id, buckets.c.seconds == 0

    @property
    def coarse(self) -> tuple[sa.ColumnElement[bool], ...]:
        return buckets.c.series_id == self.id, buckets.c.seconds > 0

    def ending_by(self, until: int) -> tuple[sa.ColumnElement[bool], ...]:
        """Its buckets; of coarser ones those that end by then."""
        return buckets.c.series_id == self.id, sa.or_(buckets.c.seconds == 0, _end <= until)


class BucketRetention(Connected):
    """Retention of a monitor's buckets. Every method may raise StoreError."""

    def __init__(self, engine: sa.Engine, url: URL, leases: Leases) -> None:
        super().__init__(engine, url)
        self._leases = leases

    def present(self, now: float, monitor: str | None = None) -> float:
        """The time, in seconds, that retention counts ages from: `now`, as far as stored requests confirm it. 0 if too
        few days have requests.

        A clock may run years ahead, and deleted data is gone for good. So the time is at most that of a monitor's
        newest requests, and at most so many days after the seventh newest day with any: a few requests dated by the
        same wrong clock, or by another one, prove nothing.

        Args:
            now: seconds of the data's clock.
            monitor: whose requests count; None: those of the monitor that is furthest.
        """
        found = 0.0
        with self.at_once():
            for name in self._monitors() if monitor is None else [monitor]:
                found = max(found, min(now, self._borne_out(name, now)))
                if found >= now - DAY:
                    break
        return found

    def behind(self, now: float, monitor: str) -> int | None:
        """End of a monitor's newest stored requests, seconds, if they show that it is later than `now`; else None.

        They do if most buckets since then (or since the oldest with requests, if later) have requests. A clock that ran
        ahead would have found few or none.
        """
        with self.at_once():
            ends = [self._shown_later(one, now) for one in self._counted(monitor)]
        return max((end for end in ends if end is not None), default=None)

    def is_begun(self, monitor: str) -> bool:
        """Whether any request of a monitor is stored."""
        with self.at_once():
            return any(self._newest_busy(one, FARTHEST) is not None for one in self._counted(monitor))

    def newest(self, now: float) -> int:
        """End of any monitor's newest bucket with requests, without those dated after the day of `now`; or 0."""
        until = bucket_of(int(now), DAY) + DAY
        with self.at_once():
            counted = (one for name in self._monitors() for one in self._counted(name))
            return max((self._newest_busy(one, until) or 0 for one in counted), default=0)

    def _monitors(self) -> list[str]:
        return [name for (name,) in self.rows(sa.select(series.c.monitor).distinct())]

    def _counted(self, monitor: str) -> list[_Series]:
        with self.reading() as connection:
            return [one for one in _series(connection, monitor) if one.kernel == TRAFFIC]

    def _borne_out(self, monitor: str, now: float) -> int:
        """Until when a monitor's requests confirm that time has passed, seconds; 0 with too few days."""
        counted = self._counted(monitor)
        step = max((DAY, *(one.width for one in counted)))
        newest, until = 0, bucket_of(int(now), step) + step
        for _ in range(WITNESSES):
            ends = [end for one in counted if (end := self._newest_busy(one, until)) is not None]
            if not ends:
                return 0
            newest, until = max(newest, *ends), bucket_of(max(ends) - 1, step)
        return min(newest, until + WITNESSES * step)

    def _shown_later(self, one: _Series, now: float) -> int | None:
        """End of a traffic series' newest bucket with requests, if they show that it is later than `now`."""
        # The bucket that `now` is in may have got its requests before.
        since = bucket_of(int(now + CLOCK_TOLERANCE) - 1, one.width) + one.width
        newest = self.integer(_BUSY_SINCE, number=one.id, since=since)
        if newest is None:
            return None
        busy = sa.select(_start).join(traffic).where(*one.fine, traffic.c.requests > 0)
        since = max(since, self.integer(busy.order_by(_start).limit(1)) or 0)
        later = busy.where(since <= _start).distinct().subquery()
        number = self.integer(sa.select(sa.func.count()).select_from(later)) or 0
        end = int(newest) + one.width
        return end if 2 * number * one.width >= end - since else None

    def _newest_busy(self, one: _Series, before: int) -> int | None:
        """End of a traffic series' newest bucket with requests before `before`; None without one."""
        return self.integer(_NEWEST_BUSY, number=one.id, width=one.width, before=before)

    def holding(self, monitor: str) -> Holding:
        """How much is stored for a monitor; scans all of it."""
        numbers, of_it = (sa.func.count(), sa.func.count().filter(~IS_FINE)), series.c.monitor == MONITOR
        with self.at_once():
            counts = [
                self.rows(
                    sa.select(*numbers).select_from(table).join(buckets).join(series).where(of_it), monitor=monitor
                )
                for table in (partials, traffic)
            ]
            known = sa.select(_start).where(
                buckets.c.series_id == series.c.id, buckets.c.mark.is_distinct_from("refused")
            )
            first = known.order_by(_start).limit(1).scalar_subquery()  # an index ends at it
            oldest = self.integer(sa.select(sa.func.min(first)).where(of_it), monitor=monitor)
        return Holding(sum(row[0] for (row,) in counts), sum(row[1] for (row,) in counts), oldest)

    def rolled_up(self, definition: Definition, since: int, until: int) -> Span | None:
        """[first, end) of the coarser buckets of a series that overlap [since, until); None without any."""
        ((first, end),) = self.rows(_ROLLED_UP, identity(definition), since=since, until=until)
        return None if first is None else (int(first), int(end))

    def whole_since(self, definition: Definition) -> int | None:
        """Start of the oldest bucket of a series' own width with no coarser one after it; None without any."""
        coarse = self.rolled_up(definition, 0, FARTHEST)
        return self.integer(_OLDEST_FINE, identity(definition), since=0 if coarse is None else coarse[1])

    def coarse(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> dict[int, History]:
        """Length in seconds -> a series' coarser buckets of that length that overlap [since, until)."""
        query = sums_of(definition.kernel, None, overall_only).add_columns(buckets.c.seconds)
        query = query.where(*COARSE, _start < UNTIL, _end > SINCE)
        found = self.columns(query, identity(definition) | {"since": since, "until": until})
        *columns, seconds = found or [[] for _ in range(5 + len(fields_of(definition.kernel)))]
        at = {length: [i for i, other in enumerate(seconds) if other == length] for length in sorted(set(seconds))}
        return {
            int(length): History.of([[column[i] for i in some] for column in columns], len(columns) - 4)
            for length, some in at.items()
        }

    def oldest_day(self, monitor: str, spans: Sequence[Span]) -> tuple[Span, int] | None:
        """(span of the oldest buckets in `spans`, at most a day; end of its span in `spans`); None without any."""
        with self.reading() as connection:
            every = _series(connection, monitor)
            for since, until in spans:
                starts = _oldest(connection, [one.ending_by(until) for one in every], (since, until))
                if (oldest := min(starts, default=None)) is not None:
                    return (oldest, min(until, bucket_of(oldest, DAY) + DAY)), until
        return None

    def forget(self, lease: Lease, stretch: Span, until: int, checkpoint: VerdictCheckpoint | None = None) -> None:
        """Delete the buckets of a stretch; of coarser ones that begin there, those that end by `until`.

        Args:
            checkpoint: where evaluating the past again begins from now on; None: unchanged.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was deleted.
        """
        with self._leases.fenced(lease) as connection:
            for one in _series(connection, lease.monitor):
                connection.execute(buckets.delete().where(*one.ending_by(until), *_within(stretch)))
            if checkpoint is not None:
                put_oldest(connection, self.dialect, lease.monitor, checkpoint)

    def abandoned(self, before: float) -> list[str]:
        """Names of monitors with buckets whose last run was before `before`, seconds; not those that never ran."""
        query = sa.select(series.c.monitor).join(monitors, monitors.c.monitor == series.c.monitor).distinct()
        has_any = sa.exists().where(buckets.c.series_id == series.c.id)
        return sorted(name for (name,) in self.rows(query.where(monitors.c.last_attempt_at < before, has_any)))

    def oldest_fine(self, monitor: str, spans: Sequence[Span]) -> int | None:
        """Start of the oldest bucket in `spans` at its series' own width; None without any."""
        is_there = buckets.c.mark.is_distinct_from("refused")
        with self.reading() as connection:
            of_each = [(*one.fine, is_there) for one in _series(connection, monitor)]
            starts = (min(_oldest(connection, of_each, span), default=None) for span in spans)
            return next((start for start in starts if start is not None), None)

    def lacking(self, monitor: str, start: int, seconds: int) -> dict[str, str]:
        """Definition -> why its buckets in [start, start + seconds) cannot be rolled up; empty if they can.

        For each series with buckets there. A missing, open or marked bucket, or a dimension that only some buckets
        know, keeps a series as it is: the sum would not describe the whole span.
        """
        span, said = (start, start + seconds), {}
        with self.reading() as connection:
            for one in _finer(connection, monitor, seconds):
                found, _ = _found(connection, one, span)
                if len(found.starts):
                    said[one.definition] = _lacking(connection, one, span, found)
        return said

    def roll_up(self, lease: Lease, start: int, seconds: int, checkpoint: VerdictCheckpoint | None = None) -> bool:
        """Whether any series was rolled up: one coarser bucket replaces those in [start, start + seconds).

        An existing coarser bucket of the same span is older than the buckets read since, and is deleted.

        Args:
            checkpoint: where evaluating again begins if a series it depends on is rolled up; None: unchanged.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was changed.
        """
        span = start, start + seconds
        with self._leases.fenced(lease) as connection:
            finer = _finer(connection, lease.monitor, seconds)
            done = {one.definition for one in finer if _roll_up(connection, one, span)}
            if checkpoint is not None and not done.isdisjoint(checkpoint.series):
                put_oldest(connection, self.dialect, lease.monitor, checkpoint)
        return bool(done)


_NEWEST_BUSY = (
    sa.select(_start + sa.case((IS_FINE, sa.bindparam("width", type_=sa.BigInteger)), else_=buckets.c.seconds))
    .join(traffic)
    .where(buckets.c.series_id == sa.bindparam("number"), sa.bindparam("before", type_=sa.BigInteger) > _start)
    .where(traffic.c.requests > 0)
    .order_by(_start.desc())
    .limit(1)
)
_BUSY_SINCE = (
    sa.select(_start)
    .join(traffic)
    .where(buckets.c.series_id == sa.bindparam("number"), IS_FINE, _start >= SINCE, traffic.c.requests > 0)
    .order_by(_start.desc())
    .limit(1)
)
_ROLLED_UP = sa.select(sa.func.min(_start), sa.func.max(_end)).where(*COARSE, _start < UNTIL, _end > SINCE)
_OLDEST_FINE = sa.select(_start).where(*FINE, _start >= SINCE).order_by(_start).limit(1)
_SERIES = sa.select(series.c.id, series.c.bucket_seconds, series.c.kernel, series.c.definition).where(
    series.c.monitor == MONITOR
)


def _series(connection: sa.Connection, monitor: str) -> list[_Series]:
    return [_Series(*row) for row in connection.execute(_SERIES, {"monitor": monitor})]


def _finer(connection: sa.Connection, monitor: str, seconds: int) -> list[_Series]:
    """The series of a monitor with several buckets in `seconds`."""
    return [one for one in _series(connection, monitor) if seconds % one.width == 0 and one.width < seconds]


def _oldest(
    connection: sa.Connection, of_each: Sequence[tuple[sa.ColumnElement[bool], ...]], span: Span
) -> Iterator[int]:
    """For each set of conditions, the start of the oldest bucket in a span that meets it."""
    for conditions in of_each:
        query = sa.select(_start).where(*conditions, *_within(span)).order_by(_start).limit(1)
        if (start := connection.scalar(query)) is not None:
            yield int(start)


def _within(span: Span) -> tuple[sa.ColumnElement[bool], ...]:
    return _start >= span[0], _start < span[1]


def _roll_up(connection: sa.Connection, one: _Series, span: Span) -> bool:
    found, numbers = _found(connection, one, span)
    if not len(found.starts) or _lacking(connection, one, span, found):
        return False
    fine, bucket = (*one.fine, *_within(span)), _coarse_bucket(connection, one, span)
    if one.kernel == TRAFFIC:
        inside, c = sa.select(buckets.c.id).where(*fine), refusals.c
        query = sa.select(c.slice_id, c.reason, sa.func.sum(c.rows)).where(c.bucket_id.in_(inside))
        refused = connection.execute(query.group_by(c.slice_id, c.reason))
        if rows := [{"bucket_id": bucket, "slice_id": of, "reason": why, "rows": int(n)} for of, why, n in refused]:
            connection.execute(refusals.insert(), rows)
    summed = _summed(found, numbers, one.kernel)
    connection.execute(table_of(one.kernel).insert(), [{"bucket_id": bucket} | row for row in summed])
    connection.execute(buckets.delete().where(*fine))
    return True


def _coarse_bucket(connection: sa.Connection, one: _Series, span: Span) -> int:
    connection.execute(buckets.delete().where(*one.coarse, _start == span[0]))
    read_at = connection.scalar(sa.select(sa.func.max(buckets.c.read_at)).where(*one.fine, *_within(span)))
    row = {"series_id": one.id, "bucket_start": span[0], "seconds": span[1] - span[0], "read_at": read_at}
    key: Any = connection.execute(buckets.insert().values(row | {"final": True})).inserted_primary_key
    return int(key[0])


def _found(connection: sa.Connection, one: _Series, span: Span) -> tuple[History, dict[SliceKey, int]]:
    query = sums_of(one.kernel).add_columns(table_of(one.kernel).c.slice_id).where(*one.fine, *_within(span))
    rows = connection.execute(query).all()
    *columns, ids = zip(*rows, strict=True) if rows else [()] * (5 + len(fields_of(one.kernel)))
    numbers = dict(zip(zip(columns[2], columns[3], strict=True), ids, strict=True))
    return History.of(columns, len(columns) - 4), numbers


def _lacking(connection: sa.Connection, one: _Series, span: Span, found: History) -> str:
    marked = sa.select(buckets.c.id).where(*one.fine, *_within(span), buckets.c.mark.is_not(None))
    same = sa.and_(_start == span[0], buckets.c.seconds == span[1] - span[0])
    other = sa.select(buckets.c.id).where(*one.coarse, _start < span[1], _end > span[0], ~same)
    if len(found.starts) != (span[1] - span[0]) // one.width:
        return "a bucket is missing"
    if not found.final.all():
        return "a bucket is not final"
    if connection.execute(marked.limit(1)).first() is not None:
        return "a bucket was refused, or its labels are pending"
    if not _is_even(found):
        return "a dimension was added within"
    return "there is a coarser bucket with a different length" if connection.execute(other.limit(1)).first() else ""


def _is_even(found: History) -> bool:
    busy = found.kept[found.sums[:, 0, 0] > 0]
    return bool((busy == busy[:1]).all())


def _summed(found: History, numbers: Mapping[SliceKey, int], kernel: str) -> Iterator[dict[str, Any]]:
    sums = found.sums.sum(axis=0).astype(np.int64 if kernel == TRAFFIC else np.float64)
    for key, row in zip(found.slices, sums, strict=True):
        yield {"slice_id": numbers[key], **dict(zip(fields_of(kernel), row.tolist(), strict=True))}
