"""A baseline reset withdraws open alarms immediately, and replay knows of it from when it was made."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from monitor.conditions.checkpoint import BaselineReset
from monitor.evaluation import replay
from monitor.service.snapshot import take_snapshot
from monitor.units import DAY, HOUR
from tests.support.bench import Bench
from tests.support.drift import Ranking, day

WORSE = Ranking.of(36).since(31, mean=0.88).draw()
"""Worse from day 31 on, for good."""


def lived(bench: Bench, until: float, since: float | None = None) -> None:
    """Live up to day `until`: hour by hour on PostgreSQL, where there is more time, else by three hours."""
    if since is None:
        bench.put(WORSE.rows(0, 31 * 24))
        bench.judge(day(31))
    step = 1 if bench.is_on_postgres else 3
    bench.live(WORSE.rows(0, round(until * 24)), round((31 if since is None else since) * 24), step=step)


def begin(bench: Bench, at: float) -> None:
    bench.store.verdicts.begin_baseline("search", BaselineReset(day(at), "ann", "new layout"), 0.0)


def kinds(bench: Bench) -> list[str]:
    """The kinds of notifications to the team."""
    return [kind for target, kind, _ in bench.said if target == "team" and kind != "updated"]


def recorded(bench: Bench) -> list[tuple[str, str, int, str, str]]:
    return sorted((t.rule, t.value, t.at, t.was, t.became) for t in bench.store.alerts.transitions("search"))


def replayed(found: replay.Replay) -> list[tuple[str, int, int | None, str]]:
    mine = [f.incident for f in found.incidents]
    return [(i.id, i.opened_at, i.closed_at, i.state) for i in mine]


def stored(bench: Bench) -> list[tuple[str, int, int | None, str]]:
    mine = [s.incident for s in bench.incidents]
    return [(i.id, i.opened_at, i.closed_at, i.state) for i in mine]


# ---- immediately -----------------------------------------------------------------------------------------------------


def test_a_reset_after_the_last_judged_hour_withdraws_the_alarm_in_the_next_cycle(bench: Bench) -> None:
    lived(bench, 31.75)
    assert kinds(bench) == ["firing"]
    begin(bench, 33)  # the reset is now, and the last final hour is more than a day old
    bench.judge(day(31.75))
    assert kinds(bench) == ["firing", "withdrawn"]
    assert [s.incident.closed_at for s in bench.incidents] == [day(31.75)]
    lived(bench, 35, since=31.75)
    assert kinds(bench) == ["firing", "withdrawn"]  # and no retraining is requested
    final = bench.store.verdicts.between("search", day(31.75), day(33))
    assert {v.kind for v in final} == {"degraded"}  # they are judged anyway


def test_a_fall_before_the_reset_pages_nobody(bench: Bench) -> None:
    bench.put(WORSE.rows(0, 31 * 24))
    bench.judge(day(31))
    begin(bench, 33)
    lived(bench, 36, since=31)
    assert any(v.is_degraded for v in bench.store.verdicts.between("search", day(31), day(33)))
    assert bench.said == []
    assert bench.incidents == []


def test_a_backfill_before_the_reset_reopens_nothing(bench: Bench) -> None:
    lived(bench, 31.75)
    begin(bench, 33)
    bench.judge(day(31.75))
    bench.put(WORSE.rows(0, 24))
    bench.judge(day(31.75))
    assert kinds(bench) == ["firing", "withdrawn"]
    lived(bench, 32.5, since=31.75)
    bench.put(WORSE.rows(0, 24))
    bench.judge(day(32.5))
    assert kinds(bench) == ["firing", "withdrawn"]
    assert [s.incident.state for s in bench.incidents] == ["withdrawn"]


def test_taking_back_a_reset_lets_the_alarm_fire_again(bench: Bench) -> None:
    lived(bench, 31.75)
    begin(bench, 33)
    bench.judge(day(31.75))
    assert bench.store.verdicts.forget_baseline("search", day(33))
    lived(bench, 32, since=31.75)
    assert [s.incident.is_open for s in bench.incidents][-1]


def test_a_repeated_reset_keeps_how_far_verdicts_had_been_judged(bench: Bench) -> None:
    begin(bench, 20)
    assert bench.store.verdicts.baselines("search")[0].judged_until is None
    lived(bench, 31.5)
    begin(bench, 31)
    lived(bench, 32, since=31.5)
    bench.store.verdicts.begin_baseline("search", BaselineReset(day(31), "bob", "again"), 1.0)
    (_, last) = bench.store.verdicts.baselines("search")
    assert (last.author, last.judged_until) == ("bob", day(31.5))


def test_a_withdrawal_says_that_the_baseline_was_reset_and_by_whom(bench: Bench) -> None:
    lived(bench, 31.75)
    begin(bench, 33)
    bench.judge(day(31.75))
    (said,) = [notice for _, notice in bench.notices if notice.kind == "withdrawn"]
    assert "its baseline was reset at " in said.full_text
    assert "by ann: new layout" in said.full_text


def test_a_withdrawal_for_another_reason_does_not_blame_a_reset(bench: Bench) -> None:
    lived(bench, 31.5)
    begin(bench, 5)
    lived(bench, 32, since=31.5)
    bench.monitor = replace(bench.monitor, drift=replace(bench.drift, baseline_from=day(31)))
    bench.judge(day(32))
    (said,) = [notice for _, notice in bench.notices if notice.kind == "withdrawn"]
    assert "was reset" not in said.full_text


# ---- in replay -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "since"), [(33, 31), (33, 32), (31.75, 33)])
def test_replay_reproduces_a_page_wherever_the_baseline_was_reset_later(
    bench: Bench, said: float, since: float
) -> None:
    lived(bench, said)
    before = bench.store.verdicts.between("search", 0, day(said))
    begin(bench, since)
    lived(bench, 35, since=said)
    assert kinds(bench)[0] == "firing"
    found = replay.replay(bench.monitor, bench.store)
    assert [v for v in found.verdicts if v.end <= day(said)] == before
    after = bench.store.verdicts.between("search", day(said), day(35))
    assert [v for v in found.verdicts if v.end > day(said)] == after
    assert [one[:2] for one in replayed(found)] == [one[:2] for one in stored(bench)]
    assert [one[3] for one in replayed(found)] == ["withdrawn"]
    (closed,) = [one[2] for one in replayed(found)]
    assert closed is not None
    assert day(said) <= closed <= day(said) + HOUR
    assert found.methods[0].pages == 1


def test_replay_knows_each_reset_from_when_it_was_made(bench: Bench) -> None:
    lived(bench, 32)
    begin(bench, 31)
    lived(bench, 33, since=32)
    begin(bench, 30.5)
    lived(bench, 36, since=33)
    found = replay.replay(bench.monitor, bench.store)
    assert replayed(found) == stored(bench)
    assert list(found.verdicts)[-24:] == bench.store.verdicts.between("search", day(35), day(36))


def test_replay_keeps_one_incident_that_goes_on_under_the_new_baseline(bench: Bench) -> None:
    lived(bench, 33)
    begin(bench, 5)  # long before: the past is long enough under it, and the fall still counts
    lived(bench, 34, since=33)
    found = replay.replay(bench.monitor, bench.store)
    assert [s.incident.is_open for s in bench.incidents] == [True]
    assert replayed(found) == stored(bench)


def test_replay_asks_for_no_retraining_while_the_data_are_broken(bench: Bench) -> None:
    past = Ranking.of(36).since(31, mean=0.88).since(31.5, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    assert "retrain" not in kinds(bench)
    of_quality = [f for f in replay.replay(bench.monitor, bench.store).incidents if f.incident.matter == "quality"]
    assert [f.asks_at for f in of_quality] == [None]
    assert [s.incident.is_open for s in bench.incidents] == [True, True]


def test_replay_asks_for_retraining_once_the_data_are_sound_if_the_drop_lasts(bench: Bench) -> None:
    past = Ranking.of(36).since(31, mean=0.88).since(31.5, 33.5, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=4)
    assert "retrain" in kinds(bench)
    (found,) = [f for f in replay.replay(bench.monitor, bench.store).incidents if f.incident.matter == "quality"]
    assert found.asks_at is not None
    assert day(33.5) < found.asks_at < day(34)


def test_the_snapshot_says_that_retraining_was_already_requested(bench: Bench) -> None:
    lived(bench, 32.9)
    state = bench.store.alerts.state("search")
    assert state.retrain is not None
    assert "it was already requested" in take_snapshot(bench.monitor, bench.store, day(33)).no_retraining_as


def test_the_snapshot_says_that_a_silence_holds_back_retraining(bench: Bench) -> None:
    lived(bench, 31.5)
    now = time.time()
    bench.store.alerts.silence("search", now, now + DAY, "ann", "")
    lived(bench, 33, since=31.5)
    shown = take_snapshot(bench.monitor, bench.store, day(33))
    assert shown.no_retraining_as.startswith("notifications are silenced until ")
    assert "retrain" not in kinds(bench)


def test_the_snapshot_says_that_an_unnotified_incident_requests_no_retraining(bench: Bench) -> None:
    bench.put(WORSE.rows(0, 33 * 24))
    bench.judge(day(33), current=False)
    assert (
        take_snapshot(bench.monitor, bench.store, day(33)).no_retraining_as
        == "no notification of the incident was sent"
    )
