"""The recent history of verdicts: the same whether it grew step by step or was read in one go, and on the page."""

import re
from dataclasses import replace

import pytest

from monitor.conditions.rules import Floor, Rule
from monitor.drift.verdicts import VerdictPoint
from monitor.page.pages import render
from monitor.series.retention import DRAWN
from monitor.service.history import VerdictHistory, VerdictPeriod, extend_verdicts
from monitor.units import HOUR
from tests.support.bench import Bench
from tests.support.drift import Ranking, day
from tests.support.pages import DAY as A_DAY
from tests.support.pages import START, PageSource, fell, fill, shown, watched

EVERY = 4 * HOUR


def said(row: int, kind: str = "healthy", mix: float | None = None) -> VerdictPoint:
    """The verdict on the step that ends `row` hours after the start."""
    return VerdictPoint(row * HOUR, kind, 0.5 + row / 1000, 0.6, mix)


PAST = [
    *(said(row) for row in range(1, 10)),
    *(said(row, "labels_suspect") for row in range(10, 13)),
    said(13, "labels_collapsed"),
    *(said(row, mix=0.001 * row) for row in range(14, 17)),
    said(17),
    *(said(row, "traffic_low", -0.05) for row in range(18, 22)),
]


def test_a_history_grown_in_steps_equals_one_read_in_one_go() -> None:
    whole = VerdictHistory(HOUR, EVERY).onward(PAST, 0)
    for size in (1, 2, 5):
        grown = VerdictHistory(HOUR, EVERY)
        for row in range(0, len(PAST), size):
            grown = grown.onward(PAST[row : row + size], 0)
        assert grown == whole


