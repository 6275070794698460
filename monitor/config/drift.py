"""Builds what `drift:` says of a monitor, and checks it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from monitor.config.alert_shape import Drift
from monitor.config.report import nearest
from monitor.config.rules import channel_faults
from monitor.config.scope import Scope
from monitor.measures.measure import SPECS, Measure, parse
from monitor.types import Drift as Built
from monitor.types import Monitor, format_duration

MODEL_VERSION = "model_version"
HOUR = 3600
DAY = 86400
REACH = 42 * DAY
"""How far back is read for a baseline, unless `lookback` says otherwise."""


def build_drift(scope: Scope, monitor: Monitor) -> Built | None:
    """How verdicts on a monitor are found; None if none are wanted, or something is wrong, which is reported."""
    if (drift := scope.shape.drift) is None:
        return None
    problems = list(_problems(monitor, drift))
    for key, text in problems:
        scope.refuse(text, "drift", key)
    if problems or not monitor.measures:
        return None
    return Built(
        measure=_measure(monitor, drift),
        mix_by=_dimension(monitor, drift),
        false_alarm_budget=drift.false_alarm_budget,
        baseline_from=drift.baseline_from,
        severity=drift.severity,
        data_severity=drift.data_severity,
        data_channels=tuple(drift.data_channels or ()),
        retrain=drift.retrain,
        show_queries=drift.show_queries,
    )


def _measure(monitor: Monitor, drift: Drift) -> Measure:
    if drift.measure is not None:
        return parse(drift.measure, monitor.recipe.bound)
    return next(m for m in monitor.measures if _is_ratio(m))


def _is_ratio(measure: Measure) -> bool:
    return SPECS[measure.name].unit == "ratio" and measure.aggregate == "mean"


def _dimension(monitor: Monitor, drift: Drift) -> str | None:
    return drift.mix_by or next(iter(_dimensions(monitor)), None)


def _dimensions(monitor: Monitor) -> list[str]:
    """Those that can be mixed by. A new version or query has no past to be compared with, so it would not be judged."""
    return [
        s.dimension
        for s in monitor.slices
        if s.dimension != MODEL_VERSION and s.column not in (monitor.rankings.query, monitor.rankings.model_version)
    ]


def _problems(monitor: Monitor, drift: Drift) -> Iterator[tuple[str, str]]:
    yield from _about_measure(monitor, drift)
    if monitor.bucket % HOUR and HOUR % monitor.bucket:
        bucket = format_duration(monitor.bucket)
        yield "measure", f"verdicts are of whole hours, in which a bucket of {bucket} does not go; take e.g. 15m or 1h"
    if monitor.bucket > DAY:
        yield "measure", f"a bucket of {format_duration(monitor.bucket)} is too long for verdicts; take at most 1d"
    if drift.mix_by is not None and drift.mix_by not in (known := _dimensions(monitor)):
        if drift.mix_by in [s.dimension for s in monitor.slices]:
            text = "has values that come and go, and a new one has no past to compare with; take another dimension"
            yield "mix_by", f"{drift.mix_by!r} {text}"
        else:
            remedy = nearest(drift.mix_by, known) if known else "this monitor has no `slices:` for it; add them"
            yield "mix_by", f"there is no dimension {drift.mix_by!r}; {remedy}"


def _about_measure(monitor: Monitor, drift: Drift) -> Iterator[tuple[str, str]]:
    if drift.measure is None:
        if monitor.measures and not any(_is_ratio(m) for m in monitor.measures):
            yield "measure", "no measure of this monitor is a mean of values from 0 to 1; add e.g. ndcg@10"
        return
    try:
        measure = parse(drift.measure, monitor.recipe.bound)
    except ValueError as error:
        yield "measure", str(error)
        return
    known = ", ".join(str(m) for m in monitor.measures if _is_ratio(m))
    if not _is_ratio(measure):
        yield "measure", f"{drift.measure!r} is no mean of values from 0 to 1; judge one of {known or 'e.g. ndcg@10'}"
    elif measure.kernel not in {m.kernel for m in monitor.measures}:
        yield "measure", f"{drift.measure!r} is not computed; add it to `measures`, or judge one of {known}"


def check_telling(scope: Scope, channels: Collection[str]) -> None:
    """The channels of the owners of the data exist, and they are not told twice."""
    names = () if scope.shape.drift is None else scope.shape.drift.data_channels or ()
    for index, text in channel_faults(names, channels):
        scope.refuse(text, "drift", "data_channels", index)
    if scope.setting("paging") == "prometheus" and any(name != "log" for name in names):
        text = "Prometheus is to page, so rankmon must not: one of the two would be doubled; keep [log]"
        scope.refuse(text, "drift", "data_channels")
