"""A replay compared with people's labels: which right pages and which wrong pages it would send again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from monitor.evaluation.replay import Period, Replay, incidents_of, verdict_pages
from monitor.evaluation.run import judge_past
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.types import Drift, Monitor

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Times the configured budget of false alarms: those that are tried. Labels are few, so the steps are wide."""


@dataclass(frozen=True)
class Agreement:
    """How many of the pages that people called right, and of those called wrong, a method of judging also raises."""

    name: str
    right: int
    wrong: int


@dataclass(frozen=True)
class LabelAgreement:
    """What people said of the pages of a replayed span, and who agrees.

    Attributes:
        right, wrong: pages that they called so.
        methods: of the replay.
        budgets: of the verdicts alone, for each budget of false alarms that was tried, ascending.
        budget: the configured one; None without verdicts.
        proposed: the budget that has most of the right pages, then fewest of the wrong ones; of several such the
            configured one, or else the largest.
    """

    right: int
    wrong: int
    methods: tuple[Agreement, ...]
    budgets: tuple[tuple[float, Agreement], ...]
    budget: float | None
    proposed: float | None


def compare_with_labels(monitor: Monitor, store: Store, replayed: Replay) -> LabelAgreement | None:
    """A replay of a monitor held against the labels of its incidents on quality; None if none that opened in its span
    is labelled.

    Raises:
        StoreError: the store is out of reach.
    """
    pages = [one for one in labelled(monitor, store) if replayed.since < one.incident.opened_at <= replayed.until]
    said = [(Period(one.incident.began_at, one.incident.closed_at), one.label) for one in pages]
    if not said:
        return None
    right, wrong = ([period for period, label in said if label == name] for name in ("right", "wrong"))
    methods = tuple(_agreement(one.name, one.incidents, right, wrong) for one in replayed.methods if one.could_judge)
    tried = () if monitor.drift is None else tuple(_tried(monitor, monitor.drift, store, replayed, right, wrong))
    budget = None if monitor.drift is None else monitor.drift.false_alarm_budget
    return LabelAgreement(
        len(right), len(wrong), methods, tried, budget, None if budget is None else _best(tried, budget)
    )


def labelled(monitor: Monitor, store: Store) -> list[StoredIncident]:
    """The incidents on quality that people called right or wrong, newest first. Raises StoreError."""
    every = store.alerts.incidents(monitor.name, most=None)
    return [one for one in every if one.incident.matter == "quality" and one.label in ("right", "wrong")]


def _tried(
    monitor: Monitor, drift: Drift, store: Store, found: Replay, right: Sequence[Period], wrong: Sequence[Period]
) -> Iterable[tuple[float, Agreement]]:
    for factor in FACTORS:
        budget = factor * drift.false_alarm_budget
        other = replace(monitor, drift=replace(drift, false_alarm_budget=budget))
        past = judge_past(other, store, found.until)
        periods = [] if past is None else incidents_of(monitor, verdict_pages(other, past))
        yield budget, _agreement("drift", periods, right, wrong)


def _agreement(name: str, periods: Sequence[Period], right: Sequence[Period], wrong: Sequence[Period]) -> Agreement:
    def has(page: Period) -> bool:
        return any(page.overlaps(one) for one in periods)

    return Agreement(name, sum(map(has, right)), sum(map(has, wrong)))


def _best(tried: Sequence[tuple[float, Agreement]], budget: float) -> float:
    return max(tried, key=lambda one: (one[1].right, -one[1].wrong, one[0] == budget, one[0]))[0]
