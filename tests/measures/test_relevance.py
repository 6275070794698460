"""Label recipes and refusals against plain loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.measures.measure import parse
from monitor.measures.relevance import (
    GradedRows,
    GradeLimits,
    Refusals,
    accept,
    attribute,
    combine,
    event_grades,
    graded,
    once,
    placed,
)
from monitor.types import EventRule, Events, Relation, TimeColumn

REQUESTS = 3


class Row(NamedTuple):
    """One row of the arrays in `GradedRows`."""

    request: int
    item: int
    position: float
    grade: float


def rows_of(rows: Sequence[Row]) -> GradedRows:
    return GradedRows(
        np.array([r.request for r in rows], np.int64),
        np.array([r.item for r in rows], np.int64),
        np.array([r.position for r in rows], np.float64),
        np.array([r.grade for r in rows], np.float64),
    )


def listed(rows: GradedRows) -> list[Row]:
    return [Row(*r) for r in zip(*(getattr(rows, f).tolist() for f in Row._fields), strict=True)]


def counted(refusals: Refusals) -> dict[str, int]:
    return {reason: int(rows.sum()) for reason, rows in refusals.counts.items()}


def recipe(*rules: EventRule, **options: Any) -> Events:
    return Events(Relation(("e",)), "r", "i", TimeColumn("at"), rules, **({"attribution": 100} | options))


GRADES = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 3.0, -1.0, 9.0, math.nan, math.inf, -math.inf])
POSITIONS = st.sampled_from([1.0, 2.0, 3.0, 4.0, 4.0, 0.0, -2.0, 1.5, math.nan, math.inf, 2.0**60])
ROWS = st.lists(st.builds(Row, st.integers(0, REQUESTS - 1), st.integers(0, 4), POSITIONS, GRADES), max_size=25)
CLEAN = st.lists(
    st.builds(Row, st.integers(0, REQUESTS - 1), st.integers(0, 4), st.sampled_from([1.0, 2.0, 3.0]), st.floats(0, 3)),
    max_size=25,
)


# ---- allowed grades ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measures", "bound", "allowed"),
    [
        ((), None, [0, 0.5, 1, 3, 1e200]),
        (("ndcg@3",), None, [0, 0.5, 1, 3]),
        (("ndcg@3",), 1, [0, 0.5, 1]),
        (("ndcg(gain=exp2)@3",), None, [0, 0.5, 1, 3]),
        (("ndcg@3", "err(max_grade=1)@3"), 2, [0, 0.5, 1]),
        (("ndcg(gain={1:1,3:2})@3",), None, [0, 1, 3]),
        (("ndcg(gain={1:1,3:2})@3", "dcg(gain={0:0,1:5,2:6})"), None, [0, 1]),
        (("ndcg(gain={1:1,3:2})@3",), 2, [0, 1]),
    ],
)
def test_a_grade_is_allowed_if_every_measure_can_take_it(
    measures: tuple[str, ...], bound: float | None, allowed: list[float]
) -> None:
    limits = GradeLimits.of([parse(m) for m in measures], bound)
    grades = np.array([0, 0.5, 1, 3, 1e200, -1, math.nan, math.inf, -math.inf])
    assert grades[limits.allow(grades)].tolist() == allowed


def test_exponential_gains_allow_no_grade_that_would_overflow() -> None:
    limits = GradeLimits.of([parse("ndcg(gain=exp2)@3")], None)
    assert limits.allow(np.array([332.0, 333.0])).tolist() == [True, False]


# ---- events --------------------------------------------------------------------------------------------------------


def test_an_event_takes_the_highest_grade_of_its_matching_rules() -> None:
    rules = (EventRule(1, "click"), EventRule(2, "click", 30), EventRule(None, "gain"), EventRule(0.5))
    kinds = np.array(["click", "click", "click", "gain", "gain", "gain", "view", None], object)
    values = np.array([29, 30, math.nan, 7, 0.25, math.nan, 1, 1])
    assert event_grades(recipe(*rules), kinds, values, 8).tolist() == [1, 2, 1, 7, 0.5, 0.5, 0.5, 0.5]


def test_an_event_that_matches_no_rule_has_no_grade() -> None:
    grades = event_grades(recipe(EventRule(1, "click"), EventRule(None, "gain")), np.array(["view", "gain"]), None, 2)
    assert np.isnan(grades[0])
    without_value = event_grades(recipe(EventRule(None, "gain")), np.array(["gain"]), np.array([math.nan]), 1)
    assert np.isnan(without_value).all()


def test_an_infinite_value_meets_no_minimum_but_is_passed_on_as_a_grade() -> None:
    values = np.array([math.inf, 31])
    kinds = np.array(["click", "click"], object)
    assert np.isnan(event_grades(recipe(EventRule(2, "click", 30)), kinds, values, 2)).tolist() == [True, False]
    assert event_grades(recipe(EventRule(None, "click")), kinds, values, 2).tolist() == [math.inf, 31]


def test_a_recipe_without_types_or_values_grades_every_event_alike() -> None:
    assert event_grades(recipe(EventRule(2)), None, None, 3).tolist() == [2, 2, 2]
    assert event_grades(recipe(EventRule(2)), None, None, 0).tolist() == []


EVENTS = st.lists(
    st.tuples(
        st.builds(Row, st.integers(0, REQUESTS - 1), st.integers(0, 4), st.just(0.0), GRADES),
        st.integers(-30, 30).map(lambda n: n * 10),
        st.booleans(),
        st.sampled_from([0, 0, 1800, 3600, 7200]),
    ),
    max_size=20,
)


def against(row: Row, since: float, unreadable: bool, later: int, attribution: int, span: int) -> str:
    """Why an event does not count: a reason, `far` if it is not even counted as refused, empty if it counts."""
    if math.isnan(row.grade) or not -span <= since < attribution + span:
        return "far"
    if unreadable:
        return "bad_time"
    if (0 <= since < attribution) != (0 <= since + later < attribution):
        return "ambiguous_time"
    if not 0 <= since < attribution:
        return "early_event" if since < 0 else "late_event"
    return "bad_grade" if math.isinf(row.grade) else "negative_grade" if row.grade < 0 else ""


@given(EVENTS, st.sampled_from([100, 3650, 4000]), st.sampled_from([0, 60]))
def test_an_event_counts_or_is_refused_for_the_first_matching_reason(
    cases: list[tuple[Row, int, bool, int]], attribution: int, span: int
) -> None:
    served = np.array([0, 50, 100]) * 1_000_000
    at = np.array([after * 1_000_000 for _, after, _, _ in cases], np.int64)
    refusals = Refusals(REQUESTS)
    unreadable = np.array([unreadable for *_, unreadable, _ in cases], bool)
    later = np.array([later * 1_000_000 for *_, later in cases], np.int64)
    rows = rows_of([row for row, *_ in cases])
    kept = attribute(rows, at, served, recipe(attribution=attribution), span, refusals, unreadable, later)
    reasons = [against(r, at_ - 50 * r.request, u, d, attribution, span) for r, at_, u, d in cases]
    assert listed(kept) == [case[0] for case, reason in zip(cases, reasons, strict=True) if not reason]
    expected = Counter(
        (reason, case[0].request) for case, reason in zip(cases, reasons, strict=True) if reason not in ("", "far")
    )
    found = {(reason, i): n for reason, c in refusals.counts.items() for i, n in enumerate(c.tolist()) if n}
    assert found == expected


@given(CLEAN, st.booleans())
def test_events_on_an_item_combine_by_sum_or_maximum(rows: list[Row], add: bool) -> None:
    by_item: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        by_item.setdefault((row.request, row.item), []).append(row.grade)
    found = {(r.request, r.item): r.grade for r in listed(combine(rows_of(rows), add))}
    fold = math.fsum if add else max
    assert found == pytest.approx({key: fold(grades) for key, grades in by_item.items()})
    assert list(found) == sorted(found)


@given(CLEAN, CLEAN)
def test_rows_take_the_grade_of_their_item_in_their_request(rows: list[Row], labels: list[Row]) -> None:
    combined = combine(rows_of(labels), add=False)
    known = {(r.request, r.item): r.grade for r in listed(combined)}
    found = listed(rows_of(rows).with_grades_of(combined))
    assert [r[:3] for r in found] == [r[:3] for r in rows]
    for row in found:
        assert known.get((row.request, row.item), math.nan) == pytest.approx(row.grade, nan_ok=True)


# ---- rows ----------------------------------------------------------------------------------------------------------


def by_hand(rows: list[Row], limits: GradeLimits) -> tuple[list[Row], Counter[tuple[str, int]]]:
    """The usable rows, and (reason, request) of the others."""
    refused: Counter[tuple[str, int]] = Counter()
    kept = []
    for row in rows:
        whole = row.position == row.position // 1 and 1 <= row.position <= 2**53
        reason = (
            "null_position"
            if math.isnan(row.position)
            else "bad_position"
            if not whole
            else ""
            if math.isnan(row.grade)
            else "bad_grade"
            if math.isinf(row.grade)
            else "negative_grade"
            if row.grade < 0
            else "grade_above_max"
            if row.grade > limits.highest
            else "bad_grade"
            if limits.tabled is not None and row.grade not in limits.tabled
            else "fine"
        )
        kept += [row] if reason == "fine" else []
        refused[reason, row.request] += reason not in ("fine", "")
    for reason, key in (("duplicate_item", "item"), ("duplicate_position", "position")):
        last: dict[tuple[int, float], Row] = {}
        for row in sorted(kept, key=lambda r: (-r.grade, -r.position)):
            one = last.setdefault((row.request, getattr(row, key)), row)
            again = (row.item, row.position) == (one.item, one.position)
            refused["duplicate_row" if again else reason, row.request] += row is not one
        kept = list(last.values())
    return kept, +refused


LIMITS = st.builds(
    GradeLimits,
    st.sampled_from([math.inf, 2.0, 5.0]),
    st.sampled_from([None, None, frozenset({0.0, 1.0, 3.0})]),
)


@given(ROWS, LIMITS)
def test_accepted_and_refused_rows_match_a_plain_loop(rows: list[Row], limits: GradeLimits) -> None:
    refusals = Refusals(REQUESTS)
    kept = listed(accept(rows_of(rows), limits, refusals))
    expected, refused = by_hand(rows, limits)
    # Of equal rows at one position, either item may be kept.
    assert sorted((r.request, r.position, r.grade) for r in kept) == sorted(
        (r.request, r.position, r.grade) for r in expected
    )
    found = {(reason, i): n for reason, c in refusals.counts.items() for i, n in enumerate(c.tolist()) if n}
    assert found == refused


@given(CLEAN, st.randoms(use_true_random=False))
def test_row_order_and_rows_of_grade_0_do_not_change_the_gains(rows: list[Row], chance: Any) -> None:
    def gains(some: list[Row]) -> list[tuple[int, float, float]]:
        kept = listed(once(rows_of(some), Refusals(REQUESTS)))
        return sorted((r.request, r.position, r.grade) for r in kept if r.grade)

    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert gains(shuffled) == gains(rows) == gains([r for r in rows if r.grade])


@given(CLEAN)
def test_each_item_and_each_position_of_a_request_is_kept_once(rows: list[Row]) -> None:
    kept = listed(once(rows_of(rows), Refusals(REQUESTS)))
    assert len({(r.request, r.item) for r in kept}) == len({(r.request, r.position) for r in kept}) == len(kept)
    assert {(r.request, r.item) for r in kept} <= {(r.request, r.item) for r in rows}


def test_each_step_counts_its_own_reasons() -> None:
    rows = rows_of(
        [Row(0, 1, math.nan, 1), Row(0, 2, 1.5, 1), Row(0, 3, 1, math.nan), Row(1, 4, 1, -1), Row(1, 5, 2, 1)]
    )
    refusals = Refusals(2)
    rows = placed(rows, refusals)
    assert counted(refusals) == {"null_position": 1, "bad_position": 1}
    rows = graded(rows, GradeLimits(), refusals)
    assert counted(refusals) == {"null_position": 1, "bad_position": 1, "negative_grade": 1}
    assert listed(once(rows, refusals)) == [Row(1, 5, 2, 1)]
    assert refusals.counts["negative_grade"].tolist() == [0, 1]


def test_refusals_add_up_and_zero_counts_leave_no_reason() -> None:
    refusals = Refusals(3)
    refusals.add("bad_time", np.array([0, 2, 2]))
    refusals.add("bad_time", np.array([1]))
    refusals.add("bad_grade", np.empty(0, np.int64))
    refusals.add_counts("null_item", np.zeros(3, np.int64))
    assert {reason: c.tolist() for reason, c in refusals.counts.items()} == {"bad_time": [1, 1, 2]}
