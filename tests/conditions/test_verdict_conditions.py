"""A data condition ends neither while a graver one hides it nor while nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.conditions.thresholds import Change
from monitor.conditions.verdicts import track_verdicts
from monitor.drift.verdicts import Alarm, Kind, LabelLoss, Verdict
from monitor.measures.measure import parse
from monitor.types import Drift
from monitor.units import HOUR

DRIFT = Drift(parse("ndcg@10"))


def fed(*runs: tuple[Kind, int], **figures: float) -> list[Change]:
    """The state changes that follow from runs of verdicts; `figures` are those of the last run."""
    found: list[Verdict] = []
    for kind, hours in runs:
        found += [Verdict(HOUR * (len(found) + 1 + n), kind) for n in range(hours)]
    last = runs[-1][1]
    made = [*found[:-last], *(replace(v, **figures) for v in found[-last:])]
    return [seen.change for seen in track_verdicts(DRIFT, HOUR, made, {})[1]]


def steps(changes: list[Change]) -> list[tuple[str, int, str]]:
    return [(change.name[0], change.at // HOUR, change.became) for change in changes]


def test_a_condition_hidden_by_a_graver_one_lasts_until_seen_to_be_over() -> None:
    found = fed(("slice_missing", 3), ("labels_suspect", 20), ("slice_missing", 4), ("healthy", 6))
    assert steps(found) == [
        ("slice_missing", 1, "firing"),
        ("labels_suspect", 4, "firing"),
        ("labels_suspect", 29, "ok"),
        ("slice_missing", 33, "ok"),
    ]


def test_a_condition_that_ended_while_hidden_resolves_once_visible() -> None:
    found = fed(("traffic_low", 3), ("rows_refused", 10), ("healthy", 6))
    assert [one for one in steps(found) if one[2] == "ok"] == [("rows_refused", 19, "ok"), ("traffic_low", 19, "ok")]


def test_suspect_labels_that_collapse_are_replaced_by_the_graver_condition() -> None:
    found = fed(("labels_suspect", 24), ("labels_collapsed", 5))
    assert steps(found)[1:] == [("labels_collapsed", 25, "firing"), ("labels_suspect", 25, "ok")]


@pytest.mark.parametrize(
    ("why", "kind", "figures", "is_over"),
    [
        ("nothing comes", "traffic_low", {"requests": 0.0}, False),
        ("requests come", "traffic_low", {"requests": 40.0}, True),
        (
            "requests come, and a level is being learnt",
            "traffic_low",
            {"requests": 4.0, "requests_expected": 9.0},
            False,
        ),
        ("requests come without labels", "labels_suspect", {"requests": 40.0, "coverage": 0.0}, False),
        ("requests come with labels", "labels_suspect", {"requests": 40.0, "coverage": 0.5}, True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_baseline_a_condition_resolves_once_the_lost_data_return(
    why: str, kind: Kind, figures: dict[str, float], is_over: bool
) -> None:
    found = fed((kind, 3), ("not_enough_data", 6), **figures)
    assert ("ok" in [change.became for change in found]) is is_over


def test_low_traffic_resolves_only_when_most_expected_requests_come() -> None:
    half, most = {"requests": 60.0, "requests_expected": 100.0}, {"requests": 75.0, "requests_expected": 100.0}
    assert steps(fed(("traffic_low", 3), ("healthy", 60), **half)) == [("traffic_low", 1, "firing")]
    assert steps(fed(("traffic_low", 3), ("healthy", 6), **most))[1:] == [("traffic_low", 9, "ok")]


def test_an_alarm_is_withdrawn_while_its_level_is_known_to_be_obsolete() -> None:
    alarm = Alarm("", 0, HOUR, -0.1, 2.0, 0.02)
    verdicts = [Verdict(HOUR * n, "degraded", (alarm,)) for n in range(1, 9)]
    _, seen = track_verdicts(DRIFT, HOUR, verdicts, {}, [(3 * HOUR, 6 * HOUR)])
    assert [(s.change.at // HOUR, s.change.became) for s in seen] == [(1, "firing"), (4, "withdrawn"), (7, "firing")]


def test_labels_that_explain_a_fall_are_missing_since_it_began() -> None:
    labels = LabelLoss(2 * HOUR, 0.5, 0.8, None, None, None, None)
    (found,) = track_verdicts(DRIFT, HOUR, [Verdict(9 * HOUR, "labels_suspect", labels=labels)], {})[1]
    assert (found.change.since, found.change.at) == (2 * HOUR, 9 * HOUR)
