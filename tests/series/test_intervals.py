"""Coverage of intervals: simulated on seeded data with a known true level, and with very little data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import exp, isfinite, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from monitor.measures.measure import Measure, parse
from monitor.series import partials as b
from monitor.series.intervals import REACH, bartlett, interval, student
from monitor.units import DAY

Floats = NDArray[np.float64]
Simulated = tuple[NDArray[np.int64], Floats]

HOUR = 3600
LEVEL, NOISE, WAVE = 0.6, 0.2, 0.03
NDCG = parse("ndcg@10")
DAYS = 36


def autocorrelated(rng: np.random.Generator, size: int, rho: float) -> Floats:
    """Stationary AR(1) with standard deviation WAVE, shape (size,)."""
    drawn = rng.standard_normal(size)
    found = np.empty(size)
    found[0] = drawn[0]
    for i in range(1, size):
        found[i] = rho * found[i - 1] + sqrt(1 - rho**2) * drawn[i]
    return WAVE * found


def simulated(rng: np.random.Generator, effect: Floats, an_hour: float = 30, width: int = HOUR) -> Simulated:
    """Buckets with `an_hour` requests an hour on average; their values vary around LEVEL + the bucket's effect."""
    size = len(effect)
    requests = rng.poisson(an_hour * width / HOUR, size)
    bucket = np.repeat(np.arange(size), requests)
    value = np.clip(LEVEL + effect[bucket] + NOISE * rng.standard_normal(len(bucket)), 0, 1)
    return np.arange(size) * width, partials(bucket, value, size)


def partials(bucket: NDArray[np.int64], value: Floats, size: int) -> Floats:
    ones = np.ones(len(value))
    columns = [ones, 0 * ones, value, value**2, value, ones, value**2, ones, value]
    return np.stack([np.bincount(bucket, c, size) for c in columns], axis=1)


def independent(rng: np.random.Generator) -> Simulated:
    return simulated(rng, np.zeros(DAYS * 24))


def sparse(rng: np.random.Generator) -> Simulated:
    return simulated(rng, np.zeros(DAYS * 24), an_hour=1)


def daily(rho: float) -> Callable[[np.random.Generator], Simulated]:
    return lambda rng: simulated(rng, np.repeat(autocorrelated(rng, DAYS, rho), 24))


def hourly(hours: float) -> Callable[[np.random.Generator], Simulated]:
    """Autocorrelated hours; the correlation fades with this time constant."""
    return lambda rng: simulated(rng, autocorrelated(rng, DAYS * 24, exp(-1 / hours)))


@dataclass
class Coverage:
    """How often intervals contained the true level, and which methods they used."""

    inside: int = 0
    windows: int = 0
    methods: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        return self.inside / self.windows


def coverage(
    make: Callable[[np.random.Generator], Simulated], length: int, ends: Iterable[int], repeats: int = 80
) -> Coverage:
    found, ends = Coverage(), list(ends)
    for seed in range(repeats):
        starts, sums = make(np.random.default_rng(seed))
        for end in ends:
            lower, upper, method = interval(NDCG, starts, sums, HOUR, length, end)
            if lower is None or upper is None:
                continue
            found.inside += lower <= LEVEL <= upper
            found.windows += 1
            found.methods[method] += 1
    return found


LATE = range(16 * DAY, 37 * DAY, 5 * DAY)
EARLY = range(4 * DAY, 12 * DAY, 2 * DAY)
NOON = range(16 * DAY + 12 * HOUR, 36 * DAY, 5 * DAY)

COVERED = [
    ("one day of independent requests, with no history", independent, DAY, [DAY], "sampling", 0.92, 0.98, 400),
    ("one day of independent requests", independent, DAY, LATE, "history", 0.92, 0.985, 80),
    ("one hour of independent requests", independent, HOUR, NOON, "history", 0.92, 0.98, 100),
    ("a week of independent requests", independent, 7 * DAY, LATE, "long_run", 0.92, 0.98, 80),
    ("one day of one request an hour", sparse, DAY, LATE, "history", 0.92, 0.99, 80),
    ("one day, each day with a level of its own", daily(0), DAY, LATE, "history", 0.92, 0.98, 80),
    ("one day, days alike by .5", daily(0.5), DAY, LATE, "history", 0.90, 0.98, 80),
    ("one day, days alike by .5, soon after the start", daily(0.5), DAY, EARLY, "history", 0.90, 0.99, 100),
    ("one hour, days alike by .5", daily(0.5), HOUR, NOON, "history", 0.90, 0.98, 100),
    ("three days, days alike by .5", daily(0.5), 3 * DAY, LATE, "history", 0.90, 0.98, 80),
    ("one day, waves of half a day", hourly(12), DAY, LATE, "history", 0.92, 0.98, 80),
    ("one day, waves of two days", hourly(48), DAY, LATE, "history", 0.89, 0.98, 80),
    ("a week, each day with a level of its own", daily(0), 7 * DAY, LATE, "long_run", 0.92, 0.98, 80),
    ("a week, waves of some hours", hourly(9.5), 7 * DAY, LATE, "long_run", 0.90, 0.98, 80),
    # One week cannot show how correlated its days are, so its interval is too narrow; this pins by how much.
    ("a week, days alike by .5", daily(0.5), 7 * DAY, LATE, "long_run", 0.80, 0.90, 80),
    ("four weeks, days alike by .5", daily(0.5), 28 * DAY, [32 * DAY, 36 * DAY], "long_run", 0.88, 0.96, 200),
]


