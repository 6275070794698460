"""Announcements by people or a calendar, in a monitor that lives through them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.conditions.checkpoint import Announcement
from monitor.evaluation.replay import replay
from monitor.types import KnownDays
from monitor.units import HOUR
from tests.support.bench import Bench, opened
from tests.support.drift import Ranking, day

PAST = Ranking.of(38, slices=2).since(30, 32, mean=0.8, rate=3.0).since(35, 36, mean=0.85).draw()
CAMPAIGN = Announcement(day(30), day(32), "ada", "campaign")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(f"sqlite:///{tmp_path}/store.db") as found:
        found.put(PAST.rows(0, 29 * 24))
        found.judge(day(29), current=False)
        yield found


def announce(bench: Bench, one: Announcement) -> None:
    bench.store.verdicts.announce("search", one, 0.0)


def kinds(bench: Bench, since: float, until: float) -> set[str]:
    return {v.kind for v in bench.store.verdicts.between("search", day(since), day(until))}


def test_a_campaign_announced_beforehand_pages_nobody_but_a_later_fall_does(bench: Bench) -> None:
    announce(bench, CAMPAIGN)
    bench.live(PAST, 29 * 24)
    assert kinds(bench, 30, 32) == {"announced"}
    assert {s.incident.matter for s in bench.incidents} == {"quality"}
    assert all(s.incident.began_at >= day(34.9) for s in bench.incidents)


def test_a_campaign_in_the_calendar_pages_nobody_live_or_in_replay(bench: Bench) -> None:
    drift = replace(bench.drift, calendar=(KnownDays(day(30) + 600, day(32) - 600, "campaign"),))
    bench.monitor = replace(bench.monitor, drift=drift)
    bench.live(PAST, 29 * 24)
    assert kinds(bench, 30, 32) == {"announced"}
    found = replay(bench.monitor, bench.store, day(29), day(34))
    assert found.hours["announced"] == 48
    assert found.of("quality") == found.of("data") == []


def test_announcing_a_later_span_rejudges_nothing_while_an_incident_is_open(bench: Bench) -> None:
    bench.live(PAST.rows(0, 31 * 24), 29 * 24)
    (before,) = (s.incident for s in bench.incidents if s.incident.matter == "quality")
    told, steps = list(bench.said), bench.store.alerts.transitions("search")
    announce(bench, replace(CAMPAIGN, since=day(33), until=day(34)))
    bench.live(PAST.rows(0, 31 * 24 + 1), 31 * 24)
    assert next(s.incident for s in bench.incidents if s.incident.id == before.id).began_at == before.began_at
    assert bench.said == told
    assert bench.store.alerts.transitions("search") == steps


@pytest.mark.parametrize("step", [5, 24])
def test_any_split_into_runs_gives_the_same_announced_verdicts(bench: Bench, step: int, tmp_path: Path) -> None:
    announce(bench, replace(CAMPAIGN, is_new_level=True))
    bench.live(PAST, 29 * 24, step)
    with opened(f"sqlite:///{tmp_path}/other.db") as other:
        announce(other, replace(CAMPAIGN, is_new_level=True))
        other.put(PAST)
        other.judge(day(38), current=False)
        assert bench.store.verdicts.between("search", 0, day(38)) == other.store.verdicts.between("search", 0, day(38))
        ends = [one.store.verdicts.newest_checkpoint("search") for one in (bench, other)]
        states = [None if one is None or one.state is None else one.state.to_json() for one in ends]
        assert states[0] == states[1] is not None
        assert [s.incident.began_at for s in bench.incidents] == [s.incident.began_at for s in other.incidents]


def test_an_announcement_afterwards_withdraws_the_alarm_and_says_why(bench: Bench) -> None:
    bench.live(PAST.rows(0, 31 * 24), 29 * 24)
    (page,) = (s.incident for s in bench.incidents if s.incident.matter == "quality")
    assert page.is_open
    announce(bench, CAMPAIGN)
    bench.live(PAST.rows(0, 31 * 24 + 6), 31 * 24)
    assert kinds(bench, 30, 31.2) == {"announced"}
    (stored,) = (s for s in bench.incidents if s.incident.id == page.id)
    assert stored.incident.state == "withdrawn"
    (last,) = (t for t in bench.store.alerts.transitions("search") if t.became == "withdrawn" and not t.value)
    assert last.reason == "ada announced something unusual from 2022-02-07 00:00 UTC: campaign"
    assert bench.store.verdicts.take_back_announcement("search", day(30))
    assert not bench.store.verdicts.take_back_announcement("search", day(30))
    bench.live(PAST.rows(0, 31 * 24 + 12), 31 * 24 + 6)
    assert "announced" not in kinds(bench, 30, 31.5)
    assert any(s.incident.is_open for s in bench.incidents if s.incident.matter == "quality")


def test_hours_partly_covered_by_an_announcement_are_announced_whole(bench: Bench) -> None:
    announce(bench, replace(CAMPAIGN, since=day(30) + 100, until=day(30) + HOUR + 1))
    bench.live(PAST.rows(0, 31 * 24), 29 * 24)
    ends = [v.end for v in bench.store.verdicts.between("search", 0, day(38)) if v.kind == "announced"]
    assert ends == [day(30) + HOUR, day(30) + 2 * HOUR]
