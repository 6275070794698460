"""Buckets, progress and slices in the store.

Every write is one transaction, fenced by the writer's lease, and replaces whole buckets: repeating it changes nothing,
interrupting it has no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.series.finality import CLOCK_TOLERANCE, BucketState
from monitor.series.partials import Partials
from monitor.series.slices import Gap, SliceRegistry
from monitor.series.windows import History, SliceKey
from monitor.store.alerts import Alerts
from monitor.store.bucket_writes import BucketWrite, gone, shrinking
from monitor.store.engine import Connected, blaming_damage, create, upserted
from monitor.store.lease import IS_HELD, Lease, Leases, named_in
from monitor.store.migrate import Schema
from monitor.store.naming import (
    FINE,
    IS_FINE,
    MONITOR,
    OF_SERIES,
    SINCE,
    UNTIL,
    current_numbers,
    fields_of,
    identity,
    note_current,
    note_places,
    replaced_series,
    series_number,
    slice_numbers,
    sums_of,
    table_of,
)
from monitor.store.outbox import Outbox
from monitor.store.retention import BucketRetention
from monitor.store.schema import (
    buckets,
    judged,
    monitors,
    refusals,
    restatements,
    series,
    slice_gaps,
    slices,
    traffic,
)
from monitor.store.verdicts import Verdicts
from monitor.types import FARTHEST, OVERALL, TRAFFIC, Definition, Monitor
from monitor.units import DAY

HARMLESS = ("early_event", "late_event", "mixed_slice")
"""Reasons that lose no row of the rankings."""


@dataclass(frozen=True)
class Progress:
    """State of a monitor's runs, by any process; instants in seconds, `refresh` real ones between two runs.

    For the `judged_*` fields see `schema.monitors`.
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
    """Result of a write.

    Attributes:
        kept: starts of buckets left unchanged because the read held less.
        held: number of buckets left as read before because the source no longer has their requests.
    """

    buckets: int
    kept: tuple[int, ...]
    held: int = 0


@dataclass(frozen=True)
class Usage:
    """Slice traffic in the last stretch of stored time.

    Attributes:
        until: end of the stored data, seconds; 0 if there is none.
        requests: (dimension, value) -> start of a UTC day -> requests; days without any are left out.
    """

    until: int
    requests: Mapping[tuple[str, str], Mapping[int, int]]


