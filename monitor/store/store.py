"""What was computed and until when.

Every write is one transaction, fenced by the writer's lease, and replaces whole buckets; so a write that is repeated
changes nothing, and one that is cut short never was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import URL

from monitor.core.buckets import FIELDS, TRAFFIC_FIELDS
from monitor.core.places import BEGINNING, Gap, Places
from monitor.core.tally import Cell, Tally
from monitor.core.types import OVERALL, TRAFFIC, Definition, Monitor
from monitor.core.watermark import CLOCK_TOLERANCE, BucketState, Mark
from monitor.core.windows import History
from monitor.schema import (
    bucket_marks,
    current_series,
    judged,
    judgments_used,
    monitors,
    partials,
    refusals,
    restatements,
    series,
    slice_gaps,
    slices,
    traffic,
)
from monitor.store.alerts import Alerts
from monitor.store.engine import Connected, create, upserting
from monitor.store.lease import Lease, Leases
from monitor.store.migrate import Schema
from monitor.store.outbox import Outbox
from monitor.store.records import Records
from monitor.store.retention import Retention
from monitor.store.verdicts import Verdicts

Floats = NDArray[np.float64]
_BATCH = 500
DAY = 86_400

HARMLESS = ("early_event", "late_event", "mixed_slice")
"""Reasons for which no row of the rankings is lost."""

_COMPARED, _COMPARED_AT_ANY_DEPTH = 5, 2
"""How many of `TRAFFIC_FIELDS`, from the first one on, must not shrink."""


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
    """The tables of `monitor.schema`. Safe to share between threads."""

    def __init__(self, url: URL, lease_seconds: float = 30) -> None:
        """`lease_seconds`: how long a writer that has died keeps others out, at most. Raises StoreError."""
        super().__init__(create(url), url)
        self.leases = Leases(self.engine, url, lease_seconds)
        self.schema = Schema(self.engine, url)
        self.alerts = Alerts(self.engine, url, self.leases)
        self.outbox = Outbox(self.engine, url)
        self.verdicts = Verdicts(self.engine, url)
        self.records = Records(self.engine, url)
        self.retention = Retention(self.engine, url, self.leases)

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    def hold(self, monitor: str) -> AbstractContextManager[Lease]:
        """The right to write `monitor` for as long as the block runs. Raises LeaseLost while another has it."""
        return self.leases.hold(monitor)

    # ---- what is stored --------------------------------------------------------------------------------------

    def states(self, definition: Definition, since: int) -> dict[int, BucketState]:
        """Start -> state of the buckets of a series from `since` on, and of all older ones that are not settled."""
        table, number = _table(definition), _series_number(definition)
        overall = (
            sa.select(table.c.bucket_start, table.c.read_at, table.c.final)
            .join(slices, slices.c.id == table.c.slice_id)
            .where(table.c.series_id == number, slices.c.dimension == OVERALL[0])
        )
        of_marks = sa.select(bucket_marks.c.bucket_start).where(bucket_marks.c.series_id == number)
        awaited = of_marks.where(bucket_marks.c.mark == "awaited")
        # Three questions, for each of which there is an index.
        recent, late = (overall.where(w) for w in (table.c.bucket_start >= since, table.c.bucket_start.in_(awaited)))
        query: sa.CompoundSelect[Any] = sa.union(recent, _by_open(overall, table).where(~table.c.final), late)
        marks = of_marks.add_columns(bucket_marks.c.mark, bucket_marks.c.noted_at)
        with self.reading() as connection:
            found = {start: BucketState(at, bool(final)) for start, at, final in connection.execute(query)}
            for start, mark, at in connection.execute(marks):
                if start in found or start >= since:
                    found[start] = replace(found.get(start, BucketState(at, False)), mark=mark)
        return found

    def newest_bucket(self, definition: Definition) -> int | None:
        """Start of the newest bucket that is stored of a series."""
        table = _table(definition)
        query = sa.select(sa.func.max(table.c.bucket_start)).where(table.c.series_id == _series_number(definition))
        with self.reading() as connection:
            return connection.execute(query).scalar()

    def settled_end(self, definition: Definition, width: int, since: int = 0, now: float | None = None) -> int | None:
        """End of the newest final bucket of a series that no open one lies before, of those from `since` on.

        With `now`, seconds, what a clock that ran ahead stored counts as open; see `watermark.believed`.
        """
        table = _table(definition)
        from_there = sa.and_(table.c.series_id == _series_number(definition), table.c.bucket_start >= since)
        oldest = sa.select(sa.func.min(table.c.bucket_start)).where(from_there)
        if now is None:
            oldest = _by_open(oldest, table).where(~table.c.final)
        else:
            oldest = oldest.where(~table.c.final | (table.c.read_at > now + CLOCK_TOLERANCE))
        with self.reading() as connection:
            opened = connection.execute(oldest).scalar()
            final = sa.select(sa.func.max(table.c.bucket_start)).where(from_there, table.c.final)
            final = final if opened is None else final.where(table.c.bucket_start < opened)
            newest = connection.execute(final).scalar()
        return None if newest is None else int(newest) + width

    def first_bucket_of(self, definition: Definition, dimension: str, value: str) -> int | None:
        """Start of the oldest stored bucket with a request of a slice, seconds; None if there is none."""
        table = _table(definition)
        query = (
            sa.select(sa.func.min(table.c.bucket_start))
            .join(series, series.c.id == table.c.series_id)
            .join(slices, slices.c.id == table.c.slice_id)
            .where(*_is(definition), slices.c.dimension == dimension, slices.c.value == value, table.c.requests > 0)
        )
        with self.reading() as connection:
            found: int | None = connection.scalar(query)
        return found

    def oldest_bucket(self, definition: Definition) -> int | None:
        """Start of the oldest bucket that is stored of a series."""
        table = _table(definition)
        query = sa.select(sa.func.min(table.c.bucket_start)).where(table.c.series_id == _series_number(definition))
        with self.reading() as connection:
            return connection.execute(query).scalar()

    def known_slices(self, monitor: str) -> dict[str, set[str]]:
        """Dimension -> values that were admitted."""
        known: dict[str, set[str]] = {}
        query = sa.select(slices.c.dimension, slices.c.value).where(slices.c.monitor == monitor)
        with self.reading() as connection:
            for dimension, value in connection.execute(query):
                known.setdefault(dimension, set()).add(value)
        return known

    def places(self, monitor: str) -> Places:
        """Which values of each dimension have a place, and when they had none."""
        gaps: dict[tuple[str, str], list[Gap]] = {}
        query = sa.select(slices.c.dimension, slices.c.value, slice_gaps.c.since, slice_gaps.c.until)
        query = query.join(slice_gaps, slice_gaps.c.slice_id == slices.c.id).where(slices.c.monitor == monitor)
        with self.reading() as connection:
            for dimension, value, since, until in connection.execute(query):
                gaps.setdefault((dimension, value), []).append((since, until))
        return Places(self.known_slices(monitor), gaps)

    def usage(self, monitor: str, seconds: int) -> Usage:
        """What the slices of a monitor had in so many seconds up to the end of what is stored, by any definition."""
        of_it = sa.select(series.c.id, series.c.bucket_seconds)
        of_it = of_it.where(series.c.monitor == monitor, series.c.kernel == TRAFFIC)
        newest = sa.select(sa.func.max(traffic.c.bucket_start))
        found: dict[tuple[str, str], Counter[int]] = {}
        with self.reading() as connection:
            widths = {number: int(width) for number, width in connection.execute(of_it)}
            last = {n: connection.scalar(newest.where(traffic.c.series_id == n)) for n in widths}
            until = max((start + widths[n] for n, start in last.items() if start is not None), default=0)
            query = (
                sa.select(slices.c.dimension, slices.c.value, traffic.c.bucket_start, traffic.c.requests)
                .join(slices, slices.c.id == traffic.c.slice_id)
                .where(traffic.c.series_id.in_(widths), traffic.c.bucket_start >= until - seconds)
                .where(traffic.c.requests > 0)
            )
            for dimension, value, start, requests in connection.execute(query):
                found.setdefault((dimension, value), Counter())[start - start % DAY] += requests
        return Usage(until, found)

    def history(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> History:
        """The stored buckets of a series that start in [since, until) seconds."""
        columns = self.partials(definition, since, until, overall_only)
        return History.of(columns, len(columns) - 4)

    def partials(
        self, definition: Definition, since: int, until: int, overall_only: bool = False, most: int | None = None
    ) -> list[list[Any]]:
        """The same as columns of rows in any order: start, final, dimension, value, and all or `most` fields."""
        table = _table(definition)
        fields = (TRAFFIC_FIELDS if definition.kernel == TRAFFIC else FIELDS)[:most]
        query = (
            sa.select(
                table.c.bucket_start, table.c.final, slices.c.dimension, slices.c.value, *(table.c[f] for f in fields)
            )
            .join(series, series.c.id == table.c.series_id)
            .join(slices, slices.c.id == table.c.slice_id)
            .where(*_is(definition), table.c.bucket_start >= since, table.c.bucket_start < until)
        )
        if overall_only:
            query = query.where(slices.c.dimension == OVERALL[0])
        return self.columns(query) or [[] for _ in range(4 + len(fields))]

    def refused_by_bucket(self, definition: Definition, since: int, until: int) -> dict[int, int]:
        """Start -> refused rows (overall) of the buckets that start in [since, until); events are no rows."""
        query = (
            sa.select(refusals.c.bucket_start, sa.func.sum(refusals.c.rows))
            .join(series, series.c.id == refusals.c.series_id)
            .join(slices, slices.c.id == refusals.c.slice_id)
            .where(*_is(definition), slices.c.dimension == OVERALL[0], refusals.c.reason.not_in(HARMLESS))
            .where(refusals.c.bucket_start >= since, refusals.c.bucket_start < until)
            .group_by(refusals.c.bucket_start)
        )
        with self.reading() as connection:
            return {start: int(rows) for start, rows in connection.execute(query)}

    def refused(self, definition: Definition, since: int, until: int) -> dict[str, int]:
        """Reason -> refused rows (overall) of the buckets that start in [since, until)."""
        query = (
            sa.select(refusals.c.reason, sa.func.sum(refusals.c.rows))
            .join(series, series.c.id == refusals.c.series_id)
            .join(slices, slices.c.id == refusals.c.slice_id)
            .where(*_is(definition), slices.c.dimension == OVERALL[0])
            .where(refusals.c.bucket_start >= since, refusals.c.bucket_start < until)
            .group_by(refusals.c.reason)
        )
        with self.reading() as connection:
            return {reason: int(rows) for reason, rows in connection.execute(query)}

    # ---- writing ---------------------------------------------------------------------------------------------

    def write(
        self,
        lease: Lease,
        monitor: Monitor,
        tally: Tally,
        targets: Mapping[Definition, Sequence[int]],
        read_at: float,
        finals: Iterable[int],
        force: bool = False,
        restating: Collection[int] = (),
        awaited: Collection[int] = (),
    ) -> Written:
        """Store buckets of a tally, for each series those that `targets` names, in one transaction.

        A bucket whose traffic is stored as final is replaced, and one of another series added to it, only by a read
        that holds at least as much, or by `force`: see `_shrinking`. That it was refused is noted. One that is open and
        had requests, of which the read has none, stays as it is too: see `_gone`.

        Args:
            restating: starts of final buckets that are read again, which is noted.
            awaited: those of `finals` of which that is to be noted; see `watermark.Mark`.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was stored.
        """
        final = set(finals)
        with self.writing() as connection:
            self.leases.fence(connection, lease)
            numbers = self._slice_ids(connection, monitor.name, tally)
            _note_places(connection, monitor.name, tally, numbers)
            ids = {d: self._series_id(connection, monitor, d) for d in targets}
            kept = () if force else _shrinking(connection, monitor, targets, tally)
            held = set() if force else _gone(connection, monitor, targets, tally).difference(kept)
            stored = 0
            for definition, starts in targets.items():
                wanted = [s for s in starts if s not in kept and s not in held]
                stored = max(stored, len(wanted))
                place = _Place(connection, ids[definition], wanted, numbers)
                _replace_partials(place, definition, tally, read_at, final)
                if definition.kernel == TRAFFIC:
                    _replace_refusals(place, tally)
                _mark(place, "awaited", awaited, read_at)
                _hold(replace(place, starts=[s for s in starts if s in held]), definition, read_at, final)
                refused = [s for s in starts if s in kept or (s in held and s in final)]
                _refuse(replace(place, starts=refused), definition, read_at)
            _note_current(connection, monitor)
            if again := len(set(restating) - set(kept)):
                _note_restatement(connection, monitor.name, tally, read_at, force, again)
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
        with self.writing() as connection:
            self.leases.fence(connection, lease)
            numbers = connection.scalars(sa.select(slices.c.id).where(slices.c.monitor == lease.monitor, wanted))
            rows = [{"slice_id": number, "since": since, "until": None} for number in numbers]
            if rows:
                connection.execute(slice_gaps.insert(), rows)

    def adopt(self, lease: Lease, monitor: Monitor) -> None:
        """Have the view know which series are of the monitor's present definitions. Raises LeaseLost, StoreError."""
        with self.reading() as connection:
            known = _current(connection, monitor)
        if known[0] != known[1]:
            with self.writing() as connection:
                self.leases.fence(connection, lease)
                _note_current(connection, monitor)

    def _slice_ids(self, connection: sa.Connection, monitor: str, tally: Tally) -> dict[tuple[str, str], int]:
        query = sa.select(slices.c.dimension, slices.c.value, slices.c.id).where(slices.c.monitor == monitor)
        found = {(d, v): i for d, v, i in connection.execute(query)}
        named = dict.fromkeys([OVERALL, *tally.admitted, *((d, v) for _, d, v in tally.traffic)])
        for dimension, value in named:
            if (dimension, value) not in found:
                added = slices.insert().values(monitor=monitor, dimension=dimension, value=value)
                key = connection.execute(added).inserted_primary_key
                found[dimension, value] = int(key[0]) if key else 0
        return found

    def _series_id(self, connection: sa.Connection, monitor: Monitor, definition: Definition) -> int:
        found = connection.execute(sa.select(series.c.id).where(*_is(definition))).scalar()
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

    # ---- progress --------------------------------------------------------------------------------------------

    def progress(self, monitor: str) -> Progress:
        """What is known of a monitor's runs."""
        columns = [monitors.c[f] for f in Progress.__dataclass_fields__]
        with self.reading() as connection:
            row = connection.execute(sa.select(*columns).where(monitors.c.monitor == monitor)).one_or_none()
        return Progress(*row) if row is not None else Progress()

    def leave(self) -> None:
        """Let others judge at once what this process was the last to judge. Raises StoreError."""
        mine = monitors.update().where(monitors.c.judged_by == self.leases.holder)
        with self.writing() as connection:
            connection.execute(mine.values(judged_by=""))

    def record(self, monitor: str, **changes: float | str | None) -> None:
        """Note some fields of `Progress`; the others stay."""
        row = {"monitor": monitor} | changes
        with self.writing() as connection:
            added = upserting(self.dialect, monitors).values(row)
            connection.execute(added.on_conflict_do_update(index_elements=[monitors.c.monitor], set_=changes))


