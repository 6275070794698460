"""The recent history of a series: the same whether it grew step by step or was computed in one go."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.conditions.rules import Baseline, Drop, Floor, Rule
from monitor.measures.measure import parse
from monitor.series.retention import DRAWN
from monitor.series.windows import points
from monitor.service import history as series
from monitor.service.history import MOST_POINTS, extend_series, grid_step
from monitor.service.slice_comparison import ComparedSlice
from monitor.store import Store
from monitor.types import OVERALL, Monitor
from tests.support.pages import DAY, RULE, START, fell, fill, shown, watched
from tests.support.tallies import HOUR

END = START + 20 * DAY


@pytest.fixture
def filled(store: Store) -> Store:
    fill(store, watched(), range(START, END, HOUR), fell(END - 3 * DAY, END - DAY))
    return store


def test_a_history_holds_the_windows_of_the_series(filled: Store) -> None:
    monitor = watched()
    (trail,) = extend_series(monitor, filled, END)
    history = filled.history(monitor.definition(monitor.measures[0]), 0, END)
    traffic = filled.history(monitor.traffic, 0, END)
    assert len(trail.points) > 100
    for point in trail.points[::17]:
        window = points(monitor.measures[0], history, traffic, HOUR, DAY, point.end, [OVERALL])[0]
        assert (point.value, point.requests) == (window.value, window.requests)
        assert (point.lower, point.upper) == (window.lower, window.upper)
        assert point.coverage == window.label_coverage
    assert trail.newest is not None
    assert trail.newest.end == END


def test_history_limits_equal_those_of_the_rule(filled: Store) -> None:
    (trail,) = extend_series(watched(), filled, END)
    snapshot = shown(filled, watched(), END)
    newest = snapshot.readings[0].evaluation
    assert trail.newest is not None
    assert trail.newest.limits == ((newest.baseline, newest.fires_at),)
    assert trail.points[0].limits == ((None, None),)  # nothing to compare with yet


def test_a_history_grown_in_steps_equals_one_computed_in_one_go(store: Store) -> None:
    monitor, value, histories = watched(), fell(END - 3 * DAY, END - DAY), ()
    for day in range(0, 20, 3):
        hours = range(START + day * DAY, min(END, START + (day + 3) * DAY + 5 * HOUR), HOUR)
        fill(store, monitor, hours, value)
        histories = extend_series(monitor, store, END + DAY, histories)
    assert histories == extend_series(monitor, store, END + DAY)


def test_known_points_are_not_read_again(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    histories = extend_series(watched(), filled, END)
    monkeypatch.setattr(filled, "history", None)
    assert extend_series(watched(), filled, END, histories) == histories


def test_a_restated_past_is_recomputed_with_the_next_window(filled: Store) -> None:
    monitor = watched()
    histories = extend_series(monitor, filled, END)
    fill(filled, monitor, range(END - 5 * DAY, END - 4 * DAY, HOUR), lambda *_: 0.9)
    assert extend_series(monitor, filled, END, histories) == histories  # seen with the next window
    fill(filled, monitor, [END], fell(0, 0))
    grown = extend_series(monitor, filled, END + HOUR, histories)
    assert grown == extend_series(monitor, filled, END + HOUR)
    assert max(p.value or 0 for p in grown[0].points) == pytest.approx(0.9)


def test_points_that_are_too_old_are_dropped(store: Store) -> None:
    monitor, later = watched(), START + DRAWN + 5 * DAY
    fill(store, monitor, range(START, START + 2 * DAY, HOUR), fell(0, 0))
    histories = extend_series(monitor, store, START + 2 * DAY)
    fill(store, monitor, range(later - 2 * DAY, later, HOUR), fell(0, 0))
    (trail,) = extend_series(monitor, store, later, histories)
    assert trail.points[0].end > later - DRAWN
    assert all(end > later - DRAWN for end, _ in trail.slices)


def test_incomplete_windows_have_no_value(store: Store) -> None:
    monitor = watched()
    gap = range(START + 5 * DAY, START + 7 * DAY)
    fill(store, monitor, [t for t in range(START, END, HOUR) if t not in gap], fell(0, 0))
    (trail,) = extend_series(monitor, store, END)
    missing = [p.end for p in trail.points if p.value is None]
    assert missing
    assert min(missing) > gap.start
    assert max(missing) < gap.stop + DAY


def test_buckets_after_now_are_left_out(filled: Store) -> None:
    (trail,) = extend_series(watched(), filled, END - 2 * DAY)
    assert trail.newest is not None
    assert trail.newest.end == END - 2 * DAY


def test_a_monitor_without_buckets_has_an_empty_history(store: Store) -> None:
    (trail,) = extend_series(watched(), store, END)
    assert trail.drawn == ()


def test_a_reading_judged_only_by_a_rule_has_its_own_history(filled: Store) -> None:
    zero = Rule("zero", parse("ndcg(empty=zero)@10"), DAY, Floor(0.5, 0.5))
    labels = Rule("labels", None, DAY, Floor(0.3, 0.3))
    histories = extend_series(watched(alerts=(RULE, zero, labels)), filled, END)
    assert [t.judged for t in histories] == ["ndcg@10", "ndcg(empty=zero)@10", "label_coverage"]
    newest = histories[2].newest
    assert newest is not None
    assert (newest.value, newest.lower, newest.limits) == (1.0, None, ((None, 0.3),))


def test_a_pinned_baseline_applies_however_old(store: Store) -> None:
    later = START + 100 * DAY
    pinned = Rule("p", parse("ndcg@10"), DAY, Drop(0.1, 0.1, True, Baseline(pinned=(START, START + DAY))))
    monitor = watched(alerts=(pinned,))
    fill(store, monitor, range(START, START + DAY, HOUR), lambda *_: 0.9)
    fill(store, monitor, range(later - 2 * DAY, later, HOUR), lambda *_: 0.7)
    (trail,) = extend_series(monitor, store, later)
    assert trail.newest is not None
    assert trail.newest.limits[0] == pytest.approx((0.9, 0.81))


def test_a_baseline_with_too_few_requests_gives_no_limit(store: Store) -> None:
    monitor = watched(alerts=(replace(RULE, min_requests=10_000),))
    fill(store, monitor, range(START, START + 10 * DAY, HOUR), fell(0, 0))
    (trail,) = extend_series(monitor, store, START + 10 * DAY)
    assert trail.points[0].limits == ((None, None),)


@pytest.mark.parametrize("width", [60, 300, 900, HOUR, 2 * HOUR, DAY, 2 * DAY, 7 * DAY])
def test_grid_steps_are_whole_buckets_within_the_point_limit(width: int) -> None:
    step = grid_step(width, MOST_POINTS)
    assert step % width == 0
    assert DRAWN / step <= MOST_POINTS


HOURLY = replace(RULE, window=HOUR)
MINUTE = 60


def hourly(width: int) -> Monitor:
    """A monitor with buckets of `width` seconds and windows of an hour."""
    return watched(bucket=width, windows=(HOUR,), alerts=(HOURLY,), lookback=60 * DAY)


def test_the_recent_history_shows_a_fall_of_one_hour(store: Store) -> None:
    monitor, width, end = hourly(5 * MINUTE), 5 * MINUTE, START + 4 * DAY
    fallen = end - 57 * HOUR + 30 * MINUTE  # over before the next window with a point in the long history
    fill(store, monitor, range(START, end, width), fell(fallen, fallen + HOUR))
    (trail,) = extend_series(monitor, store, end)
    assert min(p.value or 1 for p in trail.points) > 0.74
    assert trail.recent is not None
    assert (trail.recent.step, len(trail.recent.points)) == (3 * width, 288)
    lowest = min(trail.recent.points, key=lambda p: p.value or 1)
    assert (lowest.end, lowest.value) == (fallen + HOUR, pytest.approx(0.7))
    assert trail.recent.newest == trail.newest


@pytest.mark.parametrize(
    ("width", "window", "span", "step"),
    [
        (60, 300, DAY, 300),
        (60, HOUR, 3 * DAY, 900),
        (300, HOUR, 3 * DAY, 900),
        (300, 3 * HOUR, 7 * DAY, 2400),
        (900, HOUR, 3 * DAY, 900),
        (1800, HOUR, 3 * DAY, 1800),
        (HOUR, HOUR, 7 * DAY, HOUR),
    ],
)
def test_the_span_and_step_of_the_recent_history_fit_the_window(
    store: Store, width: int, window: int, span: int, step: int
) -> None:
    monitor = watched(bucket=width, windows=(window,), alerts=(replace(RULE, window=window),))
    (trail,) = extend_series(monitor, store, END)
    assert trail.recent is not None
    assert (trail.recent.span, trail.recent.step) == (span, step)
    assert span / step <= MOST_POINTS


def test_a_history_with_a_point_per_window_has_no_recent_part(filled: Store) -> None:
    (trail,) = extend_series(watched(), filled, END)
    assert trail.recent is None


def test_a_recent_history_grown_in_steps_equals_one_computed_in_one_go(store: Store) -> None:
    monitor, width, histories = hourly(15 * MINUTE), 15 * MINUTE, ()
    for since, until in [(0, 50), (50, 51), (51, 300), (300, 700), (700, 703)]:
        fill(store, monitor, range(START + since * width, START + until * width, width), fell(START, START + DAY))
        histories = extend_series(monitor, store, END, histories)
    assert histories == extend_series(monitor, store, END)
    assert histories[0].recent is not None
    assert len(histories[0].recent.points) == 3 * DAY // width


def test_only_new_windows_of_the_recent_history_are_computed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, width, end = hourly(5 * MINUTE), 5 * MINUTE, START + 2 * DAY
    fill(store, monitor, range(START, end, width), fell(0, 0))
    histories = extend_series(monitor, store, end)
    fill(store, monitor, [end], fell(0, 0))
    worked_out: list[int] = []
    point = series._point
    monkeypatch.setattr(series, "_point", lambda trail, view, at: worked_out.append(at) or point(trail, view, at))
    extend_series(monitor, store, end + width, histories)
    assert worked_out == [end + width]


def test_slices_are_compared_with_the_rule_baseline_worst_first(filled: Store) -> None:
    fallen = END - 2 * DAY
    found = shown(filled, watched(), fallen).series[0].comparison
    assert found.against == "the previous 7d"
    assert [c.key[1] for c in found.slices] == ["mobile", "desktop"]
    mobile = found.slices[0]
    assert (mobile.before, mobile.value, mobile.share) == pytest.approx((0.8, 0.6, 0.5))
    assert (mobile.change, mobile.effect) == pytest.approx((-0.25, -0.1))


def test_slice_effects_add_up_to_the_overall_change(filled: Store) -> None:
    snapshot = shown(filled, watched(), END - 2 * DAY)
    newest = snapshot.histories[0].newest
    assert newest is not None
    assert newest.value is not None
    effects = sum(c.effect for c in snapshot.series[0].comparison.slices)
    assert effects == pytest.approx(newest.value - (newest.limits[0][0] or 0))


@pytest.mark.parametrize(("days", "against"), [(20, "the previous 7d"), (2, "the previous 24h")])
def test_slices_without_a_rule_are_compared_with_the_available_past(store: Store, days: int, against: str) -> None:
    monitor = watched(alerts=())
    fill(store, monitor, range(START, START + days * DAY, HOUR), fell(0, 0))
    assert shown(store, monitor, START + days * DAY).series[0].comparison.against == against


def test_a_slice_without_a_past_has_no_change() -> None:
    new = ComparedSlice(("device", "tv"), 0.5, None, 0.1)
    assert (new.change, new.effect) == (None, 0.0)


def test_history_slices_hold_their_own_window_values(filled: Store) -> None:
    (trail,) = extend_series(watched(), filled, END)
    values = np.array([values["device", "mobile"] for _, values in trail.slices])
    assert values.min() == pytest.approx(0.6)
    assert values.max() == pytest.approx(0.8)
    assert replace(trail, slices=()) != trail