class Store(Connected):
    """The tables of `monitor.store.schema`. Safe to share between threads."""

    def __init__(self, url: URL, lease_seconds: float = 30) -> None:
        """`lease_seconds`: longest time a dead writer keeps others out. Raises StoreError."""
        super().__init__(create(url, lease_seconds), url)
        self.leases = Leases(self.engine, url, lease_seconds)
        self.schema = Schema(self.engine, url)
        self.alerts = Alerts(self.engine, url, self.leases)
        self.outbox = Outbox(self.engine, url)
        self.verdicts = Verdicts(self.engine, url)
        self.retention = BucketRetention(self.engine, url, self.leases)

    def close(self) -> None:
        self.engine.dispose()

    def blaming_damage(self) -> AbstractContextManager[None]:
        """Reports a fault within the block as damage if the store's file is damaged."""
        return blaming_damage(self.url)

    def hold(self, monitor: str) -> AbstractContextManager[Lease]:
        """The right to write `monitor` while the block runs. Raises LeaseLost while another has it."""
        return self.leases.hold(monitor)

    def states(self, definition: Definition, since: int) -> dict[int, BucketState]:
        """Start -> state of a series' buckets from `since` on, and of all older unsettled ones."""
        found = self.rows(_STATES, identity(definition), since=since)
        return {start: BucketState(at, bool(final), mark or "") for start, at, final, mark in found}

    def newest_bucket(self, definition: Definition) -> int | None:
        """Start of a series' newest stored bucket."""
        return self.integer(_NEWEST, identity(definition))

    def oldest_bucket(self, definition: Definition) -> int | None:
        """Start of a series' oldest stored bucket."""
        return self.integer(_OLDEST, identity(definition))

    def settled_end(self, definition: Definition, width: int, since: int = 0, now: float | None = None) -> int | None:
        """End of a series' newest final bucket from `since` on with no open one before it.

        With `now`, seconds, buckets stored by a clock that ran ahead count as open; see `finality.believed`.
        """
        with self.at_once():
            named = identity(definition) | {"since": since}
            if now is None:
                until = self.scalar(_OLDEST_OPEN, named)
            else:
                until = self.scalar(_OLDEST_OPEN_OR_AHEAD, named, believed=now + CLOCK_TOLERANCE)
            found = self.scalar(_NEWEST_FINAL, named, until=FARTHEST if until is None else until)
        return None if found is None else int(found) + width

    def first_bucket_of(self, definition: Definition, dimension: str, value: str) -> int | None:
        """Start of the oldest stored bucket with a request of a slice, seconds; None without one."""
        table = table_of(definition.kernel)
        of_slice = (slices.c.monitor == MONITOR, slices.c.dimension == dimension, slices.c.value == value)
        query = sa.select(sa.func.min(buckets.c.bucket_start)).where(*FINE, table.c.bucket_id == buckets.c.id)
        query = query.where(table.c.slice_id == slices.c.id, *of_slice, table.c.requests > 0)
        return self.integer(query, identity(definition))

    def came(self, definition: Definition, dimension: str, since: int, until: int, absent: int) -> dict[str, int]:
        """Value of a dimension -> start of its first bucket in [since, until), if it had none for `absent` seconds.

        None of those that are there since the oldest bucket.
        """
        table = table_of(definition.kernel)
        of_slice = (slices.c.monitor == MONITOR, slices.c.dimension == dimension, table.c.slice_id == slices.c.id)
        first = sa.func.min(buckets.c.bucket_start)
        query = sa.select(slices.c.value, first).where(*FINE, table.c.bucket_id == buckets.c.id, *of_slice)
        query = query.where(table.c.requests > 0, buckets.c.bucket_start >= SINCE, buckets.c.bucket_start < UNTIL)
        span = {"since": since - absent, "until": until}
        found = self.rows(query.group_by(slices.c.value), identity(definition) | span)
        oldest = self.oldest_bucket(definition) if found else None
        return {value: start for value, start in found if start >= since and start != oldest}

    def known_slices(self, monitor: str) -> dict[str, set[str]]:
        """Dimension -> admitted values."""
        known: dict[str, set[str]] = {}
        for dimension, value in self.rows(_VALUES, monitor=monitor):
            known.setdefault(dimension, set()).add(value)
        return known

    def places(self, monitor: str) -> SliceRegistry:
        """Which values of each dimension have a place, and when they had none."""
        gaps: dict[tuple[str, str], list[Gap]] = {}
        for dimension, value, since, until in self.rows(_GAPS, monitor=monitor):
            gaps.setdefault((dimension, value), []).append((since, until))
        return SliceRegistry(self.known_slices(monitor), gaps)

    def usage(self, monitor: str, seconds: int) -> Usage:
        """Slice traffic of a monitor in the last `seconds` of what is stored, under any definition.

        A day stored under several definitions counts once, by the one with most requests.
        """
        is_there = buckets.c.mark.is_distinct_from("refused")
        of_it = (series.c.monitor == MONITOR, series.c.kernel == TRAFFIC, IS_FINE, is_there)
        newest = sa.select(sa.func.max(buckets.c.bucket_start + series.c.bucket_seconds)).join_from(buckets, series)
        query = (
            sa.select(series.c.id, slices.c.dimension, slices.c.value, buckets.c.bucket_start, traffic.c.requests)
            .join_from(series, buckets)
            .join(traffic)
            .join(slices)
            .where(*of_it, buckets.c.bucket_start >= SINCE, traffic.c.requests > 0)
        )
        of_series: dict[tuple[int, str, str], Counter[int]] = {}
        until = self.scalar(newest.where(*of_it), monitor=monitor) or 0
        for number, dimension, value, start, requests in self.rows(query, monitor=monitor, since=until - seconds):
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
        """`history` as columns of rows in any order: start, final, dimension, value, and all or `most` fields."""
        query = _fine(definition.kernel, most, overall_only)
        found = self.columns(query, identity(definition) | {"since": since, "until": until})
        return found or [[] for _ in range(4 + len(fields_of(definition.kernel)[:most]))]

    def row_counts(self, definition: Definition, since: int) -> dict[int, int]:
        """Start -> the source's row count when a bucket from `since` on was read as final, if known."""
        found = self.rows(_ROW_COUNTS, identity(definition), since=since)
        return {start: int(rows) for start, rows in found}

    def refused_by_bucket(self, definition: Definition, since: int, until: int) -> dict[int, int]:
        """Start -> refused rows (overall) of the buckets that start in [since, until); events are not rows."""
        query = _refused(buckets.c.bucket_start).where(refusals.c.reason.not_in(HARMLESS))
        found = self.rows(query, identity(definition), since=since, until=until)
        return {start: int(rows) for start, rows in found}

    def refused_by_slice(self, definition: Definition, since: int, until: int) -> dict[SliceKey, dict[str, int]]:
        """Slice, overall included -> reason -> refused rows of the buckets in [since, until); events are not rows."""
        query = _refused_by_slice(slices.c.dimension, slices.c.value, refusals.c.reason)
        query = query.where(refusals.c.reason.not_in(HARMLESS))
        found = dict[SliceKey, dict[str, int]]()
        for dimension, value, reason, rows in self.rows(query, identity(definition), since=since, until=until):
            found.setdefault((dimension, value), {})[reason] = int(rows)
        return found

    def refused(self, definition: Definition, since: int, until: int) -> dict[str, int]:
        """Reason -> refused rows (overall) of the buckets that start in [since, until)."""
        found = self.rows(_refused(refusals.c.reason), identity(definition), since=since, until=until)
        return {reason: int(rows) for reason, rows in found}

    def restated(self, monitor: str, since: float) -> int:
        """Number of final buckets read again from `since` on, in seconds. Raises StoreError."""
        c = restatements.c
        return int(
            self.scalar(sa.select(sa.func.sum(c.buckets)).where(c.monitor == monitor, c.restated_at >= since)) or 0
        )

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
        """Store buckets of partials, for each series those that `targets` names, in one transaction.

        A bucket stored as final is replaced, or one of another series added to it, only by a read that holds at least
        as much, or by `force`: see `shrinking`; a refusal is recorded. An open bucket whose requests or labels
        are all missing from the read stays too: see `gone`.

        Args:
            restating: starts of final buckets read again, which is recorded.
            awaited: starts of buckets to mark so; see `finality.Mark`.
            counted: the source's row counts of some of `finals`; see `schema.buckets`.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was stored.
        """
        final = set(finals)
        with self.leases.fenced(lease) as connection:
            numbers = slice_numbers(connection, monitor.name, partials)
            note_places(connection, monitor.name, partials, numbers)
            kept = set() if force else shrinking(connection, monitor, targets, partials)
            held = set() if force else gone(connection, monitor, targets, partials) - kept
            stored = 0
            for definition, starts in targets.items():
                wanted = [s for s in starts if s not in kept and s not in held]
                stored = max(stored, len(wanted))
                number = series_number(connection, monitor, definition)
                write = BucketWrite(connection, number, definition, read_at, final, awaited, counted)
                write.replace(wanted, partials, numbers)
                write.hold([s for s in starts if s in held])
                write.refuse([s for s in starts if s in kept or (s in held and s in final)])
                if definition.kernel == TRAFFIC:
                    write.count_rows([s for s in starts if s in kept])
            note_current(connection, monitor)
            if again := len(set(restating) - kept):
                row = {"monitor": monitor.name, "since": partials.since, "until": partials.until}
                row |= {"restated_at": read_at, "forced": force, "buckets": again}
                connection.execute(restatements.insert().values(row))
            _judge_again(connection, monitor.name, {s for starts in targets.values() for s in starts} - kept - held)
        return Written(stored, tuple(sorted(kept)), len(held))

    def release(self, lease: Lease, values: Collection[tuple[str, str]], since: int) -> None:
        """Release the places of a monitor's values, (dimension, value), from `since` on, seconds.

        Args:
            since: the end of all that is stored, so that reading a stored bucket again gives the same.

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
        """Make the view show the monitor's current series. Raises LeaseLost, StoreError."""
        with self.reading() as connection:
            known = current_numbers(connection, monitor)
        if known[0] != known[1]:
            with self.leases.fenced(lease) as connection:
                note_current(connection, monitor)

    def replaced(self, monitor: Monitor) -> dict[str, str]:
        """Kernel -> definition in full of each current series that a new one of the monitor replaces."""
        with self.reading() as connection:
            return replaced_series(connection, monitor)

    def progress(self, monitor: str) -> Progress:
        return next((Progress(*row) for row in self.rows(_PROGRESS, monitor=monitor)), Progress())

    def leave(self) -> None:
        """Let others evaluate at once what this process evaluated last. Raises StoreError."""
        self.change(monitors.update().where(monitors.c.judged_by == self.leases.holder).values(judged_by=""))

    def record(self, monitor: str, lease: Lease | None = None, **changes: float | str | None) -> None:
        """Set some fields of `Progress`. With a lease that is no longer held, nothing is set."""
        parameters = {"monitor": monitor} | changes | ({} if lease is None else named_in(lease))
        self.change(_recording(self.dialect, tuple(changes), lease is not None), parameters)


