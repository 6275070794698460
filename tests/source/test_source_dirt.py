"""Each kind of dirty data by itself: what counts, what is refused and why, and what the error says."""

from __future__ import annotations

import functools
import operator
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.measures.measure import parse
from monitor.series.finality import CLOCK_TOLERANCE
from monitor.series.partials import Partials, to_partials
from monitor.series.partials import to_partials as of_answer
from monitor.series.readings import Part, Reading
from monitor.source import pull as pull_module
from monitor.source.engine import Database
from monitor.source.pull import Freshness, Pull
from monitor.source.pushdown import PushDown
from monitor.source.queries import MOST_COUNTED
from monitor.types import Drift, EventRule, Events, Monitor, Relation, TimeColumn
from tests.source.test_source import assert_same
from tests.support.logs import (
    ATTRIBUTION,
    BUCKET,
    END,
    MICROS,
    SPAN,
    START,
    Log,
    Style,
    column,
    events,
    judgments,
    moment,
    monitor,
    styles,
    write,
)


class Source:
    """A database to write logs to and to read them from."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.style = styles(url)["epoch s"]
        self._databases: list[Database] = []

    def pull(self, monitored: Monitor, log: Log | None = None, **types: str) -> Pull:
        """A reader; a log that is given is written first."""
        if log is not None:
            write(self.url, log, self.style, **types)  # type: ignore[arg-type]
        self._databases.append(Database("s", parse_url(self.url), 60))
        return Pull(monitored, self._databases[-1])

    def read(self, monitored: Monitor, log: Log, since: int = START, until: int = END, **types: str) -> Reading:
        """The reading of the log."""
        return self.pull(monitored, log, **types).read(since, until)

    def close(self) -> None:
        for database in self._databases:
            database.close()


@pytest.fixture
def sqlite_source(tmp_path: Path) -> Iterator[Source]:
    found = Source(f"sqlite:///{tmp_path / 'log.db'}")
    yield found
    found.close()


@pytest.fixture
def postgres_source(shared_url: str) -> Iterator[Source]:
    found = Source(shared_url)
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def source(request: pytest.FixtureRequest) -> Source:
    found: Source = request.getfixturevalue("sqlite_source" if request.param == "sqlite" else "postgres_source")
    return found


def refused(reading: Reading) -> dict[str, int]:
    """Refused rows by reason."""
    strays = {reason: len(times) for reason, times in reading.strays.items() if len(times)}
    return {reason: int(rows.sum()) for reason, rows in reading.refusals.counts.items()} | strays


def graded(reading: Reading, measure: str = "") -> list[tuple[int, float]]:
    """(rank, grade) of the rows that count, for a measure if one is named."""
    rankings = reading.taken_by(parse(measure).kernel) if measure else reading.rankings
    return sorted(zip(rankings.rank.tolist(), rankings.grade.tolist(), strict=True))


def tallied(reading: Reading, monitored: Monitor) -> Partials:
    return to_partials(reading, BUCKET, [m.kernel for m in monitored.measures], monitored.slices, {})


def sum_of(tallies: Sequence[Partials]) -> Partials:
    """The tallies added up."""
    return functools.reduce(operator.add, tallies)


# ---- no data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["events", "judgments", "column"])
def test_empty_tables_give_zeros(source: Source, kind: str) -> None:
    recipe = {"events": events(source.style), "judgments": judgments(), "column": column()}[kind]
    measures = ("ndcg@3", "dcg(gain={0:1,1:2})@3", *(["recall(ideal=global)@3"] if kind == "judgments" else []))
    monitored = monitor(recipe, source.style, measures)
    pull = source.pull(monitored, Log())
    assert pull.freshness(START, END) == Freshness(None, 0)
    found = tallied(pull.read(START, END), monitored)
    assert sorted(found.traffic) == [(START + i * BUCKET, "", "") for i in range(4)]
    assert not any(partial.any() for partial in found.traffic.values())
    assert all(not p.any() for cells in found.measures.values() for p in cells.values())
    assert found.refused == {}


def test_a_request_without_clicks_is_a_sample_without_a_value(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START)
    monitored = monitor(events(source.style), source.style)
    reading = source.read(monitored, log)
    assert (reading.rankings.sampled.tolist(), reading.labelled.tolist()) == ([True], [False])
    assert tallied(reading, monitored).measures["ndcg@3"][START, "", ""].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]


# ---- missing values ------------------------------------------------------------------------------------------------


def test_rows_without_a_request_count_in_their_own_bucket(source: Source) -> None:
    log = Log()
    log.show(None, [1, 2], START + 5, grade=1)
    log.show(None, [3], START + BUCKET, grade=1)
    log.show(None, [3], START - 1, grade=1)
    monitored = monitor(column(), source.style)
    reading = source.read(monitored, log)
    assert len(reading.served) == 0
    assert sorted(reading.strays["null_request"].tolist()) == [
        (START + 5) * MICROS,
        (START + 5) * MICROS,
        (START + BUCKET) * MICROS,
    ]
    assert tallied(reading, monitored).refused == {
        ((START, "", ""), "null_request"): 2,
        ((START + BUCKET, "", ""), "null_request"): 1,
    }


def test_rows_without_an_item_or_a_position_are_counted_and_skipped(source: Source) -> None:
    log = Log()
    log.show("r1", [None, 2, 3], START, grade=[3, 1, 2])
    log.rankings[2]["position"] = None
    reading = source.read(monitor(column(), source.style), log)
    assert refused(reading) == {"null_item": 1, "null_position": 1}
    assert (graded(reading), reading.impressions.tolist(), reading.judged.tolist()) == ([(2, 1.0)], [1], [1])


def test_a_missing_grade_is_neither_a_label_nor_refused(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3], START, grade=[None, 0, None])
    log.show("r2", [1, 2], START, grade=None)
    reading = source.read(monitor(column(), source.style), log)
    assert sorted(zip(reading.judged.tolist(), reading.labelled, reading.rankings.sampled, strict=True)) == [
        (0, False, False),
        (1, True, True),
    ]
    assert refused(reading) == {}


def test_a_request_whose_only_label_was_refused_is_not_sampled(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, grade=[-1, None])
    log.show("r2", [None, 2], START, grade=[2, None])
    reading = source.read(monitor(column(), source.style), log)
    assert reading.rankings.sampled.tolist() == reading.labelled.tolist() == [False, False]
    assert reading.judged.tolist() == [0, 0]


def test_rows_without_a_time_are_ignored(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, grade=1)
    log.rankings[0]["at"] = None
    log.happen("r1", 1, START)
    log.events[0]["at"] = None
    reading = source.read(monitor(column(), source.style), log)
    assert (reading.impressions.tolist(), refused(reading)) == ([1], {})
    reading = source.read(monitor(events(source.style), source.style), log)
    assert (reading.events.tolist(), refused(reading), len(reading.unmatched)) == ([0], {}, 0)


# ---- positions -----------------------------------------------------------------------------------------------------


def test_gaps_between_positions_are_kept(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, grade=[1, 1])
    log.rankings[1]["position"] = 7
    reading = source.read(monitor(column(), source.style, ("ndcg@10", "ctr@5")), log)
    assert (graded(reading), reading.impressions.tolist()) == ([(1, 1.0), (7, 1.0)], [2])
    assert reading.rankings.shown[5].tolist() == [1]


@pytest.mark.parametrize("first", [0, 1])
def test_positions_before_the_first_are_refused(source: Source, first: int) -> None:
    log = Log()
    log.show("r1", [1, 2, 3], START, first=first - 1, grade=[3, 2, 1])
    reading = source.read(monitor(column(), source.style, first=first), log)
    assert refused(reading) == {"bad_position": 1}
    assert (graded(reading), reading.impressions.tolist()) == ([(1, 2.0), (2, 1.0)], [2])


@pytest.mark.parametrize("kind", ["double precision", "numeric"])
def test_fractional_positions_are_refused_whatever_their_grade(source: Source, kind: str) -> None:
    log = Log()
    log.show("r1", [1, 2, 3, 4], START, grade=[1, 0, None, 1])
    for row, position in zip(log.rankings, (1.5, 2.25, 2.5, 3.0), strict=True):
        row["position"] = position
    reading = source.read(monitor(column(), source.style), log, position=kind)
    assert refused(reading) == {"bad_position": 3}
    assert (graded(reading), reading.impressions.tolist()) == ([(3, 1.0)], [1])


def test_nan_infinite_and_huge_positions_are_refused(postgres_source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3], START, grade=1)
    for row, position in zip(log.rankings, (float("nan"), float("inf"), 2.0**60), strict=True):
        row["position"] = position
    reading = postgres_source.read(monitor(column(), postgres_source.style), log, position="double precision")
    assert refused(reading) == {"bad_position": 3}
    assert reading.impressions.tolist() == [0]


def test_text_positions_count_as_numbers_on_sqlite(sqlite_source: Source) -> None:
    log = Log()
    log.show("r1", range(1, 13), START, grade=[1] * 12)
    for row in log.rankings:
        row["position"] = str(row["position"])
    log.rankings[-1]["position"] = "last"
    monitored = monitor(column(), sqlite_source.style, ("ndcg@10",))
    reading = sqlite_source.read(monitored, log)
    assert (reading.impressions.tolist(), reading.judged.tolist()) == ([10], [10])
    assert [rank for rank, _ in graded(reading)] == list(range(1, 12))
    assert refused(reading) == {"bad_position": 1}


def test_text_columns_of_positions_count_as_numbers_on_sqlite(sqlite_source: Source) -> None:
    log = Log()
    log.show("r1", range(1, 13), START, grade=[1] * 12)
    pull = sqlite_source.pull(monitor(column(), sqlite_source.style, ("ndcg@10",)), log)
    engine = sa.create_engine(sqlite_source.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TEMP TABLE old AS SELECT * FROM rankings")
        connection.exec_driver_sql("DROP TABLE rankings")
        typed = '(request text, item text, position text, "at" real, query text, device text, country text, grade text)'
        connection.exec_driver_sql(f"CREATE TABLE rankings {typed}")
        connection.exec_driver_sql("INSERT INTO rankings SELECT * FROM old")
    engine.dispose()
    reading = pull.read(START, END)
    assert (reading.impressions.tolist(), reading.judged.tolist(), refused(reading)) == ([10], [10], {})
    assert [rank for rank, _ in graded(reading)] == list(range(1, 13))


def test_items_at_one_position_keep_the_highest_grade(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3], START, grade=[1, 2, 0])
    for row in log.rankings:
        row["position"] = 2
    reading = source.read(monitor(column(), source.style), log)
    assert (graded(reading), refused(reading)) == ([(2, 2.0)], {"duplicate_position": 1})
    assert reading.impressions.tolist() == [3]


def test_a_repeated_item_keeps_its_highest_grade_then_its_last_position(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 1, 2, 2, 3, 3], START, grade=[1, 2, 1, 1, 0, 1])
    reading = source.read(monitor(column(), source.style), log)
    assert (graded(reading), refused(reading)) == ([(2, 2.0), (4, 1.0), (6, 1.0)], {"duplicate_item": 2})


def values(source: Source, log: Log, measures: Sequence[str]) -> dict[str, list[float]]:
    """The sums of each measure, after checking that pull and push-down agree."""
    monitored = monitor(events(source.style), source.style, measures)
    pull = source.pull(monitored, log)
    found = tallied(pull.read(START, END), monitored)
    summed = summed_up(PushDown(monitored, pull.database, is_bound=True).read(START, END), monitored)
    assert_same(found, summed, "by the database")
    return {name: sum(cells.values()).tolist() for name, cells in found.measures.items()}  # type: ignore[union-attr]


def summed_up(answer: Part, monitored: Monitor) -> Partials:
    return of_answer(answer, BUCKET, [m.kernel for m in monitored.measures], monitored.slices, {})


COEC = "coec(examination={1:0.5,2:0.25,3:0.25})@3"
LENGTHS = ("ctr@2", "ctr", COEC, "precision", "precision@3", "ndcg@3", "ndcg", "click_position", "mrr")


def searches() -> Log:
    log, chance = Log(), random.Random(5)
    for n in range(30):
        log.show(f"r{n}", chance.sample(range(1, 9), chance.randint(1, 5)), START + 20 * n)
        for row in log.rankings[-2:]:
            log.happen(f"r{n}", row["item"], START + 20 * n + 1)
    return log


@pytest.mark.parametrize("seed", range(4))
def test_rows_delivered_again_change_no_value(source: Source, seed: int) -> None:
    log, chance = searches(), random.Random(seed)
    once = values(source, log, LENGTHS)
    some = [dict(row) for row in log.rankings for _ in range(chance.choice((0, 1, 2)) if seed else 1)]
    log.rankings += some
    assert values(source, log, LENGTHS) == {name: pytest.approx(sums, abs=1e-12) for name, sums in once.items()}
    assert set(refused(source.read(monitor(events(source.style), source.style, LENGTHS), log))) == {"duplicate_row"}


def test_copies_in_another_slice_do_not_change_ctr(source: Source) -> None:
    log = searches()
    once = values(source, log, LENGTHS)
    log.rankings += [row | {"device": "tv"} for row in log.rankings[::2]] + [
        row | {"device": "pc"} for row in log.rankings
    ]
    found = values(source, log, LENGTHS)
    assert found["ctr"] == pytest.approx(once["ctr"], abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_two_logs_that_disagree_on_positions_score_at_most_the_worse_one(source: Source, seed: int) -> None:
    chance, one, other, both = random.Random(seed), searches(), searches(), searches()
    for row in other.rankings:
        row["position"] += chance.choice((0, 1, 3))
    both.rankings = [*one.rankings, *(row | {} for row in other.rankings)]
    names = ("ndcg", "mrr", "dcg", "rbp")
    alone = [values(source, log, names) for log in (one, other)]
    together = values(source, both, names)
    for name in names:
        assert together[name][2] <= min(sums[name][2] for sums in alone) + 1e-12
    assert refused(source.read(monitor(events(source.style), source.style, names), both))["duplicate_item"] > 0


# ---- grades --------------------------------------------------------------------------------------------------------


def test_grades_may_be_fractions_but_not_negative_or_above_the_maximum(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3, 4], START, grade=[0.5, -1, 4, 4.5])
    reading = source.read(monitor(column(max_grade=4), source.style), log)
    assert graded(reading) == [(1, 0.5), (3, 4.0)]
    assert refused(reading) == {"negative_grade": 1, "grade_above_max": 1}


def test_a_grade_whose_gain_would_overflow_is_refused(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, grade=[400, 3])
    monitored = monitor(column(), source.style, ("ndcg(gain=exp2)@3",))
    reading = source.read(monitored, log)
    assert (graded(reading, "ndcg(gain=exp2)@3"), refused(reading)) == ([(2, 3.0)], {"grade_above_max": 1})
    tallied(reading, monitored)


def test_grades_missing_from_the_gain_table_are_dropped_from_list_and_ideal(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, query="q")
    for item, grade in enumerate([1, 2, 3, -1], 1):
        log.judge("q", item, grade)
    measure = "ndcg(gain={1:1,3:7},ideal=global)@3"
    monitored = monitor(judgments(), source.style, (measure,))
    reading = source.read(monitored, log)
    assert (graded(reading, measure), refused(reading)) == ([(1, 1.0)], {"bad_grade": 1})
    judged = reading.taken_by(parse(measure).kernel).judged
    assert judged is not None
    assert sorted(judged.grade.tolist()) == [1.0, 3.0]
    tallied(reading, monitored)


NARROW = ("err(max_grade=2)@3", "ndcg(gain={0:0,1:1,2:3})@3", "ndcg(gain=exp2)@3", "ndcg(ideal=max,max_grade=1)@3")


@pytest.mark.parametrize("kind", ["judgments", "column"])
@pytest.mark.parametrize("measure", ["ndcg@3", *NARROW])
def test_a_measure_does_not_depend_on_the_other_measures(source: Source, measure: str, kind: str) -> None:
    log = Log()
    for n, grades in enumerate(([1, 3, 2], [400, None, None], [2, 1, 0], [3, 0, 400])):
        log.show(f"r{n}", [1, 2, 3], START + n, query=f"q{n}", grade=grades)
        for item, grade in enumerate(grades, 1):
            log.judge(f"q{n}", item, grade)
    recipe = judgments() if kind == "judgments" else column()
    alone, among = (monitor(recipe, source.style, measures) for measures in ((measure,), ("ndcg@3", *NARROW)))
    reading = source.read(among, log)
    by_itself = tallied(source.read(alone, log), alone)
    together = tallied(reading, among)
    assert by_itself.measures[measure][START, "", ""].tolist() == together.measures[measure][START, "", ""].tolist()
    assert by_itself.traffic[START, "", ""].tolist() == together.traffic[START, "", ""].tolist()
    assert refused(reading) == {"grade_above_max": 6}
    assert alone.definition(alone.measures[0]) == among.definition(alone.measures[0])


def test_grades_that_are_not_numbers_are_refused(source: Source) -> None:
    log = Log()
    bad = "good" if source.url.startswith("sqlite") else float("inf")
    log.show("r1", [1, 2, 3], START, grade=[bad, 1, 2])
    reading = source.read(monitor(column(), source.style), log)
    assert (graded(reading), refused(reading)) == ([(2, 1.0), (3, 2.0)], {"bad_grade": 1})


@pytest.mark.parametrize("kind", ["judgments", "column"])
def test_a_boolean_grade_is_0_or_1(source: Source, kind: str) -> None:
    log = Log()
    log.show("r1", [1, 2, 3], START, query="q", grade=[True, False, None])
    for item, grade in ((1, True), (1, False), (2, False)):
        log.judge("q", item, grade)
    for measures in (("ndcg@3",), ("dcg(gain={0:1,1:3})@3",)):
        monitored = monitor(column() if kind == "column" else judgments(), source.style, measures)
        reading = source.read(monitored, log, grade="boolean")
        assert [g for g in graded(reading) if g[1]] == [(1, 1.0)]
        assert reading.judged.tolist() == [2]


def test_every_row_is_read_when_grade_0_has_a_gain(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3], START, grade=[0, 1, None])
    log.happen("r1", 2, START + 1)
    measures = ("cg(gain={0:1,1:3})@3",)
    for recipe, total in ((column(), 4), (events(source.style), 5)):
        monitored = monitor(recipe, source.style, measures)
        partial = tallied(source.read(monitored, log), monitored).measures["cg(gain={0:1,1:3})@3"]
        assert partial[START, "", ""][2] == total
    reading = source.read(monitor(events(source.style), source.style, measures), log)
    assert (reading.judged.tolist(), reading.events.tolist()) == ([1], [1])


# ---- events --------------------------------------------------------------------------------------------------------


def test_events_count_from_serving_to_the_end_of_the_attribution_window(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3, 4, 5, 6, 7], START + 100)
    for item, after in enumerate((-SPAN - 0.25, -0.25, 0, ATTRIBUTION - 0.25, ATTRIBUTION, ATTRIBUTION + SPAN), 1):
        log.happen("r1", item, START + 100 + after)
    reading = source.read(monitor(events(source.style), source.style, ("ndcg@10",)), log)
    assert graded(reading) == [(3, 1.0), (4, 1.0)]
    assert refused(reading) == {"early_event": 1, "late_event": 1}
    assert reading.events.tolist() == [2]


@pytest.mark.parametrize(("combine", "grade"), [("max", 3.0), ("sum", 5.0)])
def test_events_on_an_item_combine_by_max_or_sum(source: Source, combine: str, grade: float) -> None:
    log = Log()
    log.show("r1", [1], START)
    for kind in ("click", "click", "purchase", "view", None):
        log.happen("r1", 1, START + 1, kind)
    recipe = events(source.style, combine=combine)
    reading = source.read(monitor(recipe, source.style), log)
    assert (graded(reading), reading.events.tolist(), refused(reading)) == ([(1, grade)], [3], {})


@pytest.mark.parametrize(
    ("copies", "reason"), [([1, 1], "duplicate_row"), ([4, 1], "duplicate_item")], ids=["at one place", "at two places"]
)
def test_an_event_on_a_duplicated_row_counts_once(source: Source, copies: Sequence[int], reason: str) -> None:
    log = Log()
    log.show("r1", [5, 5], START)
    for row, position in zip(log.rankings, copies, strict=True):
        row["position"] = position
    log.happen("r1", 5, START + 1)
    log.happen("r1", 5, START + 2)
    log.happen("r1", 5, START - 1)
    log.happen("r1", 5, START + ATTRIBUTION)
    recipe = events(source.style, combine="sum")
    reading = source.read(monitor(recipe, source.style, ("ndcg@10",)), log)
    assert (graded(reading), reading.events.tolist()) == ([(max(copies), 2.0)], [2])
    assert refused(reading) == {"early_event": 1, "late_event": 1, reason: 1}


def test_an_event_logged_twice_counts_twice(source: Source) -> None:
    log = Log()
    log.show("r1", [5], START)
    log.happen("r1", 5, START + 1)
    log.events *= 2
    reading = source.read(monitor(events(source.style, combine="sum"), source.style), log)
    assert (graded(reading), reading.events.tolist(), refused(reading)) == ([(1, 2.0)], [2], {})


def test_an_event_value_is_its_grade_unless_negative_or_not_a_number(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3, 4], START)
    bad = "much" if source.url.startswith("sqlite") else float("inf")
    for item, value in ((1, 2.5), (2, None), (3, -1), (3, 1), (4, bad), (4, 2)):
        log.happen("r1", item, START + 1, "dwell", value)
    recipe = events(source.style, rules=(EventRule(None, "dwell"),))
    reading = source.read(monitor(recipe, source.style, ("ndcg@5",)), log)
    assert graded(reading) == [(1, 2.5), (3, 1.0), (4, 2.0)]
    assert refused(reading) == {"negative_grade": 1, "bad_grade": 1}
    assert reading.events.tolist() == [3]


def test_a_value_that_is_not_a_number_never_meets_a_minimum(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START)
    bad = "long" if source.url.startswith("sqlite") else float("inf")
    log.happen("r1", 1, START + 1, "dwell", bad)
    log.happen("r1", 2, START + 1, "dwell", 30)
    reading = source.read(monitor(events(source.style), source.style), log)
    assert (graded(reading), refused(reading)) == ([(2, 2.0)], {})


def test_an_event_on_an_item_without_a_position_counts_but_has_no_rank(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START)
    log.rankings[0]["position"] = None
    log.happen("r1", 1, START + 1)
    reading = source.read(monitor(events(source.style), source.style), log)
    assert (graded(reading), reading.events.tolist(), reading.labelled.tolist()) == ([], [1], [True])
    assert (refused(reading), len(reading.unmatched)) == ({"null_position": 1}, 0)


def test_unmatched_events_count_in_their_own_bucket(source: Source) -> None:
    log = Log()
    log.show("r1", [1, None], START)
    log.happen("unknown", 1, START + 1)
    log.happen("r1", 2, START + BUCKET)
    log.happen(None, 1, START + 2)
    log.happen("r1", None, START + 2)
    log.happen("r1", 1, START + 1)
    log.happen("unknown", 1, START + 1, "view")
    monitored = monitor(events(source.style), source.style)
    reading = source.read(monitored, log)
    assert sorted(t // MICROS - START for t in reading.unmatched.tolist()) == [1, 2, 2, BUCKET]
    found = tallied(reading, monitored)
    assert [found.traffic[START + i * BUCKET, "", ""][5] for i in range(4)] == [3, 1, 0, 0]
    unwatched = monitor(events(source.style, count_unmatched=False), source.style)
    assert len(source.pull(unwatched).read(START, END).unmatched) == 0


@pytest.mark.parametrize("attribution", [BUCKET, 10 * (END - START)], ids=["short", "long"])
def test_an_event_far_from_its_row_is_unmatched_however_the_read_is_cut(source: Source, attribution: int) -> None:
    width = max(BUCKET, attribution)
    block = START - START % width
    log = Log()
    for n, at in enumerate((block - attribution - SPAN - 1, block - attribution - SPAN, block + width + SPAN)):
        log.show(f"r{n}", [1], at)
        log.happen(f"r{n}", 1, START + n)
    monitored = monitor(events(source.style, attribution=attribution), source.style)
    pull = source.pull(monitored, log)
    for cut in (START, START + 1, START + 2, END - 1):
        found = [*pull.read(START, cut).unmatched, *pull.read(cut, END).unmatched]
        assert [t // MICROS - START for t in found] == [0, 2]


TABLES_OF_EVENTS = {
    "a view": "CREATE VIEW events AS SELECT * FROM kept",
    "a table without row ids": "CREATE TABLE events (request, item, type, value, at, n PRIMARY KEY) WITHOUT ROWID",
    "a column named so": "CREATE TABLE events (request, item, type, value, at, rowid)",
}


@pytest.mark.parametrize("created", TABLES_OF_EVENTS.values(), ids=TABLES_OF_EVENTS)
def test_events_stay_distinct_without_row_ids_on_sqlite(sqlite_source: Source, created: str) -> None:
    log = Log()
    log.show("r1", [1, 1, 2], START)
    for item in (1, 1, 2, 3):
        log.happen("r1", item, START + 5)
    pull = sqlite_source.pull(monitor(events(sqlite_source.style), sqlite_source.style), log)
    engine = sa.create_engine(sqlite_source.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME TO kept")
        connection.exec_driver_sql(created)
        if "TABLE" in created:
            numbered = "SELECT request, item, type, value, at, " + ("rowid" if "WITHOUT" in created else "1")
            connection.exec_driver_sql(f"INSERT INTO events {numbered} FROM kept")
    engine.dispose()
    reading = pull.read(START, END)
    assert (reading.events.tolist(), len(reading.unmatched)) == ([3], 1)


def test_an_events_table_that_loses_its_row_ids_is_still_read(sqlite_source: Source) -> None:
    log = Log()
    log.show("r1", [1], START)
    log.happen("r1", 1, START + 5)
    pull = sqlite_source.pull(monitor(events(sqlite_source.style), sqlite_source.style), log)
    assert pull.read(START, END).events.tolist() == [1]
    engine = sa.create_engine(sqlite_source.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE events RENAME TO kept")
        connection.exec_driver_sql(TABLES_OF_EVENTS["a table without row ids"])
        connection.exec_driver_sql("INSERT INTO events SELECT request, item, type, value, at, rowid FROM kept")
    engine.dispose()
    assert pull.read(START, END).events.tolist() == [1]


def retype(url: str, table: str, column: str, kind: str) -> None:
    """Give a column another type, and its values with it."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        if url.startswith("postgres"):
            if kind == "kind":
                connection.exec_driver_sql("DROP TYPE IF EXISTS kind CASCADE")
                connection.exec_driver_sql("CREATE TYPE kind AS ENUM ('click', 'purchase', 'dwell', 'view')")
            change = f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind} USING {column}::{kind}"
            connection.exec_driver_sql(change)
        else:
            names = [row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({table})")]
            typed = ", ".join(f'"{name}" {kind if name == column else ""}' for name in names)
            connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO before")
            connection.exec_driver_sql(f"CREATE TABLE {table} ({typed})")
            connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM before")
            connection.exec_driver_sql("DROP TABLE before")
    engine.dispose()


@pytest.mark.parametrize("kind", ["char(12)", "varchar(20)", "kind", "integer"])
def test_event_types_may_have_any_column_type_on_postgresql(postgres_source: Source, kind: str) -> None:
    types = ("7", "8") if kind == "integer" else ("click", "purchase")
    log = Log()
    log.show("r1", [1, 2, 3], START)
    log.happen("r1", 1, START + 1, types[0])
    log.happen("r1", 2, START + 1, types[1])
    rules = (EventRule(1, types[0]), EventRule(3, types[1]))
    pull = postgres_source.pull(monitor(events(postgres_source.style, rules=rules), postgres_source.style), log)
    retype(postgres_source.url, "events", "type", kind)
    assert graded(pull.read(START, END)) == [(1, 1.0), (2, 3.0)]


@pytest.mark.parametrize(("kind", "written"), [("TEXT COLLATE NOCASE", "CLICK"), ("INT", 7), ("TEXT", 7)])
def test_event_types_match_as_their_column_compares_on_sqlite(sqlite_source: Source, kind: str, written: Any) -> None:
    log = Log()
    log.show("r1", [1, 2], START)
    log.happen("r1", 2, START + 1, written)
    rules = (EventRule(1, "click"), EventRule(1, "7"))
    pull = sqlite_source.pull(monitor(events(sqlite_source.style, rules=rules), sqlite_source.style), log)
    retype(sqlite_source.url, "events", "type", kind)
    assert graded(pull.read(START, END)) == [(2, 1.0)]


@pytest.mark.parametrize("is_judged", [True, False])
def test_queries_match_as_their_columns_compare(source: Source, is_judged: bool) -> None:
    log, in_file = Log(), source.url.startswith("sqlite")
    log.show("r1", [1, 2], START, query="7")
    log.show("r2", [1, 2], START, query="shoes")
    log.judge("7" if not in_file else 7, 1 if is_judged else 9, 2)
    log.judge("SHOES" if in_file else "shoes", 2 if is_judged else 9, 1)
    pull = source.pull(monitor(judgments(), source.style, ("ndcg(ideal=global)@3",)), log)
    retype(source.url, "judgments", "query", "TEXT COLLATE NOCASE" if in_file else "char(9)")
    reading = pull.read(START, END)
    assert reading.rankings.sampled.tolist() == [True, True]
    assert reading.judged.tolist() == [is_judged, is_judged]
    judged = reading.rankings.judged
    assert judged is not None
    assert sorted(judged.grade.tolist()) == [1, 2]


@pytest.mark.parametrize("kind", ["events", "judgments", "column"])
def test_ids_equal_only_to_the_database_are_refused(sqlite_source: Source, kind: str) -> None:
    log = Log()
    log.show("a", [1], START, query="q", grade=1)
    log.show("A", [2], START, first=2, query="q", grade=1)
    log.judge("q", 1, 1)
    log.judge("q", 2, 1)
    log.happen("a", 1, START + 1)
    log.happen("A", 2, START + 1)
    recipe = {"events": events(sqlite_source.style), "judgments": judgments(), "column": column()}[kind]
    pull = sqlite_source.pull(monitor(recipe, sqlite_source.style), log)
    retype(sqlite_source.url, "rankings", "request", "TEXT COLLATE NOCASE")
    with pytest.raises(SourceError, match=r"column 'request' .* give them one spelling in a `select:`") as caught:
        pull.read(START, END)
    assert caught.value.reason == "data"


def test_an_event_at_infinity_is_ignored(postgres_source: Source) -> None:
    """Drivers cannot read such a time, so it must not even be sampled."""
    style = styles(postgres_source.url)["timestamptz"]
    postgres_source.style = style
    log = Log()
    log.show("r1", [1], START, grade=1)
    log.happen("r1", 1, START + 1)
    pull = postgres_source.pull(monitor(events(style), style), log)
    engine = sa.create_engine(postgres_source.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE events SET at = 'infinity'")
    engine.dispose()
    assert (pull.read(START, END).events.tolist(), pull.freshness(START, END).newest) == ([0], START)


# ---- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["events", "judgments", "column"])
def test_a_request_longer_than_max_request_span_is_left_out_whole(source: Source, kind: str) -> None:
    log = Log()
    log.show("long", [1, 2], START + 5, query="q", grade=1, device="tv")
    log.show("long", [3], START + SPAN + 5.25, first=3, query="q", grade=1, device="pc")
    log.show("fine", [1], START + 7, query="q", grade=1)
    log.show("fine", [2], START + SPAN + 7, first=2, query="q", grade=1)
    log.happen("long", 1, START + 9)
    log.happen("fine", 1, START + 9)
    log.judge("q", 1, 1)
    recipe = {"events": events(source.style), "judgments": judgments(), "column": column()}[kind]
    monitored = monitor(recipe, source.style)
    reading = source.read(monitored, log)
    assert (reading.served.tolist(), len(reading.unmatched)) == ([(START + 7) * MICROS], 0)
    assert reading.labelled.tolist() == [True]
    found = tallied(reading, monitored)
    assert found.refused == {((START, "", ""), "long_request"): 3}
    assert found.traffic[START, "", ""][0] == 1
    assert refused(source.pull(monitored).read(START, START + 6)) == {"long_request": 2}
    assert refused(source.pull(monitored).read(START + 6, END)) == {"long_request": 1}


@pytest.mark.parametrize("kind", ["events", "judgments", "column"])
def test_a_reused_id_is_judged_in_each_bucket_by_itself(source: Source, kind: str) -> None:
    log, edge = Log(), START + BUCKET
    log.show("again", [1, 2], edge - 1, query="q", grade=1, device="tv")
    log.show("again", [3], edge + SPAN, first=3, query="q", grade=1, device="tv")
    log.show("again", [4], edge + 2 * BUCKET + 5, query="q", grade=1, device="tv")
    log.show("r1", [1], edge + 9, query="q", grade=1, device="pc")
    for item, at in ((2, edge), (3, edge + SPAN), (4, edge + 2 * BUCKET + 6)):
        log.happen("again", item, at)
        log.judge("q", item, 1)
    recipe = {"events": events(source.style), "judgments": judgments(), "column": column()}[kind]
    measures = ("ndcg", *(["recall(ideal=global)@3"] if kind == "judgments" else []))
    monitored = monitor(recipe, source.style, measures)
    whole = source.read(monitored, log)
    assert whole.ids == ["again", "r1", "again"]
    assert whole.impressions.tolist() == [2, 1, 1]
    assert tallied(whole, monitored).refused == {((edge, "", ""), "long_request"): 1}
    parts = [source.pull(monitored).read(at, at + BUCKET) for at in range(START, END, BUCKET)]
    assert_same(tallied(whole, monitored), sum_of([tallied(part, monitored) for part in parts]), kind)


def test_a_request_across_a_bucket_edge_counts_once_where_it_began(source: Source) -> None:
    log, edge = Log(), START + BUCKET
    log.show("r1", [1], edge - 1, grade=1)
    log.show("r1", [2, 3], edge + SPAN - 1, first=2, grade=1)
    monitored = monitor(column(), source.style)
    pull = source.pull(monitored, log)
    for since, until, seen in ((START, edge, 1), (edge, END, 0), (edge - 1, edge, 1), (START, edge - 1, 0)):
        reading = pull.read(since, until)
        assert (len(reading.served), reading.impressions.sum()) == (seen, 3 * seen)


def test_rows_that_differ_in_a_slice_make_a_mixed_request_but_nulls_agree(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2, 3], START, device=["pc", None, "tv"], grade=1)
    log.show("r2", [1, 2], START, device=[None, "tv"], country=["x", "y"], grade=1)
    log.show("r3", [1, 2, 3, 4], START, device=["tv", "pc", "tv", "pc"], grade=1)
    log.show("r4", [1], START, grade=1)
    monitored = monitor(column(), source.style)
    reading = source.read(monitored, log)
    assert Counter(map(str, reading.slices["device"])) == {"(mixed)": 2, "tv": 1, "None": 1}
    assert refused(reading) == {"mixed_slice": 3}
    cells = {(d, v) for _, d, v in tallied(reading, monitored).traffic}
    assert cells == {("", ""), *(("device", v) for v in ("(mixed)", "tv", "(none)"))} | {
        ("land", v) for v in ("(mixed)", "(none)")
    }


def test_requests_with_mixed_queries_are_not_sampled(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, query=["p", "q"])
    log.show("r2", [1, 2], START, query=["p", None])
    log.show("r3", [1], START, query="unknown")
    log.show("r4", [1], START)
    log.judge("p", 1, 2)
    log.judge("q", 2, 1)
    log.judge("(mixed)", 1, 1)
    reading = source.read(monitor(judgments(), source.style, ("ndcg(ideal=global)@3",)), log)
    assert sorted(zip(reading.judged.tolist(), reading.rankings.sampled.tolist(), strict=True)) == [
        (0, False),
        (0, False),
        (1, True),
        (2, False),
    ]
    assert refused(reading) == {"mixed_query": 1}


def test_the_highest_of_several_judgments_counts(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, query="q")
    for item, grade in ((1, 0), (1, 2), (1, 1), (2, 0), (None, 3), (2, None)):
        log.judge("q", item, grade)
    log.judge(None, 1, 3)
    reading = source.read(monitor(judgments(), source.style, ("ndcg(ideal=global)@3",)), log)
    assert (graded(reading), reading.judged.tolist()) == ([(1, 2.0)], [2])
    assert reading.rankings.judged is not None
    assert sorted(reading.rankings.judged.grade.tolist()) == [0.0, 2.0]


def test_the_judgments_fingerprint_changes_only_with_judgments_in_use(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START, query="q")
    log.show("r2", [1, 2], START + BUCKET, query="q")
    log.judge("q", 1, 1)
    monitored = monitor(judgments(), source.style)
    before = source.read(monitored, log)
    log.judge("other", 1, 1)
    log.judge("q", 9, 1)
    assert source.read(monitored, log).fingerprint == before.fingerprint
    log.judge("q", 2, 1)
    assert source.read(monitored, log).fingerprint != before.fingerprint
    by_all = monitor(judgments(), source.style, ("recall(ideal=global)@3",))
    complete = source.read(by_all, log).fingerprint
    log.judge("q", 10, 1)
    assert source.read(by_all, log).fingerprint != complete
    assert len(complete) == 16
    assert source.read(monitor(column(), source.style), log).fingerprint == ""


# ---- times ---------------------------------------------------------------------------------------------------------


def _every_style() -> list[tuple[str, str]]:
    engines = ("sqlite", "postgresql")
    return [(engine, name) for engine in engines for name in styles(engine)]


@pytest.mark.parametrize(("engine", "name"), _every_style())
def test_every_time_format_reads_the_same(engine: str, name: str, request: pytest.FixtureRequest) -> None:
    source: Source = request.getfixturevalue("sqlite_source" if engine == "sqlite" else "postgres_source")
    source.style = styles(source.url)[name]
    log = Log()
    log.show("r1", [1, 2], START)
    log.show("r2", [1, 2], END - 0.25)
    log.show("r3", [1, 2], END)
    log.show("r4", [1, 2], START - 0.25)
    log.happen("r1", 2, START + 0.5)
    monitored = monitor(events(source.style), source.style)
    pull = source.pull(monitored, log)
    reading = pull.read(START, END)
    assert sorted(reading.served.tolist()) == [START * MICROS, END * MICROS - 250_000]
    assert sum(reading.events) == 1
    assert pull.freshness(START, END + 10) == Freshness(END, 0)


def test_two_tables_may_write_their_times_differently(source: Source) -> None:
    log = Log()
    log.show("r1", [1, 2], START)
    log.happen("r1", 2, START + 5)
    monitored = monitor(events(styles(source.url)["text Z"]), source.style)
    pull = source.pull(monitored, log)
    engine = sa.create_engine(source.url)
    with engine.begin() as connection:
        text = styles(source.url)["text Z"].write((START + 5) * MICROS)
        connection.exec_driver_sql("CREATE TEMP TABLE old AS SELECT * FROM events")
        connection.exec_driver_sql("DROP TABLE events")
        connection.exec_driver_sql(f"CREATE TABLE events AS SELECT request, item, type, value, '{text}' AS at FROM old")
    engine.dispose()
    assert pull.read(START, END).events.tolist() == [1]


AUTUMN = 1_792_890_000  # 2026-10-25 01:00 UTC: in Berlin, 03:00 becomes 02:00
SPRING = 1_774_746_000  # 2026-03-29 01:00 UTC: in Berlin, 02:00 becomes 03:00


def _berlin(url: str) -> Style:
    def clock(micros: int) -> Any:
        shown = moment(micros).astimezone(ZoneInfo("Europe/Berlin")).replace(tzinfo=None)
        return shown.strftime("%Y-%m-%d %H:%M:%S") if url.startswith("sqlite") else shown

    form = "%Y-%m-%d %H:%M:%S" if url.startswith("sqlite") else "native"
    return Style("text" if url.startswith("sqlite") else "timestamp", form, "Europe/Berlin", clock)


def test_requests_in_a_repeated_hour_are_traffic_but_not_samples(source: Source) -> None:
    source.style = _berlin(source.url)
    log = Log()
    for n, after in enumerate((-3601, -3600, -1, 0, 3599, 3600)):
        log.show(f"r{n}", [1], AUTUMN + after)
    pull = source.pull(monitor(events(source.style), source.style), log)
    reading = pull.read(AUTUMN - 7200, AUTUMN + 7200)
    assert sorted(t // MICROS - AUTUMN for t in reading.served.tolist()) == [-3601, -3600, -3600, -1, -1, 3600]
    assert refused(reading) == {"ambiguous_time": 4}
    assert reading.rankings.sampled.sum() == 2
    for edge in (AUTUMN - 3600, AUTUMN - 1800, AUTUMN, AUTUMN + 1800, AUTUMN + 3600):
        parts = pull.read(AUTUMN - 7200, edge), pull.read(edge, AUTUMN + 7200)
        assert sum(len(part.served) for part in parts) == 6


def test_events_in_a_repeated_hour_count_only_if_both_readings_do(source: Source) -> None:
    source.style = _berlin(source.url)
    served = AUTUMN - 3600 - 100
    log = Log()
    log.show("r1", [1, 2, 3], served)
    log.happen("r1", 1, served + 50)
    log.happen("r1", 2, served + 200)
    log.happen("r1", 3, served + 200 + 3600)  # reads as the one before
    short = monitor(events(source.style, attribution=900), source.style)
    long = monitor(events(source.style, attribution=7200), source.style)
    reading = source.read(short, log, served - 10, served + 10)
    assert (reading.events.tolist(), refused(reading)) == ([1], {"ambiguous_time": 2})
    reading = source.read(long, log, served - 10, served + 10)
    assert (reading.events.tolist(), refused(reading)) == ([3], {})


def test_a_skipped_local_time_is_traffic_but_not_a_sample(source: Source) -> None:
    source.style = _berlin(source.url)
    log = Log()
    log.show("r1", [1], SPRING - 1)
    log.show("r2", [1], SPRING)
    log.show("r3", [1], SPRING)
    pull = source.pull(monitor(events(source.style), source.style), log)
    engine = sa.create_engine(source.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE rankings SET at = '2026-03-29 02:30:00' WHERE request = 'r3'")
    engine.dispose()
    reading = pull.read(SPRING - 3600, SPRING + 3600)
    assert sorted(t // MICROS - SPRING for t in reading.served.tolist()) == [-1800, -1, 0]
    assert refused(reading) == {"ambiguous_time": 1}
    assert reading.rankings.sampled.sum() == 2
    cuts = (SPRING - 1800, SPRING - 1799, SPRING, SPRING + 1800)
    for edge in cuts:
        parts = pull.read(SPRING - 3600, edge), pull.read(edge, SPRING + 3600)
        assert sum(len(part.served) for part in parts) == 3


def test_text_that_is_not_a_time_is_refused_where_it_sorts(source: Source) -> None:
    source.style = styles(source.url)["text Z"]
    log = Log()
    log.show("r1", [1, 2], START + 5)
    log.rankings[0]["at"] = "2026-01-01T12:00:0?"
    log.show("r2", [1, 2], START + 5)
    for row in log.rankings[2:]:
        row["at"] = "2026-01-01T12:00:0?"
    log.show("r3", [1], START + 5)
    log.happen("r3", 1, START + 6)
    log.events[0]["at"] = "2026-01-01T12:00:0?"
    log.happen("r3", 1, START - 10_000)
    pull = source.pull(monitor(events(source.style), source.style), log)
    reading = pull.read(START, START + 10)
    assert len(reading.served) == 3
    assert refused(reading) == {"bad_time": 3}
    assert reading.rankings.sampled.sum() == 2
    assert sum(reading.events) == 0
    assert len(pull.read(START + 10, END).served) == 0
    assert len(pull.read(START, START + 9).served) == 2


def test_future_rows_are_counted_but_do_not_refresh_the_source(source: Source) -> None:
    log, now = Log(), END
    log.show("r1", [1], now - 50)
    log.show("r2", [1, 2], now + CLOCK_TOLERANCE + 1)
    log.show("r3", [1], now + 10**8)
    pull = source.pull(monitor(column(), source.style), log)
    assert pull.freshness(START, now) == Freshness(now - 50, 3)
    assert pull.freshness(now - 10, now) == Freshness(None, 3)
    log.show("r4", [1], now + CLOCK_TOLERANCE - 1)
    assert source.pull(pull.monitor, log).freshness(START, now) == Freshness(now, 3)


def test_freshness_includes_the_newest_label_when_drift_is_watched(source: Source) -> None:
    log, now = Log(), END
    log.show("r1", [1, 2], now - 500)
    log.happen("r1", 1, now - 300)
    log.happen("r1", 2, now - 90, "scroll")
    log.happen("r1", 2, now + 10**6)
    plain = monitor(events(source.style), source.style)
    assert source.pull(plain, log).freshness(START, now).newest_label is None
    watched = replace(plain, drift=Drift(plain.measures[0]))
    pull = source.pull(watched, log)
    assert pull.freshness(START, now) == Freshness(now - 500, 0, now - 300)
    assert pull.freshness(now - 200, now).newest_label is None
    log.happen("r1", 1, now + CLOCK_TOLERANCE - 5)
    assert source.pull(watched, log).freshness(START, now).newest_label == now


def test_future_rows_are_counted_up_to_a_limit(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.show("r1", range(9), END)
    monkeypatch.setattr("monitor.source.queries.MOST_COUNTED", 5)
    assert source.pull(monitor(column(), source.style), log).freshness(START - 9999, START) == Freshness(None, 5)
    assert MOST_COUNTED == 10_000


def test_the_newest_request_is_not_an_hour_ahead_in_a_zone_with_clock_changes(source: Source) -> None:
    source.style = _berlin(source.url)
    log, now = Log(), START
    log.show("r1", [1], now - 60)
    log.show("r2", [1], now + 1800)
    assert source.pull(monitor(column(), source.style), log).freshness(now - 3600, now) == Freshness(now - 60, 1)


# ---- declarations that do not fit ----------------------------------------------------------------------------------

ISO, PLAIN = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"
WRONG = {
    "seconds that are milliseconds": ("epoch ms", TimeColumn("at", "epoch_s"), "declare format: epoch_ms"),
    "milliseconds that are seconds": ("epoch s", TimeColumn("at", "epoch_ms"), "declare format: epoch_s"),
    "T that is a blank": ("text UTC", TimeColumn("at", ISO), "timezone|format"),
    "blank that is a T": ("text Z", TimeColumn("at", PLAIN, "UTC"), "declare its format"),
    "a zone that is not there": ("text UTC", TimeColumn("at", f"{PLAIN}Z"), "declare e.g. timezone: UTC"),
    "a zone that is there already": ("text Z", TimeColumn("at", ISO[:-1], "Europe/Berlin"), "remove timezone"),
}
WRONG_KINDS = {
    "native that is a number": ("epoch s", TimeColumn("at"), "declare format: epoch_s"),
    "native that is text": ("text Z", TimeColumn("at"), "declare e.g. format"),
    "a number that is text": ("text Z", TimeColumn("at", "epoch_s"), "declare (its|e.g.) format"),
    "text that is a number": ("epoch s", TimeColumn("at", ISO), "declare format: epoch_s"),
}


def _declared(source: Source, written: str, declared: TimeColumn) -> tuple[Pull, Pull]:
    """Two readers of a full log: one declares the rankings' time so, the other the events' time."""
    source.style = styles(source.url)[written]
    log = Log()
    for n in range(30):
        log.show(f"r{n}", [1], START + n * 80)
        log.happen(f"r{n}", 1, START + n * 80)
    right = monitor(events(source.style), source.style)
    assert isinstance(right.recipe, Events)
    wrong = replace(right, rankings=replace(right.rankings, time=declared))
    return source.pull(wrong, log), source.pull(replace(right, recipe=replace(right.recipe, time=declared)))


@pytest.mark.parametrize(("written", "declared", "remedy"), WRONG.values(), ids=WRONG)
def test_times_in_an_undeclared_format_are_refused_with_a_remedy(
    source: Source, written: str, declared: TimeColumn, remedy: str
) -> None:
    rankings, labels = _declared(source, written, declared)
    with pytest.raises(SourceError, match=remedy) as caught:
        rankings.freshness(START - 86_400, END)
    assert caught.value.reason == "data"
    with pytest.raises(SourceError, match=remedy) as caught:
        labels.read(START, END)
    assert caught.value.reason == "data"
    assert str(caught.value).startswith("source s: time column 'at' holds ")


@pytest.mark.parametrize(("written", "declared", "remedy"), WRONG_KINDS.values(), ids=WRONG_KINDS)
def test_times_of_an_undeclared_type_are_refused_with_a_remedy(
    source: Source, written: str, declared: TimeColumn, remedy: str
) -> None:
    for pull in _declared(source, written, declared):
        if not source.url.startswith("sqlite"):
            remedy = "has a different type than declared"
        with pytest.raises(SourceError, match=remedy) as caught:
            pull.freshness(START - 86_400, END) and pull.read(START, END)
        assert caught.value.reason == "data"


@pytest.mark.parametrize(
    ("written", "declared", "remedy"),
    [
        ("timestamptz", TimeColumn("at", "native", "Europe/Berlin"), "remove timezone: Europe/Berlin"),
        ("timestamp UTC", TimeColumn("at"), "declare e.g. timezone: UTC"),
    ],
)
def test_a_superfluous_or_missing_zone_is_refused_on_postgresql(
    postgres_source: Source, written: str, declared: TimeColumn, remedy: str
) -> None:
    for pull in _declared(postgres_source, written, declared):
        with pytest.raises(SourceError, match=remedy) as caught:
            pull.freshness(START - 86_400, END) and pull.read(START, END)
        assert caught.value.reason == "data"


def test_dates_without_the_time_of_day_are_refused_on_postgresql(postgres_source: Source) -> None:
    pull, _ = _declared(postgres_source, "timestamptz", TimeColumn("at"))
    select = "SELECT request, item, position, at::date AS at, query, device, country FROM rankings"
    rankings = replace(pull.monitor.rankings, relation=Relation(select=select))
    with pytest.raises(SourceError, match="time of day"):
        postgres_source.pull(replace(pull.monitor, rankings=rankings)).freshness(START - 86_400, END)


def test_a_silent_source_that_fits_its_declaration_is_not_an_error(source: Source) -> None:
    pull, labels = _declared(source, "text Z", TimeColumn("at", ISO))
    assert pull.freshness(END + 86_400, END + 2 * 86_400) == Freshness(None, 0)
    assert len(labels.read(END + 86_400, END + 2 * 86_400).served) == 0


def test_freshness_survives_a_sample_that_times_out(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    pull, _ = _declared(source, "text UTC", TimeColumn("at", ISO))

    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) AS at FROM n"
    slow = sa.select(sa.text(numbers).columns(sa.column("at")).subquery("n"))
    monkeypatch.setattr(pull_module.Queries, "sample", lambda *_: slow)
    pull.database.statement_timeout = 0.2
    assert pull.freshness(END + 9 * 86_400, END + 10 * 86_400).newest is None
