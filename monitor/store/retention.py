"""Old buckets: rolled up into coarser ones, and forgotten. Each step is one short transaction, fenced by the lease.

A step that is cut short never was, and one that is repeated finds nothing left to do.
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
from monitor.series.retention import Span
from monitor.series.windows import History, SliceKey
from monitor.store.engine import Connected
from monitor.store.lease import Lease, Leases
from monitor.store.naming import COARSE, FINE, IS_FINE, MONITOR, SINCE, UNTIL, fields_of, identity, sums_of, table_of
from monitor.store.schema import buckets, monitors, partials, refusals, series, traffic
from monitor.store.verdicts import put_oldest
from monitor.types import TRAFFIC, Definition

DAY = 86_400
EVER = 1 << 62

WITNESSES = 7
"""Days with requests that must be stored of a time before anything is old by it."""

_start, _end = buckets.c.bucket_start, buckets.c.bucket_start + buckets.c.seconds


@dataclass(frozen=True)
class Holding:
    """How much is stored of a monitor, former definitions included.

    Attributes:
        rows: of partials and traffic, one for each series, bucket and slice.
        coarse_rows: how many of them are of coarser buckets.
        oldest: start of the oldest bucket, seconds; None if there is none.
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
        """Its buckets, of coarser ones those that end by then."""
        return buckets.c.series_id == self.id, sa.or_(buckets.c.seconds == 0, _end <= until)


