"""Label columns and judgments: what is reported when labels stop and unlabelled requests are in no measure."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from monitor.cli.incident_report import in_text
from monitor.messages.diagnosis import hour_by_hour
from monitor.service.explaining import hours_of
from monitor.types import Column
from tests.support.bench import Bench
from tests.support.drift import Ranking, day

COLUMN = Column("grade", 1)


@pytest.fixture
def graded(bench: Bench) -> Bench:
    """A monitor whose labels come from a column."""
    bench.monitor = replace(bench.monitor, recipe=COLUMN)
    return bench


def lived(bench: Bench, past: Ranking, since: int, step: int = 6) -> None:
    """Judge hours as they come, from day `since` on."""
    hours = past.draw(counts_unlabelled=False)
    bench.put(hours.rows(0, since * 24))
    bench.judge(day(since))
    bench.live(hours, since * 24, step)


def test_labels_that_stop_notify_the_data_owners_with_their_share(graded: Bench) -> None:
    few = Ranking.of(36, peak=6000.0).since(0, coverage=0.1)
    lived(graded, few.since(32, 34, coverage=0.0), 31)
    assert [(target, kind) for target, kind, _ in graded.said] == [
        ("data", "firing"),
        ("data", "updated"),
        ("team", "updated"),
        ("data", "resolved"),
        ("team", "resolved"),
    ]
    first, grown = graded.notices[0][1], graded.notices[1][1]
    assert re.fullmatch(r"search: labels suspect, coverage 9\.\d % to 0\.0 %", first.title)
    assert "too few requests have one to represent the others." in first.full_text
    assert "The share of requests with a label over 6 h until " in first.full_text
    assert "What to do: check where labels come from; do not retrain" in first.full_text
    assert "Labels or relevance collapsed: labels have been missing for a day or more." in grown.full_text
    assert (
        "if fewer requests will have labels from now on, that counts as normal after four whole days" in grown.full_text
    )
    for _, notice in graded.notices:
        assert "event" not in notice.full_text.lower()
        assert "explains" not in notice.full_text


def test_a_slice_without_labels_is_not_reported_missing(graded: Bench) -> None:
    lived(graded, Ranking.of(35).since(32, 33, coverage=0.0, slices=[1]), 31)
    first = graded.notices[0][1]
    assert first.title == "search: labels of slices suspect: device=slice 1"
    assert "Some slices lost most of their labels. Requests with a label: device=slice 1" in first.full_text
    assert "check how these slices' labels are logged" in first.full_text


def test_low_traffic_counts_all_requests_not_only_labelled_ones(graded: Bench) -> None:
    few = Ranking.of(34, peak=6000.0).since(0, coverage=0.1)
    lived(graded, few.since(32.25, 33, rate=0.1), 32)
    low = r"Traffic is low: ([\d,]+) requests over 3 h until [\d :-]+ UTC \(usually ([\d,]+) at"
    told = re.search(low, graded.notices[0][1].full_text)
    assert told is not None
    came, usual = (int(number.replace(",", "")) for number in told.groups())
    hours = few.since(32.25, 33, rate=0.1).draw(counts_unlabelled=False)
    (first,) = [f for s in graded.incidents for f in s.findings if f.verdict == "traffic_low"]
    at = int((first.end - hours.starts[0]) // 3600)
    assert first.value == hours.served[at - 3 : at].sum()
    assert came < 0.5 * usual
    assert first.before == pytest.approx(few.draw().requests[at - 3 : at].sum(), rel=0.15)


def test_fewer_labels_along_with_a_fall_are_not_blamed_for_it(graded: Bench) -> None:
    """An unlabelled request is in no measure, so it does not count as 0."""
    lived(graded, Ranking.of(34, peak=2000.0).since(32, mean=0.85, coverage=0.85), 31)
    paged = [notice for target, notice in graded.notices if target == "team"]
    assert paged[0].kind == "firing"
    assert "Requests with a label" in paged[0].full_text
    assert "labels first" not in paged[0].full_text
    assert "by about as much" not in paged[0].full_text


def test_incident_hours_show_no_events_when_labels_are_a_column(graded: Bench) -> None:
    lived(graded, Ranking.of(33).since(32, 32.5, coverage=0.0), 31)
    hours = hours_of(graded.monitor, graded.incidents[0], graded.store)
    text = "\n".join(in_text(hour_by_hour(hours)))
    assert "event" not in text
    assert "unmatched" not in text
    assert "labels suspect" in text
    of_events = "\n".join(in_text(hour_by_hour([{**hour, "events": 0.5} for hour in hours])))
    assert "(events per request; unmatched: share without an impression):" in of_events
    assert "unmatched" in of_events
