"""Where old buckets are gone, judging again equals the live run, and what cannot be judged again stays."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.rules import Baseline as RuleBaseline
from monitor.conditions.rules import Drop, Rule
from monitor.drift.series import Hours
from monitor.evaluation.replay import replay
from monitor.evaluation.run import moved_checkpoint
from monitor.service.retention import RetentionWorker
from monitor.store.schema import drift_borders
from monitor.types import Retention, RollUp
from monitor.units import DAY, HOUR
from tests.support.bench import Bench
from tests.support.drift import Ranking, day

DAYS, AGE = 50, 20
BORDER = DAYS - AGE
"""The day of the first fine bucket."""
Lived = Callable[..., None]
WAYS = [
    Retention(None, RollUp(AGE * DAY)),
    Retention(AGE * DAY),
    Retention(AGE * DAY + 10 * DAY, RollUp(AGE * DAY)),
]


def keep(bench: Bench, now: float = DAYS) -> None:
    """Apply all retention that is due."""
    keeping = RetentionWorker(bench.monitor, bench.store, clock=lambda: 0.0)
    with bench.store.hold("search") as lease:
        keeping.advance(lease, day(now), lambda: False)


Said = list[tuple[str, str, str]]


@pytest.fixture(scope="module")
def before_the_border() -> Iterator[dict[bytes, tuple[sqlite3.Connection, Said]]]:
    """Store and notifications of each simulated past. Tests on the same past differ only in what is kept."""
    made: dict[bytes, tuple[sqlite3.Connection, Said]] = {}
    yield made
    for store, _ in made.values():
        store.close()


@pytest.fixture
def lived(before_the_border: dict[bytes, tuple[sqlite3.Connection, Said]]) -> Lived:
    """Judge a past live, then apply its retention. On SQLite each past is lived through only once."""

    def live(bench: Bench, past: Hours, retention: Retention = WAYS[0]) -> None:
        bench.monitor = replace(bench.monitor, retention=retention)
        past = past.rows(0, DAYS * 24)
        what = past.requests.tobytes() + past.total.tobytes() + past.labelled.tobytes()
        if bench.is_on_postgres:
            live_through(bench, past)
        elif what in before_the_border:
            store, said = before_the_border[what]
            copy(store, bench)
            bench.said += said
        else:
            live_through(bench, past)
            before_the_border[what] = copied(bench), list(bench.said)
        keep(bench)
        assert bench.store.oldest_bucket(bench.monitor.traffic) == day(BORDER)

    return live


def live_through(bench: Bench, past: Hours) -> None:
    """Twelve hours at a time on PostgreSQL, where there is more time.

    Otherwise 29 hours at a time, so that runs end at any hour of the day.
    """
    bench.put(past.rows(0, 20 * 24))
    bench.judge(day(20))
    bench.live(past, 20 * 24, step=12 if bench.is_on_postgres else 29)


def copied(bench: Bench) -> sqlite3.Connection:
    store = sqlite3.connect(":memory:")
    with closing(sqlite3.connect(str(bench.store.url.database))) as file:
        file.backup(store)
    return store


def copy(store: sqlite3.Connection, bench: Bench) -> None:
    with closing(sqlite3.connect(str(bench.store.url.database))) as file:
        store.backup(file)


def known(bench: Bench, until: float = DAYS) -> dict[str, Any]:
    """Everything found and recorded up to day `until`."""
    steps = bench.store.alerts.transitions("search", 0, day(until))
    return {
        "verdicts": bench.store.verdicts.between("search", 0, day(until)),
        "incidents": [s.incident for s in bench.incidents],
        "steps": sorted((t.at, t.rule, t.value, t.was, t.became, t.incident or "") for t in steps),
        "said": list(bench.said),
    }


TROUBLES = {
    "nothing": Ranking.of(DAYS),
    "long after the border": Ranking.of(DAYS).since(40, 43, mean=0.85),
    "before the border": Ranking.of(DAYS).since(22, 24, mean=0.85),
    "across the border": Ranking.of(DAYS).since(27, 34, mean=0.85),
    "across the border and still": Ranking.of(DAYS).since(28, mean=0.85),
    "no labels across the border": Ranking.of(DAYS).since(29.5, 31.5, coverage=0.1),
    "less traffic across the border": Ranking.of(DAYS).since(29.9, 30.2, rate=0.2),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("retention", WAYS, ids=["rolled up", "forgotten", "both"])
def test_rejudging_after_retention_equals_the_live_run(
    bench: Bench, lived: Lived, trouble: str, retention: Retention
) -> None:
    past = TROUBLES[trouble].draw()
    lived(bench, past, retention)
    before = known(bench)
    bench.put(past.rows(45 * 24, 46 * 24))  # again, so that everything is judged again
    bench.judge(day(DAYS))
    assert known(bench) == before
    assert len(before["verdicts"]) == DAYS * 24
    assert bool(before["incidents"]) is (trouble != "nothing")


def test_an_incident_goes_on_as_usual_after_rejudging(bench: Bench, lived: Lived) -> None:
    past = Ranking.of(DAYS + 5).since(28, 52, mean=0.85).draw()
    lived(bench, past)
    bench.put(past.rows(45 * 24, 46 * 24))
    bench.live(past, DAYS * 24, step=12)
    (incident,) = [s.incident for s in bench.incidents]
    assert (incident.state, incident.opened_at < day(29) + DAY) == ("resolved", True)
    assert [kind for target, kind, _ in bench.said if target == "team" and kind != "updated"] == [
        "firing",
        "retrain",
        "resolved",
    ]


@pytest.mark.parametrize("width", [6 * HOUR, DAY])
def test_a_border_moved_bit_by_bit_equals_one_computed_in_one_run(bench: Bench, width: int) -> None:
    bench.monitor = replace(bench.monitor, retention=Retention(None, RollUp(AGE * DAY, width)))
    bench.put(TROUBLES["across the border"].draw())
    at_once = moved_checkpoint(bench.monitor, day(BORDER), bench.store)
    keep(bench)
    bit_by_bit = bench.store.verdicts.oldest_checkpoint("search")
    assert at_once is not None
    assert bit_by_bit is not None
    assert at_once.state is not None
    assert bit_by_bit.state is not None
    assert bit_by_bit.state.to_json() == at_once.state.to_json()
    assert bit_by_bit.until == at_once.until == day(BORDER)
    assert (bit_by_bit.series, bit_by_bit.conditions) == (at_once.series, at_once.conditions)
    assert {c.state for c in at_once.conditions.values()} == {"firing"}


def test_a_clock_set_back_does_not_change_the_past(bench: Bench, lived: Lived) -> None:
    past = TROUBLES["across the border"].draw()
    lived(bench, past)
    before = known(bench)
    bench.judge(day(48))
    assert known(bench) == before


def test_changed_settings_keep_verdicts_before_the_border_and_rejudge_after_it(bench: Bench, lived: Lived) -> None:
    past = TROUBLES["across the border"].draw()
    lived(bench, past)
    before = bench.store.verdicts.between("search", 0, day(DAYS))
    bench.monitor = replace(bench.monitor, drift=replace(bench.drift, false_alarm_budget=2.0))
    bench.put(past.rows(45 * 24, 46 * 24))
    bench.judge(day(DAYS))
    after = bench.store.verdicts.between("search", 0, day(DAYS))
    assert after[: BORDER * 24] == before[: BORDER * 24]
    assert [v.end for v in after] == [v.end for v in before]
    assert after[BORDER * 24].kind == "not_enough_data"


def test_a_border_of_another_version_still_keeps_the_verdicts_before_it(bench: Bench, lived: Lived) -> None:
    past = TROUBLES["nothing"].draw()
    lived(bench, past, WAYS[1])
    before = bench.store.verdicts.between("search", 0, day(BORDER))
    with bench.store.writing() as connection:
        connection.execute(drift_borders.update().values(state='{"version": 1, "state": {}}'))
    bench.put(past.rows(45 * 24, 46 * 24))
    bench.judge(day(DAYS))
    after = bench.store.verdicts.between("search", 0, day(DAYS))
    assert after[: BORDER * 24] == before
    assert {v.kind for v in after[BORDER * 24 : (BORDER + 5) * 24]} == {"not_enough_data"}


def test_a_baseline_reset_after_the_border_changes_nothing_before_the_reset(bench: Bench, lived: Lived) -> None:
    past = Ranking.of(DAYS).since(40, mean=0.85).draw()
    lived(bench, past)
    before = bench.store.verdicts.between("search", 0, day(40))
    bench.store.verdicts.begin_baseline("search", BaselineReset(day(40), "ann", "new layout"), 0.0)
    bench.judge(day(DAYS))
    assert bench.store.verdicts.between("search", 0, day(40)) == before
    assert not any(v.is_degraded for v in bench.store.verdicts.between("search", day(43), day(DAYS)))


def test_verdicts_of_a_former_definition_stay_where_the_new_one_has_no_data(bench: Bench, lived: Lived) -> None:
    past = TROUBLES["nothing"].draw()
    lived(bench, past)
    before = bench.store.verdicts.between("search", 0, day(BORDER))
    bench.monitor = replace(bench.monitor, rankings=replace(bench.monitor.rankings, item="other"))
    bench.put(past.rows(35 * 24, DAYS * 24))
    bench.judge(day(DAYS))
    after = bench.store.verdicts.between("search", 0, day(DAYS))
    assert [v for v in after if v.end <= day(BORDER)] == before
    assert [v.end for v in after if v.end > day(BORDER)] == list(range(day(35) + HOUR, day(DAYS) + 1, HOUR))


def test_a_rule_incident_stays_if_its_baseline_reaches_back_past_the_border(bench: Bench) -> None:
    rule = Rule("drop", bench.drift.measure, DAY, Drop(0.07, 0.03, True, RuleBaseline(trailing=10 * DAY)))
    past = Ranking.of(DAYS).since(32, 33.5, mean=0.8).since(44, 45.5, mean=0.8).draw()
    bench.monitor = replace(bench.monitor, drift=None, alerts=(rule,), retention=WAYS[0])
    for number in range(20, DAYS + 1):
        bench.put(past.rows(0 if number == 20 else (number - 1) * 24, number * 24))
        bench.judge(day(number), current=False)
    before = [s.incident for s in bench.incidents]
    assert [i.opened_at < day(BORDER + 11) for i in before] == [True, False]
    keep(bench)
    bench.put(past.rows(46 * 24, 47 * 24))
    bench.judge(day(DAYS))
    assert [s.incident for s in bench.incidents] == before
    assert bench.said == []


def test_a_replay_starts_at_the_border_with_its_known_state(bench: Bench, lived: Lived) -> None:
    past = TROUBLES["across the border"].draw()
    lived(bench, past)
    found = replay(bench.monitor, bench.store)
    assert found.first == found.since == day(BORDER)
    assert list(found.verdicts) == bench.store.verdicts.between("search", day(BORDER), day(DAYS))
    (only,) = found.incidents
    assert only.is_before
    assert only.incident == bench.incidents[0].incident


def test_a_partial_first_day_does_not_disturb_the_border(bench: Bench) -> None:
    past = TROUBLES["nothing"].draw()
    bench.monitor = replace(bench.monitor, retention=WAYS[0])
    bench.put(past.rows(5, DAYS * 24))
    bench.judge(day(DAYS))
    before = known(bench)
    keep(bench)
    assert bench.store.oldest_bucket(bench.monitor.traffic) == day(0) + 5 * HOUR
    assert replay(bench.monitor, bench.store).first == day(BORDER)
    bench.put(past.rows(45 * 24, 46 * 24))
    bench.judge(day(DAYS))
    assert known(bench) == before