@pytest.mark.parametrize(
    ("make", "length", "ends", "method", "least", "most", "repeats"),
    [c[1:] for c in COVERED],
    ids=[c[0] for c in COVERED],
)
def test_intervals_have_their_nominal_coverage(
    make: Callable[[np.random.Generator], Simulated],
    length: int,
    ends: Iterable[int],
    method: str,
    least: float,
    most: float,
    repeats: int,
) -> None:
    found = coverage(make, length, ends, repeats)
    assert found.methods[method] > 0.9 * found.windows >= 350
    assert least <= found.share <= most


def half_width(make: Callable[[np.random.Generator], Simulated], length: int, ends: Iterable[int]) -> float:
    """Median half-width over some seeds and windows."""
    found = []
    for seed in range(15):
        starts, sums = make(np.random.default_rng(seed))
        for end in ends:
            lower, upper, _ = interval(NDCG, starts, sums, HOUR, length, end)
            assert lower is not None
            assert upper is not None
            found.append((upper - lower) / 2)
    return float(np.median(found))


@pytest.mark.parametrize("hours", [1, 6, 36])
def test_a_daily_cycle_does_not_widen_short_windows(hours: int) -> None:
    cycle = 0.1 * np.sin(2 * np.pi * np.arange(DAYS * 24) / 24)
    ends = range(30 * DAY, 32 * DAY, 7 * HOUR)
    cycled = half_width(lambda rng: simulated(rng, cycle), hours * HOUR, ends)
    flat = half_width(lambda rng: simulated(rng, 0 * cycle), hours * HOUR, ends)
    assert cycled == pytest.approx(flat, rel=0.25)


def test_a_daily_cycle_does_not_widen_a_week() -> None:
    cycle = 0.1 * np.sin(2 * np.pi * np.arange(DAYS * 24) / 24)
    cycled = half_width(lambda rng: simulated(rng, cycle), 7 * DAY, LATE)
    flat = half_width(lambda rng: simulated(rng, 0 * cycle), 7 * DAY, LATE)
    assert cycled == pytest.approx(flat, rel=0.2)


def shifted(rng: np.random.Generator) -> Simulated:
    """The level drops by five standard deviations of a day from day 24 on, and on day 12 alone."""
    days = autocorrelated(rng, 60, 0.3)
    days[24:] -= 5 * WAVE
    days[12] -= 5 * WAVE
    return simulated(rng, np.repeat(days, 24))


@pytest.mark.parametrize(("days", "widest"), [(1, 1.5), (3, 2.0)])
def test_a_bad_day_or_a_lasting_change_barely_widens_later_intervals(days: int, widest: float) -> None:
    calm = half_width(daily(0.3), days * DAY, LATE)
    for after in (15, 20, 24 + days, 26 + days, 30, 40, 50):
        assert half_width(shifted, days * DAY, [after * DAY]) < widest * calm, f"day {after}"


def test_a_lasting_change_widens_a_week_only_while_inside_it() -> None:
    calm = half_width(daily(0.3), 7 * DAY, LATE)
    assert half_width(shifted, 7 * DAY, [27 * DAY]) > 2 * calm
    assert half_width(shifted, 7 * DAY, [31 * DAY]) < 1.5 * calm


def of(values: Iterable[float], bucket: int = 0, size: int = 1) -> Simulated:
    listed = np.array(list(values), dtype=np.float64)
    at = np.full(len(listed), bucket, dtype=np.int64)
    return np.arange(size) * HOUR, partials(at, listed, size)