_VALUES = sa.select(slices.c.dimension, slices.c.value).where(slices.c.monitor == MONITOR)
_GAPS = _VALUES.add_columns(slice_gaps.c.since, slice_gaps.c.until).join(slice_gaps)
_PROGRESS = sa.select(*(monitors.c[f] for f in Progress.__dataclass_fields__)).where(monitors.c.monitor == MONITOR)

_START = sa.select(buckets.c.bucket_start)
_ROW_COUNTS = _START.add_columns(buckets.c.rows).where(
    *OF_SERIES, IS_FINE, buckets.c.rows.is_not(None), buckets.c.bucket_start >= SINCE
)
_NEWEST = _START.where(*FINE).order_by(buckets.c.bucket_start.desc()).limit(1)
_OLDEST = _START.where(*FINE).order_by(buckets.c.bucket_start).limit(1)


def _by_index(query: sa.Select[Any], name: str) -> sa.Select[Any]:
    """Forces the index of the few buckets of a kind; SQLite would scan the whole series."""
    return query.with_hint(buckets, f"INDEXED BY ix_buckets_{name}", "sqlite")


_STATE = sa.select(buckets.c.bucket_start, buckets.c.read_at, buckets.c.final, buckets.c.mark).where(
    *OF_SERIES, IS_FINE
)
_STATES: sa.CompoundSelect[Any] = sa.union(  # three queries, each with an index
    _STATE.where(buckets.c.bucket_start >= SINCE),
    _by_index(_STATE, "open").where(~buckets.c.final, buckets.c.mark.is_(None)),
    _by_index(_STATE, "marked").where(buckets.c.mark == "awaited"),
)
_OLDEST_OPEN = _by_index(_OLDEST, "open").where(~buckets.c.final, buckets.c.bucket_start >= SINCE)
_OLDEST_OPEN_OR_AHEAD = _OLDEST.where(
    ~buckets.c.final | (buckets.c.read_at > sa.bindparam("believed")), buckets.c.bucket_start >= SINCE
)
_NEWEST_FINAL = _NEWEST.where(buckets.c.final, buckets.c.bucket_start >= SINCE, buckets.c.bucket_start < UNTIL)


