"""A changed page is reported to its owners and withdraws alarms that the corrected measure contradicts."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from monitor.cli.incident_report import lines
from monitor.conditions.arrivals import Arrived
from monitor.conditions.examined import CONTRADICTED, RECENT, ExaminationCheck, check
from monitor.conditions.kinds.examination_changed import ExaminationChanged
from monitor.drift.judge import judge_steps
from monitor.drift.settings import DriftSettings
from monitor.evaluation.run import judge_past
from monitor.measures.examination import ALL, estimate_parts
from monitor.measures.measure import parse
from monitor.messages.diagnosis import Told
from monitor.messages.notification import notification
from monitor.messages.words import brief
from monitor.page import render
from monitor.page.position_bias import corrected as corrected_in_words
from monitor.page.words import number
from monitor.routing import Route, Routing
from monitor.service.snapshot import MonitorSnapshot, take_snapshot
from monitor.types import Drift, Monitor
from monitor.units import DAY, HOUR
from monitor.web.gauges import of_monitors
from tests.support.bench import Bench
from tests.support.drawn_log import DEPTH, draw
from tests.support.drift import START, Ranking
from tests.support.notices import ABOUT, DROP, INCIDENT, of_kind
from tests.support.pages import PageSource
from tests.support.tallies import watched

DAYS = 20
END = START + DAYS * DAY
MEASURES = parse("ndcg@10"), parse("dcg(examination={1:1,2:0.5,3:0.33,4:0.25,5:0.2})@5")


@cache
def checked() -> tuple[ExaminationCheck, ExaminationCheck]:
    """A check as of END that finds a changed page, and the check before it."""
    log, was = draw(1, steep={20: 0.4}), None
    for day in (20, 23):
        was, before = check(was, day * DAY, 0, 1.0, DEPTH, log.counts), was
    assert was is not None
    assert before is not None
    moved = END - was.at
    assert was.changed_since is not None
    since, begun = was.since + moved, was.changed_since + moved
    whole = replace(was, at=END, since=since, changed_since=min(begun, since - RECENT))
    return whole, replace(before, at=END + 2 * HOUR, resumed=END + 2 * HOUR)


@pytest.fixture
def corrected(bench: Bench) -> Bench:
    rankings = replace(bench.monitor.rankings, query="query")
    bench.monitor = replace(bench.monitor, rankings=rankings, measures=MEASURES)
    return bench


def judge_with(bench: Bench, found: ExaminationCheck | None, until: int) -> None:
    if found is not None:
        bench.store.verdicts.put_check("search", found)
    bench.judge(until, arrived=Arrived(until - 10.0, until - 20.0, examined=found))


def test_a_table_clearly_off_by_over_a_tenth_is_reported_with_rank_and_estimate(
    corrected: Bench,
) -> None:
    bench, (_, well) = corrected, checked()
    fits, off = MEASURES[1], parse("dcg(examination={1:1,2:0.5,3:0.02,4:0.25,5:0.2})@5")
    assert well.misfit(fits) is None
    found = well.misfit(off)
    assert found is not None
    assert (found.part, found.rank, found.used) == (ALL, 3, 0.02)
    assert found.lower < 1 / 3 < found.upper
    bench.monitor = replace(bench.monitor, measures=(*MEASURES, off))
    bench.put(Ranking.of(DAYS).draw())
    judge_with(bench, well, END + HOUR)
    snapshot = take_snapshot(bench.monitor, bench.store, END + HOUR)
    gauge = next(family for family in of_monitors([snapshot]) if family.name == "rankmon_examination_misfit")
    assert {one.labels["measure"]: one.value for one in gauge.samples} == {str(fits): 0, str(off): 1}
    shown = render(PageSource.of(END + HOUR, snapshot))
    said = f"Warning: its table does not match the log: at rank 3 it says 0.02, the log says {found.value:.2f} (95 %: "
    assert said in shown


@pytest.mark.parametrize("seed", range(4))
def test_a_table_fitted_on_other_days_of_the_same_page_matches_the_log(seed: int) -> None:
    log = draw(seed, days=30)
    table = estimate_parts(log.counts(0, 10 * DAY), DEPTH)
    ranks = ",".join(f"{rank}:{value:.3f}" for rank, value in enumerate(table.value.tolist(), 1))
    found = check(None, 30 * DAY, 10 * DAY, 1.0, DEPTH, log.counts)
    assert found is not None
    assert found.misfit(parse(f"dcg(examination={{{ranks}}})@{DEPTH}")) is None


def test_a_changed_page_has_its_own_incident_until_people_look_as_before(corrected: Bench) -> None:
    bench, (changed, well) = corrected, checked()
    bench.put(Ranking.of(DAYS).draw())
    judge_with(bench, None, END)
    assert bench.said == []
    tv = ("device", "tv & radio")
    changed = replace(changed, now=replace(changed.now, parts={tv: changed.known}))
    judge_with(bench, changed, END + HOUR)
    ((channel, kind, title),) = bench.said
    assert (channel, kind) == ("team", "firing")
    assert title.startswith(f"search: people look elsewhere: rank {changed.change.rank} is looked at ")
    (_, notice) = bench.notices[0]
    assert notice.matter == "layout"
    first, *_ = notice.text.splitlines()
    seen, before = (one.value[changed.change.rank - 1] for one in (changed.now, changed.known))
    assert f"is now looked at {seen:.2f} times as often as rank 1" in first
    assert f"before, it was {before:.2f}." in first
    assert f"quality changed by {100 * changed.corrected[0]:+.0f} %" in first
    assert "This assumes that examination depends on the rank alone, that lists are personalised at most by" in first
    assert "reset the baseline" in notice.text
    judge_with(bench, None, END + HOUR)  # without a check, like most cycles
    assert len(bench.said) == 1
    snapshot = take_snapshot(bench.monitor, bench.store, END + HOUR)
    shown = render(PageSource.of(END + HOUR, snapshot))
    assert "people look elsewhere" in shown
    (used,) = (measure for measure in bench.monitor.measures if measure.examination)
    assert f'<code title="{used}">{brief(used)}</code>' in shown
    assert "dcg@5 over 24h, corrected for where people look" in shown
    assert "ndcg@10, not corrected: " in shown
    assert (
        "It assumes that examination depends on the rank alone and matches its table, and that people trust no" in shown
    )
    assert "does not match the log" not in shown, "the message is that people look elsewhere"
    assert "until its table is replaced, the incident says how quality changed" in shown
    halved = [
        replace(one, length=7 * DAY, final=tuple(replace(point, value=(point.value or 0) / 2) for point in one.final))
        for one in snapshot.series
    ]
    plain = next(one for one in halved if not one.measure.examination)
    words = dict(corrected_in_words(replace(snapshot, series=(*snapshot.series, *halved))))
    of_week = words["dcg@5 over 7d, corrected for where people look"]
    assert f"{plain.measure}, not corrected: {number(plain.final[0].value)}" in of_week, "each next to its own window"
    for one in (changed.now, changed.known):  # overall and of the slice
        assert f"1.00 (1.00 to 1.00), {one.value[1]:.2f} ({one.lower[1]:.2f} to {one.upper[1]:.2f}), " in shown
    assert shown.count('<title id="examination:search:') == 2
    assert "<h4>device=tv &amp; radio</h4>" in shown
    gauges = {family.name: family.samples for family in of_monitors([snapshot])}
    for end, values in (("", changed.now.value), ("_lower", changed.now.lower), ("_upper", changed.now.upper)):
        samples = {one.labels["rank"]: one.value for one in gauges[f"rankmon_examination{end}_ratio"]}
        assert samples == {str(rank + 1): value for rank, value in enumerate(values.tolist())}
    of_slice = {(s.labels["value"], s.labels["rank"]): s.value for s in gauges["rankmon_slice_examination_ratio"]}
    assert of_slice == {
        ("tv & radio", str(rank + 1)): chance for rank, chance in enumerate(changed.known.value.tolist())
    }
    judge_with(bench, well, END + 2 * HOUR)
    assert bench.said[1:] == [("team", "resolved", "search: resolved (people look elsewhere)")]
    text = bench.notices[-1][1].text
    assert text.startswith("People look where they did before.\n")
    assert "What to do: nothing;" in text


def test_a_baseline_reset_resolves_it_as_such_and_asks_for_the_new_table(corrected: Bench) -> None:
    bench, (changed, _) = corrected, checked()
    bench.put(Ranking.of(DAYS).draw())
    judge_with(bench, changed, END + HOUR)
    log, moved = draw(1, steep={20: 0.4}), END - 23 * DAY
    assert changed.changed_since is not None
    was = replace(changed, at=23 * DAY, since=20 * DAY, changed_since=changed.changed_since - moved)
    accepted = check(was, 23 * DAY, 20 * DAY, 1.0, DEPTH, log.counts)
    assert accepted is not None
    judge_with(bench, accepted, END + 2 * HOUR)
    assert bench.said[1:] == [("team", "resolved", "search: resolved (people look elsewhere), the baseline was reset")]
    text = bench.notices[-1][1].text
    assert text.startswith("The baseline was reset: where people look now is what later days are compared with.")
    assert "What to do: unless the measure already has the new table, run `rankmon examination fit --since`" in text


def test_the_page_and_messages_name_a_corrected_measure_without_its_table(corrected: Bench) -> None:
    bench, table = corrected, MEASURES[1]
    bench.put(Ranking.of(DAYS).draw())
    bench.judge(END + HOUR)
    snapshot = take_snapshot(bench.monitor, bench.store, END + HOUR)
    shown = re.sub(r'title="[^"]*"', "", render(PageSource.of(END + HOUR, snapshot)))
    assert brief(table) in shown
    assert str(table) not in shown
    for kind in ("threshold", "degraded"):
        fell = of_kind(kind, DROP, judged=str(table))
        for said in ("firing", "resolved", "retrain"):
            told = notification(said, ABOUT, INCIDENT, [fell], 0)
            assert brief(table) in told.title + told.full_text
            assert str(table) not in told.title + told.full_text


def test_a_return_to_the_old_examination_is_not_called_a_reset_by_a_later_check(corrected: Bench) -> None:
    """Overdue checks of several days run together, and only the newest is judged."""
    bench, (changed, well) = corrected, checked()
    bench.put(Ranking.of(DAYS).draw())
    judge_with(bench, changed, END + HOUR)
    assert well.resumed == well.at
    bench.store.verdicts.put_check("search", well)
    judge_with(bench, replace(well, at=well.at + DAY), END + 2 * HOUR)
    assert bench.said[1:] == [("team", "resolved", "search: resolved (people look elsewhere)")]


def test_an_explained_incident_names_the_device_whose_examination_changed(corrected: Bench) -> None:
    bench, (changed, _) = corrected, checked()
    bench.put(Ranking.of(DAYS).draw())
    known, now = (replace(one, parts={("device", "tv"): one}) for one in (changed.known, changed.now))
    judge_with(bench, replace(changed, known=known, now=now), END + HOUR)
    (stored,) = bench.incidents
    assert "Where:  device=tv" in lines(stored, [Told(stored.findings[0].name, END + HOUR)], [])


def test_layout_incidents_can_have_their_own_route() -> None:
    monitor = replace(checked_monitor(), notify=("team",))
    routing = Routing(monitor, (Route(("web",), matter=("layout",)),))
    assert [r.channels for r in routing.decide("warning", ("layout",), 0.0)] == [("web",)]
    assert ("warning", "layout") in routing.cases
    plain = replace(monitor, measures=MEASURES[:1])
    assert "layout" not in {matter for _, matter in Routing(plain).cases}


def checked_monitor() -> Monitor:
    plain = watched()
    rankings = replace(plain.rankings, query="query")
    return replace(plain, rankings=rankings, measures=MEASURES, drift=Drift(MEASURES[0]))


def test_only_monitors_with_a_corrected_measure_export_layout_series() -> None:
    plain, first = MEASURES[:1], (MEASURES[0], replace(MEASURES[1], k=1))
    others = ((replace(checked_monitor(), measures=measures), False) for measures in (plain, first))
    for monitor, shows in ((checked_monitor(), True), *others):
        text = "\n".join(str(family.samples) for family in of_monitors([MonitorSnapshot(monitor, 0.0)]))
        assert (ExaminationChanged.kind in text, "layout" in text) == (shows, shows)


@pytest.mark.parametrize("is_contradicted", [True, False])
def test_alarms_open_only_if_the_corrected_measure_does_not_contradict_them(
    corrected: Bench, is_contradicted: bool
) -> None:
    bench, (changed, _) = corrected, checked()
    past = Ranking.of(DAYS + 4).since(DAYS, mean=0.5).draw()
    bench.put(past.rows(0, DAYS * 24))
    bench.judge(END)
    if is_contradicted:
        assert changed.corrected[1] > -0.5
        bench.store.verdicts.put_check("search", changed)
    bench.live(past, DAYS * 24)
    assert {kind for _, kind, _ in bench.said} == (set() if is_contradicted else {"firing", "retrain"})
    found = judge_past(bench.monitor, bench.store, END + 4 * DAY)
    assert found is not None
    assert len(found.incidents) == len(bench.incidents) == (0 if is_contradicted else 1)


def test_an_open_alarm_is_withdrawn_once_the_corrected_measure_contradicts_it(corrected: Bench) -> None:
    bench, (changed, _) = corrected, checked()
    past = Ranking.of(DAYS + 4).since(DAYS, mean=0.5).draw()
    bench.put(past.rows(0, (DAYS + 2) * 24))
    bench.judge(END + 2 * DAY)
    bench.store.verdicts.put_check("search", replace(changed, at=END + 2 * DAY))
    bench.live(past, (DAYS + 2) * 24)
    assert [kind for _, kind, _ in bench.said if kind != "retrain"] == ["firing", "withdrawn"]
    assert CONTRADICTED in bench.notices[-1][1].text
    found = judge_past(bench.monitor, bench.store, END + 4 * DAY)
    assert found is not None
    assert [one.incident.state for one in found.incidents] == ["withdrawn"]


def test_fewer_labels_are_degraded_not_suspect_while_clicks_are_known_sound() -> None:
    past = Ranking.of(DAYS + 2).since(DAYS, coverage=0.8).draw()
    for sound, kind in (((), "labels_suspect"), (((END, END + 5 * DAY),), "degraded")):
        verdicts, _ = judge_steps(DriftSettings(sound=sound), None, past)
        assert {one.kind for one in verdicts[-12:]} == {kind}
        assert {one.kind for one in verdicts[-100:-50]} == {"healthy"}
