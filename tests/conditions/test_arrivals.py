"""Missing arrivals are reported to the data owners before any hour suffers, and resolve when data arrive again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.cli.commands.status import verdict_of
from monitor.conditions.arrivals import Arrivals, Arrived, Misread
from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.kinds.labels_late import LabelsLate
from monitor.conditions.kinds.source_stale import stale_since
from monitor.drift.series import Hours
from monitor.service.snapshot import take_snapshot
from monitor.types import Monitor
from monitor.units import HOUR
from tests.support.bench import Bench
from tests.support.drift import START, Ranking
from tests.support.tallies import watched

PAST = Ranking.of(20).draw()
END = START + 20 * 24 * HOUR


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """Judged up to `END`, with a baseline and nothing missing."""
    bench.put(PAST)
    bench.judge(END, arrived=Arrived(END - 10.0, END - 20.0))
    assert bench.said == []
    return bench


def told(bench: Bench) -> list[tuple[str, str]]:
    return [(target, title) for target, _, title in bench.said]


# ---- a source without requests ---------------------------------------------------------------------------------------


def test_a_stale_source_notifies_the_data_owners_and_resolves_with_the_next_request(bench: Bench) -> None:
    bench.judge(END + 3 * HOUR, arrived=Arrived(END - 10.0, END - 20.0))
    assert bench.said == []
    for hour in (4, 5, 6):
        bench.judge(END + hour * HOUR, arrived=Arrived(END - 10.0, END - 20.0))
    assert told(bench) == [("data", "search: source stale, no request for 4 h")]
    text = bench.notices[0][1].full_text
    assert "No request has arrived since" in text
    assert "Up to 3 h 5 min without one is normal (`stale_after`, `ingest_delay`)" in text
    assert "check whether rankings are still logged" in text
    assert take_snapshot(bench.monitor, bench.store, END + 6 * HOUR).verdict_kind == "source_stale"
    shown = verdict_of(take_snapshot(bench.monitor, bench.store, END + 6 * HOUR), bench.store)
    assert shown is not None
    assert (shown["kind"], shown["since"]) == ("source_stale", END - 10)
    bench.judge(END + 7 * HOUR, arrived=Arrived(END + 7 * HOUR - 5.0, END + 7 * HOUR - 5.0))
    assert told(bench)[1:] == [("data", "search: resolved (source stale)")]
    assert [s.incident.state for s in bench.incidents] == ["resolved"]
    assert take_snapshot(bench.monitor, bench.store, END + 7 * HOUR).verdict_kind == "healthy"


def test_a_source_back_after_a_gap_resolves_and_names_the_missing_hours(bench: Bench) -> None:
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0, END - 20.0))
    after = Ranking.of(21).draw()
    bench.put(Ranking.of(21).since(20, rate=0).draw().rows(20 * 24, 20 * 24 + 6), is_final=False)
    bench.put(after.rows(20 * 24 + 6, 20 * 24 + 7), is_final=False)
    now = END + 7 * HOUR
    bench.judge(now, arrived=Arrived(now - 5.0, now - 5.0))
    assert told(bench)[1:] == [("data", "search: resolved (source stale), requests arrive again, but none yet for 6 h")]
    text = bench.notices[-1][1].full_text
    assert "Requests arrive again, but none yet for 6 h between 2022-01-28 00:00 and 06:00 UTC." in text
    assert "What to do: load these hours if they had requests; rankmon will read them" in text
    assert "The data problem is over" not in text


def test_hours_not_read_yet_after_the_source_is_back_are_not_called_missing(bench: Bench) -> None:
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0, END - 20.0))
    empty = Ranking.of(21).since(20, rate=0).draw().rows(20 * 24, 20 * 24 + 6)
    bench.put(empty, is_final=False, is_awaited=True)
    now = END + 7 * HOUR
    bench.judge(now, arrived=Arrived(now - 5.0, now - 5.0))
    assert told(bench)[1:] == [("data", "search: resolved (source stale)")]


def test_a_source_back_before_a_baseline_says_quality_is_not_judged_yet(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, drift=replace(bench.drift, baseline_from=END - 5 * 24 * HOUR))
    bench.put(Ranking.of(21).draw().rows(20 * 24, 20 * 24 + 1))
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0))
    bench.judge(END + 6 * HOUR, arrived=Arrived(END + 6 * HOUR - 5.0, END + 6 * HOUR - 5.0))
    assert told(bench)[1:] == [("data", "search: resolved (source stale)")]
    text = bench.notices[-1][1].full_text
    assert "Quality is not judged yet; it still needs a first reference: 5 of 14 days to begin with." in text
    assert "judged again" not in text


def test_a_stale_source_and_low_traffic_share_one_incident(bench: Bench) -> None:
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0))
    empty = Ranking.of(21).since(20, rate=0).draw().rows(20 * 24, 20 * 24 + 6)
    bench.put(empty)
    bench.judge(END + 8 * HOUR, arrived=Arrived(END - 10.0))
    assert [(s.incident.state, sorted(n[0] for n in s.incident.firing or {})) for s in bench.incidents] == [
        ("firing", ["source_stale", "traffic_low"])
    ]
    assert [target for target, _ in told(bench)] == ["data", "data"]


def test_a_stale_source_is_not_judged_without_drift(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, drift=None)
    bench.judge(END + 9 * HOUR, arrived=Arrived(END - 10.0))
    assert bench.said == []


# ---- labels behind the requests --------------------------------------------------------------------------------------


def provisional(bench: Bench, hours: int) -> None:
    """More requests after `END`, without any label."""
    more = Ranking.of(21).since(20, coverage=0.0).draw()
    some = more.rows(20 * 24, 20 * 24 + hours)
    lost = Hours(**{n: getattr(some, n) for n in some.__dataclass_fields__} | {"events": some.events * 0})
    bench.put(lost, is_final=False)


def test_late_labels_are_reported_before_an_hour_is_judged_without_them(bench: Bench) -> None:
    provisional(bench, 3)
    now = END + 3 * HOUR
    bench.judge(now, arrived=Arrived(now - 10.0, END - 600.0))
    assert told(bench) == [("data", "search: labels late, no event for 3 h 10 min")]
    text = bench.notices[0][1].full_text
    assert "No events since" in text
    assert "if events will take this long from now on, raise `lateness`" in text
    bench.judge(now + 600, arrived=Arrived(now + 500.0, now + 400.0))
    assert told(bench)[1:] == [("data", "search: resolved (labels late)")]


def test_labels_are_late_beyond_the_allowed_lag_given_enough_requests(bench: Bench) -> None:
    monitor = bench.monitor
    lag = monitor.lateness + HOUR
    assert monitor.drift is not None

    def late(arrived: Arrived, requests: int, usual: float) -> LabelsLate | None:
        return LabelsLate.detect(Arrivals(monitor, arrived, END, lambda: usual, lambda since: requests), drift)

    drift = monitor.drift
    assert late(Arrived(END, END - lag), 1000, 1.0) is None
    assert late(Arrived(END, END - lag - 1.0), 19, 1.0) is None
    found = late(Arrived(END, END - lag - 1.0), 200, 0.1)
    assert found is not None
    assert (found.since, found.allowed, found.requests, found.before) == (END - lag - 1, lag, 200, 20.0)
    assert late(Arrived(END, None), 1000, 1.0) is None


@pytest.mark.parametrize(("silence", "is_stale"), [(0, False), (3 * HOUR + 299, False), (3 * HOUR + 301, True)])
def test_a_source_is_stale_beyond_stale_after_plus_ingest_delay(silence: float, is_stale: bool) -> None:
    monitor: Monitor = watched()
    assert (monitor.ingest_delay, monitor.stale_after) == (300, 3 * HOUR)
    assert (stale_since(monitor, Arrived(END - silence), END) is not None) == is_stale
    assert stale_since(monitor, Arrived(None), END) is None


# ---- audits that differ ----------------------------------------------------------------------------------------------


def test_a_differing_audit_is_reported_with_both_figures_until_one_agrees(bench: Bench) -> None:
    arrived, day = Arrived(END - 10.0, END - 20.0), 24 * HOUR
    what = "ndcg@10 total of all traffic: 12.5 by pull, 0 by push-down"
    bench.judge(END + 60, arrived=replace(arrived, audited=Misread(END - day, END - day + HOUR, what)))
    assert told(bench) == [("data", "search: source misread")]
    text = bench.notices[0][1].full_text
    assert "read the bucket 2022-01-27 00:00 UTC in two ways" in text
    assert f"that disagree: {what}. Stored values may be wrong." in text
    assert "`rankmon verify`" in text
    assert bench.incidents[0].incident.matter == "data"
    assert take_snapshot(bench.monitor, bench.store, END + 60).verdict_kind == "healthy"
    bench.judge(END + 600, arrived=arrived)  # no audit in that run
    assert [s.incident.is_open for s in bench.incidents] == [True]
    bench.judge(END + 1200, arrived=replace(arrived, audited=Misread(END - HOUR, END, "")))
    assert told(bench)[1:] == [("data", "search: resolved (source misread)")]
    assert [s.incident.state for s in bench.incidents] == ["resolved"]


# ---- what may happen meanwhile ---------------------------------------------------------------------------------------


def test_a_run_that_does_not_look_at_the_source_changes_nothing(bench: Bench) -> None:
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0))
    bench.judge(END + 5 * HOUR)
    assert len(bench.said) == 1
    assert [s.incident.is_open for s in bench.incidents] == [True]


@pytest.mark.parametrize("looks", [True, False])
def test_rejudging_the_past_keeps_the_stale_source_incident_and_notifies_nobody(bench: Bench, looks: bool) -> None:
    silent = Arrived(END - 10.0)
    bench.judge(END + 5 * HOUR, arrived=silent)
    (before,) = bench.incidents
    bench.put(PAST.rows(5 * 24, 6 * 24))
    bench.judge(END + 6 * HOUR, arrived=silent if looks else None)
    (after,) = bench.incidents
    assert (after.incident.id, after.incident.is_open) == (before.incident.id, True)
    assert len(bench.said) == 1
    bench.judge(END + 7 * HOUR, arrived=Arrived(END + 7 * HOUR - 1.0))
    assert [kind for _, kind, _ in bench.said] == ["firing", "resolved"]


def test_switching_drift_off_withdraws_the_stale_source_incident(bench: Bench) -> None:
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0))
    bench.monitor = replace(bench.monitor, drift=None)
    bench.judge(END + 6 * HOUR, arrived=Arrived(END - 10.0))
    assert [s.incident.state for s in bench.incidents] == ["withdrawn"]


def test_an_unknown_arrival_time_leaves_the_incident_open(bench: Bench) -> None:
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0))
    bench.judge(END + 6 * HOUR, arrived=Arrived(None))  # unknown: older than the look-back
    assert [s.incident.is_open for s in bench.incidents] == [True]


def test_late_labels_stay_open_through_a_baseline_reset(bench: Bench) -> None:
    provisional(bench, 3)
    now = END + 3 * HOUR
    late_ = Arrived(now - 10.0, END - 600.0)
    bench.judge(now, arrived=late_)
    bench.store.verdicts.begin_baseline("search", BaselineReset(END - HOUR, "ann", "v2"), 0.0)
    for hour in (1, 2):
        bench.judge(now + hour * HOUR, arrived=late_)
    assert [kind for target, kind, _ in bench.said if target == "data"] == ["firing"]
    assert [s.incident.is_open for s in bench.incidents] == [True]


def test_a_source_back_during_a_reread_of_the_past_resolves(bench: Bench) -> None:
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0))
    bench.put(PAST.rows(5 * 24, 6 * 24))
    bench.judge(END + 6 * HOUR, arrived=Arrived(END + 6 * HOUR - 1.0))
    assert [kind for _, kind, _ in bench.said] == ["firing", "resolved"]
    assert told(bench)[1:] == [("data", "search: resolved (source stale)")]
    (only,) = bench.incidents
    assert only.incident.state == "resolved"
    steps = [(t.was, t.became) for t in bench.store.alerts.transitions("search")]
    assert steps == [("ok", "firing"), ("firing", "ok")]


def test_a_stale_source_keeps_the_verdicts_of_a_former_configuration(bench: Bench) -> None:
    before = bench.store.verdicts.between("search", 0, END)
    assert bench.monitor.drift is not None
    bench.monitor = replace(bench.monitor, drift=replace(bench.monitor.drift, false_alarm_budget=3.0))
    bench.judge(END + 5 * HOUR, arrived=Arrived(END - 10.0))
    assert len(bench.said) == 1
    assert bench.store.verdicts.between("search", 0, END) == before != []


# ---- a clock that ran ahead ------------------------------------------------------------------------------------------


def by_then(bench: Bench, hour: float, arrived_at: float) -> None:
    """Judge at `hour` after `END` with everything that arrived by hour `arrived_at`."""
    arrived = END + int(arrived_at * HOUR)
    bench.judge(END + int(hour * HOUR), arrived=Arrived(arrived - 10.0, arrived - 20.0))


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("looks", [True, False])
def test_a_stale_source_seen_by_a_clock_days_ahead_is_withdrawn_once_it_is_right(
    bench: Bench, is_stored: bool, looks: bool
) -> None:
    ahead = 74
    if is_stored:
        empty = Ranking.of(24).since(20, rate=0).draw().rows(20 * 24 + 1, 20 * 24 + ahead)
        bench.put(Ranking.of(21).draw().rows(20 * 24, 20 * 24 + 1))
        bench.put(empty, read_at=END + ahead * HOUR)
    by_then(bench, ahead, 1.5)
    assert [s.incident.is_open for s in bench.incidents] == [True]
    if not is_stored:
        bench.put(PAST.rows(5 * 24, 6 * 24))
    bench.judge(END + 2 * HOUR, arrived=Arrived(END + 2 * HOUR - 10.0, END + 2 * HOUR - 20.0) if looks else None)
    by_then(bench, 2.5, 2.5)
    assert [s.incident.state for s in bench.incidents] == ["withdrawn"]
    assert [kind for _, kind, _ in bench.said] == ["firing", "withdrawn"]
    until = bench.incidents[0].incident.closed_at
    steps = [t.became for t in bench.store.alerts.transitions("search", until=until) if t.rule == "source_stale"]
    assert steps[-1] == "withdrawn"
    assert ("source_stale", "", "") not in bench.store.alerts.state("search").conditions


def test_a_stale_source_that_outlasts_a_clock_correction_stays_one_incident(bench: Bench) -> None:
    by_then(bench, 78, 0)
    bench.put(PAST.rows(5 * 24, 6 * 24))
    for hour in (5, 6):
        by_then(bench, hour, 0)
    assert [s.incident.is_open for s in bench.incidents] == [True]
    by_then(bench, 7, 7)
    assert [s.incident.state for s in bench.incidents] == ["resolved"]
    assert [kind for _, kind, _ in bench.said] == ["firing", "resolved"]
    assert [(t.was, t.became) for t in bench.store.alerts.transitions("search")] == [("ok", "firing"), ("firing", "ok")]
