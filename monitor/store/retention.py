"""Old buckets: rolled up into coarser ones, and forgotten. Each step is one short transaction, fenced by the lease.

A step that is cut short never was, and one that is repeated finds nothing left to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.series.finality import CLOCK_TOLERANCE
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, bucket_of
from monitor.series.retention import Span
from monitor.series.windows import History, SliceKey
from monitor.store.engine import Connected
from monitor.store.lease import Lease, Leases
from monitor.store.naming import IS_NAMED, MONITOR, identity, table_of
from monitor.store.schema import (
    bucket_marks,
    coarse_partials,
    coarse_traffic,
    judgments_used,
    monitors,
    partials,
    refusals,
    row_counts,
    series,
    slices,
    traffic,
)
from monitor.store.verdicts import VerdictCheckpoint, put_oldest
from monitor.types import TRAFFIC, Definition

DAY = 86_400

WITNESSES = 7
"""Days with requests that must be stored of a time before anything is old by it."""

_FINE = (partials, traffic, refusals, judgments_used, bucket_marks, row_counts)
_COARSE = (coarse_partials, coarse_traffic)


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
    is_traffic: bool
    definition: str


class BucketRetention(Connected):
    """What becomes of the buckets of a monitor with time."""

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
            0 where fewer days have requests. Raises StoreError.
        """
        found = 0.0
        with self.reading() as connection:
            names = connection.scalars(sa.select(series.c.monitor).distinct()).all() if monitor is None else [monitor]
            for name in names:
                found = max(found, min(now, _borne_out(connection, name, now)))
                if found >= now - DAY:
                    break
        return found

    def behind(self, now: float, monitor: str) -> int | None:
        """End of the newest requests stored of a monitor, seconds, if they show that it is later than `now`; else None.

        They do where most buckets since then have requests, or since the oldest bucket that has any, if that is later.
        A clock that ran ahead would have found few requests, or none: they had not been made.

        Raises:
            StoreError: the store is out of reach.
        """
        with self.reading() as connection:
            counted = [one for one in _series(connection, monitor) if one.is_traffic]
            return max(
                (end for one in counted if (end := _shown_later(connection, one, now)) is not None), default=None
            )

    def is_begun(self, monitor: str) -> bool:
        """Whether any request of a monitor is stored. Raises StoreError."""
        with self.reading() as connection:
            counted = [one for one in _series(connection, monitor) if one.is_traffic]
            return any(_newest_busy(connection, one, 1 << 62) is not None for one in counted)

    def newest(self, now: float) -> int:
        """End of the newest bucket with requests of any monitor, seconds, but for what is dated after the day of `now`.

        Returns:
            0 without one. Raises StoreError.
        """
        with self.reading() as connection:
            names = connection.scalars(sa.select(series.c.monitor).distinct()).all()
            counted = [one for name in names for one in _series(connection, name) if one.is_traffic]
            until = bucket_of(int(now), DAY) + DAY
            return max((_newest_busy(connection, one, until) or 0 for one in counted), default=0)

    # ---- what there is ---------------------------------------------------------------------------------------

    def holding(self, monitor: str) -> Holding:
        """How much is stored of a monitor; goes through all of it. Raises StoreError."""
        with self.reading() as connection:
            ids = [one.id for one in _series(connection, monitor)]
            counts = [_count(connection, table, ids) for table in (partials, traffic, *_COARSE)]
            oldest = [_oldest(connection, table, ids, 0, 1 << 62) for table in (partials, traffic, *_COARSE)]
        known = [start for start in oldest if start is not None]
        return Holding(sum(counts), sum(counts[2:]), min(known, default=None))

    def rolled_up(self, definition: Definition, since: int, until: int) -> Span | None:
        """[first, end) of the coarser buckets of a series that reach into [since, until); None if there are none."""
        table = _coarse_table(definition.kernel == TRAFFIC)
        end = table.c.bucket_start + table.c.seconds
        query = (
            sa.select(sa.func.min(table.c.bucket_start), sa.func.max(end))
            .join(series, series.c.id == table.c.series_id)
            .where(*IS_NAMED, table.c.bucket_start < until, end > since)
        )
        with self.reading() as connection:
            first, last = connection.execute(query, identity(definition)).one()
        return None if first is None else (int(first), int(last))

    def whole_since(self, definition: Definition) -> int | None:
        """Start of the oldest bucket of a series' own width that no coarser one lies after; None if there is none."""
        coarse, table = self.rolled_up(definition, 0, 1 << 62), table_of(definition)
        query = (
            sa.select(sa.func.min(table.c.bucket_start))
            .join(series, series.c.id == table.c.series_id)
            .where(*IS_NAMED, table.c.bucket_start >= (0 if coarse is None else coarse[1]))
        )
        with self.reading() as connection:
            first: int | None = connection.scalar(query, identity(definition))
        return first

    def coarse(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> dict[int, History]:
        """Seconds -> coarser buckets of that length, of a series, that reach into [since, until)."""
        is_traffic = definition.kernel == TRAFFIC
        table, fields = _coarse_table(is_traffic), TRAFFIC_FIELDS if is_traffic else FIELDS
        query = (
            sa.select(table.c.seconds, table.c.bucket_start, sa.true(), slices.c.dimension, slices.c.value)
            .add_columns(*(table.c[f] for f in fields))
            .join(series, series.c.id == table.c.series_id)
            .join(slices, slices.c.id == table.c.slice_id)
            .where(*IS_NAMED, table.c.bucket_start < until, table.c.bucket_start + table.c.seconds > since)
        )
        if overall_only:
            query = query.where(slices.c.dimension == "")
        seconds, *columns = self.columns(query, identity(definition)) or [[] for _ in range(5 + len(fields))]
        found = {}
        for length in sorted(set(seconds)):
            kept = [at for at, other in enumerate(seconds) if other == length]
            found[int(length)] = History.of([[column[at] for at in kept] for column in columns], len(fields))
        return found

    # ---- forgetting ------------------------------------------------------------------------------------------

    def oldest_day(self, monitor: str, spans: Sequence[Span]) -> tuple[Span, int] | None:
        """(Where the oldest buckets in `spans` lie, a day of them at most; end of that span); None if there are none.

        Raises:
            StoreError: the store is out of reach.
        """
        with self.reading() as connection:
            ids = [one.id for one in _series(connection, monitor)]
            for since, until in spans:
                starts = [_oldest(connection, table, ids, since, until) for table in (*_FINE, *_COARSE)]
                if oldest := [start for start in starts if start is not None]:
                    return (min(oldest), min(until, bucket_of(min(oldest), DAY) + DAY)), until
        return None

    def forget(self, lease: Lease, stretch: Span, until: int, checkpoint: VerdictCheckpoint | None = None) -> None:
        """Forget the buckets of a stretch; of coarser ones that begin there, those that end by `until`.

        Args:
            checkpoint: where judging anew begins from now on; None: where it did.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was forgotten.
        """
        with self._leases.fenced(lease) as connection:
            ids = [one.id for one in _series(connection, lease.monitor)]
            for table in _FINE:
                connection.execute(table.delete().where(table.c.series_id.in_(ids), *_within(table, stretch)))
            for table in _COARSE:
                inside = (table.c.series_id.in_(ids), *_within(table, stretch), _ends_by(table, until))
                connection.execute(table.delete().where(*inside))
            if checkpoint is not None:
                put_oldest(connection, self.dialect, lease.monitor, checkpoint)

    def abandoned(self, before: float) -> list[str]:
        """Names of the monitors with buckets that were run since then by nobody, in seconds; not those that never were.

        Raises:
            StoreError: the store is out of reach.
        """
        query = sa.select(series.c.monitor).join(monitors, monitors.c.monitor == series.c.monitor).distinct()
        has_any = (sa.exists().where(table.c.series_id == series.c.id) for table in (*_FINE, *_COARSE))
        with self.reading() as connection:
            return sorted(connection.scalars(query.where(monitors.c.last_attempt_at < before, sa.or_(*has_any))))

    # ---- rolling up ------------------------------------------------------------------------------------------

    def oldest_fine(self, monitor: str, spans: Sequence[Span]) -> int | None:
        """Start of the oldest bucket in `spans` that is of its series' own width; None if there is none."""
        with self.reading() as connection:
            ids = [one.id for one in _series(connection, monitor)]
            for span in spans:
                starts = [_oldest(connection, table, ids, *span) for table in (partials, traffic)]
                if known := [start for start in starts if start is not None]:
                    return min(known)
        return None

    def lacking(self, monitor: str, start: int, seconds: int) -> dict[str, str]:
        """Definition -> why its buckets in [start, start + seconds) cannot be one, empty if they can.

        Of each series that has buckets there. A series of which one is missing, open or marked, or of whose buckets
        only some know a dimension, stays as it is: what is read of it could not be told of the whole any more.

        Raises:
            StoreError: the store is out of reach.
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
            checkpoint: where judging anew begins if a series that it rests on was rolled up; None: where it did.

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


def _roll_up(connection: sa.Connection, one: _Series, span: Span) -> bool:
    """Whether it was done, of one series."""
    found, numbers = _found(connection, one, span)
    if not len(found.starts) or _lacking(connection, one, span, found):
        return False
    fine, fields = _fine_table(one.is_traffic), TRAFFIC_FIELDS if one.is_traffic else FIELDS
    coarse = _coarse_table(one.is_traffic)
    connection.execute(coarse.delete().where(coarse.c.series_id == one.id, coarse.c.bucket_start == span[0]))
    place = {"series_id": one.id, "bucket_start": span[0], "seconds": span[1] - span[0]}
    connection.execute(coarse.insert(), [place | row for row in _summed(found, numbers, fields, one.is_traffic)])
    connection.execute(fine.delete().where(fine.c.series_id == one.id, *_within(fine, span)))
    if one.is_traffic:
        _gather_refusals(connection, one.id, span)
    return True


def _found(connection: sa.Connection, one: _Series, span: Span) -> tuple[History, dict[SliceKey, int]]:
    """The buckets of a series in a span, and the numbers of their slices."""
    fine, fields = _fine_table(one.is_traffic), TRAFFIC_FIELDS if one.is_traffic else FIELDS
    query = sa.select(fine.c.bucket_start, fine.c.final, slices.c.dimension, slices.c.value)
    query = query.add_columns(*(fine.c[name] for name in fields), fine.c.slice_id)
    query = query.join(slices, slices.c.id == fine.c.slice_id)
    rows = connection.execute(query.where(fine.c.series_id == one.id, *_within(fine, span))).all()
    *columns, ids = zip(*rows, strict=True) if rows else [()] * (5 + len(fields))
    numbers = dict(zip(zip(columns[2], columns[3], strict=True), ids, strict=True))
    return History.of(columns, len(fields)), numbers


def _lacking(connection: sa.Connection, one: _Series, span: Span, found: History) -> str:
    """Why the buckets of a span cannot be one; empty if they can."""
    marks, coarse = bucket_marks.c, _coarse_table(one.is_traffic)
    marked = sa.select(marks.bucket_start).where(marks.series_id == one.id, *_within(bucket_marks, span))
    over = coarse.c.bucket_start < span[1], coarse.c.bucket_start + coarse.c.seconds > span[0]
    same = sa.and_(coarse.c.bucket_start == span[0], coarse.c.seconds == span[1] - span[0])
    other = sa.select(coarse.c.bucket_start).where(coarse.c.series_id == one.id, *over, ~same)
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


def _summed(
    found: History, numbers: Mapping[SliceKey, int], fields: Sequence[str], is_traffic: bool
) -> list[dict[str, Any]]:
    sums = found.sums.sum(axis=0)
    kind = np.int64 if is_traffic else np.float64
    rows = ((numbers[key], row.astype(kind).tolist()) for key, row in zip(found.slices, sums, strict=True))
    return [{"slice_id": number, **dict(zip(fields, row, strict=True))} for number, row in rows]


def _gather_refusals(connection: sa.Connection, series_id: int, span: Span) -> None:
    """Count what was refused of a span at its beginning."""
    c = refusals.c
    inside = c.series_id == series_id, *_within(refusals, span)
    query = sa.select(c.slice_id, c.reason, sa.func.sum(c.rows)).where(*inside).group_by(c.slice_id, c.reason)
    key = {"series_id": series_id, "bucket_start": span[0]}
    rows = [{**key, "slice_id": of, "reason": why, "rows": int(n)} for of, why, n in connection.execute(query)]
    connection.execute(refusals.delete().where(*inside))
    if rows:
        connection.execute(refusals.insert(), rows)


_SERIES = sa.select(series.c.id, series.c.bucket_seconds, series.c.kernel, series.c.definition).where(
    series.c.monitor == MONITOR
)
_NEWEST_BUSY = [
    sa.select(table.c.bucket_start + seconds)
    .where(table.c.series_id == sa.bindparam("number"), table.c.bucket_start < sa.bindparam("before"))
    .where(table.c.requests > 0)
    .order_by(table.c.bucket_start.desc())
    .limit(1)
    for table, seconds in (
        (traffic, sa.bindparam("width", type_=sa.BigInteger)),
        (coarse_traffic, coarse_traffic.c.seconds),
    )
]

_BUSY_SINCE = (
    sa.select(traffic.c.bucket_start)
    .where(traffic.c.series_id == sa.bindparam("number"), traffic.c.bucket_start >= sa.bindparam("since"))
    .where(traffic.c.requests > 0)
    .order_by(traffic.c.bucket_start.desc())
    .limit(1)
)


def _series(connection: sa.Connection, monitor: str) -> list[_Series]:
    """All series of a monitor, those of former definitions too."""
    rows = connection.execute(_SERIES, {"monitor": monitor})
    return [_Series(number, width, kernel == TRAFFIC, definition) for number, width, kernel, definition in rows]


def _finer(connection: sa.Connection, monitor: str, seconds: int) -> list[_Series]:
    """The series of a monitor of which several buckets make one of so many seconds."""
    return [one for one in _series(connection, monitor) if seconds % one.width == 0 and one.width < seconds]


def _borne_out(connection: sa.Connection, monitor: str, now: float) -> int:
    """Up to when the requests of a monitor bear out that time has passed, seconds; 0 if on too few days."""
    counted = [one for one in _series(connection, monitor) if one.is_traffic]
    step = max((DAY, *(one.width for one in counted)))
    newest, until = 0, bucket_of(int(now), step) + step
    for _ in range(WITNESSES):
        ends = [end for one in counted if (end := _newest_busy(connection, one, until)) is not None]
        if not ends:
            return 0
        newest, until = max(newest, *ends), bucket_of(max(ends) - 1, step)
    return min(newest, until + WITNESSES * step)


def _shown_later(connection: sa.Connection, one: _Series, now: float) -> int | None:
    """End of the newest bucket with requests of a series of traffic, if they show that it is later than `now`."""
    table, since = traffic, bucket_of(int(now + CLOCK_TOLERANCE), one.width)
    newest = connection.scalar(_BUSY_SINCE, {"number": one.id, "since": since})
    if newest is None:
        return None
    busy = sa.select(table.c.bucket_start).where(table.c.series_id == one.id, table.c.requests > 0)
    since = max(since, connection.scalars(busy.order_by(table.c.bucket_start).limit(1)).one())
    later = busy.where(table.c.bucket_start >= since).distinct().subquery()
    number = connection.execute(sa.select(sa.func.count()).select_from(later)).scalar_one()
    end = int(newest) + one.width
    return end if 2 * number * one.width >= end - since else None


def _newest_busy(connection: sa.Connection, one: _Series, before: int) -> int | None:
    """End of the newest bucket of a series of traffic that begins before then and has requests; None without one."""
    asked = {"number": one.id, "width": one.width, "before": before}
    ends = [connection.scalar(query, asked) for query in _NEWEST_BUSY]
    return max((int(end) for end in ends if end is not None), default=None)


def _count(connection: sa.Connection, table: sa.Table, ids: Sequence[int]) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(table.c.series_id.in_(ids))
    return int(connection.execute(query).scalar_one())


def _oldest(connection: sa.Connection, table: sa.Table, ids: Sequence[int], since: int, until: int) -> int | None:
    """Start of the oldest bucket in [since, until), asked series by series, for which the key is enough."""
    starts = []
    for number in ids:
        inside = [table.c.series_id == number, *_within(table, (since, until))]
        inside += [_ends_by(table, until)] if table in _COARSE else []
        query = sa.select(table.c.bucket_start).where(*inside).order_by(table.c.bucket_start).limit(1)
        starts.append(connection.execute(query).scalar())
    return min((int(start) for start in starts if start is not None), default=None)


def _within(table: sa.Table, span: Span) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.bucket_start >= span[0], table.c.bucket_start < span[1]


def _ends_by(table: sa.Table, until: int) -> sa.ColumnElement[bool]:
    return table.c.bucket_start + table.c.seconds <= until


def _fine_table(is_traffic: bool) -> sa.Table:
    return traffic if is_traffic else partials


def _coarse_table(is_traffic: bool) -> sa.Table:
    return coarse_traffic if is_traffic else coarse_partials