class BucketRetention(Connected):
    """What becomes of the buckets of a monitor with time. Everything may raise StoreError."""

    def __init__(self, engine: sa.Engine, url: URL, leases: Leases) -> None:
        super().__init__(engine, url)
        self._leases = leases

    # ---- what time it is -------------------------------------------------------------------------------------

    def present(self, now: float, monitor: str | None = None) -> float:
        """Seconds from which the age of what may be forgotten counts: `now`, as far as stored requests bear it out.

        A clock may be years ahead, for a moment or for days, and what was deleted by it would be gone for good. So no
        time counts as passed after the newest requests of a monitor, nor later than so many days after the seventh
        newest day that has any: the few requests that the same clock dated, or a wrong one elsewhere, prove nothing.

        Args:
            now: seconds of the data's clock.
            monitor: by whose requests; None: by those of the monitor that is furthest.

        Returns:
            0 where fewer days have requests.
        """
        found = 0.0
        with self.at_once():
            for name in self._monitors() if monitor is None else [monitor]:
                found = max(found, min(now, self._borne_out(name, now)))
                if found >= now - DAY:
                    break
        return found

    def behind(self, now: float, monitor: str) -> int | None:
        """End of the newest requests stored of a monitor, seconds, if they show that it is later than `now`; else None.

        They do where most buckets since then have requests, or since the oldest bucket that has any, if that is later.
        A clock that ran ahead would have found few requests, or none: they had not been made.
        """
        with self.at_once():
            ends = [self._shown_later(one, now) for one in self._counted(monitor)]
        return max((end for end in ends if end is not None), default=None)

    def is_begun(self, monitor: str) -> bool:
        """Whether any request of a monitor is stored."""
        with self.at_once():
            return any(self._newest_busy(one, EVER) is not None for one in self._counted(monitor))

    def newest(self, now: float) -> int:
        """End of the newest bucket with requests of any monitor, but for what is dated after the day of `now`; or 0."""
        until = bucket_of(int(now), DAY) + DAY
        with self.at_once():
            counted = (one for name in self._monitors() for one in self._counted(name))
            return max((self._newest_busy(one, until) or 0 for one in counted), default=0)

    def _monitors(self) -> list[str]:
        return [name for (name,) in self.rows(sa.select(series.c.monitor).distinct())]

    def _counted(self, monitor: str) -> list[_Series]:
        """The series of its traffic."""
        with self.reading() as connection:
            return [one for one in _series(connection, monitor) if one.kernel == TRAFFIC]

    def _borne_out(self, monitor: str, now: float) -> int:
        """Up to when the requests of a monitor bear out that time has passed, seconds; 0 if on too few days."""
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
        """End of the newest bucket with requests of a series of traffic, if they show that it is later than `now`."""
        since = bucket_of(int(now + CLOCK_TOLERANCE), one.width)
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
        """End of the newest bucket of a series of traffic before then that has requests; None without one."""
        return self.integer(_NEWEST_BUSY, number=one.id, width=one.width, before=before)

    # ---- what there is ---------------------------------------------------------------------------------------

    def holding(self, monitor: str) -> Holding:
        """How much is stored of a monitor; goes through all of it."""
        numbers, of_it = (sa.func.count(), sa.func.count().filter(~IS_FINE)), series.c.monitor == MONITOR
        with self.at_once():
            counts = [
                self.rows(
                    sa.select(*numbers).select_from(table).join(buckets).join(series).where(of_it), monitor=monitor
                )
                for table in (partials, traffic)
            ]
            query = sa.select(sa.func.min(_start)).select_from(buckets).join(series)
            oldest = self.integer(query.where(of_it, buckets.c.mark.is_distinct_from("refused")), monitor=monitor)
        return Holding(sum(row[0] for (row,) in counts), sum(row[1] for (row,) in counts), oldest)

    def rolled_up(self, definition: Definition, since: int, until: int) -> Span | None:
        """[first, end) of the coarser buckets of a series that reach into [since, until); None if there are none."""
        ((first, end),) = self.rows(_ROLLED_UP, identity(definition), since=since, until=until)
        return None if first is None else (int(first), int(end))

    def whole_since(self, definition: Definition) -> int | None:
        """Start of the oldest bucket of a series' own width that no coarser one lies after; None if there is none."""
        coarse = self.rolled_up(definition, 0, EVER)
        return self.integer(_OLDEST_FINE, identity(definition), since=0 if coarse is None else coarse[1])

    def coarse(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> dict[int, History]:
        """Seconds -> coarser buckets of that length, of a series, that reach into [since, until)."""
        query = sums_of(definition.kernel, None, overall_only).add_columns(buckets.c.seconds)
        query = query.where(*COARSE, _start < UNTIL, _end > SINCE)
        found = self.columns(query, identity(definition) | {"since": since, "until": until})
        *columns, seconds = found or [[] for _ in range(5 + len(fields_of(definition.kernel)))]
        at = {length: [i for i, other in enumerate(seconds) if other == length] for length in sorted(set(seconds))}
        return {
            int(length): History.of([[column[i] for i in some] for column in columns], len(columns) - 4)
            for length, some in at.items()
        }

    # ---- forgetting ------------------------------------------------------------------------------------------

    def oldest_day(self, monitor: str, spans: Sequence[Span]) -> tuple[Span, int] | None:
        """(Where the oldest buckets in `spans` lie, at most a day of them; end of that span); None without any."""
        with self.reading() as connection:
            every = _series(connection, monitor)
            for since, until in spans:
                starts = _oldest(connection, [one.ending_by(until) for one in every], (since, until))
                if (oldest := min(starts, default=None)) is not None:
                    return (oldest, min(until, bucket_of(oldest, DAY) + DAY)), until
        return None

    def forget(self, lease: Lease, stretch: Span, until: int, checkpoint: VerdictCheckpoint | None = None) -> None:
        """Forget the buckets of a stretch; of coarser ones that begin there, those that end by `until`.

        Args:
            checkpoint: where judging the past again begins from now on; None: where it did.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was forgotten.
        """
        with self._leases.fenced(lease) as connection:
            for one in _series(connection, lease.monitor):
                connection.execute(buckets.delete().where(*one.ending_by(until), *_within(stretch)))
            if checkpoint is not None:
                put_oldest(connection, self.dialect, lease.monitor, checkpoint)

    def abandoned(self, before: float) -> list[str]:
        """Names of the monitors with buckets whose last run was before then, seconds; not those that never ran."""
        query = sa.select(series.c.monitor).join(monitors, monitors.c.monitor == series.c.monitor).distinct()
        has_any = sa.exists().where(buckets.c.series_id == series.c.id)
        return sorted(name for (name,) in self.rows(query.where(monitors.c.last_attempt_at < before, has_any)))

    # ---- rolling up ------------------------------------------------------------------------------------------

    def oldest_fine(self, monitor: str, spans: Sequence[Span]) -> int | None:
        """Start of the oldest bucket in `spans` that is of its series' own width; None if there is none."""
        is_there = buckets.c.mark.is_distinct_from("refused")
        with self.reading() as connection:
            of_each = [(*one.fine, is_there) for one in _series(connection, monitor)]
            starts = (min(_oldest(connection, of_each, span), default=None) for span in spans)
            return next((start for start in starts if start is not None), None)

    def lacking(self, monitor: str, start: int, seconds: int) -> dict[str, str]:
        """Definition -> why its buckets in [start, start + seconds) cannot be one, empty if they can.

        Of each series that has buckets there. A series of which one is missing, open or marked, or of whose buckets
        only some know a dimension, stays as it is: what is read of it could not be told of the whole any more.
        """
        span, said = (start, start + seconds), {}
        with self.reading() as connection:
            for one in _finer(connection, monitor, seconds):
                found, _ = _found(connection, one, span)
                if len(found.starts):
                    said[one.definition] = _lacking(connection, one, span, found)
        return said

    def roll_up(self, lease: Lease, start: int, seconds: int, checkpoint: VerdictCheckpoint | None = None) -> bool:
        """Put one coarser bucket in place of those in [start, start + seconds), of each series that lacks nothing.

        A coarser bucket of the same span that is there already is older than the buckets that were read since, and
        goes.

        Args:
            checkpoint: where judging again begins if a series that it rests on was rolled up; None: where it did.

        Returns:
            Whether any series was rolled up.

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
    """All series of a monitor, those of former definitions too."""
    return [_Series(*row) for row in connection.execute(_SERIES, {"monitor": monitor})]


def _finer(connection: sa.Connection, monitor: str, seconds: int) -> list[_Series]:
    """The series of a monitor of which several buckets make one of so many seconds."""
    return [one for one in _series(connection, monitor) if seconds % one.width == 0 and one.width < seconds]


def _oldest(
    connection: sa.Connection, of_each: Sequence[tuple[sa.ColumnElement[bool], ...]], span: Span
) -> Iterator[int]:
    """Start of the oldest bucket in a span that meets each of the conditions, where there is one."""
    for conditions in of_each:
        query = sa.select(_start).where(*conditions, *_within(span)).order_by(_start).limit(1)
        if (start := connection.scalar(query)) is not None:
            yield int(start)


def _within(span: Span) -> tuple[sa.ColumnElement[bool], ...]:
    return _start >= span[0], _start < span[1]


def _roll_up(connection: sa.Connection, one: _Series, span: Span) -> bool:
    """Whether it was done, of one series."""
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
    """The number of a new bucket of a span, in place of one that was there."""
    connection.execute(buckets.delete().where(*one.coarse, _start == span[0]))
    read_at = connection.scalar(sa.select(sa.func.max(buckets.c.read_at)).where(*one.fine, *_within(span)))
    row = {"series_id": one.id, "bucket_start": span[0], "seconds": span[1] - span[0], "read_at": read_at}
    key: Any = connection.execute(buckets.insert().values(row | {"final": True})).inserted_primary_key
    return int(key[0])


def _found(connection: sa.Connection, one: _Series, span: Span) -> tuple[History, dict[SliceKey, int]]:
    """The buckets of a series in a span, and the numbers of their slices."""
    query = sums_of(one.kernel).add_columns(table_of(one.kernel).c.slice_id).where(*one.fine, *_within(span))
    rows = connection.execute(query).all()
    *columns, ids = zip(*rows, strict=True) if rows else [()] * (5 + len(fields_of(one.kernel)))
    numbers = dict(zip(zip(columns[2], columns[3], strict=True), ids, strict=True))
    return History.of(columns, len(columns) - 4), numbers


def _lacking(connection: sa.Connection, one: _Series, span: Span, found: History) -> str:
    """Why the buckets of a span cannot be one; empty if they can."""
    marked = sa.select(buckets.c.id).where(*one.fine, *_within(span), buckets.c.mark.is_not(None))
    same = sa.and_(_start == span[0], buckets.c.seconds == span[1] - span[0])
    other = sa.select(buckets.c.id).where(*one.coarse, _start < span[1], _end > span[0], ~same)
    if len(found.starts) != (span[1] - span[0]) // one.width:
        return "a bucket is missing"
    if not found.final.all():
        return "a bucket is not final"
    if connection.execute(marked.limit(1)).first() is not None:
        return "a bucket was refused, or its labels are awaited"
    if not _is_even(found):
        return "a dimension was added within"
    return "a coarser bucket of another length is there" if connection.execute(other.limit(1)).first() else ""


def _is_even(found: History) -> bool:
    """Whether every bucket with requests was read by the same dimensions."""
    busy = found.kept[found.sums[:, 0, 0] > 0]
    return bool((busy == busy[:1]).all())


def _summed(found: History, numbers: Mapping[SliceKey, int], kernel: str) -> Iterator[dict[str, Any]]:
    sums = found.sums.sum(axis=0).astype(np.int64 if kernel == TRAFFIC else np.float64)
    for key, row in zip(found.slices, sums, strict=True):
        yield {"slice_id": numbers[key], **dict(zip(fields_of(kernel), row.tolist(), strict=True))}
