"""Alert rules as folds over buckets: what fires, what holds, what resolves, and what cannot be judged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.conditions import thresholds
from monitor.conditions.kinds.threshold import find
from monitor.conditions.rules import Baseline, Drop, Floor, Rule
from monitor.conditions.thresholds import Change, Condition, Evaluation, View, evaluate_rule, keys_of, track_rule
from monitor.measures.measure import parse
from monitor.series import partials as b
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL

HOUR, DAY = 3600, 86_400
MOBILE, TV = ("device", "mobile"), ("device", "tv")
FLOOR = Rule("floor", parse("ndcg@10"), HOUR, Floor(0.5, 0.6), lasting=3 * HOUR, resolve_lasting=2 * HOUR)
Series = Mapping[int, float | None]
"""Hour -> value of its requests. None: the hour was read and was empty. A missing hour was not read."""


def view(series: Series, slices: Mapping[SliceKey, Series] | None = None, requests: int = 100) -> View:
    """Hourly buckets in which every request has the value of its hour."""
    every = {OVERALL: series, **(slices or {})}
    starts = np.array(sorted(series), dtype=np.int64) * HOUR
    sums = np.zeros((len(starts), len(every), len(b.FIELDS)))
    traffic = np.zeros((len(starts), len(every), len(b.TRAFFIC_FIELDS)))
    for column, of_slice in enumerate(every.values()):
        for row, hour in enumerate(sorted(series)):
            if (value := of_slice.get(hour)) is not None:
                sums[row, column, [b.REQUESTS, b.TOTAL, b.SQUARES]] = requests, requests * value, requests * value**2
                traffic[row, column, :2] = requests, requests * value
    final = np.ones(len(starts), bool)
    names = tuple(every)
    return View(History(starts, final, names, sums), History(starts, final, names, traffic), HOUR, 0.9)


def states(rule: Rule, seen: View, hours: range, before: Condition | None = None) -> list[str]:
    """The overall state after each hour."""
    found, condition = [], before or Condition()
    for hour in hours:
        after, _ = track_rule(rule, seen, [(hour + 1) * HOUR], {OVERALL: condition})
        condition = after[OVERALL]
        found.append(condition.state)
    return found


def of(values: Sequence[float | None], since: int = 0) -> dict[int, float | None]:
    return dict(enumerate(values, since))


# ---- the fold ----------------------------------------------------------------------------------------------------


def test_a_rule_fires_after_its_duration_and_resolves_after_its_recovery_time() -> None:
    values = [0.7, 0.4, 0.4, 0.4, 0.4, 0.7, 0.7, 0.7]
    expected = ["ok", "pending", "pending", "firing", "firing", "firing", "ok", "ok"]
    assert states(FLOOR, view(of(values)), range(8)) == expected


def test_one_good_window_ends_a_pending_state() -> None:
    values = [0.4, 0.4, 0.5, 0.4, 0.4, 0.4]
    assert states(FLOOR, view(of(values)), range(6)) == ["pending", "pending", "ok", "pending", "pending", "firing"]


def test_values_between_the_two_thresholds_neither_fire_nor_resolve() -> None:
    values = [0.4, 0.4, 0.4, 0.7, 0.55, 0.7, 0.7]
    expected = ["pending", "pending", "firing", "firing", "firing", "firing", "ok"]
    assert states(FLOOR, view(of(values)), range(7)) == expected
    assert states(FLOOR, view(of([0.55] * 4)), range(4)) == ["ok"] * 4


@pytest.mark.parametrize("gap", ["not read", "no requests"])
def test_missing_data_neither_fires_nor_resolves(gap: str) -> None:
    values: dict[int, float | None] = of([0.4, 0.4, None, 0.4, 0.7, None, None, 0.7])
    if gap == "not read":
        values = {hour: value for hour, value in values.items() if value is not None}
    expected = ["pending", "pending", "pending", "firing", "firing", "firing", "firing", "ok"]
    assert states(FLOOR, view(values), range(8)) == expected


def test_a_pending_state_ends_after_more_than_a_window_without_data() -> None:
    values = of([0.4, 0.4, None, None, 0.4])
    assert states(FLOOR, view(values), range(5)) == ["pending", "pending", "pending", "ok", "pending"]


def test_a_firing_rule_survives_any_gap_in_the_data() -> None:
    values = of([0.4, 0.4, 0.4, *[None] * 100, 0.7, 0.7])
    assert states(FLOOR, view(values), range(105))[-3:] == ["firing", "firing", "ok"]


def test_years_without_buckets_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    stray, since = of([0.7, 0.4]), 50 * 365 * 24
    seen, looked = view(stray | of([0.7, 0.4, 0.4, 0.4], since)), list[int]()

    def counted(rule: Rule, view: View, keys: Sequence[SliceKey], end: int) -> list[Evaluation]:
        looked.append(end // HOUR)
        return evaluate_rule(rule, view, keys, end)

    monkeypatch.setattr(thresholds, "evaluate_rule", counted)
    after, changes = track_rule(FLOOR, seen, range(HOUR, (since + 6) * HOUR + 1, HOUR), {})
    assert [(c.became, c.at // HOUR) for c in changes] == [
        ("pending", 2),
        ("ok", 4),  # the pending state ends without data
        ("pending", since + 2),
        ("firing", since + 4),
    ]
    assert after[OVERALL].state == "firing"
    assert looked == [1, 2, 3, 4, since + 1, since + 2, since + 3, since + 4]


def test_only_a_slice_without_traffic_is_withdrawn() -> None:
    rule = replace(FLOOR, slices=(("device", None),))
    seen = view(of([0.4] * 10), {MOBILE: of([0.4] * 4), TV: of([0.4] * 10)})
    after, changes = track_rule(rule, seen, range(HOUR, 11 * HOUR, HOUR), {})
    assert [(c.key, c.was, c.became, c.at) for c in changes if c.became == "withdrawn"] == [
        (MOBILE, "firing", "withdrawn", 7 * HOUR)
    ]
    assert {key: c.state for key, c in after.items()} == {OVERALL: "firing", MOBILE: "ok", TV: "firing"}


def test_a_slice_of_an_added_dimension_is_unknown_until_window_and_baseline_are_read() -> None:
    hours, added = 20 * 24, 8 * 24
    seen = view(of([0.5] * hours), {MOBILE: of([0.5] * (hours - added), added)})
    rule = Rule(
        "drop", parse("ndcg@10"), DAY, Drop(0.05, 0.05, True, Baseline(trailing=8 * DAY)), slices=(("device", None),)
    )
    said = {
        end: evaluate_rule(rule, seen, [OVERALL, MOBILE], end * HOUR)
        for end in (added + 20, added + 24, added + 5 * 24)
    }
    assert [e.unknown for e in said[added + 20]] == ["", "window incomplete"]
    assert [e.unknown for e in said[added + 24]] == ["", "baseline too short"]
    assert [e.unknown for e in said[added + 5 * 24]] == ["", ""]


def test_a_new_value_of_a_dimension_read_all_along_is_judged_immediately() -> None:
    seen = view(of([0.5] * 48), {MOBILE: of([0.5] * 48), TV: of([0.3] * 6, 42)})
    rule = replace(FLOOR, window=DAY, slices=(("device", None),))
    assert [e.unknown for e in evaluate_rule(rule, seen, [MOBILE, TV], 48 * HOUR)] == ["", ""]


def test_a_change_records_since_when() -> None:
    _, changes = track_rule(FLOOR, view(of([0.7, 0.4, 0.4, 0.4, 0.7, 0.7])), range(HOUR, 7 * HOUR, HOUR), {})
    assert [(c.was, c.became, c.since // HOUR, c.at // HOUR) for c in changes] == [
        ("ok", "pending", 2, 2),
        ("pending", "firing", 2, 4),
        ("firing", "ok", 2, 6),
    ]


@given(
    st.lists(st.sampled_from([0.3, 0.45, 0.55, 0.65, None]), min_size=1, max_size=40),
    st.lists(st.integers(1, 39), max_size=6),
    st.sampled_from([FLOOR, replace(FLOOR, lasting=0, resolve_lasting=0), replace(FLOOR, lasting=HOUR)]),
)
def test_any_split_of_the_windows_gives_the_same_fold(values: list[float | None], cuts: list[int], rule: Rule) -> None:
    seen, ends = view(of(values)), range(HOUR, (len(values) + 1) * HOUR, HOUR)
    whole, expected = track_rule(rule, seen, ends, {})
    found: list[Change] = []
    conditions: dict[SliceKey, Condition] = {}
    edges = sorted({0, len(values), *(c for c in cuts if c < len(values))})
    for since, until in itertools.pairwise(edges):
        conditions, some = track_rule(rule, seen, ends[since:until], conditions)
        found += some
    assert (conditions, found) == (whole, expected)


# ---- what is compared with what ----------------------------------------------------------------------------------


def drop(baseline: Baseline, relative: bool = True, by: float = 0.1, window: int = DAY) -> Rule:
    return Rule("drop", parse("ndcg@10"), window, Drop(by, by / 2, relative, baseline), min_requests=1)


def judged(rule: Rule, seen: View, end: int) -> tuple[float | None, float | None, float | None, str]:
    (found,) = evaluate_rule(rule, seen, [OVERALL], end)
    return found.value, found.baseline, found.fires_at, found.unknown


def test_a_trailing_baseline_ends_where_the_window_begins() -> None:
    seen = view(of([0.2] * 24 + [0.8] * 48 + [0.5] * 24))
    value, baseline, below, unknown = judged(drop(Baseline(trailing=2 * DAY)), seen, 4 * DAY)
    assert (value, baseline, unknown) == (pytest.approx(0.5), pytest.approx(0.8), "")
    assert below == pytest.approx(0.72)


def test_an_absolute_drop_is_a_difference_not_a_share() -> None:
    seen = view(of([0.8] * 48 + [0.5] * 24))
    assert judged(drop(Baseline(trailing=2 * DAY), relative=False), seen, 3 * DAY)[2] == pytest.approx(0.7)


def test_a_weekly_baseline_compares_the_same_hours() -> None:
    hours = {hour: 0.9 if hour % 24 < 12 else 0.3 for hour in range(15 * 24)}
    rule = drop(Baseline(weeks=2), window=6 * HOUR)
    for end in range(14 * DAY + 6 * HOUR, 15 * DAY, HOUR):
        value, baseline, _, unknown = judged(rule, view(hours), end)
        assert unknown == ""
        assert value == pytest.approx(baseline)


def test_a_pinned_baseline_stays() -> None:
    seen = view(of([0.8] * 48 + [0.4] * 24 * 60))
    assert judged(drop(Baseline(pinned=(0, 2 * DAY))), seen, 60 * DAY)[1] == pytest.approx(0.8)


def test_a_baseline_with_too_little_history_says_so() -> None:
    rule = drop(Baseline(trailing=4 * DAY))
    short = view(dict.fromkeys(range(72, 5 * 24), 0.8))
    assert judged(rule, short, 5 * DAY)[1:] == (None, None, "baseline too short")
    enough = view(dict.fromkeys(range(48, 5 * 24), 0.8))
    assert judged(rule, enough, 5 * DAY)[3] == ""


def test_empty_buckets_do_not_count_as_history() -> None:
    empty_first = view(of([None] * 72 + [0.8] * 48))
    assert judged(drop(Baseline(trailing=4 * DAY)), empty_first, 5 * DAY)[3] == "baseline too short"


def test_hours_without_requests_leave_no_gap_in_a_baseline() -> None:
    nights = view({hour: 0.8 if hour % 24 < 4 else None for hour in range(5 * 24)})
    assert judged(drop(Baseline(trailing=4 * DAY)), nights, 5 * DAY)[3] == ""


def test_an_unjudged_window_says_why() -> None:
    gaps = view({hour: 0.4 for hour in range(24) if hour not in (3, 4, 5)})
    rule = replace(FLOOR, window=DAY)
    assert judged(rule, gaps, DAY)[3] == "window incomplete"
    assert judged(replace(rule, min_requests=2401), view(of([0.4] * 24)), DAY)[3] == "too few requests"
    assert judged(replace(rule, min_requests=2400), view(of([0.4] * 24)), DAY)[3] == ""


def test_a_window_without_relevant_items_has_no_value() -> None:
    seen = view(of([0.4]))
    seen.history.sums[:, :, b.EMPTY] = seen.history.sums[:, :, b.REQUESTS]
    assert judged(FLOOR, seen, HOUR)[3] == "no value"
    zero = replace(FLOOR, measure=parse("ndcg(empty=zero)@10"))
    assert judged(zero, seen, HOUR)[3] == ""


def test_label_coverage_is_computed_from_the_traffic() -> None:
    rule = replace(FLOOR, measure=None, lasting=0)
    (found,) = evaluate_rule(rule, View(*[view(of([0.25])).traffic] * 2, HOUR, 0.9), [OVERALL], HOUR)
    assert (found.value, found.requests, found.has_fallen) == (0.25, 100, True)


@pytest.mark.parametrize("of_version", ["v1", "v2"])
def test_a_slice_with_all_requests_is_listed_only_if_it_is_new(of_version: str) -> None:
    fallen = of([0.8] * 24 + [0.4] * 3)
    old, new = of([0.8] * 24 + [None] * 3), of([None] * 24 + [0.4] * 3)
    versions = {("version", "v1"): fallen} if of_version == "v1" else {("version", "v1"): old, ("version", "v2"): new}
    seen = view(fallen, {MOBILE: of([0.8] * 24 + [0.0] * 3), **versions})
    seen.history.sums[:, 1] /= 2
    (found,) = evaluate_rule(FLOOR, seen, [OVERALL], 27 * HOUR)
    slices = find(FLOOR, seen, OVERALL, found, 25 * HOUR).slices
    assert ("v2" in [s.slice for s in slices]) == (of_version == "v2")
    assert "v1" not in [s.slice for s in slices]
    assert ("mobile", 0.5) in [(s.slice, s.share) for s in slices]


def test_a_rule_judges_overall_and_the_slices_it_names() -> None:
    seen = view(of([0.4]), {MOBILE: of([0.4]), TV: of([0.4]), ("country", "de"): of([0.4])})
    assert keys_of(replace(FLOOR, slices=(("device", None),)), seen) == [OVERALL, MOBILE, TV]
    assert keys_of(replace(FLOOR, slices=(("device", "tv"),), overall=False), seen) == [TV]
