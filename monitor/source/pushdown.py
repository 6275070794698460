"""Push-down: the database sums whole buckets, and only the sums travel.

The pull reads buckets with rows SQL treats differently, and all between the first and last row of a recurring id.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.arrays import Floats
from monitor.errors import SourceError, TooMany
from monitor.measures.summable import obstacle
from monitor.series.partials import TRAFFIC_FIELDS, runs
from monitor.series.readings import MICROS, Aggregates, Part, Reading
from monitor.source.dialects import dialect_of
from monitor.source.engine import UNDECODABLE, Database, Reader, Statement, of_bits
from monitor.source.formulas import needs_logarithm
from monitor.source.pull import MOST_ROWS, Freshness, Pull
from monitor.source.queries import Queries
from monitor.source.requests import unsigned
from monitor.source.summing import CONTRARY, LAST, NOWHERE, PARTS, Summing
from monitor.source.times import Blocks, changes_clocks, check, to_micros
from monitor.types import MIXED, Events, Monitor
from monitor.units import DAY, HOUR

log = logging.getLogger(__name__)

MOST_AT_ONCE = 12
"""Most buckets read row by row at once."""

TRIAL = 24
"""Buckets after which push-down is judged."""

WORTH = 0.5
"""Share of buckets up to which rereading some row by row is cheaper than pulling all."""

_REFUSED = ("null_item", "null_position", "bad_position", "mixed_slice", "early_event", "late_event")
_CONTRARY = "some requests have rows that differ in time or slice, rows without item or position, or items logged twice"


def why_not(monitor: Monitor, dialect: str) -> str:
    """Why that dialect cannot sum a monitor's buckets; empty if it can, as far as one can tell."""
    sql, recipe = dialect_of(dialect), monitor.recipe
    if not sql.can_sum:
        return f"rankmon does not know time arithmetic in {dialect}"
    if reason := obstacle(monitor):
        return reason
    other = recipe.time if isinstance(recipe, Events) else None
    return sql.obstacle(monitor.rankings.time, other) or ("" if other is None else sql.obstacle(other))


@dataclass
class _Record:
    """Results of the buckets read so far, or why and until when (monotonic seconds) push-down is paused."""

    summed: int = 0
    odd: int = 0
    failed: str = ""
    until: float = math.inf


