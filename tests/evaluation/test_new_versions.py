"""A new model version is reported only if it is worse than the former one, in any split of the hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monitor.causes.newcomers import YOUNG, Newcomer, newcomer
from monitor.conditions.checkpoint import Announcement
from monitor.conditions.kinds.version_worse import BUDGET_SHARE, VersionWorse, compared
from monitor.drift.constants import BUDGET_HOURS
from monitor.drift.series import Hours
from monitor.evaluation import version_conditions
from monitor.evaluation.replay import replay
from monitor.measures.measure import parse
from monitor.series import partials as b
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL, Drift
from monitor.units import DAY, HOUR
from tests.support.bench import Bench, opened
from tests.support.drift import Ranking, day

BEGAN = 8
"""Days until v2 begins, before there is any baseline."""
V1, V2 = "slice 0", "slice 1"


def past(worse: float, share: float = 0.5, days: int = 14, until: float = 1e9, seed: int = 1, peak: int = 200) -> Hours:
    """Requests of v1, and from day BEGAN on of v2 with a share of them, whose values are lower by `worse`."""
    found = Ranking.of(days, slices=2, peak=peak, seed=seed).since(0, mean=0.5 / 0.6, slices=[1])
    found = found.since(0, BEGAN, rate=0.0, slices=[1]).since(until, rate=0.0, slices=[1])
    found = found.since(BEGAN, until, rate=2 * share, slices=[1]).since(BEGAN, until, rate=2 * (1 - share), slices=[0])
    return found.since(BEGAN, mean=1 - worse, slices=[1]).draw(seed)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(f"sqlite:///{tmp_path}/store.db") as found:
        column = found.monitor.slices[0].column
        rankings = replace(found.monitor.rankings, model_version=column)
        found.monitor = replace(found.monitor, rankings=rankings, drift=replace(found.drift, mix_by=None))
        yield found


def lived(bench: Bench, some: Hours, step: int = 24) -> list[tuple[int, int | None, str]]:
    """(opened, closed, state) of the incidents on quality, in hours since v2 began."""
    bench.put(some.rows(0, BEGAN * 24))
    bench.judge(day(BEGAN), current=False)
    bench.live(some, BEGAN * 24, step)
    found = [stored.incident for stored in bench.incidents if stored.incident.matter == "quality"]
    return [(hour(i.opened_at), None if i.closed_at is None else hour(i.closed_at), i.state) for i in found]


def hour(at: int) -> int:
    return (at - day(BEGAN)) // HOUR


def test_a_worse_version_pages_and_the_page_says_what_to_do(bench: Bench) -> None:
    ((opened_at, closed_at, _),) = lived(bench, past(0.08, days=12))
    assert 12 < opened_at < 60
    assert closed_at is None
    assert not bench.incidents[0].incident.retrain
    told = bench.notices[0][1]
    assert told.title.startswith("search: ndcg(empty=zero)@10 for device=slice 1 ")
    assert " % below the others, at 50 % of requests" in told.title
    assert "the others at the same time" in told.text
    assert " It serves 50 % of the last day's requests. " in told.full_text
    assert "if so, roll model version slice 1 back" in told.text


def test_the_incident_resolves_a_few_hours_after_the_version_is_rolled_back(bench: Bench) -> None:
    ((_, closed_at, state),) = lived(bench, past(0.08, days=13, until=BEGAN + 4), 1)
    assert 4 * 24 < closed_at <= 4 * 24 + 6
    assert state == "resolved"
    assert bench.notices[-1][1].title.endswith("device=slice 1: no longer served")


@pytest.mark.parametrize("seed", [6, *(pytest.param(seed, marks=pytest.mark.engines) for seed in (3, 7))])
def test_a_version_found_on_barely_enough_requests_stays_found(bench: Bench, seed: int) -> None:
    """Hours later it has fewer requests that others could have served, because shares are estimates."""
    ((_, closed_at, state),) = lived(bench, past(0.9, share=0.06, days=12, peak=20, seed=seed), 1)
    assert (closed_at, state) == (None, "firing")


@pytest.mark.parametrize(("worse", "share"), [(0.0, 0.5), (-0.1, 0.5), (0.1, 0.05)], ids=["same", "better", "small"])
def test_a_version_that_hardly_lowers_the_mean_pages_nobody(bench: Bench, worse: float, share: float) -> None:
    assert lived(bench, past(worse, share)) == []


@pytest.mark.parametrize("step", [24, 24 * 40])
def test_a_worse_version_that_serves_all_stays_worse_until_it_counts_as_usual(bench: Bench, step: int) -> None:
    """An incident that begins and ends within one run also names its subject."""
    some = past(0.08, days=40)
    late = (some.starts >= day(BEGAN + 5))[:, None] & np.array([True, False])
    gone = {name: np.where(late, 0.0, getattr(some, name)) for name in ("requests", "total", "squares", "labelled")}
    ((_, closed_at, state),) = lived(bench, replace(some, **gone), step)
    about = [(one.rule, one.slice) for one in bench.incidents[0].findings]
    # All traffic fell with v2, too. That ended earlier, and a single run over everything also sees it.
    assert about == [(VersionWorse.kind, V2), *([("degraded", "")] if step > 24 else [])]
    assert 14 * 24 < closed_at <= 28 * 24 + 1
    assert state == "withdrawn"
    if step == 24:
        assert "almost all requests have had it" in bench.notices[-1][1].text


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (lambda one: replace(one, is_before=True), "no other version serves its slices now"),
        (lambda one: None, "too few requests in common slices"),
    ],
    ids=["alone", "too few"],
)
def test_a_version_that_can_no_longer_be_compared_is_withdrawn_with_the_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, later: Callable[[Newcomer], Newcomer | None], said: str
) -> None:
    def compared_at_first(history: History, key: SliceKey, by: str, until: int, *more: float) -> Newcomer | None:
        one = newcomer(history, key, by, until)
        return one if one is None or until <= day(BEGAN + 4) else later(one)

    monkeypatch.setattr(version_conditions, "newcomer", compared_at_first)
    ((_, closed_at, state),) = lived(bench, past(0.08, days=14), 1)
    assert (closed_at, state) == (4 * 24 + 1, "withdrawn")
    assert said in bench.notices[-1][1].text


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.engines), 7])
def test_any_split_of_the_hours_and_a_replay_give_the_same_incident(bench: Bench, tmp_path: Path, step: int) -> None:
    some = past(0.08, days=13, until=BEGAN + 3)
    found = lived(bench, some, step)
    with opened(f"sqlite:///{tmp_path}/other.db") as other:
        other.monitor = bench.monitor
        assert lived(other, some, 24) == found != []
        (again,) = replay(other.monitor, other.store, day(BEGAN), day(13)).of("quality")
    assert again.incident == bench.incidents[0].incident


def test_announced_hours_are_left_out(bench: Bench) -> None:
    worse, same = past(0.3), past(0.0)
    some = same.rows(0, 24 * BEGAN)
    bench.store.verdicts.announce("search", Announcement(day(BEGAN), day(BEGAN + 2), "ada", "trial"), 0.0)
    bench.put(some)
    bench.judge(day(BEGAN), current=False)
    bench.live(worse.rows(0, 24 * (BEGAN + 2)), BEGAN * 24)
    bench.live(same, (BEGAN + 2) * 24)
    assert bench.incidents == []


@pytest.mark.parametrize(
    ("gain", "is_told", "stays_told"),
    [(1.1, False, False), (1.0, False, False), (0.97, False, True), (0.92, True, True)],
)
def test_a_version_whose_ideal_rose_is_not_worse(gain: float, is_told: bool, stays_told: bool) -> None:
    """Its mean is .46 where the others have .5; `gain` is how much people find in its lists."""
    starts = np.arange(0, 21 * DAY, HOUR)
    hours, sums = len(starts), np.zeros((len(starts), 3, len(b.FIELDS)))
    for column, requests, mean, found in (
        (1, np.where(starts < 14 * DAY, 200, 100), 0.5, 1.0),
        (2, np.where(starts < 14 * DAY, 0, 100), 0.46, gain),
    ):
        each = np.zeros(len(b.FIELDS))
        each[[b.REQUESTS, b.TOTAL, b.SQUARES, b.NUM, b.DEN]] = 1, mean, mean**2 + 0.04, found, found / mean
        sums[:, column] = requests[:, None] * each
    sums[:, 0] = sums[:, 1:].sum(axis=1)
    known = History(starts, np.ones(hours, bool), (OVERALL, ("v", "v1"), ("v", "v2")), sums)
    one, drift = newcomer(known, ("v", "v2"), "", 21 * DAY), Drift(parse("ndcg@10"))
    assert one is not None
    assert one.difference == pytest.approx(-0.04)
    found = compared(drift, one, known, 21 * DAY, HOUR)
    assert [found.holds(drift, 1, was_worse) for was_worse in (False, True)] == [is_told, stays_told]


def test_hourly_looks_stay_within_the_false_alarm_budget() -> None:
    """Of 4,000 versions of the same model, watched for two weeks, no more than the budget's share page."""
    rng, drift, looks = np.random.default_rng(3), Drift(parse("ndcg@10")), YOUNG // HOUR
    each = 0.5 / np.sqrt(25)  # error of an hour's difference
    means = np.cumsum(rng.normal(0, each, (4000, looks)), axis=1) / np.arange(1, looks + 1)
    errors = each / np.sqrt(np.arange(1, looks + 1))
    chance = BUDGET_SHARE * YOUNG / (BUDGET_HOURS * HOUR)
    paged = 0
    for path in means:
        few = np.flatnonzero(path < -2.5 * errors)  # elsewhere, the odds are against it
        paged += any(at(0.5 + path[i], errors[i], looks).holds(drift, 1, False) for i in few.tolist())
    assert paged / 4000 <= chance
    sure = at(0.5 - 6 * errors[-1], errors[-1], looks)
    assert sure.holds(drift, 1, False)
    assert not at(0.5 - 3 * errors[-1], errors[-1], looks).holds(drift, 1, False)


def at(value: float, error: float, hours: int) -> VersionWorse:
    """A version at `value`, with a standard error, where the others have .5."""
    return VersionWorse(
        rule="version_worse",
        severity="critical",
        end=hours * HOUR,
        window=hours * HOUR,
        since=HOUR,
        value=value,
        lower=value - 1.96 * error,
        upper=value + 1.96 * error,
        before=0.5,
        share=0.5,
    )
