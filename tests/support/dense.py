"""What a log amounts to, by plain loops over every row and event: the oracle for the sparse pull and the tally.

It knows the words' meaning (design.md, `relevance.REASONS`, the docstrings of `Reading`) and nothing of SQL or NumPy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from monitor.measures.measure import Measure
from monitor.measures.relevance import REASONS
from monitor.types import Events, Judgments, Monitor
from tests.support.logs import END, MICROS, START, Log, Row, Style
from tests.support.oracle import ORACLE, Request, hits, is_empty, squares

Cell = tuple[int, str, str]
Graded = tuple[Any, int, float]
"""Item, rank and grade of a row."""


@dataclass
class Dense:
    """Expected partials of the requests served in [since, until) seconds."""

    log: Log
    monitor: Monitor
    style: Style
    since: int
    until: int
    traffic: dict[Cell, list[float]] = field(default_factory=dict)
    measures: dict[str, dict[Cell, list[float]]] = field(default_factory=dict)
    refused: Counter[tuple[Cell, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        width = self.monitor.bucket
        for start in range(self.since - self.since % width, self.until, width):
            self._traffic((start, "", ""))
        kernels = {m.kernel: None for m in self.monitor.measures}
        self.measures = {str(k): {} for k in kernels}
        for row in self.log.rankings:
            if row["request"] is None and row["at"] is not None and self._is_asked(self.at(row["at"])):
                self.refused[self._overall(self.at(row["at"])), "null_request"] += 1
        for one in self._requests():
            if self._is_asked(one.served):
                self._add(one, list(kernels))
        for cell in self.traffic:
            for cells in self.measures.values():
                cells.setdefault(cell, [0.0] * 9)
        for at in self._unmatched():
            self.traffic[self._overall(at)][5] += 1

    @cached_property
    def events(self) -> dict[Any, list[Row]]:
        """The events of each request."""
        found = defaultdict(list)
        for event in self.log.events:
            found[event["request"]].append(event)
        return found

    @cached_property
    def best(self) -> dict[Any, dict[Any, float]]:
        """Of each query's items the highest grade."""
        best: dict[Any, dict[Any, float]] = defaultdict(dict)
        for j in self.log.judgments:
            if None not in j.values():
                grade = _number(j["grade"])
                known = best[j["query"]].get(j["item"])
                best[j["query"]][j["item"]] = grade if known is None else max(known, grade)
        return best

    # ---- times -------------------------------------------------------------------------------------------------

    def at(self, value: Any) -> int:
        """Microseconds; of an unreadable text the end of the last second that is written so as to sort before it."""
        return _placed(self.style, value) if isinstance(value, str) else int(value)

    def _is_asked(self, micros: int) -> bool:
        return self.since * MICROS <= micros < self.until * MICROS

    def _overall(self, micros: int) -> Cell:
        return (micros // MICROS // self.monitor.bucket * self.monitor.bucket, "", "")

    # ---- sums --------------------------------------------------------------------------------------------------

    def _traffic(self, cell: Cell) -> list[float]:
        return self.traffic.setdefault(cell, [0.0] * 8)

    def _requests(self) -> Iterator[One]:
        rows = defaultdict(list)
        for row in self.log.rankings:
            if row["request"] is not None and row["at"] is not None:
                rows[row["request"]].append(row)
        return (One(self, name, found) for name, found in rows.items())

    def _add(self, one: One, kernels: list[Measure]) -> None:
        start = self._overall(one.served)[0]
        values = [(s.dimension, one.slice(s.column)) for s in self.monitor.slices]
        cells = [(start, "", ""), *((start, d, v) for d, v in values)]
        one.refused["mixed_slice"] += sum(v == "(mixed)" for _, v in values)
        labels = one.labels
        sums = {str(k): list(_sums(k, one, sample)) for k in kernels if (sample := one.sample(k))}
        for cell in cells:
            counts = [1, labels.labelled, one.shown(self.monitor.depth), labels.judged, labels.events]
            counts += [0, one.is_empty, one.shown(1)]
            self.traffic[cell] = [a + b for a, b in zip(self._traffic(cell), counts, strict=True)]
            for reason, rows in one.refused.items():
                self.refused[cell, reason] += rows if reason in REASONS else 0
            for kernel, found in sums.items():
                for i, x in enumerate(found):
                    self.measures[kernel].setdefault(cell, [0.0] * 9)[i] += x

    # ---- events on nothing -------------------------------------------------------------------------------------

    def _unmatched(self) -> Iterator[int]:
        """Instants of the events whose item was not logged for their request, as far as one looks for it."""
        recipe, span = self.monitor.recipe, self.monitor.max_request_span
        if not isinstance(recipe, Events) or not recipe.count_unmatched:
            return
        width = max(self.monitor.bucket, recipe.attribution)
        logged = defaultdict(list)
        for row in self.log.rankings:
            if row["at"] is not None:
                logged[row["request"], row["item"]].append(self.at(row["at"]))
        for event in self.log.events:
            if event["at"] is None or event["type"] not in {r.type for r in recipe.rules}:
                continue
            at = self.at(event["at"])
            block = at // MICROS // width * width
            reach = (block - recipe.attribution - span) * MICROS, (block + width + span) * MICROS
            known = None not in (event["request"], event["item"])
            found = logged[event["request"], event["item"]] if known else []
            if self._is_asked(at) and not any(reach[0] <= t < reach[1] for t in found):
                yield at


@dataclass
class Found:
    """What is known of one request's relevance. `pool`: the grades judged of its query, shown or not."""

    usable: list[Graded]
    judged: int
    labelled: bool
    events: int = 0
    pool: list[float] = field(default_factory=list)


@dataclass
class Sample:
    """What one measure makes of a request: its rows, each item and place once, and the judged grades."""

    rows: list[Graded]
    pool: list[float]


class One:
    """One request and all its rows."""

    def __init__(self, dense: Dense, name: Any, rows: list[Row]) -> None:
        self.name, self.rows, self.log, self.monitor, self.dense = name, rows, dense.log, dense.monitor, dense
        first = min(rows, key=lambda row: dense.at(row["at"]))
        self.served = dense.at(first["at"])
        self.is_timed = not isinstance(first["at"], str)
        self.refused: Counter[str] = Counter()
        self.refused["bad_time"] += 0 if self.is_timed else len(rows)
        nothing = [row for row in rows if self._says_nothing(row)]
        self.is_empty = bool(nothing) and all(row["item"] is None for row in rows)
        rows = [row for row in rows if not (self.is_empty and row in nothing)]
        self.refused["null_item"] += sum(row["item"] is None for row in rows)
        self.refused["null_position"] += sum(row["position"] is None for row in rows)
        self.refused["bad_position"] += sum(row["position"] is not None and not self.rank(row) for row in rows)

    def _says_nothing(self, row: Row) -> bool:
        """Whether a row says that the list was empty."""
        results = self.monitor.rankings.results
        return row["item"] is None and (row["position"] is None if results is None else row[results] == 0)

    def rank(self, row: Row) -> int:
        """Rank from 1 on; 0 where the row has none."""
        number = _number(row["position"])
        if number is None or not math.isfinite(number) or number != int(number):
            return 0
        rank = int(number) - self.monitor.rankings.position.base + 1
        return rank if 1 <= rank <= 2**53 else 0

    def shown(self, k: int | None) -> int:
        """Rows that show an item at one of the first k ranks."""
        return sum(row["item"] is not None and 1 <= self.rank(row) <= (k or math.inf) for row in self.rows)

    def listed(self, k: int | None) -> int:
        """Different items shown at one of the first k ranks."""
        return len({row["item"] for row in self.rows if 1 <= self.rank(row) <= (k or math.inf)} - {None})

    def slice(self, column: str) -> str:
        """The one value of a slice column."""
        values = {row[column] for row in self.rows} - {None}
        return "(mixed)" if len(values) > 1 else str(next(iter(values), "(none)"))

    @cached_property
    def labels(self) -> Found:
        """By the monitor's recipe."""
        recipe = self.monitor.recipe
        found = (
            self._by_events(recipe)
            if isinstance(recipe, Events)
            else self._by_judgments(recipe)
            if isinstance(recipe, Judgments)
            else self._by_column()
        )
        joint = [row for row in found.usable if not self._unfit(row[2], self.monitor.measures, count=True)]
        self._once(joint, count=True)
        return found

    def sample(self, kernel: Measure) -> Sample | None:
        """What a measure is computed from; None where the request is no data for it."""
        usable = [row for row in self.labels.usable if not self._unfit(row[2], [kernel])]
        pool = [grade for grade in self.labels.pool if not self._unfit(grade, [kernel])]
        is_data = {"Column": bool(usable), "Judgments": bool(pool)}.get(type(self.monitor.recipe).__name__, True)
        if kernel.name == "no_results":
            is_data = True
        has_data = (is_data and self.shown(None) > 0) or self.is_empty
        return Sample(self._once(usable), pool) if has_data and self.is_timed else None

    # ---- recipes -----------------------------------------------------------------------------------------------

    def _by_column(self) -> Found:
        usable = self._usable([(row, row["grade"]) for row in self.rows])
        return Found(usable, self._within(usable), bool(usable))

    def _by_judgments(self, recipe: Judgments) -> Found:
        best = self.dense.best
        usable = self._usable([(row, best[row["query"]].get(row["item"])) for row in self.rows])
        queries = {row["query"] for row in self.rows} - {None}
        self.refused["mixed_query"] += len(queries) > 1
        pool = best[next(iter(queries))] if len(queries) == 1 else {}
        allowed = [g for g in pool.values() if not self._fault(g)]
        judged = self._within(usable)
        return Found(usable, judged, judged > 0, pool=allowed)

    def _by_events(self, recipe: Events) -> Found:
        worths: dict[Any, list[float]] = defaultdict(list)
        logged = {row["item"] for row in self.rows} - {None}
        for event in self.dense.events[self.name]:
            if event["at"] is not None and event["item"] in logged:
                worth = self._worth(recipe, event)
                worths[event["item"]] += [] if worth is None else [worth]
        fold = sum if recipe.combine == "sum" else max
        counted = sum(map(len, worths.values()))
        graded = [(row, fold(worths[row["item"]]) if worths[row["item"]] else None) for row in self.rows]
        usable = self._usable(graded)
        judged = self._within(usable)
        if not self._is_sparse:
            usable += self._usable([(row, 0.0) for row, grade in graded if grade is None])
        return Found(usable, judged, counted > 0, counted)

    def _worth(self, recipe: Events, event: Row) -> float | None:
        """Grade of an event that counts; None otherwise."""
        value = _number(event["value"])
        grades: list[float] = []
        for rule in recipe.rules:
            if rule.type is not None and rule.type != event["type"]:
                continue
            if rule.minimum is not None and not (value is not None and math.isfinite(value) and value >= rule.minimum):
                continue
            grades += [rule.grade] if rule.grade is not None else [] if value is None else [value]
        if not grades:
            return None
        reason = self._against(recipe, event, max(grades))
        self.refused[reason] += 1
        return None if reason else max(grades)

    def _against(self, recipe: Events, event: Row, worth: float) -> str:
        """Why an event does not count: a reason of refusal, `far` if it is too far away to tell; empty if it does."""
        since = self.dense.at(event["at"]) - self.served
        near, end = self.monitor.max_request_span * MICROS, recipe.attribution * MICROS
        if not -near <= since < end + near:
            return "far"
        if isinstance(event["at"], str):
            return "bad_time"
        if since < 0 or since >= end:
            return "early_event" if since < 0 else "late_event"
        return "bad_grade" if not math.isfinite(worth) else "negative_grade" if worth < 0 else ""

    # ---- grades ------------------------------------------------------------------------------------------------

    @property
    def _is_sparse(self) -> bool:
        return all(not isinstance(m.gain, tuple) or dict(m.gain).get(0, 0) == 0 for m in self.monitor.measures)

    def _usable(self, labelled: list[tuple[Row, Any]]) -> list[Graded]:
        """The rows that are shown with a grade within limits."""
        found = []
        for row, label in labelled:
            grade = _number(label)
            if row["item"] is None or not self.rank(row) or grade is None:
                continue
            fault = self._fault(grade)
            self.refused[fault] += 1
            if not fault:
                found.append((row["item"], self.rank(row), float(grade)))
        return found

    def _fault(self, grade: float) -> str:
        """Why the recipe does not allow a grade."""
        bound = self.monitor.recipe.bound
        if not math.isfinite(grade):
            return "bad_grade"
        if grade < 0:
            return "negative_grade"
        return "grade_above_max" if bound is not None and grade > bound else ""

    def _unfit(self, grade: float, measures: Iterable[Measure], count: bool = False) -> str:
        """Why a measure, or one of several, cannot take a grade that the recipe allows."""
        tables = [{g for g, _ in m.gain} | {0} for m in measures if isinstance(m.gain, tuple)]
        tops = [top for m in measures for top in (m.max_grade, 332 if m.gain == "exp2" else 1e100) if top is not None]
        reason = "grade_above_max" if grade > min(tops) else "bad_grade" if any(grade not in t for t in tables) else ""
        self.refused[reason] += count
        return reason

    def _within(self, rows: list[Graded]) -> int:
        return sum(rank <= (self.monitor.depth or math.inf) for _, rank, _ in rows)

    def _once(self, rows: list[Graded], count: bool = False) -> list[Graded]:
        """Each item and each place once: the highest grade, then the last place."""
        by_worth = sorted(rows, key=lambda row: (-row[2], -row[1]))
        for reason, key in (("duplicate_item", 0), ("duplicate_position", 1)):
            kept: dict[Any, Graded] = {}
            for row in by_worth:
                kept.setdefault(row[key], row)
            left = [row for row in by_worth if row is not kept[row[key]]]
            # Rows of grade 0 are not even read where they add nothing; but an event may have brought a grade of 0.
            seen = isinstance(self.monitor.recipe, Events) or not self._is_sparse
            for row in left if count else ():
                again = row[:2] == kept[row[key]][:2]
                self.refused["duplicate_row" if again else reason] += row[2] > 0 or seen
            by_worth = [row for row in by_worth if row is kept[row[key]]]
        return by_worth


@cache
def _placed(style: Style, value: str) -> int:
    wide = range(START - 10_000, END + 10_000)
    return MICROS * (1 + max((s for s in wide if style.write(s * MICROS) <= value), default=-1)) - 1


def _number(value: Any) -> float | None:
    """None stays; what is not a number is infinite."""
    try:
        number = None if value is None else float(value)
    except (TypeError, ValueError):
        return math.inf
    return None if number is None or math.isnan(number) else number


def _sums(measure: Measure, one: One, sample: Sample) -> list[float]:
    """The nine sums of one request."""
    if measure.by_slice:
        column = next(s.column for s in one.monitor.slices if s.dimension == measure.dimension)
        tables = {value: table for (_, value), table in measure.by_slice}
        measure = replace(measure, examination=tables.get(one.slice(column), measure.examination), by_slice=())
    if measure.name == "no_results":
        empty = float(one.is_empty)
        return [1, 0, empty, empty, 0, 0, 0, 0, 0]
    q = Request({rank: grade for _, rank, grade in sample.rows}, _unseen(sample))
    by_length = measure.name == "ctr" or (measure.name == "precision" and measure.k is None)
    part = (len(hits(measure, q)), one.listed(measure.k)) if by_length else ORACLE[measure.name](measure, q)
    if measure.name == "coec":
        ranks = {one.rank(row) for row in one.rows if row["item"] is not None}
        part = part[0], sum(looks for rank, looks in measure.examination[: measure.k] if rank in ranks)
    empty = part[1] == 0 if measure.name in ("ctr", "coec") else is_empty(measure, q)
    pooled = measure.name in ("ndcg", "precision", "recall", "ctr", "coec", "click_position", "snips")
    is_corrected = measure.name in ("cg", "dcg") and measure.examination
    over, under = part if pooled else (squares(measure, q) if is_corrected else 0.0, 0.0)
    value = 0.0 if empty else part[0] / part[1]
    return [1, empty, value, value**2, over, under, over**2, under**2, over * under]


def _unseen(sample: Sample) -> list[float]:
    """The judged grades that no row brought."""
    left = list(sample.pool)
    for _, _, grade in sample.rows:
        if grade in left:
            left.remove(grade)
    return left
