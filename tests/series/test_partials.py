"""From a reading to partials per bucket and slice: sums, admitted values, and adding parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.measures.kernels import GradedRankings
from monitor.measures.measure import parse
from monitor.measures.relevance import Refusals
from monitor.series.partials import LONGEST_VALUE, Partials, stored_name, to_partials
from monitor.series.readings import Reading
from monitor.types import Slice

WIDTH = 100
MEASURES = tuple(parse(m) for m in ("ndcg@3", "mrr", "ctr@2"))
DEVICE = Slice("device", "device", 2)


def reading(
    served: Sequence[float],
    devices: Sequence[Any] | None = None,
    since: int = 0,
    until: int = 300,
    grades: Sequence[float] | None = None,
    **changes: Any,
) -> Reading:
    """Requests at these seconds, each with one item at rank 2, of grade 1 by default."""
    size = len(served)
    each, ones = np.arange(size), np.ones(size, np.int64)
    kept = np.ones(size) if grades is None else np.array(grades, float)
    rankings = GradedRankings(size, each, 2 * ones, kept, np.ones(size, bool), {2: 3 * ones, None: 4 * ones})
    settings: dict[str, Any] = {
        "since": since,
        "until": until,
        "served": (np.array(served) * 1_000_000).astype(np.int64),
        "rankings": rankings,
        "impressions": 4 * ones,
        "judged": ones,
        "events": 2 * ones,
        "labelled": np.ones(size, bool),
        "no_results": np.zeros(size, bool),
        "rank_one": ones,
        "slices": {"device": devices or [None] * size},
        "refusals": Refusals(size),
    }
    return Reading(**(settings | changes))


def of(read: Reading, known: Mapping[str, set[str]] | None = None, slices: Sequence[Slice] = (DEVICE,)) -> Partials:
    return to_partials(read, WIDTH, MEASURES, slices, known or {})


def devices(found: Partials, start: int) -> dict[str, int]:
    """Slice value -> requests, for one bucket."""
    return {v: int(p[0]) for (s, d, v), p in found.traffic.items() if s == start and d == "device"}


# ---- sums ----------------------------------------------------------------------------------------------------------


def test_decimal_slice_values_are_named_as_databases_write_them() -> None:
    texts = ["0.0000000000", "0.00000010", "1.00", "-12.5", "NaN", "123456789012345678901234567890"]
    assert [stored_name(Decimal(text)) for text in texts] == texts


def test_byte_slice_values_are_named_by_their_text() -> None:
    spelled = [stored_name(value) for value in (b"DE", b"F\0\0", "é".encode(), b"\xff", b"", b"\0", b"a\0b")]
    assert spelled == ["DE", "F", "é", "\\xff", "(empty)", "(empty)", r"a\x00b"]


def test_every_bucket_has_an_overall_row_and_slices_only_with_traffic() -> None:
    found = of(reading([5, 7, 250], ["tv", "pc", "tv"]))
    assert {cell: p.tolist() for cell, p in found.traffic.items()} == {
        (0, "", ""): [2, 2, 8, 2, 4, 0, 0, 2],
        (100, "", ""): [0] * 8,
        (200, "", ""): [1, 1, 4, 1, 2, 0, 0, 1],
        (0, "device", "tv"): [1, 1, 4, 1, 2, 0, 0, 1],
        (0, "device", "pc"): [1, 1, 4, 1, 2, 0, 0, 1],
        (200, "device", "tv"): [1, 1, 4, 1, 2, 0, 0, 1],
    }
    assert all(cells.keys() == found.traffic.keys() for cells in found.measures.values())
    assert list(found.measures) == ["ndcg@3", "mrr", "ctr@2"]
    assert found.measures["mrr"][0, "", ""].tolist() == [2, 0, 1, 0.5, 0, 0, 0, 0, 0]
    assert found.measures["mrr"][100, "", ""].tolist() == [0] * 9


def test_requests_without_data_count_as_traffic_but_not_as_samples() -> None:
    read = reading([5, 7])
    found = of(replace(read, rankings=replace(read.rankings, sampled=np.array([True, False]))))
    assert found.traffic[0, "", ""][0] == 2
    assert found.measures["ndcg@3"][0, "", ""][0] == 1


def test_a_kernel_uses_only_the_rankings_it_accepts() -> None:
    read = reading([5, 7])
    less = replace(read.rankings, grade=np.zeros(2), sampled=np.array([True, False]))
    found = of(replace(read, limited={MEASURES[1]: less}))
    cells = of(read).measures["ndcg@3"]
    assert found.measures["ndcg@3"].keys() == cells.keys()
    assert all(found.measures["ndcg@3"][cell].tolist() == sums.tolist() for cell, sums in cells.items())
    assert found.measures["mrr"][0, "", ""].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert found.traffic[0, "", ""].tolist() == of(read).traffic[0, "", ""].tolist()


def test_an_empty_reading_gives_zeros() -> None:
    found = of(reading([]))
    assert sorted(found.traffic) == [(0, "", ""), (100, "", ""), (200, "", "")]
    assert not any(p.any() for p in found.traffic.values())
    assert of(reading([], since=100, until=100)).traffic == {}


def test_partly_read_buckets_are_keyed_by_their_start() -> None:
    found = of(reading([150, 260], since=130, until=270))
    assert {start: p[0] for (start, d, _), p in found.traffic.items() if not d} == {100: 1, 200: 1}
    assert (found.since, found.until) == (130, 270)


def test_times_before_1970_fall_into_buckets_too() -> None:
    found = of(reading([-1, -101], since=-200, until=0))
    assert {start: p[0] for (start, d, _), p in found.traffic.items() if not d} == {-200: 1, -100: 1}


def test_unmatched_events_count_in_overall_by_their_own_time() -> None:
    found = of(reading([5], ["tv"], unmatched=np.array([150, 150, 299]) * 1_000_000))
    assert [found.traffic[s, "", ""][5] for s in (0, 100, 200)] == [0, 2, 1]
    assert found.traffic[0, "device", "tv"][5] == 0


def test_refused_rows_are_counted_by_bucket_slice_and_reason() -> None:
    refusals = Refusals(3)
    refusals.add("null_item", np.array([0, 0, 2]))
    strays = {"null_request": np.array([50, 250, 251]) * 1_000_000, "null_item": np.array([250]) * 1_000_000}
    found = of(reading([5, 7, 250], ["tv", "pc", "tv"], refusals=refusals, strays=strays))
    assert found.refused == {
        ((0, "", ""), "null_item"): 2,
        ((0, "device", "tv"), "null_item"): 2,
        ((200, "", ""), "null_item"): 2,
        ((200, "device", "tv"), "null_item"): 1,
        ((0, "", ""), "null_request"): 1,
        ((200, "", ""), "null_request"): 2,
    }


# ---- slice values --------------------------------------------------------------------------------------------------


def test_a_slice_value_invalid_in_utf_8_is_escaped() -> None:
    found = of(reading([5, 7], ["t\ud800v", "für"]))
    assert {value for _, dimension, value in found.traffic if dimension} == {"t\\ud800v", "für"}


def test_slice_values_past_the_cap_become_other_after_the_busiest() -> None:
    found = of(reading([1, 2, 3, 4, 5, 150], ["a", "b", "b", "c", "c", "a"]))
    assert found.admitted == [("device", "b"), ("device", "c")]
    assert (devices(found, 0), devices(found, 100)) == ({"b": 2, "c": 2, "other": 1}, {"other": 1})


def test_equally_busy_values_are_admitted_by_name() -> None:
    assert of(reading([1, 2, 3], ["c", "b", "a"])).admitted == [("device", "a"), ("device", "b")]


def test_values_of_an_earlier_bucket_are_admitted_first() -> None:
    found = of(reading([1, 101, 102, 103, 104], ["a", "c", "c", "b", "b"]))
    assert found.admitted == [("device", "a"), ("device", "b")]


def test_known_values_stay_admitted_past_a_lowered_cap() -> None:
    known = {"device": {"x", "y", "z"}}
    found = of(reading([1, 2, 3], ["x", "z", "new"]), known)
    assert (found.admitted, devices(found, 0)) == ([], {"x": 1, "z": 1, "other": 1})


def test_missing_and_mixed_values_have_reserved_names_outside_the_cap() -> None:
    values = [None, "(mixed)", "a", "b", "c", None]
    found = of(reading([1, 2, 3, 4, 5, 6], values), {"device": {"other", "(none)", "(mixed)"}})
    assert found.admitted == [("device", "a"), ("device", "b")]
    assert devices(found, 0) == {"(none)": 2, "(mixed)": 1, "a": 1, "b": 1, "other": 1}


def test_a_value_of_another_type_becomes_text() -> None:
    found = of(reading([1, 2], [3, True]))
    assert devices(found, 0) == {"3": 1, "True": 1}


def test_values_that_cannot_be_stored_become_other() -> None:
    found = of(reading([1, 2, 3], ["x" * LONGEST_VALUE, "x" * (LONGEST_VALUE + 1), "nul\x00"]))
    assert devices(found, 0) == {"x" * LONGEST_VALUE: 1, "other": 2}


def test_unhashable_values_become_text() -> None:
    assert devices(of(reading([1, 2], [["a"], ["a"]])), 0) == {"['a']": 2}


def test_tens_of_thousands_of_values_are_kept_to_the_cap() -> None:
    found = of(reading([1] * 50_000, [f"value {i}" for i in range(50_000)]))
    assert len(devices(found, 0)) == 3
    assert devices(found, 0)["other"] == 49_998


@given(
    st.lists(st.tuples(st.integers(0, 299), st.sampled_from([*"abcde", None])), max_size=30),
    st.sampled_from([100, 200]),
    st.sets(st.sampled_from("abxy")),
)
def test_admission_does_not_depend_on_how_reads_are_split(
    requests: list[tuple[int, str | None]], edge: int, before: set[str]
) -> None:
    known = {"device": before}
    whole = of(reading([t for t, _ in requests], [d for _, d in requests]), known)
    early, late = ([r for r in requests if (r[0] < edge) == first] for first in (True, False))
    one = of(reading([t for t, _ in early], [d for _, d in early], until=edge), known)
    admitted = before | {v for _, v in one.admitted}
    two = of(reading([t for t, _ in late], [d for _, d in late], since=edge), {"device": admitted})
    both = one + two
    assert both.admitted == whole.admitted
    assert {c: p.tolist() for c, p in both.traffic.items()} == {c: p.tolist() for c, p in whole.traffic.items()}


# ---- parts ---------------------------------------------------------------------------------------------------------


def test_a_bucket_read_in_two_parts_adds_up() -> None:
    refusals = Refusals(1)
    refusals.add("null_item", np.array([0]))
    one = of(reading([110], ["tv"], since=100, until=150, refusals=refusals, rows=3))
    two = of(reading([160, 170], ["tv", "pc"], since=150, until=200, rows=4))
    both = one + two
    assert (both.since, both.until, both.rows) == (100, 200, 7)
    assert {cell: int(p[0]) for cell, p in both.traffic.items()} == {
        (100, "", ""): 3,
        (100, "device", "tv"): 2,
        (100, "device", "pc"): 1,
    }
    assert both.measures["mrr"][100, "", ""].tolist() == [3, 0, 1.5, 0.75, 0, 0, 0, 0, 0]
    assert both.refused == {((100, "", ""), "null_item"): 1, ((100, "device", "tv"), "null_item"): 1}
    assert both.admitted == [("device", "tv"), ("device", "pc")]


def test_adding_leaves_both_parts_unchanged() -> None:
    one, two = of(reading([110], since=100, until=150)), of(reading([160], since=150, until=200))
    before = one.traffic[100, "", ""].copy(), dict(one.refused)
    _ = one + two
    assert (one.traffic[100, "", ""] == before[0]).all()
    assert one.refused == before[1]


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        ("", "", ""),
        ("00000000000000ff", "", "00000000000000ff"),
        ("", "00000000000000ff", "00000000000000ff"),
        ("00000000000000ff", "0000000000000001", "0000000000000100"),
        ("ffffffffffffffff", "0000000000000002", "0000000000000001"),
    ],
)
def test_fingerprints_of_parts_add_up_in_any_order(one: str, two: str, both: str) -> None:
    parts = of(reading([], fingerprint=one)), of(reading([], fingerprint=two))
    assert (parts[0] + parts[1]).fingerprint == (parts[1] + parts[0]).fingerprint == both


@given(
    st.lists(st.tuples(st.integers(0, 299), st.floats(0, 3), st.sampled_from([None, "a", "b"])), max_size=20),
    st.lists(st.integers(0, 300), max_size=4),
)
def test_any_split_in_time_merges_to_the_whole(requests: list[tuple[int, float, str | None]], cuts: list[int]) -> None:
    def part(since: int, until: int) -> Partials:
        some = [r for r in requests if since <= r[0] < until]
        times, grades, values = ([r[i] for r in some] for i in range(3))
        return of(reading(times, values, since, until, grades))  # type: ignore[arg-type]

    edges = [0, *sorted(cuts), 300]
    parts = [part(a, b) for a, b in pairwise(edges)]
    total, whole = parts[0], part(0, 300)
    for other in parts[1:]:
        total += other
    assert {c: p.tolist() for c, p in total.traffic.items()} == {c: p.tolist() for c, p in whole.traffic.items()}
    for kernel, cells in whole.measures.items():
        for cell, partial in cells.items():
            assert total.measures[kernel][cell] == pytest.approx(partial, rel=1e-12, abs=1e-12)
