"""The sparse pull: one row per request plus the relevant rows; all rows if a gain table gives grade 0 a gain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.arrays import Ints
from monitor.errors import SourceError
from monitor.measures.kernels import GradedRankings as Graded
from monitor.series.finality import CLOCK_TOLERANCE
from monitor.series.partials import stored_names
from monitor.series.readings import MICROS, Reading, joined
from monitor.source.checks.types import check_columns, check_pairs
from monitor.source.engine import ColumnTypes, Database, Reader, Statement
from monitor.source.labels import Gradable, Labelling, Labels
from monitor.source.queries import Queries
from monitor.source.recurring import Recurring, ReusedIds, split_around
from monitor.source.requests import Requests
from monitor.source.times import check, to_micros
from monitor.types import Events, Judgments, Monitor

log = logging.getLogger(__name__)

MOST_ROWS = 1_000_000
"""Rows per result held in memory; above that, a shorter range is read."""

MOST_COUNTS = 24
"""Spans counted per statement."""

ATTEMPTS = 3
"""Attempts at a read if tables are replaced while it waits for them."""

_REPLACED = "tables were replaced each time a read had begun; refill them less often, or in place"


@dataclass(frozen=True)
class Freshness:
    """How far the source is.

    Attributes:
        newest: seconds of its newest request; None: none found.
        future_rows: rows dated later than now.
        newest_label: seconds of its newest event; None: none found, or not looked for because there are no verdicts.
        clock: seconds by the source's clock; None: it has none, or its newest requests are current.
    """

    newest: float | None
    future_rows: int
    newest_label: float | None = None
    clock: float | None = field(default=None, compare=False)


class Pull:
    """Reads one monitor from its source.

    Attributes:
        most_rows: per result.
        reused: warns about reused ids; None if the caller does.
    """

    def __init__(self, monitor: Monitor, database: Database, most_rows: int = MOST_ROWS) -> None:
        self.monitor = monitor
        self.database = database
        self.most_rows = most_rows
        self.reused: ReusedIds | None = None
        self._queries: Queries | None = None
        self._preparing = threading.Lock()

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is within [since, now), not counting clocks that run ahead.

        Raises:
            SourceError: the source did not answer, or its times are not written as configured.
        """
        with self.reading(is_checked=False) as (reader, queries):
            latest = reader.one(queries.newest(since, now + CLOCK_TOLERANCE))
            ahead = reader.one(queries.future(now + CLOCK_TOLERANCE))
            micros, unreadable, _ = to_micros(self.monitor.rankings.time, [latest])
            label = self._newest_label(reader, queries, since, now)
            is_late = latest is None or now - float(micros[0] / MICROS) > self.monitor.ingest_delay
            clock = reader.clock() if ahead or is_late else None
        if unreadable[0]:
            self.look_at_times()
        newest = None if latest is None else min(float(micros[0] / MICROS), now)
        return Freshness(newest, int(ahead or 0), label, clock)

    def held(self) -> AbstractContextManager[None]:
        """As `Database.held`."""
        return self.database.held()

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Ranking rows in each span [since, until) seconds of whole buckets.

        Raises:
            SourceError: as in `freshness`.
        """
        numbers_of_rows: list[int] = []
        if not spans:
            return numbers_of_rows
        since, width = min(start for start, _ in spans), self.monitor.bucket
        with self.reading(is_checked=False) as (reader, queries):
            if (counts := queries.bucket_counts(since, max(end for _, end in spans))) is not None:
                known = dict(zip(*reader.columns(counts), strict=True))
                places = (range((start - since) // width, (end - since) // width) for start, end in spans)
                return [int(sum(known.get(place, 0) for place in span)) for span in places]
            for at in range(0, len(spans), MOST_COUNTS):
                numbers, rows = reader.columns(queries.row_counts(spans[at : at + MOST_COUNTS]))
                numbers_of_rows += [int(n) for _, n in sorted(zip(numbers, rows, strict=True))]
        return numbers_of_rows

    def _newest_label(self, reader: Reader, queries: Queries, since: float, now: float) -> float | None:
        recipe = self.monitor.recipe
        if self.monitor.drift is None or not isinstance(recipe, Events):
            return None
        latest = reader.one(queries.newest_event(recipe, since, now + CLOCK_TOLERANCE))
        micros, unreadable, _ = to_micros(recipe.time, [latest])
        return None if latest is None or unreadable[0] else min(float(micros[0] / MICROS), now)

    def read(self, since: int, until: int) -> Reading:
        """Requests whose earliest row is in [since, until) seconds, with their current labels.

        Raises:
            TooMany: more than `most_rows` rows; read a shorter range.
            SourceError: the source did not answer, or holds other types than configured.
            Stopped: the process is shutting down.
        """
        recipe = self.monitor.recipe
        with self.reading() as (reader, queries):
            parts = list(self._parts(reader, queries, since, until))
            rows = reader.rows
        if isinstance(recipe, Events) and not any(labels.saw_events or len(labels.unmatched) for _, labels in parts):
            self.look_at_times(of_events=True)
        return replace(joined([reading for reading, _ in parts]), rows=rows)

    def statements(self, since: int, until: int) -> list[tuple[Statement, sa.Dialect]]:
        """What `read` sends first of all. Raises SourceError as `read`."""
        recipe, sparse = self.monitor.recipe, all(m.is_sparse for m in self.monitor.measures)
        with self.reading() as (reader, queries):
            wide = queries.wide(since, until)
            found: list[Statement] = [queries.requests(*wide)]
            if isinstance(recipe, Events):
                found.append(queries.event_rows(recipe, *wide))
            elif isinstance(recipe, Judgments):
                found += [queries.judgment_counts(recipe, *wide), queries.judged_rows(recipe, *wide, sparse)]
            else:
                found.append(queries.graded_rows(*wide, sparse))
            return [(statement, reader.dialect) for statement in found]

    def _parts(self, reader: Reader, queries: Queries, since: int, until: int) -> Iterator[tuple[Reading, Labels]]:
        """Recurring ids may be other requests in other buckets, so their buckets come separately."""
        width = self.monitor.bucket
        requests = Requests.of(reader, queries, *queries.wide(since, until), self.most_rows)
        if self.reused is not None:
            self.reused.see(len(requests.ids), requests.recurring)
        alone = requests.recurring.buckets(since, until, width)
        if alone and since // width < (until - 1) // width:
            for part in split_around(since, until, width, alone):
                yield from self._parts(reader, queries, *part)
            return
        yield self._part(reader, queries, requests, since, until)

    def _part(
        self, reader: Reader, queries: Queries, requests: Requests, since: int, until: int
    ) -> tuple[Reading, Labels]:
        monitor, asked = self.monitor, (since, until)
        strays = {"long_request": self._refused(reader, queries, requests.recurring, since, until)}
        requests = requests.within(since, until)
        refusals = requests.refusals(monitor)
        labels = Labelling(queries, reader, requests, asked, self.most_rows, refusals).read()
        slices = requests.slices(monitor)
        by_slice = {d: stored_names(slices[d]) for d in {m.dimension for m in monitor.measures if m.by_slice}}
        reading = Reading(
            *asked,
            served=requests.served,
            rankings=_graded(requests, labels.sample, by_slice),
            impressions=requests.shown[queries.cutoffs[0]],
            judged=labels.judged,
            events=labels.events,
            labelled=labels.labelled,
            no_results=requests.is_empty,
            rank_one=requests.shown[1],
            slices=slices,
            refusals=refusals,
            strays={**requests.strays, **strays},
            unmatched=labels.unmatched,
            fingerprint=labels.fingerprint,
            limited={kernel: _graded(requests, sample, by_slice) for kernel, sample in labels.limited.items()}
            | {m.kernel: _lists(requests) for m in monitor.measures if m.is_of_lists},
            ids=requests.ids,
        )
        return reading, labels

    def _refused(self, reader: Reader, queries: Queries, recurring: Recurring, since: int, until: int) -> Ints:
        near: list[list[Any]] = [[], [], []]
        if recurring.reach_out(since, until):
            near = reader.columns(queries.near_ends(since, until), self.most_rows)
        at = to_micros(self.monitor.rankings.time, near[1]).micros
        return recurring.refused(since, until, self.monitor.max_request_span, near, at)

    @contextmanager
    def reading(self, to_sum: bool = False, is_checked: bool = True) -> Iterator[tuple[Reader, Queries]]:
        """A transaction, and the statements for the column types in it.

        A failure rebuilds the statements next time: tables may have been replaced.

        Args:
            to_sum: prepare the database for statements that sum.
            is_checked: whether changed column types matter.
        """
        try:
            for _ in range(ATTEMPTS):
                with self.database.reading(self.monitor.name) as reader:
                    queries = self._prepared(reader, to_sum, is_checked)
                    if not (is_checked and queries.types.is_behind):
                        yield reader, queries
                        return
            raise SourceError(f"source {self.database.name}: {_REPLACED}", "timeout")
        except SourceError:
            self._queries = None
            raise

    def _prepared(self, reader: Reader, to_sum: bool, is_checked: bool) -> Queries:
        known = self._queries
        if known is not None and not is_checked:
            return known
        plain = known or Queries(self.monitor, reader.dialect)
        types = plain.types_now(reader, to_sum)
        if types.is_behind:
            return replace(plain, types=types)
        with self._preparing:
            queries = self._queries
            if queries is None or queries.types != types:
                if queries is not None and (changed := types.changed(queries.types)):
                    log.info("monitor %s: type changed: %s", self.monitor.name, ", ".join(changed))
                queries = self._queries = self._made(reader, types)
            return queries

    def _made(self, reader: Reader, types: ColumnTypes) -> Queries:
        plain = Queries(self.monitor, reader.dialect, types)
        check_columns(plain)
        check_pairs(plain, reader)
        _check_zones(plain)
        names = (self.monitor.rankings.item, *(s.column for s in self.monitor.slices))
        queries = replace(
            plain,
            lax_texts=plain.sql.lax_texts(reader, [types.rankings[name] for name in names]),
            events_have_rowid=_have_rowid(plain, reader),
            has_enum_types=has_enum_types(plain, reader),
        )
        _ = queries.rankings  # built once here, before threads share it
        return queries

    def look_at_times(self, of_events: bool = False) -> None:
        """When nothing was found, checks that times are written as declared; raises SourceError if not."""
        try:
            with self.reading() as (reader, queries):
                time = queries.times[-1 if of_events else 0]
                check(time.declared, reader.columns(queries.sample(time))[0])
        except SourceError as error:
            if error.reason not in ("timeout", "query"):  # some relations cannot be sampled, or not readably
                raise


def _check_zones(queries: Queries) -> None:
    for declared, _, code in queries.times:
        queries.sql.check_time(declared.column, code)


def _have_rowid(queries: Queries, reader: Reader) -> bool:
    recipe = queries.monitor.recipe
    if not queries.sql.has_rowid or not isinstance(recipe, Events):
        return False
    return reader.one(queries.rowid(recipe)) is not None


def has_enum_types(queries: Queries, reader: Reader) -> bool:
    """Whether event types are an enum; see `Queries`."""
    recipe = queries.monitor.recipe
    if not isinstance(recipe, Events) or recipe.type is None:
        return False
    return queries.sql.is_enum(reader, queries.labels.c[recipe.type])


def _graded(requests: Requests, sample: Gradable, slices: Mapping[str, Sequence[str]]) -> Graded:
    rows = sample.rows
    sampled = ((sample.sampled & (requests.shown[None] > 0)) | requests.is_empty) & requests.is_timed
    rank = rows.position.astype(np.int64)
    return Graded(len(requests.ids), rows.request, rank, rows.grade, sampled, requests.listed, sample.pool, slices)


def _lists(requests: Requests) -> Graded:
    """Requests with known lists, for measures without labels."""
    none, shown = np.zeros(0, np.int64), requests.shown[None]
    known = ((shown > 0) | requests.is_empty) & requests.is_timed
    return Graded(len(requests.ids), none, none, none.astype(np.float64), known, {None: shown})