def alone(values: Iterable[float], measure: Measure = NDCG) -> tuple[float | None, float | None, str]:
    """The interval of a single hour without history."""
    return interval(measure, *of(values), HOUR, HOUR, HOUR)


def test_without_history_the_interval_is_a_sampling_interval() -> None:
    values = [0.2, 0.4, 0.5, 0.9]
    lower, upper, method = alone(values)
    half = 3.182 * float(np.std(values, ddof=1)) / 2
    assert (lower, upper) == pytest.approx((0.5 - half, min(0.5 + half, 1)), abs=0.002)
    assert method == "sampling"


DEGENERATE: list[tuple[str, list[float], tuple[float | None, float | None, str]]] = [
    ("no request", [], (None, None, "none")),
    ("one request", [0.7], (None, None, "none")),
    ("ten perfect ones: by the rule of three", [1.0] * 10, (0.7, 1.0, "sampling")),
    ("a hundred that failed", [0.0] * 100, (0.0, 0.03, "sampling")),
    ("all alike in between", [0.5] * 30, (0.4, 0.6, "sampling")),
    ("two perfect ones say nothing", [1.0, 1.0], (0.0, 1.0, "sampling")),
    ("two that differ say next to nothing", [0.0, 1.0], (0.0, 1.0, "sampling")),
]


@pytest.mark.parametrize(("values", "expected"), [c[1:] for c in DEGENERATE], ids=[c[0] for c in DEGENERATE])
def test_few_or_equal_values_give_wide_intervals(
    values: list[float], expected: tuple[float | None, float | None, str]
) -> None:
    lower, upper, method = alone(values)
    assert method == expected[2]
    assert lower == (None if expected[0] is None else pytest.approx(expected[0]))
    assert upper == (None if expected[1] is None else pytest.approx(expected[1]))


def test_equal_gains_have_no_interval() -> None:
    assert alone([3.0] * 10, parse("dcg@10")) == (None, None, "none")


def test_a_skipped_empty_request_does_not_count_towards_an_interval() -> None:
    starts, sums = of([0.7])
    sums[0, :2] = 2, 1
    assert interval(NDCG, starts, sums, HOUR, HOUR, HOUR) == (None, None, "none")
    lower, upper, method = interval(parse("ndcg(empty=zero)@10"), starts, sums, HOUR, HOUR, HOUR)
    assert (lower, upper, method) == (0, 1, "sampling")


def test_a_mean_positions_interval_starts_at_1_or_later() -> None:
    lower, upper, _ = alone([1.0, 1.0, 2.0], parse("click_position"))
    assert lower == 1
    assert upper is not None
    assert upper > 1.5


def test_a_window_of_two_equal_requests_takes_its_spread_from_history() -> None:
    rng = np.random.default_rng(0)
    starts, sums = simulated(rng, np.zeros(10 * 24))
    sums[-1] = partials(np.zeros(2, np.int64), np.array([0.6, 0.6]), 1)[0]
    lower, upper, _ = interval(NDCG, starts, sums, HOUR, HOUR, 10 * DAY)
    assert lower is not None
    assert upper is not None
    assert (upper - lower) / 2 == pytest.approx(1.96 * NOISE / sqrt(2), rel=0.2)


def test_buckets_after_the_window_or_beyond_reach_are_ignored() -> None:
    starts, sums = daily(0.5)(np.random.default_rng(3))
    end = 20 * DAY
    known = starts < end
    expected = interval(NDCG, starts[known], sums[known], HOUR, DAY, end)
    assert interval(NDCG, starts, sums, HOUR, DAY, end) == expected
    long_ago = np.arange(-REACH - 100 * HOUR, end - REACH, HOUR) // HOUR * HOUR
    starts, sums = np.concatenate([long_ago, starts]), np.concatenate([np.full((len(long_ago), 9), 7.0), sums])
    assert interval(NDCG, starts, sums, HOUR, DAY, end) == expected


def test_history_is_used_from_four_days_on() -> None:
    starts, sums = daily(0)(np.random.default_rng(1))
    methods = [interval(NDCG, starts, sums, HOUR, DAY, days * DAY)[2] for days in range(1, 7)]
    assert methods == ["sampling", "sampling", "sampling", "history", "history", "history"]


def test_unread_days_do_not_count_as_history() -> None:
    starts, sums = daily(0)(np.random.default_rng(1))
    kept = starts >= 33 * DAY
    kept |= starts < 2 * DAY
    assert interval(NDCG, starts[kept], sums[kept], HOUR, DAY, 36 * DAY)[2] == "history"
    kept &= starts >= DAY
    kept &= starts < 35 * DAY
    assert interval(NDCG, starts[kept], sums[kept], HOUR, DAY, 35 * DAY)[2] == "sampling"


