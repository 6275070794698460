"""Incidents about the data, from stored hours to the message about their end."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from monitor.cli.commands import incidents, status
from monitor.cli.incident_report import in_text
from monitor.cli.incident_report import lines as explained
from monitor.conditions.verdicts import LABELS_EXPLAIN
from monitor.messages.diagnosis import Told, hour_by_hour
from monitor.messages.explanation import sentence
from monitor.messages.notification import notification
from monitor.messages.words import utc
from monitor.page import render
from monitor.service.explaining import hours_of
from monitor.service.snapshot import take_snapshot
from monitor.types import Column, Judgments, Recipe, Relation
from monitor.units import DAY, HOUR
from tests.support.bench import Bench
from tests.support.drift import START, Ranking, day
from tests.support.logs import Style, events
from tests.support.notices import ABOUT, DROP, INCIDENT, of_kind
from tests.support.pages import PageSource

CLICKS = events(Style("bigint", "epoch_ms", None, lambda micros: micros))


def told(bench: Bench) -> list[tuple[float, str, str, str]]:
    """(day, condition, new state, reason) of every change, oldest first."""
    found = bench.store.alerts.transitions("search", START, most=1000)
    return sorted((round((t.at - START) / DAY, 2), t.rule, t.became, t.reason) for t in found)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1.0, "The data problem is over.\n"),
        (0.2, "Traffic stays at 21 % of what it was in the same hours before it fell (over 6 h).\n"),
    ],
)
def test_traffic_back_after_weeks_resolves_the_incident_though_not_judged_yet(
    bench: Bench, rate: float, text: str
) -> None:
    past = Ranking.of(71).since(32, 69, rate=0.0).since(69, rate=rate).draw()
    bench.put(past.rows(0, 32 * 24))
    bench.judge(day(32))
    bench.live(past.rows(0, 69 * 24), 32 * 24, step=24)
    assert [s.incident.is_open for s in bench.incidents] == [True]
    newest = bench.store.verdicts.newest("search")
    assert newest is not None
    assert (newest.kind, newest.requests) == ("not_enough_data", 0)  # the baseline expired long ago
    bench.live(past, 69 * 24)
    assert [s.incident.closed_at for s in bench.incidents] == [day(69) + 6 * HOUR]
    said = bench.notices[-1][1].full_text
    assert text in said
    assert "not judged yet; it still needs a first reference: less than one of 14 days to begin with." in said
    assert "judged again" not in said


def test_low_traffic_names_the_slices_without_requests(bench: Bench) -> None:
    bench.put(Ranking.of(30, slices=2).draw())
    bench.judge(day(30))
    bench.live(Ranking.of(31, slices=2).since(30, rate=0, slices=[1]).since(30, rate=0.6, slices=[0]).draw(), 30 * 24)
    (_, told_) = next(n for n in bench.notices if n[1].kind == "firing")
    assert re.search(
        r"(?s)Traffic is low: .*No requests from device=slice 1 \(0 requests in \d h since 2022-02-07 00:00 UTC, "
        r"usually [\d,]+\)\.",
        told_.full_text,
    )


def test_low_traffic_names_no_slices_when_all_traffic_is_gone(bench: Bench) -> None:
    bench.put(Ranking.of(30, slices=2).draw())
    bench.judge(day(30))
    bench.live(Ranking.of(31, slices=2).since(30, rate=0).draw(), 30 * 24)
    (_, said) = next(n for n in bench.notices if n[1].kind == "firing")
    assert "Traffic is low: 0 requests" in said.full_text
    assert "No requests from" not in said.full_text


def test_the_page_shows_refused_rows_by_reason_over_the_whole_incident(bench: Bench) -> None:
    past = Ranking.of(45).draw()
    late = (past.starts >= day(30)) & (past.starts < day(31))
    past = replace(past, refused=np.where(late, 400.0, 2.0))
    bench.put(past.rows(0, 30 * 24))
    bench.judge(day(30))
    bench.live(past.rows(0, 31 * 24), 30 * 24)
    (text,) = [notice.full_text for target, notice in bench.notices if target == "data"]
    said = re.search(r"([\d,]+) rows of the rankings were refused over 3 h until [\d :-]+ UTC \(usually (\d+)\)", text)
    assert said is not None
    assert int(said[1].replace(",", "")) in (404, 802, 1200), "whole hours of the bad day, and hours before it"
    assert re.search(r"\nIn these hours and those around them: [\d,]+ bad positions\.", text)
    assert 3 <= int(said[2]) <= 12, "two an hour, scaled by the number of requests"
    told = _page(bench, day(31))
    (rows,) = re.findall(r"<b>Refused since it began:</b> ([\d,]+) bad positions\.", told)
    assert int(rows.replace(",", "")) == 24 * 400
    bench.live(past, 31 * 24, step=24)
    (incident,) = bench.incidents
    assert not incident.incident.is_open
    told = _page(bench, day(45))
    (rows,) = re.findall(r"rows refused \(([\d,]+) bad positions\), resolved", told)
    assert 24 * 400 < int(rows.replace(",", "")) < 24 * 400 + 24 * 2, "plus those of the hours until it resolved"


def test_refused_rows_are_counted_over_the_hours_named_with_them(bench: Bench) -> None:
    past = Ranking.of(32).draw()
    past = replace(past, refused=np.where(past.starts == day(30), 3000.0, past.starts // HOUR % 3.0))
    bench.put(past.rows(0, 30 * 24))
    bench.judge(day(30))
    said = set[str]()
    for hour in range(30 * 24, 30 * 24 + 12):
        bench.live(past.rows(0, hour + 1), hour)
        said |= {sentence(found) for one in bench.incidents for found in one.findings}
    told = [re.search(r"([\d,]+) rows .* over 3 h until ([\d :-]+) UTC \(usually", text) for text in said]
    spans = [
        (int(one[1].replace(",", "")), int(datetime.fromisoformat(f"{one[2]}+00:00").timestamp()))
        for one in told
        if one is not None
    ]
    assert len(spans) >= 2
    for rows, until in spans:
        inside = (past.starts >= until - 3 * HOUR) & (past.starts < until)
        assert rows == past.refused[inside].sum()


@pytest.mark.parametrize(("of", "where"), [(("slice 1",), "device=slice 1"), (("slice 0", "slice 1"), "all traffic")])
def test_a_slice_with_nearly_all_refused_rows_is_named(bench: Bench, of: tuple[str, ...], where: str) -> None:
    bench.refused_of = of
    past = Ranking.of(31).draw()
    past = replace(past, refused=np.where(past.starts >= day(30), 400.0, 2.0))
    bench.put(past.rows(0, 30 * 24))
    bench.judge(day(30))
    bench.live(past.rows(0, 30 * 24 + 6), 30 * 24)
    (text,) = [notice.full_text for target, notice in bench.notices if target == "data"]
    assert f"\nWhere: {where}.\n" in text
    said = re.search(r"All of them are of device=slice 1, with (\d+) % of the requests\.", text)
    assert (said is not None) == (len(of) == 1)


def _page(bench: Bench, now: int) -> str:
    return render(PageSource.of(now, take_snapshot(bench.monitor, bench.store, now)))


def test_a_slice_missing_through_a_label_loss_fires_once(bench: Bench) -> None:
    past = Ranking.of(40, slices=4, peak=2000).since(32, 38, rate=0.0, slices=[1]).since(33, 35, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    of_slice = [(at, became) for at, rule, became, _ in told(bench) if rule == "slice_missing"]
    assert [became for _, became in of_slice] == ["firing", "ok"]
    assert of_slice[-1][0] > 38
    (grew,) = [why for _, rule, became, why in told(bench) if (rule, became) == ("labels_suspect", "ok")]
    assert grew == "labels suspect for a day: now labels or relevance collapsed"
    titles = [title for target, _, title in bench.said if target == "data"]
    assert titles[1].startswith("search: labels suspect")
    assert len(titles) == 5  # missing, suspect, collapsed, missing still, over


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ([2], "device=slice 2 (N requests) is new since then: perhaps renamed"),
        ([2, 3], "device=slice 2 (N requests), device=slice 3 (N requests) are new since then: perhaps renamed"),
        ([], ""),
    ],
)
def test_a_slice_missing_as_others_begin_is_reported_as_perhaps_renamed(
    bench: Bench, new: list[int], told: str
) -> None:
    served = Ranking.of(32, slices=4).since(0, 31, rate=0.0, slices=[2, 3]).since(31, rate=0.0, slices=[1])
    past = served.since(31, rate=0.0, slices=[i for i in (2, 3) if i not in new]).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24)
    (_, notice) = next(n for n in bench.notices if n[1].kind == "firing")
    assert notice.title == "search: slices missing: device=slice 1"
    assert told in re.sub(r"\([\d,]+ requests\)", "(N requests)", notice.full_text)
    assert ("renamed: if so, give both the same name in the rankings" in notice.full_text) is bool(new)
    assert ("are new since" in notice.full_text or "is new since" in notice.full_text) is bool(new)


def test_missing_slices_and_low_traffic_report_usual_counts_and_their_start(bench: Bench) -> None:
    past = Ranking.of(35, slices=4, peak=2000).since(32, rate=0.0, slices=[1]).since(33, rate=0.2).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=4)
    missing = next(n.full_text for _, n in bench.notices if n.title.startswith("search: slices missing"))
    said = re.search(r"device=slice 1 \(0 requests in (\d) h since 2022-02-09 00:00 UTC, usually ([\d,]+)\)", missing)
    assert said is not None
    week_before = past.requests[25 * 24 : 25 * 24 + int(said[1]), 1].sum()
    assert int(said[2].replace(",", "")) == week_before
    assert "\nSince 2022-02-09 00:00 UTC; fired at " in missing
    low = next(n.full_text for _, n in bench.notices if "traffic low" in n.title)
    assert re.search(
        r"requests over 3 h until [\d :-]+ UTC \(usually [\d,]+ at these hours\), low since 2022-02-10 00:00 UTC\.",
        low,
    )


@pytest.mark.parametrize("until", [33.5, 35.0])
def test_low_traffic_has_the_same_start_in_every_output(bench: Bench, until: float) -> None:
    past = Ranking.of(35).since(32, 33.5, rate=0.2).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past.rows(0, round(until * 24)), 31 * 24, step=1)
    (stored,) = bench.incidents
    since, notice = "2022-02-09 00:00 UTC", bench.notices[-1][1]
    assert notice.kind == ("firing" if until == 33.5 else "resolved")
    assert f"ince {since}" in notice.full_text or f"from {since} until" in notice.full_text
    assert notice.began_at == stored.incident.began_at == incidents.plain(stored)["began_at"] == day(32)
    assert getattr(stored.findings[0], "began", None) == day(32)
    assert f"bad since {since}, fired " in incidents.line(stored)
    assert f"\nSince {since}; fired at " in "\n".join(explained(stored, [Told(("traffic_low", "", ""), 0)], []))
    now = day(until)
    assert since in _page(bench, now)


def test_data_and_quality_incidents_keep_separate_steps(bench: Bench) -> None:
    past = Ranking.of(35).since(32, mean=0.8, slices=[1]).since(31.9, 32.5, rate=0.2).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=1)
    by_matter = {s.incident.matter: {t.rule for t in incidents.steps_of(s, bench.store)} for s in bench.incidents}
    assert by_matter == {"data": {"traffic_low"}, "quality": {"degraded"}}


def test_the_hours_of_lost_labels_are_listed_with_those_around_them(bench: Bench) -> None:
    past = Ranking.of(35).since(33, 34, coverage=0.0).draw()
    bench.monitor = replace(bench.monitor, recipe=CLICKS)
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    (incident,) = bench.incidents
    hours = hours_of(bench.monitor, incident, bench.store)
    closed_at = incident.incident.closed_at
    assert closed_at is not None
    assert [h["start"] for h in hours] == list(range(day(33) - 3 * HOUR, closed_at + 3 * HOUR, HOUR))
    lost = [h for h in hours if day(33) <= h["start"] < day(34)]
    sound = [h for h in hours if h not in lost]
    assert {h["labelled"] for h in lost} == {h["events"] for h in lost} == {0.0}
    assert min(h["labelled"] for h in sound) > 0.5
    with_strays = [2 * h["labelled"] / (1 - h["unmatched"]) for h in sound]
    assert [h["events"] for h in sound] == pytest.approx(with_strays), "unmatched events are included"
    assert all(0.03 < h["unmatched"] < 0.05 for h in sound), "one in twenty events, stored as whole numbers"
    opened = [h["start"] for h in hours if h["verdict"] == "labels_suspect"]
    assert opened[0] == day(33), "the first hour without labels shows its own verdict"
    assert [h["verdict"] for h in lost] == ["labels_suspect"] * 24
    assert {h["verdict"] for h in hours if h["start"] >= closed_at} == {"healthy"}
    assert hours[0]["verdict"] == "healthy"
    assert {(h["whole"], h["final"], h["refused"]) for h in hours} == {(True, True, 0)}
    assert len(in_text(hour_by_hour(hours))) == 2 + len(hours)
    longer = [{**h, "requests": None} for h in hours for _ in range(3)]
    (*_, told) = [line for line in in_text(hour_by_hour(longer)) if line.startswith("…")]
    assert told == f"… {len(longer) - 48} more"
    marked = in_text(
        hour_by_hour([{**hours[0], "final": False, "whole": False}, {**hours[0], "requests": None, "verdict": None}])
    )
    assert marked[2].endswith("healthy, stored in part, labels still arriving")
    assert marked[3].endswith("  not stored separately")


@pytest.mark.parametrize("recipe", [Column("grade"), Judgments(Relation(("judged",)), "query", "item", "grade")])
def test_hours_of_labels_without_events_have_no_event_columns(bench: Bench, recipe: Recipe) -> None:
    bench.monitor = replace(bench.monitor, recipe=recipe)
    past = Ranking.of(33).since(32, 32.5, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    hours = hours_of(bench.monitor, bench.incidents[0], bench.store)
    assert {h["events"] for h in hours} == {None}
    assert all(h["labelled"] > 0.5 for h in hours if h["verdict"] == "healthy"), "counted as the verdict counts them"
    title, head, first, *_ = in_text(hour_by_hour(hours))
    assert title == "\nHour by hour:"
    assert head.split() == ["from", "(UTC)", "requests", "labelled", "refused", "verdict"]
    assert first.endswith("%        0  healthy")


def test_an_incident_on_all_traffic_and_slices_lists_hours_of_both(bench: Bench) -> None:
    past = Ranking.of(34, slices=4, peak=2000).since(32, rate=0.0, slices=[1]).since(33, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    (incident,) = bench.incidents
    assert {f.rule for f in incident.findings} > {"slice_missing"}
    hours = hours_of(bench.monitor, incident, bench.store)
    slices = list(dict.fromkeys((h["dimension"], h["slice"]) for h in hours))
    assert slices[0] == ("", "")
    assert len(slices) == 2
    assert {h["requests"] for h in hours if h["slice"] and h["start"] >= day(32)} == {0}


def test_lost_labels_of_a_slice_list_the_hours_of_that_slice(bench: Bench) -> None:
    past = Ranking.of(34, 8, 3000.0).since(32, 33, coverage=0.0, slices=[1]).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    (incident,) = bench.incidents
    hours = hours_of(bench.monitor, incident, bench.store)
    (slice_,) = {(h["dimension"], h["slice"]) for h in hours}
    assert slice_ == (incident.findings[0].slices[0].dimension, incident.findings[0].slices[0].slice)
    assert {h["labelled"] for h in hours if day(32) <= h["start"] < day(33)} == {0.0}
    assert {h["unmatched"] for h in hours} == {None}, "unmatched events belong to no slice"


def test_lost_slice_labels_notify_the_data_owners_and_after_a_day_the_team(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, recipe=CLICKS)
    past = Ranking.of(36, 8, 3000.0).since(32, 34.5, coverage=0.0, slices=[1]).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    assert [(target, kind) for target, kind, _ in bench.said] == [
        ("data", "firing"),
        ("data", "updated"),
        ("team", "updated"),
        ("data", "resolved"),
        ("team", "resolved"),
    ]
    first, grown = bench.notices[0][1], bench.notices[1][1]
    assert first.title == "search: labels of slices suspect: device=slice 1"
    assert re.search(
        r"device=slice 1 (89|90)\.\d % to 0\.0 %\. The other slices are judged as usual\.", first.full_text
    )
    assert grown.title == "search: labels or relevance of slices collapsed: device=slice 1"
    assert (first.severity, grown.severity) == ("warning", "critical")
    assert "ago or more: they lost most of their labels, which explains the drop in their measure." in grown.full_text
    assert re.search(
        r"\nEvents per request of these slices, those that match an impression: 0, 1\.(79|8\d?) before\.\n",
        grown.full_text,
    )
    assert re.search(r"\nEvents for which no impression was found: 4\.7 %, 4\.8 % before\.", grown.full_text)
    over = bench.notices[-1][1]
    assert over.title == "search: resolved (labels or relevance of slices collapsed: device=slice 1)"
    assert "labels or relevance of slices collapsed: device=slice 1" in incidents.line(bench.incidents[0])
    assert [s.incident.matter for s in bench.incidents] == ["data"]
    assert take_snapshot(bench.monitor, bench.store, day(34)).verdict is not None


def test_lasting_shorter_lists_notify_the_data_owners_and_become_the_new_normal(bench: Bench) -> None:
    past = Ranking.of(41).since(32.5, items=0.4).draw()
    bench.put(past.rows(0, 32 * 24))
    bench.judge(day(32))
    bench.live(past, 32 * 24, step=4)
    assert [(target, kind) for target, kind, _ in bench.said] == [("data", "firing"), ("data", "resolved")]
    first, last = (notice for _, notice in bench.notices)
    assert re.fullmatch(r"search: positions suspect, 4\.0 items per request \(usually 10\.0\)", first.title)
    assert (
        "Lists are shorter: 4.0 items per request in the hours until 2022-02-09 16:00 UTC, down to the judged rank "
        "(usually 10.0)." in first.full_text
    )
    assert (
        "What to do: check whether positions are still logged, and still start at the same number." in first.full_text
    )
    assert last.title == "search: resolved (positions suspect), now the new normal"
    assert "which counts as the new normal, with a new baseline." in last.full_text
    again = Ranking.of(41).since(32.5, 33, items=0.4).draw()
    bench.put(again)
    bench.judge(day(41))
    (found,) = bench.incidents
    assert found.incident.state == "resolved"
    assert not any(f.is_new_normal for f in found.findings)


@pytest.mark.parametrize(("ranked", "said"), [(0.0, r"0\.0"), (10.0, r"10\.0"), (0.7, r"0\.7")])
def test_an_unusual_count_of_items_at_rank_1_notifies_the_data_owners(bench: Bench, ranked: float, said: str) -> None:
    past = Ranking.of(41).since(33, 35, mean=0.85).draw()
    off = (past.starts >= day(33)) & (past.starts < day(35))
    past = replace(past, rank_one=np.where(off, ranked, 1) * past.rank_one)
    bench.put(past.rows(0, 32 * 24))
    bench.judge(day(32))
    bench.live(past, 32 * 24, step=4)
    assert [(target, kind) for target, kind, _ in bench.said] == [("data", "firing"), ("data", "resolved")]
    title = bench.notices[0][1].title
    assert re.fullmatch(rf"search: positions suspect, {said} items at rank 1 per request \(usually 1\.0\)", title)
    (found,) = bench.incidents
    assert not any(f.is_new_normal for f in found.findings), "two days do not make a new normal"


def test_lost_labels_with_a_request_surge_suggest_robots_before_the_pipeline(bench: Bench) -> None:
    past = Ranking.of(34, 3, 3000.0).since(32, 32.5, rate=5.0, coverage=0.05, slices=[1]).draw()
    bench.put(past.rows(0, 32 * 24))
    bench.judge(day(32))
    bench.live(past, 32 * 24, step=2)
    (told, *_) = [notice for target, notice in bench.notices if target == "data" and notice.kind == "firing"]
    assert told.title.startswith("search: labels suspect, coverage ")
    many = re.search(
        r"than usual: ([\d,]+) in the last hours \(usually ([\d,]+)\), most of them from (.+)\.", told.full_text
    )
    assert many is not None
    came, usual = (int(many[n].replace(",", "")) for n in (1, 2))
    assert came > 1.5 * usual
    assert re.fullmatch(r"device=slice 1 \([\d,]+, usually [\d,]+\)", many[3])
    cause = "find out who sends so many requests (robots leave no labels) and whether some are logged twice"
    assert f"What to do: {cause}; otherwise check the event pipeline" in told.full_text
    lost = Ranking.of(34, 3, 3000.0).since(32, 32.5, coverage=0.05).draw()
    bench.put(lost)
    bench.judge(day(34))
    again = [f for s in bench.incidents for f in s.findings if f.verdict == "labels_suspect"]
    assert again
    assert not any("than usual" in sentence(f) for f in again)


def test_unmatched_events_are_not_reported_when_not_counted(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, recipe=replace(CLICKS, count_unmatched=False))
    past = Ranking.of(33, 8, 3000.0).since(32, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(replace(past, unmatched=0 * past.unmatched), 31 * 24, step=6)
    (_, notice) = bench.notices[0]
    assert "Events per request: 0" in notice.full_text
    assert "match no impression" not in notice.full_text


def test_an_alarm_of_a_vanished_slice_asks_for_no_retraining(bench: Bench) -> None:
    past = Ranking.of(45, 8, 3000.0).since(32, mean=0.75, slices=[3]).since(33, rate=0.0, slices=[3]).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    quality = [s.incident for s in bench.incidents if s.incident.matter == "quality"]
    assert all(i.state in ("withdrawn", "resolved") and (i.closed_at or 0) <= day(34.3) for i in quality)
    assert quality
    assert "retrain" not in [kind for _, kind, _ in bench.said]


def test_a_further_slice_losing_its_labels_sends_an_update(bench: Bench) -> None:
    past = Ranking.of(36, 8, 3000.0).since(32, coverage=0.0, slices=[5]).since(34, coverage=0.0, slices=[1]).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24, step=6)
    told = [(notice.kind, notice.full_text) for target, notice in bench.notices if target == "data"]
    assert [kind for kind, _ in told] == ["firing", "updated", "updated"]  # lost, lost for a day, a further slice
    assert "slice 1" not in told[1][1]
    assert "device=slice 5 " in told[2][1]
    assert "device=slice 1" in told[2][1]
    (found,) = next(s.findings for s in bench.incidents if s.incident.matter == "data")
    assert [s.slice for s in found.slices] == ["slice 5", "slice 1"]


def test_status_names_the_slices_that_lost_their_labels(bench: Bench) -> None:
    past = Ranking.of(34, 4, 2000.0).since(32, coverage=0.0, slices=[1]).since(33, 33.5, rate=0.1).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past.rows(0, round(32.5 * 24)), 31 * 24)
    assert "labels of slices suspect since 2022-02-09 01:00 UTC" in said_by_status(bench, day(32.5))
    assert "(device=slice 1)" in said_by_status(bench, day(32.5))
    bench.live(past.rows(0, round(33.4 * 24)), round(32.5 * 24))
    assert "traffic low since" in said_by_status(bench, day(33.4))
    assert "slice 1" not in said_by_status(bench, day(33.4))


def said_by_status(bench: Bench, at: float) -> str:
    found = status.verdict_of(take_snapshot(bench.monitor, bench.store, at), bench.store)
    assert found is not None
    return status._verdict(found)


def test_returned_labels_come_with_the_backfill_that_counts_late_ones(bench: Bench) -> None:
    past = Ranking.of(34).since(31.25, 31.75, coverage=0.0).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24)
    over = [notice.full_text for target, notice in bench.notices if target == "data"][-1]
    (since,) = re.findall(r"arrived late: rankmon backfill -m search --from (\S+) --again$", over, re.MULTILINE)
    assert "The data problem is over." in over
    assert since == f"{datetime.fromtimestamp(day(30), UTC):%Y-%m-%d}", "the day before the loss was seen"


def test_labels_still_partly_missing_are_not_called_normal(bench: Bench) -> None:
    past = Ranking.of(34).since(31.25, 31.75, coverage=0.8).since(31.75, coverage=0.82, mean=0.9).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24)
    (why,) = [why for _, rule, became, why in told(bench) if (rule, became) == ("labels_suspect", "ok")]
    still = r"no longer suspect, but still fewer labels than usual \(7\d\.\d %, usually 89\.\d %\)"
    assert re.fullmatch(still, why)


def test_a_partly_recovered_label_loss_still_says_what_to_do() -> None:
    lost = of_kind("labels_suspect", DROP, value=0.2, before=0.6, still=(0.3, 0.6))
    over = notification("resolved", ABOUT, INCIDENT, [lost], 0)
    what = "no longer suspect, but still fewer labels than usual (30.0 %, usually 60.0 %)"
    assert over.title == f"search: resolved (labels suspect), {what}"
    assert "What to do: find out why the other labels are missing; quality is judged again." in over.full_text


def test_broken_data_found_late_says_it_began_then_or_before(bench: Bench) -> None:
    past = Ranking.of(34, peak=4).since(31.25, items=0.3).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24)
    (stored,) = [s for s in bench.incidents if s.incident.matter == "data"]
    assert stored.incident.began_at > day(31.25)
    said = [notice.full_text for target, notice in bench.notices if target == "data"]
    assert f"Since {utc(stored.incident.began_at)} or before; fired at" in said[0]


def test_a_data_incident_says_how_long_the_data_have_been_sound(bench: Bench) -> None:
    past = Ranking.of(33).since(32, 32.5, coverage=0.0).draw()
    bench.put(past.rows(0, 32 * 24))
    bench.judge(day(32))
    bench.live(past.rows(0, 32 * 24 + 18), 32 * 24, step=9)
    (incident,) = bench.incidents
    (found,) = (f for f in incident.findings if f.rule == "labels_suspect")
    assert (found.end, found.well_for, found.well_needed) == (day(32) + 16 * HOUR, 2 * HOUR, 6 * HOUR)
    said = f"That was at {utc(found.end)}. Normal for 2 h; resolves after 6 h."
    assert said in _page(bench, day(32) + 18 * HOUR)


def test_a_page_for_slowly_lost_labels_is_withdrawn_and_the_data_owners_notified(bench: Bench) -> None:
    past = Ranking.of(37).losing_labels(31, 15, 0.7).draw()
    bench.put(past.rows(0, 31 * 24))
    bench.judge(day(31))
    bench.live(past, 31 * 24)
    quality, data = bench.incidents
    assert (quality.incident.matter, quality.incident.state) == ("quality", "withdrawn")
    assert (data.incident.matter, data.incident.state) == ("data", "firing")
    assert data.incident.opened_at == quality.incident.closed_at
    ended = next(n for _, n in bench.notices if n.kind == "withdrawn")
    assert f"Withdrawn, not recovered: {LABELS_EXPLAIN}." in ended.full_text
    assert {why for _, rule, became, why in told(bench) if rule == "degraded" and became == "withdrawn"} == {
        LABELS_EXPLAIN
    }
    assert [(to, n.kind) for to, n in bench.notices if n.matter == "data"] == [("data", "firing")]
