"""Where judging anew begins when the finer buckets of the time before are gone, rolled up or forgotten.

What verdicts rest on can be read no more there, so what they had come to is kept at that border, moved on with it, and
gone on from: judging anew comes to the same verdicts as having lived through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from monitor.conditions.verdict_conditions import Span, follow
from monitor.conditions.verdict_hours import hours, step_of
from monitor.drift.judge import judge
from monitor.drift.settings import DriftSettings
from monitor.store import Store
from monitor.store.verdicts import BaselineReset, Border, Standing
from monitor.types import Drift, Monitor

END = 1 << 62


def settings_of(monitor: Monitor, drift: Drift, begun: Sequence[BaselineReset]) -> DriftSettings:
    """How the judge is to judge a monitor. `begun`: where the baseline begins anew, oldest first."""
    moments = tuple(said.since for said in begun)
    return DriftSettings(
        step_of(monitor.bucket),
        drift.false_alarm_budget,
        drift.baseline_from or 0,
        moments,
        counts_unlabelled=monitor.has_events,
    )


def identity_of(monitor: Monitor, drift: Drift, begun: Sequence[BaselineReset]) -> str:
    """Of all that decides the verdicts on a monitor."""
    return monitor.drift_identity(drift, [said.since for said in begun])


def series_of(monitor: Monitor, drift: Drift) -> tuple[str, ...]:
    """Definitions of the series that the verdicts on a monitor rest on."""
    return monitor.definition(drift.measure).id, monitor.traffic.id


def ahead(begun: Sequence[BaselineReset]) -> list[Span]:
    """The times before beginnings that were not judged yet when these were said."""
    spans = [said.ahead for said in begun]
    return [span for span in spans if span is not None and span[0] < span[1]]


class Beginning(NamedTuple):
    """Where judging anew begins; verdicts on steps that ended by `kept`, seconds, cannot be found again."""

    border: Border
    kept: int


def beginning(monitor: Monitor, drift: Drift, begun: Sequence[BaselineReset], store: Store) -> Beginning:
    """What judging anew goes on from: nothing and the oldest bucket, or what was known at the border.

    Nothing is known there either if the settings have been changed since. Raises StoreError.
    """
    series, kept = series_of(monitor, drift), store.verdicts.border(monitor.name)
    is_same = kept is not None and kept.series == series
    if kept is not None and kept.standing.identity == _identity(monitor, drift, begun, kept.standing.until):
        standing = replace(kept.standing, identity=identity_of(monitor, drift, begun))
        return Beginning(replace(kept, standing=standing), standing.until)
    starts = [kept.standing.until] if is_same and kept is not None else []
    for definition in (monitor.definition(drift.measure), monitor.traffic):
        coarse = store.retention.rolled_up(definition, 0, END)
        starts += [] if coarse is None else [coarse[1]]
    start, step = max(starts, default=0), step_of(monitor.bucket)
    standing = Standing(identity_of(monitor, drift, begun), -(-start // step) * step, None)
    return Beginning(Border(standing, series, {}), max(start, 0 if kept is None else kept.standing.until))


def moved(monitor: Monitor, begun: Sequence[BaselineReset], until: int, store: Store) -> Border | None:
    """The border where the buckets before `until` are about to go; None if it lies there or beyond, or is not needed.

    Raises:
        StoreError: the store is out of reach.
    """
    drift, step = monitor.drift, step_of(monitor.bucket)
    if drift is None:
        return None
    known, until = beginning(monitor, drift, begun, store).border, -(-until // step) * step
    since = known.standing.until
    if until <= since:
        return None
    settings = settings_of(monitor, drift, begun)
    history = store.history(monitor.definition(drift.measure), since, until)
    traffic = store.history(monitor.traffic, since, until)
    refused = store.refused_by_bucket(monitor.traffic, since, until)
    steps = hours(drift, monitor.bucket, history, traffic, refused, monitor.has_events)
    found, state = judge(settings, known.standing.state, steps)
    conditions, _ = follow(drift, step, found, known.conditions, ahead(begun))
    standing = Standing(_identity(monitor, drift, begun, until), until, state)
    return Border(standing, known.series, conditions)


def _identity(monitor: Monitor, drift: Drift, begun: Sequence[BaselineReset], until: int) -> str:
    """Of all that decides what comes of steps that end by `until`: a later beginning is none of it."""
    return identity_of(monitor, drift, [said for said in begun if min(said.since, *said.ahead or ()) < until])
