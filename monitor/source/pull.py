"""The sparse pull: one row per request, the relevant rows, and nothing of what adds nothing.

Where a gain table gives grade 0 a gain, every row is read instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from monitor.core.kernels import Judged
from monitor.core.kernels import Rankings as Graded
from monitor.core.relevance import GradeLimits, Refusals, Rows, accept, attribute, combine, event_grades
from monitor.core.tally import MICROS, Reading
from monitor.core.types import MIXED, Events, Judgments, Monitor
from monitor.errors import SourceError
from monitor.source.engine import Database, Reader
from monitor.source.queries import Queries
from monitor.source.times import to_micros

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CLOCK_TOLERANCE = 300
"""Seconds that a source's clock may be ahead of ours before its rows count as from the future."""

MOST_ROWS = 1_000_000
"""Rows of one answer that are held in memory at once; past that, a shorter range is read."""


@dataclass(frozen=True)
class Freshness:
    """How far the source is: seconds of its newest request (None: none found), and rows dated in the future."""

    newest: float | None
    future_rows: int


class Pull:
    """Reads one monitor from its source."""

    def __init__(self, monitor: Monitor, database: Database, most_rows: int = MOST_ROWS) -> None:
        self.monitor = monitor
        self.database = database
        self.most_rows = most_rows
        self._queries: Queries | None = None
        self._cutoffs: tuple[int | None, ...] = tuple(dict.fromkeys([monitor.depth, *self._list_lengths(), None]))
        self._limits = GradeLimits.of(monitor.measures, monitor.recipe.bound)
        self._sparse = all(m.is_sparse for m in monitor.measures)
        self._needs_judged = any(m.ideal == "global" for m in monitor.measures)

    def _list_lengths(self) -> list[int | None]:
        return [m.k for m in self.monitor.measures if m.needs_list_length]

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is, looking at [since, now); clocks that run ahead do not count.

        Raises:
            SourceError: the source did not answer.
        """
        with self.database.reading() as reader:
            queries = self._prepared(reader)
            latest = reader.one(queries.newest(since, now + CLOCK_TOLERANCE))
            ahead = reader.one(queries.future(now + CLOCK_TOLERANCE))
        micros, bad, _ = to_micros(self.monitor.rankings.time, [] if latest is None else [latest])
        newest = None if not len(micros) or bad[0] else min(float(micros[0] / MICROS), now)
        return Freshness(newest, int(ahead or 0))

    def read(self, since: int, until: int) -> Reading:
        """The requests whose earliest row is in [since, until) seconds, with their labels as they are now.

        Raises:
            TooMany: more than `most_rows` rows; a shorter range is to be read.
            SourceError: the source did not answer, or holds other types than configured.
            Stopped: the process is to end.
        """
        with self.database.reading() as reader:
            queries = self._prepared(reader)
            span = self.monitor.max_request_span
            wide = (since - span, until + span)
            lists = _Requests.of(reader.columns(queries.requests(*wide), self.most_rows), self.monitor, queries)
            kept = lists.within(since, until)
            return _Read(self, queries, reader, kept, (since, until), wide).reading()

    def _prepared(self, reader: Reader) -> Queries:
        """The statements, once it is known that the tables and columns exist and whether grades are booleans."""
        if self._queries is None:
            plain = Queries(self.monitor, self._cutoffs)
            reader.types(sa.select(*plain.rankings.c))
            recipe, boolean = self.monitor.recipe, False
            if plain.grade_column is not None:
                boolean = _is_boolean(reader.types(sa.select(plain.rankings.c[plain.grade_column])))
            elif isinstance(recipe, Judgments):
                reader.types(sa.select(*plain.labels.c))
                boolean = _is_boolean(reader.types(sa.select(plain.labels.c[recipe.grade])))
            else:
                reader.types(sa.select(*plain.labels.c))
            self._queries = Queries(self.monitor, self._cutoffs, boolean)
        return self._queries


def _is_boolean(types: Sequence[Any]) -> bool:
    # 16 is PostgreSQL's boolean; other drivers name theirs.
    return types[0] == 16 or str(types[0]).lower() in ("bool", "boolean")


@dataclass(frozen=True)
class _Requests:
    """One entry a request: what the source's summary says, with rows of the same request put together."""

    ids: list[Any]
    served: Ints
    counts: Ints
    keys: list[list[str | None]]
    mixed: list[Bools]
    times: dict[str, Bools]
    strays: dict[str, Ints]
    cutoffs: tuple[int | None, ...]

    @classmethod
    def of(cls, columns: list[list[Any]], monitor: Monitor, queries: Queries) -> _Requests:
        ids, time = columns[0], columns[1]
        width = 6 + len(queries.cutoffs)
        counts = np.array([_ints(c) for c in columns[2 : 2 + width]], dtype=np.int64).reshape(width, len(ids))
        micros, bad, ambiguous = to_micros(monitor.rankings.time, time)
        named = np.fromiter((i is not None for i in ids), bool, len(ids))
        strays = {"null_request": np.repeat(micros[~named & ~bad], counts[0][~named & ~bad])}
        usable = np.flatnonzero(named & ~bad)
        names, groups = _grouped(ids, usable)
        keys = [_merge(c, groups, usable, len(names)) for c in columns[2 + width :]]
        earliest = np.full(len(names), np.iinfo(np.int64).max)
        np.minimum.at(earliest, groups, micros[usable])
        total = np.stack([np.bincount(groups, c[usable], len(names)) for c in counts]).astype(np.int64)
        doubtful = np.bincount(groups, ambiguous[usable], len(names)) > 0
        return cls(
            names,
            earliest,
            total,
            [k[0] for k in keys],
            [k[1] for k in keys],
            {"ambiguous_time": doubtful},
            strays,
            queries.cutoffs,
        )

    def within(self, since: int, until: int) -> _Requests:
        """The requests whose earliest row is in [since, until) seconds."""
        kept = np.flatnonzero((self.served >= since * MICROS) & (self.served < until * MICROS))
        inside = {r: m[(m >= since * MICROS) & (m < until * MICROS)] for r, m in self.strays.items()}
        return _Requests(
            [self.ids[i] for i in kept],
            self.served[kept],
            self.counts[:, kept],
            [[k[i] for i in kept] for k in self.keys],
            [m[kept] for m in self.mixed],
            {r: flags[kept] for r, flags in self.times.items()},
            inside,
            self.cutoffs,
        )

    def shown(self, k: int | None) -> Ints:
        """How many items each request shows at its first k positions."""
        number: Ints = self.counts[5 + self.cutoffs.index(k)]
        return number