class PushDown:
    """Reads one monitor from its source by sums.

    Attributes:
        is_bound: push-down was requested; else it yields to the pull where that is better.
    """

    def __init__(
        self, monitor: Monitor, database: Database, is_bound: bool = False, most_rows: int = MOST_ROWS
    ) -> None:
        self.monitor = monitor
        self.database = database
        self.is_bound = is_bound
        self.pull = Pull(monitor, database, most_rows)
        self._record = _Record()
        self._thorough_until = -math.inf
        self._lock, self._preparing = threading.Lock(), threading.Lock()
        self._known: tuple[Queries, Summing] | None = None

    @property
    def yields(self) -> str:
        """Why push-down is paused; empty if it is not."""
        return "" if self.is_bound or time.monotonic() >= self._record.until else self._record.failed

    def freshness(self, since: float, now: float) -> Freshness:
        return self.pull.freshness(since, now)

    def held(self) -> AbstractContextManager[None]:
        return self.pull.held()

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        return self.pull.row_counts(spans)

    def read(self, since: int, until: int) -> Part:
        """Sums of the requests whose earliest row is in [since, until) seconds, with their current labels.

        Raises:
            TooMany: more than `most_rows` cells or rows, or a statement hit its time or memory limit and a shorter
                range or another way may not; read a shorter range.
            SourceError: the source did not answer, or holds other types than configured.
            Stopped: the process is shutting down.
        """
        self._check_it_can()
        if not self.sums_up(since, until):
            return self.pull.read(since, until)
        try:
            return self._read(since, until)
        except SourceError as error:
            known, self._known = self._known, None
            if error.reason in ("timeout", "resources") and self._has_another_way(since, until, known):
                raise TooMany(f"too much to sum within time or memory: {error}") from error
            if UNDECODABLE in str(error):
                return self.pull.read(since, until)  # which refuses those rows
            if self.is_bound or error.reason not in ("query", "data"):
                raise
            reading = self.pull.read(since, until)  # raises too if the data are at fault
            # for an hour where it failed for an unknown reason
            self._yield(DAY if error.lasting else HOUR, f"the database could not sum: {error}")
            return reading

    def _has_another_way(self, since: int, until: int, known: tuple[Queries, Summing] | None) -> bool:
        """Whether a shorter range, or for a single bucket dropping the plain-log assumption, may avoid the limit."""
        if until - since > self.monitor.bucket:
            return True
        supposed = known is not None and self._for_now(known[1]).supposes(since, until)
        if supposed:
            self._be_thorough("a bucket could not be summed within time or memory")
        return supposed

    def _yield(self, seconds: float, why: str) -> None:
        """Pauses push-down and retries later, since databases and logs change."""
        with self._lock:
            self._record = _Record(failed=why, until=time.monotonic() + seconds)
        log.warning(
            "monitor %s: push-down paused for %.0f h, reading row by row: %s", self.monitor.name, seconds / HOUR, why
        )

    def sums_up(self, since: int, until: int) -> bool:
        """Whether [since, until) is read by sums, as far as known in advance."""
        return not (self.yields or self._has_clock_changes(since, until))

    def statements(self, since: int, until: int) -> list[tuple[Statement, sa.Dialect]]:
        """What `read` would send if nothing needs another way.

        Raises:
            SourceError: the source does not answer, as in `read`.
        """
        self._check_it_can()
        recipe = self.monitor.recipe
        with self.pull.reading() as (reader, queries):
            summing = self._for_now(self._summing(reader, queries))
            more = summing.unmatched(recipe, since, until) if isinstance(recipe, Events) else None
            return [(s, reader.dialect) for s in (summing.cells(since, until), more) if s is not None]

    def _check_it_can(self) -> None:
        if reason := why_not(self.monitor, self.database.dialect):
            raise SourceError(f"engine: pushdown cannot serve this monitor: {reason}; use engine: auto", "query")

    # ---- preparing ---------------------------------------------------------------------------------------------

    def _has_clock_changes(self, since: int, until: int) -> bool:
        recipe, span = self.monitor.recipe, self.monitor.max_request_span
        wide = since - 2 * span, until + 2 * span + recipe.attribution
        if isinstance(recipe, Events) and recipe.count_unmatched:  # the rows these may match lie farther back
            begin, end = Blocks.of(self.monitor, recipe).reach(since, until)
            wide = min(wide[0], begin), max(wide[1], end)
        columns = [self.monitor.rankings.time, *([recipe.time] if isinstance(recipe, Events) else [])]
        return any(changes_clocks(column, *wide) for column in columns)

    def _summing(self, reader: Reader, queries: Queries) -> Summing:
        """Built once per set of column types."""
        with self._preparing:
            known = self._known
            if known is None or known[0] is not queries:
                known = self._known = queries, self._prepared(reader, queries)
            return known[1]

    def _prepared(self, reader: Reader, queries: Queries) -> Summing:
        for name in dict.fromkeys(s.column for s in self.monitor.slices):
            code = queries.types.rankings[name]
            queries.sql.check_slice(reader, queries.rankings.c[name], name, code, self.is_bound)
        self._check_times(reader, queries)
        self._check_values(queries)
        self._check_pairs(reader, queries)
        if reader.sql.may_lack_logarithm and any(needs_logarithm(m) for m in self.monitor.measures):
            reader.one(sa.select(sa.func.ln(sa.literal_column("2.0"))))  # raises where it is missing
        return Summing(queries)

    def _check_times(self, reader: Reader, queries: Queries) -> None:
        """Checks the kind of native times: the database compares any kind with ours, where the pull would notice."""
        for logged in queries.times:
            known, has_zone = queries.sql.time_types.get(str(logged.code)), logged.declared.timezone is None
            if logged.declared.format == "native" and queries.sql.has_times and known != (True, has_zone):
                check(logged.declared, reader.columns(queries.sample(logged))[0])

    def _check_values(self, queries: Queries) -> None:
        recipe = self.monitor.recipe
        name, kinds = queries.grade_column, queries.types.rankings
        if isinstance(recipe, Events):
            name, kinds = recipe.value, queries.types.labels
        if name is not None and not queries.sql.is_boolean(kinds[name]) and not queries.sql.is_number(kinds[name]):
            raise SourceError(f"column {name!r} is not a number", "data", lasting=True)

    def _check_pairs(self, reader: Reader, queries: Queries) -> None:
        """Checks early what counting duplicate items needs: DuckDB converts ids in joins, not in lookups of pairs."""
        recipe = self.monitor.recipe
        if isinstance(recipe, Events) and not queries.sql.converts_in_pairs:
            pairs = sa.select(queries.labels.c[recipe.request], queries.labels.c[recipe.item])
            shown = sa.tuple_(queries.request, queries.item)
            reader.types(sa.select(queries.request).where(shown.in_(pairs)))

    # ---- reading -----------------------------------------------------------------------------------------------

    def _read(self, since: int, until: int) -> Part:
        recipe, most = self.monitor.recipe, self.pull.most_rows
        with self.pull.reading(to_sum=True) as (reader, queries):
            thorough = self._summing(reader, queries)
            summing = self._for_now(thorough)
            rows = reader.rows_of(summing.ready(since, until), most)
            if any(row["bucket"] == CONTRARY and row["odd"] for row in rows):
                self._be_thorough(_CONTRARY)
                summing = thorough
                rows = reader.rows_of(summing.ready(since, until), most)
            nameless = any(row["bucket"] == NOWHERE for row in rows)
            strays = reader.rows_of(summing.nameless(since, until), most) if nameless else []
            more = summing.unmatched(recipe, since, until) if isinstance(recipe, Events) else None
            unmatched = reader.rows_of(more, most) if more is not None else []
            found = _Found(summing, summing.edges(since, until), rows, strays, unmatched, reader.rows)
        if isinstance(recipe, Events) and not found.saw_events:
            self.pull.look_at_times(of_events=True)
        odd = found.odd
        self._weigh(len(found.edges) - 1, len(odd))
        stretches = runs(sorted(odd), self.monitor.bucket, MOST_AT_ONCE)
        return found.summed([self.pull.read(max(start, since), min(end, until)) for start, end in stretches])

    def _for_now(self, thorough: Summing) -> Summing:
        return replace(thorough, is_thorough=time.monotonic() < self._thorough_until)

    def _be_thorough(self, why: str) -> None:
        """Drops the plain-log assumption for a day, since logs change."""
        now = time.monotonic()
        with self._lock:
            was_thorough, self._thorough_until = now < self._thorough_until, now + DAY
        if not was_thorough:
            text = "monitor %s: fast path disabled for %.0f h, reads are slower: %s"
            log.info(text, self.monitor.name, DAY / HOUR, why)

    def _weigh(self, summed: int, odd: int) -> None:
        with self._lock:
            if self.yields:
                return  # another thread found out first
            had_failed = bool(self._record.failed)
            so_far = _Record() if had_failed else self._record
            record = self._record = replace(so_far, summed=so_far.summed + summed, odd=so_far.odd + odd)
        if had_failed:
            log.info("monitor %s: push-down resumed", self.monitor.name)
        if not self.is_bound and record.summed >= TRIAL and record.odd > WORTH * record.summed:
            self._yield(DAY, f"{record.odd} of {record.summed} buckets had data that must be read row by row")