@cache
def _fine(kernel: str, most: int | None, overall_only: bool) -> sa.Select[Any]:
    query = sums_of(kernel, most, overall_only)
    return query.where(*FINE, buckets.c.bucket_start >= SINCE, buckets.c.bucket_start < UNTIL)


def _refused(by: sa.Column[Any]) -> sa.Select[Any]:
    """Refused rows, overall, of a series' buckets that start in [since, until), fine or coarse."""
    return _refused_by_slice(by).where(slices.c.dimension == OVERALL[0])


def _refused_by_slice(*by: sa.Column[Any]) -> sa.Select[Any]:
    query = sa.select(*by, sa.func.sum(refusals.c.rows)).where(*OF_SERIES, refusals.c.bucket_id == buckets.c.id)
    query = query.where(refusals.c.slice_id == slices.c.id)
    return query.where(buckets.c.bucket_start >= SINCE, buckets.c.bucket_start < UNTIL).group_by(*by)


@cache
def _recording(dialect: str, fields: tuple[str, ...], is_fenced: bool) -> Any:
    row: dict[str, Any] = {field: sa.bindparam(field) for field in ("monitor", *fields)}
    return upserted(dialect, monitors, row, news=fields, where=IS_HELD if is_fenced else None)


def _judge_again(connection: sa.Connection, monitor: str, stored: set[int]) -> None:
    if stored:
        past = judged.update().where(judged.c.monitor == monitor, judged.c.until > min(stored))
        connection.execute(past.values(restated=True))