@dataclass(frozen=True)
class _Place:
    """Buckets of one series, about to be replaced as a whole: their rows of today go, whatever slices they are of."""

    connection: sa.Connection
    series_id: int
    starts: Sequence[int]
    slice_ids: Mapping[tuple[str, str], int]

    def empty(self, table: sa.Table) -> None:
        for at in range(0, len(self.starts), _BATCH):
            some = table.c.bucket_start.in_(list(self.starts[at : at + _BATCH]))
            self.connection.execute(table.delete().where(table.c.series_id == self.series_id, some))

    def fill(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.connection.execute(table.insert(), rows)

    def key(self, cell: Cell) -> dict[str, int]:
        return {"series_id": self.series_id, "bucket_start": cell[0], "slice_id": self.slice_ids[cell[1], cell[2]]}


def _replace_partials(place: _Place, definition: Definition, tally: Tally, read_at: float, final: set[int]) -> None:
    is_traffic, wanted = definition.kernel == TRAFFIC, set(place.starts)
    cells = tally.traffic if is_traffic else tally.measures[definition.kernel]
    rows = [
        {**place.key(cell), **_fields(values, is_traffic), "read_at": read_at, "final": cell[0] in final}
        for cell, values in cells.items()
        if cell[0] in wanted
    ]
    place.empty(_table(definition))
    place.fill(_table(definition), rows)


def _replace_refusals(place: _Place, tally: Tally) -> None:
    """What the reading of the buckets' traffic refused, and which judgments it used."""
    wanted = set(place.starts)
    refused = [
        {**place.key(cell), "reason": reason, "rows": rows}
        for (cell, reason), rows in tally.refused.items()
        if cell[0] in wanted
    ]
    used = [
        {"series_id": place.series_id, "bucket_start": start, "fingerprint": tally.fingerprint}
        for start in place.starts
        if tally.fingerprint
    ]
    for table, rows in ((refusals, refused), (judgments_used, used)):
        place.empty(table)
        place.fill(table, rows)


def _note_places(connection: sa.Connection, monitor: str, tally: Tally, numbers: Mapping[tuple[str, str], int]) -> None:
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


def _mark(place: _Place, mark: Mark, which: Collection[int], noted_at: float) -> None:
    """Mark some of the buckets; the marks of the others go."""
    place.empty(bucket_marks)
    more = {"series_id": place.series_id, "mark": mark, "noted_at": noted_at}
    place.fill(bucket_marks, [{"bucket_start": start, **more} for start in place.starts if start in which])


def _hold(place: _Place, definition: Definition, read_at: float, final: set[int]) -> None:
    """Leave buckets as they are, and note that they were read once more."""
    table = _table(definition)
    for at in range(0, len(place.starts), _BATCH):
        part = place.starts[at : at + _BATCH]
        for ends, some in ((False, set(part) - final), (True, final.intersection(part))):
            at_hand = (table.c.series_id == place.series_id, table.c.bucket_start.in_(some))
            place.connection.execute(table.update().where(*at_hand).values(read_at=read_at, final=ends))


def _refuse(place: _Place, definition: Definition, noted_at: float) -> None:
    """Note that buckets were refused. What is not final of them goes: it would hold up the series and never be."""
    table = _table(definition)
    query = sa.select(table.c.bucket_start).where(table.c.series_id == place.series_id, table.c.final).distinct()
    final = {
        start
        for at in range(0, len(place.starts), _BATCH)
        for start in place.connection.scalars(
            query.where(table.c.bucket_start.in_(list(place.starts[at : at + _BATCH])))
        )
    }
    replace(place, starts=[s for s in place.starts if s not in final]).empty(table)
    _mark(place, "refused", set(place.starts) - final, noted_at)


def _current(connection: sa.Connection, monitor: Monitor) -> tuple[set[int], set[int]]:
    """Numbers of the monitor's series that (are noted as, are) those of its present definitions."""
    of_it = sa.select(series.c.id, series.c.kernel, series.c.definition).where(series.c.monitor == monitor.name)
    wanted = {(d.kernel, d.id) for d in monitor.definitions}
    noted = sa.select(current_series.c.series_id).join(series).where(series.c.monitor == monitor.name)
    present = {number for number, kernel, definition in connection.execute(of_it) if (kernel, definition) in wanted}
    return set(connection.scalars(noted)), present


def _note_current(connection: sa.Connection, monitor: Monitor) -> None:
    noted, present = _current(connection, monitor)
    if gone := noted - present:
        connection.execute(current_series.delete().where(current_series.c.series_id.in_(gone)))
    if new := present - noted:
        connection.execute(current_series.insert(), [{"series_id": number} for number in sorted(new)])


def _by_open(query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
    """The query by the index of the buckets that are open; SQLite would go through the whole series."""
    return query.with_hint(table, f"INDEXED BY ix_{table.name}_open", "sqlite")


def _table(definition: Definition) -> sa.Table:
    return traffic if definition.kernel == TRAFFIC else partials


def _is(definition: Definition) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        series.c.monitor == definition.monitor,
        series.c.kernel == definition.kernel,
        series.c.definition == definition.id,
    )


def _series_number(definition: Definition) -> sa.ScalarSelect[int]:
    return sa.select(series.c.id).where(*_is(definition)).scalar_subquery()


def _fields(values: Floats, is_traffic: bool) -> dict[str, float]:
    names = TRAFFIC_FIELDS if is_traffic else FIELDS
    return dict(zip(names, (int(v) for v in values) if is_traffic else values.tolist(), strict=True))


def _note_restatement(
    connection: sa.Connection, monitor: str, tally: Tally, now: float, forced: bool, buckets: int
) -> None:
    row = {"monitor": monitor, "since": tally.since, "until": tally.until, "restated_at": now}
    connection.execute(restatements.insert().values(**row, forced=forced, buckets=buckets))


def _judge_anew(connection: sa.Connection, monitor: str, stored: set[int]) -> None:
    """Have the alert rules look again at a past that was other than it is now."""
    if stored:
        past = judged.update().where(judged.c.monitor == monitor, judged.c.until > min(stored))
        connection.execute(past.values(anew=True))


def _shrinking(
    connection: sa.Connection, monitor: Monitor, targets: Mapping[Definition, Sequence[int]], tally: Tally
) -> tuple[int, ...]:
    """Starts of buckets whose traffic is stored as final and held more than the tally does.

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
            now = tally.traffic[start, *OVERALL][compared]
            if any(less < more for less, more in zip(now, before[compared], strict=True)):
                found.add(start)
    return tuple(sorted(found))


def _gone(
    connection: sa.Connection, monitor: Monitor, targets: Mapping[Definition, Sequence[int]], tally: Tally
) -> set[int]:
    """Starts of buckets that are open and had requests, of which the tally has none: nobody takes back all of an hour.

    Rankings were purged before their labels had their time, or the table is just being loaded anew.
    """
    starts = sorted({start for some in targets.values() for start in some})
    bare = [start for start in starts if not tally.traffic.get((start, *OVERALL), (0,))[0]]
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