def _ints(column: list[Any]) -> list[int]:
    return [int(v or 0) for v in column] if column and type(column[0]) is not int else column


def _grouped(ids: list[Any], usable: Ints) -> tuple[list[Any], Ints]:
    """(distinct ids, number of each usable entry's id among them)."""
    number: dict[Any, int] = {}
    groups = [number.setdefault(ids[i], len(number)) for i in usable.tolist()]
    return list(number), np.array(groups, dtype=np.int64)


def _merge(column: list[Any], groups: Ints, usable: Ints, size: int) -> tuple[list[str | None], Bools]:
    """(one value a request, whether its rows differ). A missing value agrees with any other."""
    values: list[Any] = [None] * size
    mixed = np.zeros(size, bool)
    for i, group in zip(usable.tolist(), groups.tolist(), strict=True):
        value = column[i]
        if value is None or values[group] == value:
            continue
        mixed[group] = mixed[group] or values[group] is not None
        values[group] = value
    return [MIXED if m else v for v, m in zip(values, mixed.tolist(), strict=True)], mixed


@dataclass
class _Read:
    """One read under way, after its requests are known."""

    pull: Pull
    queries: Queries
    reader: Reader
    requests: _Requests
    asked: tuple[int, int]
    wide: tuple[int, int]

    def __post_init__(self) -> None:
        self.monitor = self.pull.monitor
        self.size = len(self.requests.ids)
        self.number = {name: i for i, name in enumerate(self.requests.ids)}
        self.items: dict[Any, int] = {}
        self.refusals = Refusals(self.size)
        self.fingerprint = ""
        self.judged: Judged | None = None

    def reading(self) -> Reading:
        recipe = self.monitor.recipe
        self._refuse_by_count()
        if isinstance(recipe, Events):
            rows, labelled, events, sampled = self._by_events(recipe)
            judged = None
        elif isinstance(recipe, Judgments):
            rows, judged, sampled = self._by_judgments(recipe)
            labelled, events = judged > 0, np.zeros(self.size, np.int64)
        else:
            rows, judged = self._by_column(), self.requests.counts[5 + len(self.requests.cutoffs)]
            labelled, events = self.requests.counts[4] > 0, np.zeros(self.size, np.int64)
            sampled = labelled
        rows = accept(rows, self.pull._limits, self.refusals)
        depth = self.monitor.depth
        if judged is None:
            inside = rows.position <= (depth or np.inf)
            judged = np.bincount(rows.request[inside], minlength=self.size)
        sampled = sampled & (self.requests.shown(None) > 0) & ~self.requests.times["ambiguous_time"]
        graded = Graded(
            self.size,
            rows.request,
            rows.position.astype(np.int64),
            rows.grade,
            sampled,
            {k: self.requests.shown(k) for k in self.requests.cutoffs},
            self.judged,
        )
        return Reading(
            *self.asked,
            served=self.requests.served,
            rankings=graded,
            impressions=self.requests.shown(depth),
            judged=judged,
            events=events,
            labelled=labelled,
            slices=self._slices(),
            refusals=self.refusals,
            strays=self.requests.strays,
            unmatched=self._unmatched(),
            rows=self.reader.rows,
            fingerprint=self.fingerprint,
        )

    def _refuse_by_count(self) -> None:
        rows, items, positions, early = self.requests.counts[:4]
        self.refusals.add_counts("null_item", rows - items)
        self.refusals.add_counts("null_position", rows - positions)
        self.refusals.add_counts("bad_position", early)
        for reason, flags in self.requests.times.items():
            self.refusals.add_counts(reason, np.where(flags, rows, 0))
        mixed = [*self.requests.mixed]
        if len(mixed) > len(self.monitor.slices):
            self.refusals.add_counts("mixed_query", mixed.pop(0).astype(np.int64))
        for flags in mixed:
            self.refusals.add_counts("mixed_slice", flags.astype(np.int64))

    def _slices(self) -> dict[str, list[str | None]]:
        values = self.requests.keys[len(self.requests.keys) - len(self.monitor.slices) :]
        return {s.dimension: v for s, v in zip(self.monitor.slices, values, strict=True)}

    def _rows(self, columns: list[list[Any]], grades: list[Any] | None = None) -> tuple[Rows, Ints]:
        """(rows of the requests at hand, which entries of `columns` they are). What is no number is inf."""
        request = np.fromiter((self.number.get(i, -1) for i in columns[0]), np.int64, len(columns[0]))
        kept = np.flatnonzero(request >= 0)
        item = np.fromiter((self.items.setdefault(i, len(self.items)) for i in columns[1]), np.int64, len(columns[1]))
        position = _floats(columns[2], np.inf) - self.monitor.rankings.position_base + 1
        grade = np.zeros(len(request)) if grades is None else _floats(grades, np.inf)
        return Rows(request, item, position, grade).where(kept), kept

    def _by_column(self) -> Rows:
        columns = self.reader.columns(self.queries.graded_rows(*self.wide, self.pull._sparse), self.pull.most_rows)
        return self._known_positions(self._rows(columns, columns[3])[0])

    def _by_events(self, recipe: Events) -> tuple[Rows, Bools, Ints, Bools]:
        """(graded rows, has an event that counts, events that count, is data), the last three per request."""
        columns = self.reader.columns(self.queries.event_rows(recipe, *self.wide), self.pull.most_rows)
        rows, kept = self._rows(columns)
        at, unreadable, _ = to_micros(recipe.time, columns[3])
        kind = np.array(columns[4], dtype=object)[kept] if recipe.type is not None else None
        value = _floats(columns[-1], np.nan)[kept] if recipe.value is not None else None
        grade = event_grades(recipe, kind, value, len(kept))
        readable = ~unreadable[kept]
        self.refusals.add("bad_time", rows.request[~readable])
        rows = Rows(rows.request, rows.item, rows.position, grade).where(readable)
        counted = attribute(
            rows, at[kept][readable], self.requests.served, recipe, self.monitor.max_request_span, self.refusals
        )
        events = np.bincount(counted.request, minlength=self.size)
        rows = combine(counted, recipe.combine == "sum")
        if not self.pull._sparse:
            everything = self.reader.columns(self.queries.all_rows(*self.wide), self.pull.most_rows)
            rows = combine(self._rows(everything)[0] + rows, add=False)
        return self._known_positions(rows), events > 0, events, np.ones(self.size, bool)

    def _by_judgments(self, recipe: Judgments) -> tuple[Rows, Ints, Bools]:
        """(graded rows, judged items within the depth, is data), the last two per request."""
        shown = self.reader.columns(self.queries.judged_shown(recipe, *self.wide, self.monitor.depth))
        judged = np.zeros(self.size, np.int64)
        for name, items in zip(*shown, strict=True):
            if (i := self.number.get(name)) is not None:
                judged[i] = items
        counts = self.reader.columns(self.queries.judgment_counts(recipe, *self.wide), self.pull.most_rows)
        columns = self.reader.columns(
            self.queries.judged_rows(recipe, *self.wide, self.pull._sparse), self.pull.most_rows
        )
        rows = self._known_positions(self._rows(columns, columns[3])[0])
        self.fingerprint = _fingerprint([*counts, *columns[:2], columns[3]])
        has_any = self._judge(counts)
        return rows, judged, has_any & ~self.requests.mixed[0]

    def _judge(self, counts: list[list[Any]]) -> Bools:
        """Whether each request's query is judged at all; keeps all judgments where a measure needs them."""
        queries = self.requests.keys[0]
        by_query: dict[Any, list[tuple[float, int]]] = {}
        grades = _floats(counts[1], np.nan)
        usable = self.pull._limits.allow(grades)
        for query, grade, items, good in zip(counts[0], grades.tolist(), counts[2], usable.tolist(), strict=True):
            by_query.setdefault(query, []).extend([(grade, items)] if good else [])
        found = [(i, g, n) for i, q in enumerate(queries) for g, n in by_query.get(q, ())]
        if self.pull._needs_judged:
            columns = list(zip(*found, strict=True)) or [(), (), ()]
            self.judged = Judged(
                np.array(columns[0], np.int64), np.array(columns[1], np.float64), np.array(columns[2], np.int64)
            )
        return np.fromiter((q in by_query for q in queries), bool, self.size)

    def _known_positions(self, rows: Rows) -> Rows:
        # Missing positions and those before the first were counted with the requests already.
        return rows.where(~np.isnan(rows.position) & ~(rows.position < 1))

    def _unmatched(self) -> Ints:
        recipe = self.monitor.recipe
        if not isinstance(recipe, Events) or not recipe.count_unmatched:
            return np.empty(0, np.int64)
        found = []
        for since, until, reach in self._blocks(recipe):
            columns = self.reader.columns(self.queries.unmatched(recipe, since, until, reach), self.pull.most_rows)
            micros, bad, _ = to_micros(recipe.time, columns[0])
            found.append(micros[~bad & (micros >= since * MICROS) & (micros < until * MICROS)])
        return np.concatenate(found)

    def _blocks(self, recipe: Events) -> list[tuple[int, int, tuple[int, int]]]:
        """Parts [since, until) of the range, and where to look for their impressions.

        Blocks lie on a fixed grid, so that what is found does not depend on how much is read at once.
        """
        width = max(self.monitor.bucket, recipe.attribution)
        since, until = self.asked
        span = self.monitor.max_request_span
        found = []
        for block in range(since - since % width, until, width):
            reach = (block - recipe.attribution - span, block + width + span)
            found.append((max(block, since), min(block + width, until), reach))
        return found


def _floats(values: Sequence[Any], unreadable: float) -> Floats:
    """Numbers as floats; None is nan, what is no number is `unreadable`."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array([_float(v, unreadable) for v in values], dtype=np.float64)


def _float(value: Any, unreadable: float) -> float:
    if value is None:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return unreadable


def _fingerprint(columns: list[list[Any]]) -> str:
    rows = sorted(repr(row) for row in zip(*columns[:3], strict=True)) + sorted(
        repr(row) for row in zip(*columns[3:], strict=True)
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def open_pull(monitor: Monitor, database: Database) -> Pull:
    """A pull of `monitor`.

    Raises:
        SourceError: the source is not the monitor's own.
    """
    if monitor.source != database.name:
        raise SourceError(f"monitor {monitor.name} reads {monitor.source}, not {database.name}")
    return Pull(monitor, database)
