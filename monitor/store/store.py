"""What was computed and until when.

Every write is one transaction, fenced by the writer's lease, and replaces whole buckets; so a write that is repeated
changes nothing, and one that is cut short never was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.series.finality import CLOCK_TOLERANCE, BucketState
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, Partials
from monitor.series.slices import Gap, SliceRegistry
from monitor.series.windows import History
from monitor.store.alerts import Alerts
from monitor.store.bucket_writes import Replacing
from monitor.store.engine import Connected, blaming_damage, create, upserting
from monitor.store.lease import IS_HELD, Lease, Leases, named_in
from monitor.store.migrate import Schema
from monitor.store.naming import (
    IS_NAMED,
    MONITOR,
    NUMBER,
    current_numbers,
    identity,
    note_current,
    note_places,
    series_number,
    slice_numbers,
    table_of,
)
from monitor.store.outbox import Outbox
from monitor.store.records import Records
from monitor.store.retention import BucketRetention
from monitor.store.schema import (
    bucket_marks,
    judged,
    monitors,
    refusals,
    restatements,
    row_counts,
    series,
    slice_gaps,
    slices,
    traffic,
)
from monitor.store.shrink_guard import gone, shrinking
from monitor.store.verdicts import Verdicts
from monitor.types import FARTHEST, OVERALL, TRAFFIC, Definition, Monitor

DAY = 86_400

HARMLESS = ("early_event", "late_event", "mixed_slice")
"""Reasons for which no row of the rankings is lost."""


@dataclass(frozen=True)
class Progress:
    """What is known of a monitor's runs, by any process; instants in seconds, `refresh` real ones between two runs.

    Who judged it last, by what and in which run: see `schema.monitors`.
    """

    newest_source_at: float | None = None
    last_attempt_at: float | None = None
    last_success_at: float | None = None
    last_error: str = ""
    refresh: float | None = None
    newest_label_at: float | None = None
    judged_by: str | None = None
    judged_as: str | None = None
    judged_run: int | None = None
    audited_at: float | None = None


@dataclass(frozen=True)
class Written:
    """What a write did.

    Attributes:
        buckets: stored by series.
        kept: starts of those that stay as they were because the read held less.
        held: how many stay as they were read before, for the source has no request of them any more.
    """

    buckets: int
    kept: tuple[int, ...]
    held: int = 0


@dataclass(frozen=True)
class Usage:
    """What slices had in the last time that is stored.

    Attributes:
        until: end of what is stored, seconds; 0 where nothing is.
        requests: (dimension, value) -> start of a UTC day -> requests; without the days that had none.
    """

    until: int
    requests: Mapping[tuple[str, str], Mapping[int, int]]


class Store(Connected):
    """The tables of `monitor.store.schema`. Safe to share between threads."""

    def __init__(self, url: URL, lease_seconds: float = 30) -> None:
        """`lease_seconds`: how long a writer that has died keeps others out, at most. Raises StoreError."""
        super().__init__(create(url, lease_seconds), url)
        self.leases = Leases(self.engine, url, lease_seconds)
        self.schema = Schema(self.engine, url)
        self.alerts = Alerts(self.engine, url, self.leases)
        self.outbox = Outbox(self.engine, url)
        self.verdicts = Verdicts(self.engine, url)
        self.records = Records(self.engine, url)
        self.retention = BucketRetention(self.engine, url, self.leases)

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    def blaming_damage(self) -> AbstractContextManager[None]:
        """For a block that works with what is stored: a fault in it is told as the damaged file's, if that is one."""
        return blaming_damage(self.url)

    def hold(self, monitor: str) -> AbstractContextManager[Lease]:
        """The right to write `monitor` for as long as the block runs. Raises LeaseLost while another has it."""
        return self.leases.hold(monitor)

    # ---- what is stored --------------------------------------------------------------------------------------

    def states(self, definition: Definition, since: int) -> dict[int, BucketState]:
        """Start -> state of the buckets of a series from `since` on, and of all older ones that are not settled."""
        named = identity(definition)
        with self.reading() as connection:
            read = connection.execute(_states(table_of(definition)), named | {"since": since})
            found = {start: BucketState(at, bool(final)) for start, at, final in read}
            for start, mark, at in connection.execute(_MARKS, named):
                if start in found or start >= since:
                    found[start] = replace(found.get(start, BucketState(at, False)), mark=mark)
        return found

    def newest_bucket(self, definition: Definition) -> int | None:
        """Start of the newest bucket that is stored of a series."""
        with self.reading() as connection:
            found: int | None = connection.scalar(_newest(table_of(definition)), identity(definition))
        return found

    def settled_end(self, definition: Definition, width: int, since: int = 0, now: float | None = None) -> int | None:
        """End of the newest final bucket of a series that no open one lies before, of those from `since` on.

        With `now`, seconds, what a clock that ran ahead stored counts as open; see `watermark.believed`.
        """
        opened, ahead, newest = _settled(table_of(definition))
        named = identity(definition) | {"since": since}
        with self.reading() as connection:
            if now is None:
                until = connection.scalar(opened, named)
            else:
                until = connection.scalar(ahead, named | {"believed": now + CLOCK_TOLERANCE})
            found = connection.scalar(newest, named | {"until": FARTHEST if until is None else until})
        return None if found is None else int(found) + width

    def first_bucket_of(self, definition: Definition, dimension: str, value: str) -> int | None:
        """Start of the oldest stored bucket with a request of a slice, seconds; None if there is none."""
        table = table_of(definition)
        query = (
            sa.select(sa.func.min(table.c.bucket_start))
            .join(series, series.c.id == table.c.series_id)
            .join(slices, slices.c.id == table.c.slice_id)
            .where(*IS_NAMED, slices.c.dimension == dimension, slices.c.value == value, table.c.requests > 0)
        )
        with self.reading() as connection:
            found: int | None = connection.scalar(query, identity(definition))
        return found

    def oldest_bucket(self, definition: Definition) -> int | None:
        """Start of the oldest bucket that is stored of a series."""
        table = table_of(definition)
        query = sa.select(sa.func.min(table.c.bucket_start)).where(table.c.series_id == NUMBER)
        with self.reading() as connection:
            return connection.execute(query, identity(definition)).scalar()

    def known_slices(self, monitor: str) -> dict[str, set[str]]:
        """Dimension -> values that were admitted."""
        known: dict[str, set[str]] = {}
        with self.reading() as connection:
            for dimension, value in connection.execute(_VALUES, {"monitor": monitor}):
                known.setdefault(dimension, set()).add(value)
        return known

    def places(self, monitor: str) -> SliceRegistry:
        """Which values of each dimension have a place, and when they had none."""
        gaps: dict[tuple[str, str], list[Gap]] = {}
        with self.reading() as connection:
            for dimension, value, since, until in connection.execute(_GAPS, {"monitor": monitor}):
                gaps.setdefault((dimension, value), []).append((since, until))
        return SliceRegistry(self.known_slices(monitor), gaps)

    def usage(self, monitor: str, seconds: int) -> Usage:
        """What the slices of a monitor had in so many seconds up to the end of what is stored, by any definition.

        A day of a slice that is stored by several definitions counts once, by that which has most of it.
        """
        of_it = sa.select(series.c.id, series.c.bucket_seconds)
        of_it = of_it.where(series.c.monitor == monitor, series.c.kernel == TRAFFIC)
        newest = sa.select(sa.func.max(traffic.c.bucket_start))
        of_series: dict[tuple[int, str, str], Counter[int]] = {}
        with self.reading() as connection:
            widths = {number: int(width) for number, width in connection.execute(of_it)}
            last = {n: connection.scalar(newest.where(traffic.c.series_id == n)) for n in widths}
            until = max((start + widths[n] for n, start in last.items() if start is not None), default=0)
            query = (
                sa.select(traffic.c.series_id, slices.c.dimension, slices.c.value)
                .add_columns(traffic.c.bucket_start, traffic.c.requests)
                .join(slices, slices.c.id == traffic.c.slice_id)
                .where(traffic.c.series_id.in_(widths), traffic.c.bucket_start >= until - seconds)
                .where(traffic.c.requests > 0)
            )
            for number, dimension, value, start, requests in connection.execute(query):
                of_series.setdefault((number, dimension, value), Counter())[start - start % DAY] += requests
        found: dict[tuple[str, str], Counter[int]] = {}
        for (_, dimension, value), days in of_series.items():
            found[dimension, value] = found.get((dimension, value), Counter()) | days
        return Usage(until, found)

    def history(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> History:
        """The stored buckets of a series that start in [since, until) seconds."""
        columns = self.partials(definition, since, until, overall_only)
        return History.of(columns, len(columns) - 4)

    def partials(
        self, definition: Definition, since: int, until: int, overall_only: bool = False, most: int | None = None
    ) -> list[list[Any]]:
        """The same as columns of rows in any order: start, final, dimension, value, and all or `most` fields."""
        fields = (TRAFFIC_FIELDS if definition.kernel == TRAFFIC else FIELDS)[:most]
        query, span = _partials(table_of(definition), fields, overall_only), {"since": since, "until": until}
        return self.columns(query, identity(definition) | span) or [[] for _ in range(4 + len(fields))]

    def row_counts(self, definition: Definition, since: int) -> dict[int, int]:
        """Start -> rows that the source had of the buckets from `since` on when they were read as final, if known."""
        with self.reading() as connection:
            found = connection.execute(_ROW_COUNTS, identity(definition) | {"since": since})
            return {start: int(rows) for start, rows in found}

    def refused_by_bucket(self, definition: Definition, since: int, until: int) -> dict[int, int]:
        """Start -> refused rows (overall) of the buckets that start in [since, until); events are no rows."""
        query = (
            sa.select(refusals.c.bucket_start, sa.func.sum(refusals.c.rows))
            .join(series, series.c.id == refusals.c.series_id)
            .join(slices, slices.c.id == refusals.c.slice_id)
            .where(*IS_NAMED, slices.c.dimension == OVERALL[0], refusals.c.reason.not_in(HARMLESS))
            .where(refusals.c.bucket_start >= since, refusals.c.bucket_start < until)
            .group_by(refusals.c.bucket_start)
        )
        with self.reading() as connection:
            return {start: int(rows) for start, rows in connection.execute(query, identity(definition))}

    def refused(self, definition: Definition, since: int, until: int) -> dict[str, int]:
        """Reason -> refused rows (overall) of the buckets that start in [since, until)."""
        query = (
            sa.select(refusals.c.reason, sa.func.sum(refusals.c.rows))
            .join(series, series.c.id == refusals.c.series_id)
            .join(slices, slices.c.id == refusals.c.slice_id)
            .where(*IS_NAMED, slices.c.dimension == OVERALL[0])
            .where(refusals.c.bucket_start >= since, refusals.c.bucket_start < until)
            .group_by(refusals.c.reason)
        )
        with self.reading() as connection:
            return {reason: int(rows) for reason, rows in connection.execute(query, identity(definition))}

    # ---- writing ---------------------------------------------------------------------------------------------

    def write(
        self,
        lease: Lease,
        monitor: Monitor,
        partials: Partials,
        targets: Mapping[Definition, Sequence[int]],
        read_at: float,
        finals: Iterable[int],
        force: bool = False,
        restating: Collection[int] = (),
        awaited: Collection[int] = (),
        counted: Mapping[int, int] = MappingProxyType({}),
    ) -> Written:
        """Store buckets of a partials, for each series those that `targets` names, in one transaction.

        A bucket whose traffic is stored as final is replaced, and one of another series added to it, only by a read
        that holds at least as much, or by `force`: see `shrinking`. That it was refused is noted. One that is open and
        had requests, of which the read has none, stays as it is too: see `gone`.

        Args:
            restating: starts of final buckets that are read again, which is noted.
            awaited: those of `finals` of which that is to be noted; see `watermark.Mark`.
            counted: how many rows the source has of some of `finals`; see `schema.row_counts`.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was stored.
        """
        final = set(finals)
        with self.leases.fenced(lease) as connection:
            numbers = slice_numbers(connection, monitor.name, partials)
            note_places(connection, monitor.name, partials, numbers)
            ids = {d: series_number(connection, monitor, d) for d in targets}
            kept = () if force else shrinking(connection, monitor, targets, partials)
            held = set() if force else gone(connection, monitor, targets, partials).difference(kept)
            stored = 0
            for definition, starts in targets.items():
                wanted = [s for s in starts if s not in kept and s not in held]
                stored = max(stored, len(wanted))
                replacing = Replacing(connection, ids[definition], wanted, numbers)
                replacing.put(definition, partials, read_at, final)
                if definition.kernel == TRAFFIC:
                    replacing.put_refusals(partials)
                    replace(replacing, starts=[s for s in starts if s not in held]).put_row_counts(counted)
                replacing.mark("awaited", awaited, read_at)
                replace(replacing, starts=[s for s in starts if s in held]).hold(definition, read_at, final)
                refused = [s for s in starts if s in kept or (s in held and s in final)]
                replace(replacing, starts=refused).refuse(definition, read_at)
            note_current(connection, monitor)
            if again := len(set(restating) - set(kept)):
                _note_restatement(connection, monitor.name, partials, read_at, force, again)
            _judge_anew(connection, monitor.name, {s for starts in targets.values() for s in starts} - {*kept, *held})
        return Written(stored, kept, len(held))

    def release(self, lease: Lease, values: Collection[tuple[str, str]], since: int) -> None:
        """Have values of a monitor, (dimension, value), give back their places as of an instant, seconds.

        Args:
            since: the end of all that is stored, so that what was read stays as it is whenever it is read again.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was changed.
        """
        wanted = sa.tuple_(slices.c.dimension, slices.c.value).in_(sorted(values))
        with self.leases.fenced(lease) as connection:
            numbers = connection.scalars(sa.select(slices.c.id).where(slices.c.monitor == lease.monitor, wanted))
            rows = [{"slice_id": number, "since": since, "until": None} for number in numbers]
            if rows:
                connection.execute(slice_gaps.insert(), rows)

    def adopt(self, lease: Lease, monitor: Monitor) -> None:
        """Have the view know which series are of the monitor's present definitions. Raises LeaseLost, StoreError."""
        with self.reading() as connection:
            known = current_numbers(connection, monitor)
        if known[0] != known[1]:
            with self.leases.fenced(lease) as connection:
                note_current(connection, monitor)

    # ---- progress --------------------------------------------------------------------------------------------

    def progress(self, monitor: str) -> Progress:
        """What is known of a monitor's runs."""
        with self.reading() as connection:
            row = connection.execute(_PROGRESS, {"monitor": monitor}).one_or_none()
        return Progress(*row) if row is not None else Progress()

    def leave(self) -> None:
        """Let others judge at once what this process was the last to judge. Raises StoreError."""
        mine = monitors.update().where(monitors.c.judged_by == self.leases.holder)
        with self.writing() as connection:
            connection.execute(mine.values(judged_by=""))

    def record(self, monitor: str, lease: Lease | None = None, **changes: float | str | None) -> None:
        """Note some fields of `Progress`; the others stay. With a lease that is no longer held nothing is noted."""
        parameters = {"monitor": monitor} | changes | ({} if lease is None else named_in(lease))
        with self.writing() as connection:
            connection.execute(_recording(self.dialect, tuple(changes), lease is not None), parameters)


_MARKS = sa.select(bucket_marks.c.bucket_start, bucket_marks.c.mark, bucket_marks.c.noted_at).where(
    bucket_marks.c.series_id == NUMBER
)
_ROW_COUNTS = sa.select(row_counts.c.bucket_start, row_counts.c.rows).where(
    row_counts.c.series_id == NUMBER, row_counts.c.bucket_start >= sa.bindparam("since")
)
_VALUES = sa.select(slices.c.dimension, slices.c.value).where(slices.c.monitor == MONITOR)
_GAPS = _VALUES.add_columns(slice_gaps.c.since, slice_gaps.c.until).join(slice_gaps)
_PROGRESS = sa.select(*(monitors.c[f] for f in Progress.__dataclass_fields__)).where(monitors.c.monitor == MONITOR)


@cache
def _states(table: sa.Table) -> sa.CompoundSelect[Any]:
    overall = (
        sa.select(table.c.bucket_start, table.c.read_at, table.c.final)
        .join(slices, slices.c.id == table.c.slice_id)
        .where(table.c.series_id == NUMBER, slices.c.dimension == OVERALL[0])
    )
    awaited = sa.select(bucket_marks.c.bucket_start)
    awaited = awaited.where(bucket_marks.c.series_id == NUMBER, bucket_marks.c.mark == "awaited")
    # Three questions, for each of which there is an index.
    recent = overall.where(table.c.bucket_start >= sa.bindparam("since"))
    late = overall.where(table.c.bucket_start.in_(awaited))
    return sa.union(recent, _by_open(overall, table).where(~table.c.final), late)


@cache
def _newest(table: sa.Table) -> sa.Select[Any]:
    return sa.select(sa.func.max(table.c.bucket_start)).where(table.c.series_id == NUMBER)


@cache
def _settled(table: sa.Table) -> tuple[sa.Select[Any], sa.Select[Any], sa.Select[Any]]:
    """The oldest open bucket; the oldest that is open or was read too far ahead; the newest final one before that."""
    from_there = sa.and_(table.c.series_id == NUMBER, table.c.bucket_start >= sa.bindparam("since"))
    oldest = sa.select(sa.func.min(table.c.bucket_start)).where(from_there)
    newest = sa.select(sa.func.max(table.c.bucket_start)).where(from_there, table.c.final)
    return (
        _by_open(oldest, table).where(~table.c.final),
        oldest.where(~table.c.final | (table.c.read_at > sa.bindparam("believed"))),
        newest.where(table.c.bucket_start < sa.bindparam("until")),
    )


@cache
def _partials(table: sa.Table, fields: tuple[str, ...], overall_only: bool) -> sa.Select[Any]:
    query = (
        sa.select(table.c.bucket_start, table.c.final, slices.c.dimension, slices.c.value)
        .add_columns(*(table.c[f] for f in fields))
        .join(series, series.c.id == table.c.series_id)
        .join(slices, slices.c.id == table.c.slice_id)
        .where(*IS_NAMED)
        .where(table.c.bucket_start >= sa.bindparam("since"), table.c.bucket_start < sa.bindparam("until"))
    )
    return query.where(slices.c.dimension == OVERALL[0]) if overall_only else query


@cache
def _recording(dialect: str, fields: tuple[str, ...], is_fenced: bool) -> Any:
    added = upserting(dialect, monitors)
    added = added.values({"monitor": sa.bindparam("monitor")} | {field: sa.bindparam(field) for field in fields})
    news = {field: added.excluded[field] for field in fields}
    where = IS_HELD if is_fenced else None
    return added.on_conflict_do_update(index_elements=[monitors.c.monitor], set_=news, where=where)


def _by_open(query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
    """The query by the index of the buckets that are open; SQLite would go through the whole series."""
    return query.with_hint(table, f"INDEXED BY ix_{table.name}_open", "sqlite")


def _note_restatement(
    connection: sa.Connection, monitor: str, partials: Partials, now: float, forced: bool, buckets: int
) -> None:
    row = {"monitor": monitor, "since": partials.since, "until": partials.until, "restated_at": now}
    connection.execute(restatements.insert().values(**row, forced=forced, buckets=buckets))


def _judge_anew(connection: sa.Connection, monitor: str, stored: set[int]) -> None:
    """Have the alert rules look again at a past that was other than it is now."""
    if stored:
        past = judged.update().where(judged.c.monitor == monitor, judged.c.until > min(stored))
        connection.execute(past.values(anew=True))