@dataclass(frozen=True)
class _Found:
    summing: Summing
    edges: Sequence[int]
    rows: Sequence[Mapping[str, Any]]
    strays: Sequence[Mapping[str, Any]]
    on_nothing: Sequence[Mapping[str, Any]]
    sent: int

    def _start(self, stretch: Any) -> int:
        edge = self.edges[int(stretch)]
        return edge - edge % self.summing.monitor.bucket

    @property
    def _cells(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["bucket"] >= 0]

    @property
    def odd(self) -> set[int]:
        """Starts of the buckets to read row by row."""
        found = {self._start(r["bucket"]) for r in (*self._cells, *self.strays, *self.on_nothing) if r["odd"]}
        return found | self._under_recurring

    @property
    def _under_recurring(self) -> set[int]:
        """Starts of the buckets between the first and last row of any recurring id."""
        monitor, until = self.summing.monitor, self.edges[-1]
        found = [(self._start(row["bucket"]), row[LAST]) for row in self._cells if row[LAST] is not None]
        last = np.minimum(to_micros(monitor.rankings.time, [at for _, at in found]).micros // MICROS, until - 1)
        pairs = zip(found, last.tolist(), strict=True)
        return {start for (first, _), end in pairs for start in range(first, end + 1, monitor.bucket)}

    @property
    def saw_events(self) -> bool:
        """Whether there was any event."""
        names = ("events", "early_event", "late_event", "unmatched")
        return bool(self.on_nothing) or any(row[name] for row in self._cells for name in names)

    def summed(self, read: Sequence[Reading]) -> Aggregates:
        """Everything but the odd buckets, whose rows are in `read`."""
        odd = self.odd
        kept = [row for row in self._cells if self._start(row["bucket"]) not in odd]
        cells = [row for row in kept if row["requests"]]
        unmatched: dict[int, int] = {}
        for row in (*kept, *self.on_nothing):
            start = self._start(row["bucket"])
            unmatched[start] = unmatched.get(start, 0) + int(row["unmatched"] or 0)
        return Aggregates(
            self.edges[0],
            self.edges[-1],
            bucket=np.array([self._start(row["bucket"]) for row in cells], np.int64),
            slices=self._slices(cells),
            traffic=self._floats(cells, TRAFFIC_FIELDS),
            measures={k: self._floats(cells, [f"{n}_{p}" for p in PARTS]) for k, n in self.summing.kernels.items()},
            refused={name: self._floats(cells, [name])[:, 0].astype(np.int64) for name in _REFUSED},
            strays={(self._start(row["bucket"]), "null_request"): int(row["n_rows"]) for row in self.strays},
            unmatched=unmatched,
            read=read,
            rows=self.sent,
            summed=sum(int(row["summed"]) for row in kept),
        )

    def _slices(self, cells: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        found = {}
        for dimension, place in zip(self.summing.monitor.slices, self.summing.places.values(), strict=True):
            values = [MIXED if row[place.mixed] else row[place.value] for row in cells]
            if dimension.column in self.summing.queries.boolean_slices:
                values = [bool(v) if isinstance(v, int) else v for v in values]
            elif dimension.column in self.summing.queries.bit_slices:
                values = list(map(of_bits, values))
            found[dimension.dimension] = unsigned(values)
        return found

    @staticmethod
    def _floats(cells: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Floats:
        """Shape (cells, names)."""
        found = [[float(row[name]) for name in names] for row in cells]
        return np.array(found, np.float64).reshape(len(cells), len(names))
