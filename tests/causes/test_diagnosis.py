"""Where a fall came from, by stored partials: the terms add up, and the guilty slice comes first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from monitor.causes import diagnosis as d
from monitor.cli.incident_report import in_text
from monitor.conditions.evidence import Evidence, evidence_of
from monitor.drift.verdicts import Alarm, Verdict, split
from monitor.measures.measure import Measure, parse
from monitor.messages.diagnosis import _slices, _split
from monitor.messages.words import utc
from monitor.series import partials as b
from monitor.series.windows import History
from monitor.types import OVERALL, Drift, Monitor, Slice
from tests.support.notices import DROP, SLICE, of_kind
from tests.support.tallies import HOUR, RANKINGS, watched

DAY = 24 * HOUR
WEEK = 7 * DAY
END = 3_000 * DAY
NDCG = parse("ndcg@10")
SLICES = ("a", "b", "c", "d")


def partials(
    hours: np.ndarray, rates: Mapping[str, float], means: Mapping[str, float], seed: int, waves: float = 0.0
) -> History:
    """Hours of one dimension with a daily cycle; a request's value is 0 or 1, and overall is the sum of the slices.

    `waves`: relative standard deviation of an hour's mean, in addition to the sampling noise of its requests.
    """
    rng = np.random.default_rng(seed)
    sums = np.zeros((len(hours), len(rates) + 1, len(b.FIELDS)))
    angle = 2 * np.pi * (hours % DAY) / DAY
    for at, name in enumerate(rates, start=1):
        size = rng.poisson(rates[name] * (1 + 0.5 * np.cos(angle)))
        level = means[name] * (1 + 0.1 * np.sin(angle)) * (1 + rng.normal(0, waves, len(hours)))
        total = rng.binomial(size, np.clip(level, 0, 1))
        sums[:, at, [b.REQUESTS, b.TOTAL, b.SQUARES]] = np.stack([size, total, total], axis=1)
    sums[:, 0] = sums[:, 1:].sum(axis=1)
    return History(hours, np.ones(len(hours), bool), (OVERALL, *(("device", name) for name in rates)), sums)


def stored(
    rates: tuple[Mapping[str, float], Mapping[str, float]],
    means: tuple[Mapping[str, float], Mapping[str, float]],
    seed: int = 0,
    measure: Measure = NDCG,
    waves: float = 0.0,
) -> d.StoredPartials:
    """Four weeks with the first of each pair, then a day with the second."""
    past = np.arange(END - DAY - 4 * WEEK, END - DAY, HOUR)
    history = partials(np.arange(END - DAY, END, HOUR), rates[1], means[1], seed + 500_000, waves)
    history = history.after(partials(past, rates[0], means[0], seed, waves))
    window = (END - DAY, END)
    subject = d.Subject(measure, None, OVERALL, window, d.same_hours(window, window[0]))
    crowd = np.repeat(history.sums[:, :, :1], len(b.TRAFFIC_FIELDS), axis=2)
    crowd[:, :, b.TRAFFIC_FIELDS.index("no_results")] = 0
    traffic = History(history.starts, history.final, history.slices, crowd)
    return d.StoredPartials(subject, history, traffic, HOUR)


EVEN = dict.fromkeys(SLICES, 40.0)
LEVEL = {"a": 0.4, "b": 0.5, "c": 0.6, "d": 0.3}


# ---- periods to compare --------------------------------------------------------------------------------------------


def test_a_window_is_compared_with_the_same_hours_of_four_weeks() -> None:
    assert [(END - DAY - since) // DAY for since, _ in d.same_hours((END - DAY, END), END - DAY)] == [7, 14, 21, 28]


def test_weeks_that_overlap_the_fall_are_left_out() -> None:
    assert [(END - DAY - since) // DAY for since, _ in d.same_hours((END - DAY, END), END - 10 * DAY)] == [14, 21, 28]


def test_without_stored_weeks_earlier_days_are_compared() -> None:
    days = d.same_hours((END - DAY, END), END - DAY, END - 5 * DAY)
    assert [(END - DAY - since) // DAY for since, _ in days] == [1, 2, 3, 4]
    assert d.same_hours((END - DAY, END), END - DAY, END - DAY) == ()


def test_a_long_window_is_compared_with_a_whole_earlier_one() -> None:
    (only,) = d.same_hours((END - 3 * WEEK, END), END - 3 * WEEK)
    assert only == (END - 6 * WEEK, END - 3 * WEEK)


def monitor() -> Monitor:
    made = watched()
    return replace(made, measures=(NDCG, parse("mrr@10")), drift=Drift(NDCG, "device"))


def test_overall_is_diagnosed_before_slices_and_quality_before_coverage() -> None:
    coverage = replace(DROP, judged="label_coverage")
    found = d.subject(monitor(), [coverage, SLICE, DROP], DROP.end)
    assert (found.finding, found.key, found.measure) == (DROP, OVERALL, NDCG)
    assert found.window == (DROP.end - DROP.window, DROP.end)


def test_a_slice_finding_diagnoses_that_slice() -> None:
    assert d.subject(monitor(), [SLICE], SLICE.end).key == (SLICE.dimension, SLICE.slice)


def test_a_verdict_is_diagnosed_on_the_reading_it_judged() -> None:
    found = d.subject(monitor(), [of_kind("degraded", DROP)], DROP.end)
    assert str(found.measure) == "ndcg(empty=zero)@10"


def test_a_long_fall_is_diagnosed_on_its_last_week() -> None:
    found = d.subject(monitor(), [replace(DROP, window=20 * DAY, since=DROP.end - 20 * DAY)], DROP.end)
    assert found.window == (DROP.end - WEEK, DROP.end)
    assert all(until <= DROP.end - 20 * DAY for _, until in found.before)


def test_a_coverage_fall_is_diagnosed_on_the_first_measure() -> None:
    assert d.subject(monitor(), [replace(DROP, judged="label_coverage")], DROP.end).measure == NDCG
    assert d.subject(monitor(), [], END).window == (END - monitor().windows[0], END)


# ---- the split -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["ndcg@10", "ndcg(empty=zero)@10", "ndcg(aggregate=pooled)@10"])
@pytest.mark.parametrize("seed", range(20))
def test_within_and_mix_terms_add_up_to_the_drop(seed: int, reading: str) -> None:
    rng = np.random.default_rng(seed)
    draw = [{name: float(rng.uniform(0.1, 0.9)) for name in SLICES} for _ in range(2)]
    rates = [{name: float(rng.uniform(1, 60)) for name in SLICES} for _ in range(2)]
    made = stored((rates[0], rates[1]), (draw[0], draw[1]), seed, parse(reading))
    sums = made.history.sums
    sums[..., b.EMPTY] = np.floor((sums[..., b.REQUESTS] - sums[..., b.TOTAL]) * 0.3)
    sums[..., b.NUM], sums[..., b.DEN] = sums[..., b.TOTAL] * 0.7, sums[..., b.REQUESTS] * 1.3
    sums[:, 0] = sums[:, 1:].sum(axis=1)
    found = d.split_by(made, "device")
    assert found is not None
    now = b.read_as(made.subject.measure, made.window().slice(OVERALL).sum(axis=0))
    past = b.read_as(made.subject.measure, sum(p.slice(OVERALL).sum(axis=0) for p in made.before()))
    assert found.value == pytest.approx(float(now), abs=1e-12)
    assert found.before == pytest.approx(float(past), abs=1e-12)
    assert found.within + found.mix == pytest.approx(float(now - past), abs=1e-12)
    assert sum(p.within + p.mix for p in found.parts) == pytest.approx(float(now - past), abs=1e-12)
    read_back = json.loads(json.dumps({"within": found.within, "mix": found.mix}))
    assert read_back["within"] + read_back["mix"] == found.within + found.mix


def test_the_guilty_slice_ranks_first_by_z_and_by_contribution() -> None:
    first_by_z = first_by_part = 0
    for seed in range(100):
        guilty = SLICES[seed % 4]
        made = stored((EVEN, EVEN), (LEVEL, LEVEL | {guilty: LEVEL[guilty] * 0.8}), seed)
        found = d.split_by(made, "device")
        assert found is not None
        first_by_z += min(found.parts, key=lambda p: p.z).slice == guilty
        first_by_part += found.parts[0].slice == guilty
    assert first_by_z >= 95
    assert first_by_part >= 95


@pytest.mark.parametrize("waves", [0.0, 0.3])
def test_z_of_unchanged_slices_looks_like_noise(waves: float) -> None:
    """Also where hours differ by more than sampling noise: an error from sampling alone would double z."""
    zs = []
    for seed in range(60):
        found = d.split_by(stored((EVEN, EVEN), (LEVEL, LEVEL), seed, waves=waves), "device")
        assert found is not None
        zs += [p.z for p in found.parts]
    assert abs(float(np.mean(zs))) < 0.25
    assert 0.6 < float(np.std(zs)) < 1.2, "a spread above 1 would blame innocent slices"


def test_a_slice_with_one_earlier_request_has_z_zero() -> None:
    """Regression: with no spread, this slice looked more certain than any other."""
    made = stored((EVEN, EVEN), (LEVEL, LEVEL))
    sums = made.history.sums.copy()
    past, slice_ = made.history.starts < END - DAY, made.history.slices.index(("device", "a"))
    sums[past, slice_] = 0.0
    sums[np.flatnonzero(made.history.starts == END - DAY - WEEK), slice_] = row_of(1, 0.9)
    found = d.split_by(replace(made, history=replace(made.history, sums=sums)), "device")
    assert found is not None
    (part,) = (part for part in found.parts if part.slice == "a")
    assert part.before == pytest.approx(0.9)
    assert part.z == 0.0


def row_of(requests: float, total: float) -> np.ndarray:
    """The sums of `requests` requests of equal value."""
    row = np.zeros(len(b.FIELDS))
    row[[b.REQUESTS, b.TOTAL, b.SQUARES]] = requests, total, total**2 / requests
    return row


def test_a_changed_mix_alone_is_all_mix() -> None:
    shifted = EVEN | {"d": 200.0}
    found = d.split_by(stored((EVEN, shifted), (LEVEL, LEVEL)), "device")
    assert found is not None
    assert found.mix < -0.05
    assert abs(found.within) < 0.02


def test_a_slice_that_appears_or_vanishes_counts_as_mix() -> None:
    found = d.split_by(
        stored(({"a": 40, "b": 40}, {"a": 40, "n": 40}), ({"a": 0.5, "b": 0.5}, {"a": 0.5, "n": 0.1})), "device"
    )
    assert found is not None
    within = {p.slice: p.within for p in found.parts}
    assert within["n"] == within["b"] == 0.0
    assert found.within + found.mix == pytest.approx(found.value - found.before, abs=1e-12)


def test_a_slice_new_with_the_fall_is_compared_with_the_others_in_its_hours() -> None:
    made = stored(({"a": 40, "n": 0}, {"a": 40, "n": 40}), ({"a": 0.5, "n": 0.5}, {"a": 0.5, "n": 0.2}))
    document = json.loads(json.dumps(d.from_stored(monitor(), made, None)))
    parts = {part["slice"]: part for part in document["slices"]}
    assert (parts["n"]["before"], parts["n"]["new_since"]) == (None, END - DAY)
    assert parts["n"]["value"] == pytest.approx(0.2, abs=0.05)
    assert parts["n"]["others"] == parts["a"]["value"]
    assert (parts["a"]["new_since"], parts["a"]["others"]) == (None, None)
    assert {p["slice"]: p["before"] for p in document["split"]["parts"]}["n"] is None
    (said,) = _slices(document)
    _, *rows = in_text(said)
    assert [row.split()[:2] for row in rows if row.startswith("device=n ")] == [["device=n", "new"]]
    value, others = parts["n"]["value"], parts["a"]["value"]
    since = utc(END - DAY)
    assert rows[-1].startswith(
        f"  device=n is new since {since}: {value:.4f}, the others {others:.4f} in the same hours"
    )
    assert f"({100 * (value / others - 1):+.1f} %)" in rows[-1]


def test_without_a_past_or_the_dimension_there_is_no_split() -> None:
    made = stored((EVEN, EVEN), (LEVEL, LEVEL))
    assert d.split_by(replace(made, subject=replace(made.subject, before=())), "device") is None
    assert d.split_by(made, "country") is None


def test_a_missing_split_names_its_true_reason() -> None:
    none, nobody = replace(monitor(), slices=()), dict.fromkeys(SLICES, 0.0)
    for made, rates, why in (
        (monitor(), nobody, "no requests from before the fall are stored"),
        (none, nobody, "no requests from before the fall are stored"),
        (none, EVEN, "there is no dimension to split by"),
    ):
        found = d.from_stored(made, stored((rates, EVEN), (LEVEL, LEVEL)), None)
        assert found["compared"]
        assert "".join(_split(found)) == f"\nNot split by slices: {why}."


# ---- the document --------------------------------------------------------------------------------------------------


def test_queries_and_versions_are_not_split_dimensions() -> None:
    rankings = replace(RANKINGS, query="text", model_version="model")
    slices = (
        Slice("model_version", "model"),
        Slice("country", "country"),
        Slice("q", "text"),
        Slice("device", "device"),
    )
    made = replace(monitor(), rankings=rankings, slices=slices)
    assert [s.dimension for s in d.dimensions(made)] == ["device", "country"], (
        "the dimension of verdicts' mix comes first"
    )
    assert made.version_slice == slices[0]
    assert monitor().version_slice is None


def test_the_document_is_plain_data_with_both_slice_rankings() -> None:
    made = stored((EVEN, EVEN), (LEVEL, LEVEL | {"b": 0.3}))
    found = json.loads(json.dumps(d.from_stored(monitor(), made, None)))
    assert found["split"]["from"] == "partials"
    assert found["slices"][0]["slice"] == found["slices_by_z"][0]["slice"] == "b"
    assert found["compared"] == [list(span) for span in made.subject.before]
    assert found["coverage"]["labelled"] == 1.0
    assert {part["against"] for part in found["slices"]} == {"before"}
    assert found["split"]["window"] == found["window"] == list(made.subject.window)


def test_fallen_slices_are_those_leading_by_z() -> None:
    def part(slice_: str, z: float, within: float = -0.01, dimension: str = "device") -> dict[str, object]:
        return {"dimension": dimension, "slice": slice_, "z": z, "within": within}

    found = [part("ios", -9.0), part("tv", -5.0), part("web", -2.5), part("up", 3.0, 0.1), part("de", -9.0, -0.1, "c")]
    assert d.fallen(found, "device") == {"ios", "tv"}
    assert d.fallen([part("web", -1.5)], "device") == frozenset(), "this much happens by chance"


def test_coverage_reports_requests_with_nothing_relevant_now_and_before() -> None:
    made = stored((EVEN, EVEN), (LEVEL, LEVEL))
    now = made.history.starts >= END - DAY
    made.history.sums[now, :, b.EMPTY] = made.history.sums[now, :, b.REQUESTS] / 2
    found = d.coverage(made)
    assert (found["empty"], found["empty_before"]) == (0.5, 0.0)


def test_a_versions_serving_time_comes_from_its_buckets() -> None:
    rankings = replace(RANKINGS, model_version="model")
    made = replace(monitor(), rankings=rankings, slices=(Slice("model_version", "model"),), bucket=HOUR)
    starts = np.arange(0, 10 * HOUR, HOUR)
    sums = np.zeros((10, 3, 8))
    sums[:, 0, 0], sums[:6, 1, 0], sums[6:, 2, 0] = 5, 5, 5
    traffic = History(starts, np.ones(10, bool), (OVERALL, ("model_version", "v1"), ("model_version", "v2")), sums)
    first = {"v1": -50 * HOUR, "v2": 6 * HOUR, "v3": 0}
    assert d.when_served(first, traffic, made) == {"v1": (-50 * HOUR, 6 * HOUR), "v2": (6 * HOUR, 10 * HOUR)}


def of_verdict(before: float) -> d.VerdictSplit:
    """A verdict's split of b's fall, against its baseline, over the last 5 hours."""
    share, means = np.array([0.5, 0.5]), (np.array([0.4, before]), np.array([0.4, 0.3]))
    return d.VerdictSplit(split(("a", "b"), (share, share), means, np.array([0.1, 0.1])), (END - 5 * HOUR, END))


def test_a_verdicts_slices_replace_those_compared_with_earlier_weeks() -> None:
    made = stored((EVEN, EVEN), (LEVEL, LEVEL | {"b": 0.3}))
    sums = np.concatenate([made.history.sums, made.history.sums[:, 1:2]], axis=1)
    names = (*made.history.slices, ("country", "de"))
    history = History(made.history.starts, made.history.final, names, sums)
    watching = replace(monitor(), slices=(Slice("device", "device"), Slice("country", "country")))
    found = json.loads(json.dumps(d.from_stored(watching, replace(made, history=history), of_verdict(0.9))))
    assert (found["split"]["from"], found["split"]["window"]) == ("verdict", [END - 5 * HOUR, END])
    against = {(p["dimension"], p["slice"]): (p["against"], p["before"]) for p in found["slices_by_z"]}
    assert against["device", "b"] == ("baseline", 0.9)
    assert against["country", "de"][0] == "before"
    assert {slice_ for dimension, slice_ in against if dimension == "device"} == {"a", "b"}, (
        "no other slice of the dimension"
    )


def test_a_verdicts_split_covers_the_newest_alarm_up_to_one_day() -> None:
    parts = of_verdict(0.5).split
    old, new = Alarm("a", END - 90 * HOUR, END - 80 * HOUR, 0, 1, 0), Alarm("b", END - 7 * HOUR, END, 0, 1, 0)
    made = Verdict(END, "degraded", alarms=(old, new), split=parts)
    assert d.VerdictSplit.of(made, HOUR) == d.VerdictSplit(parts, (END - 7 * HOUR, END))
    slow = replace(made, alarms=(replace(new, since=END - 50 * HOUR),))
    assert d.VerdictSplit.of(slow, HOUR) == d.VerdictSplit(parts, (END - DAY, END))
    assert d.VerdictSplit.of(replace(made, split=None), HOUR) is None
    assert d.VerdictSplit.of(replace(made, split=replace(parts, parts=parts.parts[:1])), HOUR) is None


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (DROP, None),
        (replace(DROP, value=(DROP.value or 0) + 1e-12, coverage=0.1), None),
        (replace(DROP, value=0.65), (DROP.value, 0.65)),
        (replace(DROP, requests=9), (DROP.value, DROP.value)),
        (None, (DROP.value, None)),
    ],
)
def test_only_figures_that_moved_since_are_reported(
    now: Evidence | None, expected: tuple[float, float | None] | None
) -> None:
    found = d.moved(json.loads(json.dumps(DROP.plain())), now)
    assert (None if found is None else (found["value"], found["value_now"])) == expected


def test_a_finding_survives_the_document() -> None:
    made = stored((EVEN, EVEN), (LEVEL, LEVEL))
    made = replace(made, subject=replace(made.subject, finding=DROP))
    document = json.loads(json.dumps(d.from_stored(monitor(), made, None)))
    assert evidence_of(document["fell"]) == DROP


def test_coverage_leaves_out_slices_that_lost_their_labels() -> None:
    window, before = (100 * HOUR, 103 * HOUR), ((76 * HOUR, 79 * HOUR),)
    starts = np.array([*range(*before[0], HOUR), *range(*window, HOUR)], np.int64)
    keys = (OVERALL, ("device", "mobile"), ("device", "desktop"))
    traffic, sums = np.zeros((6, 3, len(b.TRAFFIC_FIELDS))), np.zeros((6, 3, len(b.FIELDS)))
    traffic[:, 1, :2], traffic[3:, 1, 1] = (100, 70), 0
    traffic[:, 2, :2] = (50, 40)
    sums[:, 1:, b.REQUESTS], sums[:, 1, b.EMPTY], sums[:, 2, b.EMPTY] = (100, 50), 100 - traffic[:, 1, 1], 10
    events, unmatched = (b.TRAFFIC_FIELDS.index(name) for name in ("events", "unmatched"))
    traffic[:3, 1, events], traffic[:, 2, events] = 125, 15
    for of in (traffic, sums):
        of[:, 0] = of[:, 1:].sum(axis=1)
    traffic[:3, 0, unmatched], traffic[3:, 0, unmatched] = 10, 5
    final = np.ones(6, bool)
    subject = d.Subject(NDCG, None, OVERALL, window, before)
    stored = d.StoredPartials(subject, History(starts, final, keys, sums), History(starts, final, keys, traffic), HOUR)
    whole = d.coverage(stored)
    assert whole["labelled"] == pytest.approx(120 / 450)
    assert (whole["events"], whole["events_before"]) == (pytest.approx(20 / 150), 1.0), (
        "all events, including unmatched ones"
    )
    found = d.coverage(replace(stored, unlabelled=(("device", "mobile"),)))
    assert (found["requests"], found["labelled"], found["labelled_before"]) == (150, 0.8, 0.8)
    assert (found["events"], found["events_before"]) == (0.3, 0.3), "unmatched events may belong to the slices left out"
    assert (found["empty"], found["empty_before"]) == (0.2, 0.2)
