"""Windows: merged buckets give the value of all their requests, with the counts behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.measures.measure import Measure, parse
from monitor.series import partials as b
from monitor.series.windows import History, Point, SliceKey, latest_final_end, merged_in_time, points
from monitor.types import OVERALL
from tests.support.examples import examples

WIDTH = 3600
DEVICES = ("mobile", "desktop", "tv")
MEASURES = [parse(m) for m in ("ndcg@10", "ndcg(empty=zero)@10", "ndcg(empty=one)@10", "ndcg(aggregate=pooled)@10")]


class Request(NamedTuple):
    """One request of a device in a bucket: its DCG, its ideal DCG, and whether it has a label."""

    bucket: int
    device: str
    dcg: float
    ideal: float
    labelled: bool

    @property
    def partial(self) -> list[float]:
        value = self.dcg / self.ideal if self.ideal else 0.0
        squares = (self.dcg**2, self.ideal**2, self.dcg * self.ideal)
        return [1, self.ideal == 0, value, value**2, self.dcg, self.ideal, *squares]

    @property
    def traffic(self) -> list[float]:
        return [1, self.labelled, 10, 7 if self.labelled else 0, 2, 0, 0, 1]


def request(bucket: int, device: str = "mobile", dcg: float = 1, ideal: float = 2, labelled: bool = True) -> Request:
    return Request(bucket, device, dcg, ideal, labelled)


IDEALS = st.floats(0.25, 8)
REQUESTS = st.lists(
    st.builds(
        lambda bucket, device, ideal, share, labelled: Request(bucket, device, ideal * share, ideal, labelled),
        st.integers(0, 11),
        st.sampled_from(DEVICES),
        st.just(0.0) | IDEALS,
        st.floats(0, 1),
        st.booleans(),
    ),
    max_size=40,
)


def history(rows: Mapping[tuple[int, SliceKey], Iterable[float]], fields: int, final: Iterable[int]) -> History:
    """A history from columns of rows in any order, as the store returns them."""
    settled = set(final)
    listed = [(n * WIDTH, n in settled, *key, *values) for (n, key), values in reversed(list(rows.items()))]
    columns = [list(c) for c in zip(*listed, strict=True)] or [[] for _ in range(4 + fields)]
    return History.of(columns, fields)


def stored(
    requests: Sequence[Request], read: Iterable[int], final: Iterable[int] | None = None
) -> tuple[History, History]:
    """(partials, traffic) of the buckets that were read; empty ones have an overall row of zeros."""
    buckets = list(read)
    sums: dict[tuple[int, SliceKey], np.ndarray] = {(n, OVERALL): np.zeros(9) for n in buckets}
    crowd: dict[tuple[int, SliceKey], np.ndarray] = {(n, OVERALL): np.zeros(8) for n in buckets}
    for r in requests:
        for key in (OVERALL, ("device", r.device)):
            if r.bucket in buckets:
                sums[r.bucket, key] = sums.get((r.bucket, key), np.zeros(9)) + r.partial
                crowd[r.bucket, key] = crowd.get((r.bucket, key), np.zeros(8)) + r.traffic
    settled = buckets if final is None else final
    return history(sums, 9, settled), history(crowd, 8, settled)


def overall(measure: Measure, kept: tuple[History, History], hours: int, end: int) -> Point:
    return points(measure, *kept, WIDTH, hours * WIDTH, end * WIDTH)[0]


@pytest.mark.parametrize("measure", MEASURES, ids=str)
@examples(60)
@given(requests=REQUESTS, hours=st.integers(1, 12))
def test_a_point_from_merged_buckets_equals_one_from_all_requests(
    requests: list[Request], hours: int, measure: Measure
) -> None:
    found = points(measure, *stored(requests, range(12)), WIDTH, hours * WIDTH, 12 * WIDTH)
    inside = [r for r in requests if r.bucket >= 12 - hours]
    devices = sorted({r.device for r in inside})
    assert [(p.dimension, p.slice) for p in found] == [OVERALL, *(("device", d) for d in devices)]
    for point in found:
        mine = [r for r in inside if point.slice in ("", r.device)]
        whole = np.sum([r.partial for r in mine], axis=0) if mine else np.zeros(9)
        expected = float(b.read_as(measure, whole))
        assert (np.nan if point.value is None else point.value) == pytest.approx(expected, abs=1e-12, nan_ok=True)
        assert point.requests == len(mine)
        empty = sum(r.ideal == 0 for r in mine)
        assert point.empty_ratio == (pytest.approx(empty / len(mine)) if mine else None)
        labelled = sum(r.labelled for r in mine)
        assert point.label_coverage == (pytest.approx(labelled / len(mine)) if mine else None)
        assert point.completeness == 1
        assert (point.length, point.end) == (hours * WIDTH, 12 * WIDTH)


@pytest.mark.parametrize("text", ["ctr@10", "ctr(aggregate=mean)@10", "no_results"])
def test_measures_whose_empty_requests_show_no_list_report_no_empty_ratio(text: str) -> None:
    point = overall(parse(text), stored([request(1), request(3)], [1, 3]), 4, 4)
    assert (point.requests, point.empty_ratio) == (2, None)


def test_unread_buckets_make_a_window_incomplete() -> None:
    point = overall(MEASURES[0], stored([request(1), request(3)], [0, 1, 3]), 4, 4)
    assert point.completeness == 0.75
    assert point.requests == 2
    assert point.value == 0.5


def test_an_unread_window_has_no_value_and_is_not_final() -> None:
    point = overall(MEASURES[0], stored([request(9)], [9]), 4, 4)
    assert (point.value, point.lower, point.upper, point.method) == (None, None, None, "none")
    assert (point.requests, point.empty_ratio, point.label_coverage) == (0, None, None)
    assert (point.completeness, point.final) == (0, False)


def test_an_empty_store_gives_one_point_without_a_value() -> None:
    (point,) = points(MEASURES[0], *stored([], []), WIDTH, WIDTH, WIDTH)
    assert (point.dimension, point.slice, point.value) == (*OVERALL, None)


def test_an_empty_bucket_counts_as_read() -> None:
    point = overall(MEASURES[0], stored([request(1)], range(4)), 4, 4)
    assert point.completeness == 1
    assert point.requests == 1


def test_one_provisional_bucket_makes_its_window_provisional() -> None:
    requests = [request(n) for n in range(4)]
    assert overall(MEASURES[0], stored(requests, range(4), final=range(4)), 4, 4).final
    assert not overall(MEASURES[0], stored(requests, range(4), final=[0, 1, 3]), 4, 4).final


def test_a_provisional_bucket_outside_the_window_does_not_matter() -> None:
    requests = [request(n) for n in range(6)]
    assert overall(MEASURES[0], stored(requests, range(6), final=[1, 2, 3, 4]), 4, 5).final


def test_a_slice_without_traffic_in_the_window_vanishes() -> None:
    kept = stored([request(0, "tv"), request(2, "mobile")], range(4))
    assert [p.slice for p in points(MEASURES[0], *kept, WIDTH, 4 * WIDTH, 4 * WIDTH)] == ["", "mobile", "tv"]
    assert [p.slice for p in points(MEASURES[0], *kept, WIDTH, 2 * WIDTH, 4 * WIDTH)] == ["", "mobile"]


def test_a_dimension_added_later_is_incomplete_before_it_was_read() -> None:
    requests = [request(n, "mobile") for n in range(4)]
    kept = stored(requests, range(4))
    later = tuple(without(part, "device", until=1) for part in kept)
    assert [p.completeness for p in points(MEASURES[0], *kept, WIDTH, 4 * WIDTH, 4 * WIDTH)] == [1, 1]
    assert [p.completeness for p in points(MEASURES[0], *later, WIDTH, 4 * WIDTH, 4 * WIDTH)] == [1, 0.75]
    assert [p.completeness for p in points(MEASURES[0], *later, WIDTH, 3 * WIDTH, 4 * WIDTH)] == [1, 1]


def test_a_first_seen_slice_value_is_complete() -> None:
    kept = stored([*(request(n, "mobile") for n in (0, 1, 3)), request(3, "tv")], range(4))
    assert [p.completeness for p in points(MEASURES[0], *kept, WIDTH, 4 * WIDTH, 4 * WIDTH)] == [1, 1, 1]


def without(kept: History, dimension: str, until: int) -> History:
    """The history as if the dimension had not been read before a bucket."""
    sums = kept.sums.copy()
    sums[:until, [i for i, (name, _) in enumerate(kept.slices) if name == dimension]] = 0
    return History(kept.starts, kept.final, kept.slices, sums)


def test_a_slice_with_traffic_but_no_data_has_no_value() -> None:
    partials, _ = stored([request(0, "mobile")], range(2))
    _, traffic = stored([request(0, "mobile"), request(1, "tv", labelled=False)], range(2))
    wanted: list[SliceKey] = [OVERALL, ("device", "tv")]
    _, tv = points(MEASURES[0], partials, traffic, WIDTH, 2 * WIDTH, 2 * WIDTH, wanted)
    assert (tv.value, tv.requests, tv.label_coverage) == (None, 0, 0)


def test_only_the_requested_slices_are_returned() -> None:
    kept = stored([request(0, d) for d in DEVICES], [0])
    wanted: list[SliceKey] = [("device", "tv"), OVERALL, ("device", "watch")]
    found = points(MEASURES[0], *kept, WIDTH, WIDTH, WIDTH, wanted)
    assert [p.slice for p in found] == ["tv", ""]


def test_unlabelled_requests_lower_label_coverage() -> None:
    partials, traffic = stored([request(0)], [0])
    _, crowd = stored([request(0), request(0, labelled=False)], [0])
    point = points(MEASURES[0], partials, crowd, WIDTH, WIDTH, WIDTH)[0]
    assert (point.requests, point.label_coverage) == (1, 0.5)
    judged = points(MEASURES[0], partials, traffic, WIDTH, WIDTH, WIDTH, by_judgments=True)[0]
    assert judged.label_coverage == pytest.approx(0.7)


def test_later_buckets_do_not_change_an_earlier_window() -> None:
    requests = [request(n % 40, dcg=1 + n % 2) for n in range(200)]
    before = stored(requests, range(30))
    after = stored(requests, range(40))
    assert overall(MEASURES[0], before, 24, 30) == overall(MEASURES[0], after, 24, 30)


def test_stored_rows_become_a_history_by_time_with_overall_first() -> None:
    kept, _ = stored([request(2, "tv"), request(0, "mobile"), request(2, "mobile", dcg=2)], [2, 0, 1], final=[0, 1])
    assert kept.starts.tolist() == [0, WIDTH, 2 * WIDTH]
    assert kept.final.tolist() == [True, True, False]
    assert kept.slices == (OVERALL, ("device", "mobile"), ("device", "tv"))
    assert kept.slice(("device", "mobile"))[:, b.REQUESTS].tolist() == [1, 0, 1]
    assert kept.slice(OVERALL)[:, b.TOTAL].tolist() == [0.5, 0, 1.5]
    assert (kept.slice(("device", "watch")) == np.zeros((3, 9))).all()


def test_between_includes_the_start_and_excludes_the_end() -> None:
    kept, _ = stored([], range(5))
    assert kept.between(WIDTH, 3 * WIDTH).starts.tolist() == [WIDTH, 2 * WIDTH]
    assert kept.between(WIDTH + 1, 3 * WIDTH + 1).starts.tolist() == [2 * WIDTH, 3 * WIDTH]
    assert len(kept.between(9 * WIDTH, 12 * WIDTH).starts) == 0


def test_merged_histories_know_which_dimensions_each_bucket_was_read_by() -> None:
    def history(starts: list[int], names: list[SliceKey], requests: list[list[float]]) -> History:
        sums = np.zeros((len(starts), len(names), len(b.FIELDS) + len(b.TRAFFIC_FIELDS)))
        sums[:, :, b.REQUESTS] = requests
        return History(np.array(starts), np.ones(len(starts), bool), tuple(names), sums)

    mobile = ("device", "mobile")
    without = history([0, WIDTH], [OVERALL], [[5], [0]])
    found = merged_in_time([without, history([2 * WIDTH], [OVERALL, mobile], [[5, 5]])])
    assert found.slices == (OVERALL, mobile)
    assert found.kept.tolist() == [[True, False], [True, True], [True, True]], (
        "an idle bucket counts as read by every dimension"
    )


LATEST = [
    ("nothing was read", [], [], None),
    ("nothing is final", [0, 1], [False, False], None),
    ("the oldest is not final", [0, 1, 2], [False, True, True], None),
    ("all are final", [0, 1, 2], [True, True, True], 3),
    ("only the oldest is final", [0, 1], [True, False], 1),
    ("one in the middle is not final", [0, 1, 2, 3], [True, True, False, True], 2),
    ("one that was not read does not hold it up", [0, 2], [True, True], 3),
    ("a single one", [7], [True], 8),
]


@pytest.mark.parametrize(("starts", "final", "end"), [c[1:] for c in LATEST], ids=[c[0] for c in LATEST])
def test_the_latest_final_end_precedes_the_first_provisional_bucket(
    starts: list[int], final: list[bool], end: int | None
) -> None:
    assert latest_final_end(np.array(starts, dtype=np.int64), np.array(final, dtype=bool), 1) == end