def test_a_history_holds_an_even_grid_the_newest_point_and_periods() -> None:
    trail = VerdictHistory(HOUR, EVERY).onward(PAST, 0)
    assert [p.end // HOUR for p in trail.points] == [4, 8, 12, 16, 20, 21]
    assert trail.newest == PAST[-1]
    assert trail.troubles == (
        VerdictPeriod(9 * HOUR, 12 * HOUR, "labels_suspect"),
        VerdictPeriod(12 * HOUR, 13 * HOUR, "labels_collapsed"),
        VerdictPeriod(17 * HOUR, 21 * HOUR, "traffic_low", -0.05),
    )
    assert trail.mixes == (
        VerdictPeriod(13 * HOUR, 16 * HOUR, "", 0.016),
        VerdictPeriod(17 * HOUR, 21 * HOUR, "", -0.05),
    )


def test_verdicts_with_a_gap_are_two_periods() -> None:
    found = VerdictHistory(HOUR, EVERY).onward([said(1, "traffic_low"), said(5, "traffic_low")], 0)
    assert found.troubles == (VerdictPeriod(0, HOUR, "traffic_low"), VerdictPeriod(4 * HOUR, 5 * HOUR, "traffic_low"))


def test_points_and_periods_that_are_too_old_are_dropped() -> None:
    trail = VerdictHistory(HOUR, EVERY).onward(PAST, 13 * HOUR)
    assert [p.end // HOUR for p in trail.points] == [16, 20, 21]
    assert [s.until // HOUR for s in (*trail.troubles, *trail.mixes)] == [21, 16, 21]


def test_the_drawn_history_starts_at_the_first_drawable_point() -> None:
    blank = [one._replace(observed=None) for one in PAST[:9]]
    trail = VerdictHistory(HOUR, EVERY).onward([*blank, *PAST[9:]], 0)
    assert [p.end // HOUR for p in trail.drawn] == [12, 16, 20, 21]
    longer = trail.onward([said(row) for row in range(22, 60)], 0)
    assert [p.end // HOUR for p in longer.drawn] == [36, 40, 44, 48, 52, 56, 59], "before that no mean covers a day"
    whole = VerdictHistory(HOUR, EVERY).onward([said(row) for row in range(4, 60)], 0)
    assert whole.drawn == whole.points, "an earlier start already covers whole days"


def test_a_monitor_without_drift_has_no_verdict_history(bench: Bench) -> None:
    assert extend_verdicts(replace(bench.monitor, drift=None), bench.store, day(1), None) is None


def test_a_history_is_extended_by_new_verdicts_from_the_store(bench: Bench) -> None:
    bench.put(Ranking.of(20).since(18, coverage=0.1).draw())
    bench.judge(day(19))
    first = extend_verdicts(bench.monitor, bench.store, day(19), None)
    assert first is not None
    assert [s.kind for s in first.troubles] == ["labels_suspect"]
    bench.judge(day(20))
    grown = extend_verdicts(bench.monitor, bench.store, day(20), first)
    assert grown == extend_verdicts(bench.monitor, bench.store, day(20), None) != first
    assert extend_verdicts(bench.monitor, bench.store, day(20), grown) == grown
    assert extend_verdicts(bench.monitor, bench.store, day(20) + DRAWN, grown) == VerdictHistory(HOUR, EVERY)


def test_a_mix_shift_is_stored_with_its_verdict(bench: Bench) -> None:
    past = Ranking.of(32, peak=3000)
    past = replace(past, mean=past.mean * [0.7, 1.0, 1.2]).since(30, rate=6.0, slices=[0])
    bench.put(past.draw())
    bench.judge(day(32))
    found = bench.store.verdicts.drawn("search", 0, day(32))
    verdicts = bench.store.verdicts.between("search", 0, day(32))
    assert [one.mix_effect for one in found] == [v.mix_effect if v.mix_shifted else None for v in verdicts]
    trail = extend_verdicts(bench.monitor, bench.store, day(32), None)
    assert trail is not None
    (spell,) = trail.mixes
    assert spell.since >= day(30)
    assert spell.effect < -0.05


# ---- on the page -----------------------------------------------------------------------------------------------------


def test_the_page_charts_the_judged_values_and_the_baseline(bench: Bench) -> None:
    bench.put(Ranking.of(32).since(24, 24.5, coverage=0.1).since(30, mean=0.8).draw())
    bench.judge(day(32))
    snapshot = shown(bench.store, bench.monitor, day(32))
    said_ = render(PageSource.of(day(32), snapshot))
    figure = said_.partition("ndcg(empty=zero)@10 over 24h, judged</h3>")[2].partition("</figure>")[0]
    assert re.search(r"-\d\d\.\d % against the baseline", figure)
    for shape in ('class="baseline"', 'class="incident"', 'class="trouble"', 'class="blurred"'):
        assert shape in figure
    assert 'class="mix"' not in figure
    assert re.search(r"0\.\d{3} at \d{4}-\d\d-\d\d 00:00 UTC, 0\.\d{3} expected for the same hours", figure)
    assert "1 period not judged" in figure
    row = figure.partition("<tbody>")[2].partition("</tr>")[0]
    assert "labels suspect" in row


def test_a_current_problem_is_shown_as_ongoing(bench: Bench) -> None:
    bench.put(Ranking.of(20).since(19, coverage=0.1).draw())
    bench.judge(day(20))
    assert "<td>ongoing</td>" in render(PageSource.of(day(20), shown(bench.store, bench.monitor, day(20))))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("improved", "rankmon baseline begin search"),
        ("decayed", "the level has fallen by 7.1 % since the reference"),
    ],
)
def test_the_page_compares_the_level_with_the_reference(bench: Bench, field: str, text: str) -> None:
    bench.put(Ranking.of(20).draw())
    bench.judge(day(20))
    snapshot = shown(bench.store, bench.monitor, day(20))
    assert snapshot.verdict is not None
    for holds in (True, False):
        verdict = replace(snapshot.verdict, moved=-0.0712, **{field: holds})
        assert (text in render(PageSource.of(day(20), replace(snapshot, verdict=verdict)))) is holds


def test_the_page_has_no_verdict_figure_without_a_verdict_history(bench: Bench) -> None:
    bench.put(Ranking.of(3).draw())
    bench.judge(day(3))
    snapshot = shown(bench.store, bench.monitor, day(3))
    assert snapshot.verdict_history is not None
    assert "judged</h3>" not in render(PageSource.of(day(3), replace(snapshot, verdict_history=None)))


def test_fewer_labels_are_not_called_missing_if_the_lists_got_worse(bench: Bench) -> None:
    bench.put(Ranking.of(32).since(30, mean=0.55, coverage=0.6).draw())
    bench.judge(day(31))
    snapshot = shown(bench.store, bench.monitor, day(31))
    assert snapshot.verdict_kind in ("degraded", "labels_suspect")
    for kind, words in (("degraded", "Fewer labels, as worse lists bring: "), ("labels_suspect", "Labels missing: ")):
        assert snapshot.verdict is not None
        told = replace(snapshot, verdict=replace(snapshot.verdict, kind=kind))
        assert words in render(PageSource.of(day(31), told))


# ---- slices against their values before the fall ---------------------------------------------------------------------


def test_slices_are_compared_with_the_time_before_an_open_incident(bench: Bench) -> None:
    store, fall = bench.store, START + 20 * A_DAY
    monitor = watched(alerts=(Rule("floor", watched().measures[0], A_DAY, Floor(0.75, 0.75)),))
    fill(store, monitor, range(START, fall + 6 * A_DAY, HOUR), fell(fall, fall + 9 * A_DAY))
    for days in (1, 6):
        found = shown(store, monitor, fall + days * A_DAY)
        assert found.incident is not None
        assert found.series[0].comparison.against == "the 7d before the fall"
        mobile = found.series[0].comparison.slices[0]
        assert mobile.key[1] == "mobile"
        assert (mobile.before, mobile.value) == pytest.approx((0.8, 0.6))


@pytest.mark.parametrize(("fewest", "before"), [(50, 0.8), (51, None)])
def test_a_slice_with_few_earlier_requests_gets_no_comparison(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fewest: int, before: float | None
) -> None:
    monkeypatch.setattr("monitor.service.slice_comparison.FEWEST_BEFORE", fewest)
    monitor, end = watched(alerts=()), START + 10 * A_DAY
    value = fell(0, 0)

    def lately(start: int, device: str) -> float | None:
        is_there = device != "mobile" or start >= end - A_DAY or start == end - 3 * A_DAY
        return value(start, device) if is_there else None

    fill(bench.store, monitor, range(START, end, HOUR), lately)
    found = {c.key[1]: c.before for c in shown(bench.store, monitor, end).series[0].comparison.slices}
    assert found == {"desktop": pytest.approx(0.8), "mobile": None if before is None else pytest.approx(before)}
