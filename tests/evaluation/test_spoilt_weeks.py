"""A later fall is not compared with hours of lost labels."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.causes.diagnosis import Subject
from monitor.cli.incident_report import lines
from monitor.conditions.evidence import Evidence
from monitor.evaluation.stored_fall import StoredFall, first_fired
from monitor.measures.measure import parse
from monitor.messages.diagnosis import Told
from monitor.messages.words import utc
from monitor.types import OVERALL
from monitor.units import DAY, HOUR
from tests.support.bench import Bench
from tests.support.drift import Ranking, day

FELL = 43
WEEK = 7 * DAY


def explained(bench: Bench, past: Ranking) -> tuple[dict[str, Any], Evidence]:
    """The diagnosis of the newest quality incident, and its finding on all traffic."""
    bench.put(past.draw())
    bench.judge(day(FELL + 1))
    found = next(s for s in bench.incidents if s.incident.matter == "quality")
    told = next(f for f in found.findings if not f.dimension)
    return StoredFall(bench.monitor, first_fired(found, bench.store), bench.store).document(found.incident), told


def test_a_week_of_lost_labels_is_left_out_of_the_comparison(bench: Bench) -> None:
    fallen = Ranking.of(FELL + 1).since(FELL, mean=0.8)
    document, _ = explained(bench, fallen.since(FELL - 7, FELL - 5.5, coverage=0.0).since(FELL - 21, FELL - 20, rate=0))
    since, until = document["window"]
    assert document["compared"] == [[since - n * WEEK, until - n * WEEK] for n in (2, 4)]
    assert document["left_out"] == [[since - n * WEEK, until - n * WEEK] for n in (1, 3)]
    assert document["coverage"]["labelled_before"] == pytest.approx(0.9, abs=0.01)
    assert document["coverage"]["labelled"] == pytest.approx(0.9, abs=0.01)
    found = next(s for s in bench.incidents if s.incident.matter == "quality")
    first = first_fired(found, bench.store)
    page = lines(found, [Told(first.name, first.at, document)], [])
    said = [line for line in page if "not compared with" in line]
    days = ", ".join(utc(since - n * WEEK)[:10] for n in (3, 1))
    assert said == [f"  not compared with the same hours from {days} on: the data were bad, or an alarm was open"]


def test_lost_labels_in_past_weeks_do_not_widen_the_interval(bench: Bench) -> None:
    fallen = Ranking.of(FELL + 1).since(FELL, mean=0.8)
    _, told = explained(
        bench, fallen.since(FELL - 10, FELL - 8.5, coverage=0.0).since(FELL - 20, FELL - 18.5, coverage=0)
    )
    assert told.value is not None
    assert told.lower is not None
    assert told.upper is not None
    assert told.upper - told.lower < 0.05 * told.value


def test_the_best_week_is_used_when_no_week_is_sound() -> None:
    window, hour = (10 * WEEK, 10 * WEEK + 4 * HOUR), HOUR
    before = tuple((window[0] - n * WEEK, window[1] - n * WEEK) for n in (1, 2, 3))
    subject = Subject(parse("ndcg@10"), None, OVERALL, window, before)
    bad = [before[0][0] + n * hour for n in (1, 2)] + [before[1][0] + hour] + [before[2][1], before[2][1] - hour]
    assert subject.without(bad, hour).before == before[1:2]
    assert subject.without([before[1][0], before[1][1] + hour], hour).before == before, (
        "steps next to the window do not count"
    )
    assert subject.without([before[0][1]], hour).before == before[1:]