def test_a_week_with_an_unread_day_uses_history() -> None:
    starts, sums = daily(0)(np.random.default_rng(1))
    hole = (starts >= 33 * DAY) & (starts < 33 * DAY + 5 * HOUR)
    assert interval(NDCG, starts[~hole], sums[~hole], HOUR, 7 * DAY, 36 * DAY)[2] == "long_run"
    hole = (starts >= 33 * DAY) & (starts < 34 * DAY)
    assert interval(NDCG, starts[~hole], sums[~hole], HOUR, 7 * DAY, 36 * DAY)[2] == "history"


@pytest.mark.parametrize(("width", "length"), [(300, HOUR), (DAY, DAY), (DAY, 7 * DAY), (7 * DAY, 7 * DAY)])
def test_intervals_work_for_short_and_long_buckets(width: int, length: int) -> None:
    rng = np.random.default_rng(5)
    starts, sums = simulated(rng, np.zeros(REACH // width), an_hour=5, width=width)
    lower, upper, _ = interval(NDCG, starts, sums, width, length, REACH)
    assert lower is not None
    assert upper is not None
    assert (upper - lower) / 2 == pytest.approx(1.96 * NOISE / sqrt(5 * length / HOUR), rel=0.9)


@pytest.mark.parametrize(
    "text",
    [
        "ndcg@10",
        "ndcg(empty=one)@10",
        "ndcg(aggregate=pooled)@10",
        "dcg",
        "ctr",
        "coec(examination={1:1,2:0.5})@2",
        "click_position",
    ],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bounds_contain_the_value_and_are_in_range_and_finite(text: str, data: st.DataObject) -> None:
    measure = parse(text)
    days = data.draw(st.integers(1, 12))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    read = rng.random(days * 4) < data.draw(st.sampled_from([0.3, 0.9, 1.0]))
    starts = np.flatnonzero(read) * (DAY // 4)
    bucket = np.repeat(np.arange(len(starts)), rng.poisson(data.draw(st.sampled_from([0.2, 2, 40])), len(starts)))
    value = np.round(rng.random(len(bucket)), data.draw(st.sampled_from([0, 1, 9])))
    value += measure.spec.unit == "position"
    sums = partials(bucket, value, len(starts))
    length = data.draw(st.sampled_from([DAY // 4, DAY, 7 * DAY]))
    end = days * DAY
    lower, upper, method = interval(measure, starts, sums, DAY // 4, length, end)
    if lower is None or upper is None:
        assert method == "none"
        return
    merged = sums[(starts >= end - length)].sum(axis=0)
    assert isfinite(lower)
    assert isfinite(upper)
    assert lower <= max(float(b.read_as(measure, merged)), lower) <= upper + 1e-12
    if measure.spec.unit == "ratio":
        assert 0 <= lower <= upper <= 1


QUANTILES = {3: 3.1824, 4: 2.7764, 5: 2.5706, 7: 2.3646, 10: 2.2281, 15: 2.1314, 20: 2.0860, 34: 2.0322, 60: 2.0003}
"""Quantiles of Student's t at .975, from printed tables."""


def test_student_agrees_with_printed_tables() -> None:
    assert student(1) == 12.706
    assert student(2) == 4.303
    for freedom, quantile in QUANTILES.items():
        assert student(freedom) == pytest.approx(quantile, abs=0.004)
    assert student(1e9) == pytest.approx(1.95996, abs=1e-5)


@given(st.floats(1, 1000), st.floats(0, 10))
def test_the_student_quantile_falls_with_degrees_of_freedom(freedom: float, more: float) -> None:
    assert student(freedom + more) <= student(freedom)


@pytest.mark.parametrize("share", [1 / 7, 3 / 7, 1])
def test_the_bartlett_quantile_covers_means_of_independent_numbers(share: float) -> None:
    size = 140
    drawn = np.random.default_rng(0).standard_normal((4000, size))
    mean = drawn.mean(axis=1)
    width = round(share * size)
    padded = np.pad(np.cumsum(np.pad(drawn - mean[:, None], ((0, 0), (width, 0))), axis=1), ((0, 0), (1, 0)))
    padded = np.pad(padded, ((0, 0), (0, width)), mode="edge")
    blocks = padded[:, width:] - padded[:, :-width]
    error = np.sqrt((blocks**2).sum(axis=1) / width) / size
    assert (np.abs(mean) < bartlett(share) * error).mean() == pytest.approx(0.95, abs=0.015)
