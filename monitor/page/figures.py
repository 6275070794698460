"""A history as a figure: plot, numbers and slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from monitor.measures.measure import Measure
from monitor.messages.words import brief
from monitor.page.chart import Line, Plot, ShadedPeriod, plot, room_for_words, spark
from monitor.page.state import overall_point
from monitor.page.words import TEMPLATES, caption, change, number
from monitor.series.windows import Point, SliceKey
from monitor.service.fall import MOST_MARKS
from monitor.service.history import HistoryPoint, SeriesHistory
from monitor.service.snapshot import MonitorSnapshot, Series, StoredIncident
from monitor.types import OVERALL, format_duration

FEWEST_POINTS = 60
MOST_SLICES = 20
"""Slices per figure."""

LEAST_HEIGHT = 0.1
"""Height of a small line, as a share of its highest value: tiny movements are not magnified."""


@dataclass(frozen=True)
class DrawingBudget:
    """Points per plot and slices per figure, to keep a page small."""

    points: int
    slices: int

    @classmethod
    def of(cls, figures: int) -> DrawingBudget:
        """The budget for a page with so many figures."""
        return cls(max(FEWEST_POINTS, 2000 // max(figures, 1)), max(3, min(MOST_SLICES, 150 // max(figures, 1))))


def figures(snapshot: MonitorSnapshot, budget: DrawingBudget) -> list[dict[str, Any]]:
    """A figure for each history with data; those that a rule judges first."""
    series: dict[tuple[Measure | None, int], Series] = {(s.measure, s.length): s for s in snapshot.series}
    drawable = [t for t in snapshot.histories if any(p.value is not None for p in thinned(t, budget.points))]
    ordered = sorted(drawable, key=lambda t: not t.rules)
    return [_figure(i, t, series.get((t.measure, t.window)), snapshot, budget) for i, t in enumerate(ordered)]


def _figure(
    index: int, history: SeriesHistory, series: Series | None, snapshot: MonitorSnapshot, budget: DrawingBudget
) -> dict[str, Any]:
    provisional = _provisional(series)
    shown = _plot(f"plot:{snapshot.monitor.name}:{index}", history, provisional, snapshot, budget.points)
    return {
        "title": shown.line.name,
        "recent": _recent(shown.ident, history.recent, provisional, snapshot, budget.points),
        "newest": history.newest,
        "point": None if series is None else overall_point(series, snapshot.monitor.min_completeness),
        "provisional": provisional,
        "change": "" if history.newest is None or history.newest.change is None else change(history.newest.change),
        "rules": list(zip(history.rules, history.newest.limits, strict=True)) if history.newest else [],
        "spark": overview_spark(history),
        "has_baseline": any(name == "baseline" for name, _ in shown.limits),
        "has_threshold": any(name == "threshold" for name, _ in shown.limits),
        "has_band": any(v is not None for v in shown.line.lower),
        "has_incident": any(s.kind == "incident" for s in shown.stretches),
        "marks": marked(snapshot, history.drawn[0].end, history.drawn[-1].end),
        **drawn(shown),
        **_slices(history, series, budget.slices),
    }


def drawn(shown: Plot) -> dict[str, Any]:
    """What a figure says of its plot: the picture, its axis, its step and its summary."""
    low, high, _ = shown.scale
    axis, every = f"from {low:g} to {high:g}", format_duration(shown.step)
    return {"svg": Markup(plot(shown)), "axis": axis, "every": every, "summary": shown.summary}


def _provisional(series: Series | None) -> Point | None:
    points = () if series is None else series.provisional
    return next((p for p in points if (p.dimension, p.slice) == OVERALL), None)


# ---- the plots -------------------------------------------------------------------------------------------------------


def _plot(ident: str, history: SeriesHistory, provisional: Point | None, snapshot: MonitorSnapshot, most: int) -> Plot:
    points, title = thinned(history, most), f"{brief(history.judged)} over {format_duration(history.window)}"
    return Plot(
        ident,
        f"{title} of {snapshot.monitor.name}",
        summary(history, snapshot.incidents),
        Line(title, *columns(points)),
        history.step * _thinning(history, most),
        [*_limits(history, points)],
        [*stretches(history, snapshot.incidents), *marked(snapshot, history.drawn[0].end, history.drawn[-1].end)],
        None if provisional is None or provisional.value is None else (provisional.end, provisional.value),
    )


def _recent(
    ident: str, history: SeriesHistory | None, provisional: Point | None, snapshot: MonitorSnapshot, most: int
) -> dict[str, Any] | None:
    """The fine part of a history; None if the history is fine enough, or has no data there."""
    if history is None or all(p.value is None for p in thinned(history, most)):
        return None
    shown, span = _plot(f"{ident}:recent", history, provisional, snapshot, most), format_duration(history.span)
    return {"span": span, **drawn(replace(shown, title=f"{shown.title}, the last {span}"))}


def _thinning(history: SeriesHistory, most: int) -> int:
    return -(-len(history.points) // most) if history.points else 1


def thinned(history: SeriesHistory, most: int) -> list[HistoryPoint]:
    """At most `most` points on an even grid, and the newest."""
    every = history.step * _thinning(history, most)
    kept = [p for p in history.points if p.end % every == 0]
    last = history.drawn[-1:]
    return [*kept, *(p for p in last if not kept or p.end > kept[-1].end)]


def columns(points: Sequence[HistoryPoint]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]:
    """(ends, values, lower, upper)."""
    at, value, lower, upper = zip(*((p.end, p.value, p.lower, p.upper) for p in points), strict=True)
    return at, value, lower, upper


def _limits(history: SeriesHistory, points: Sequence[HistoryPoint]) -> list[tuple[str, Sequence[float | None]]]:
    found: list[tuple[str, Sequence[float | None]]] = []
    for i in range(len(history.rules)):
        for name, which in (("baseline", 0), ("threshold", 1)):
            values = [p.limits[i][which] for p in points]
            if any(v is not None for v in values):
                found.append((name, values))
    return found


CAPTION = 0.35
"""Width of an incident's caption, as a share of a plot's."""


def stretches(history: SeriesHistory, incidents: Sequence[StoredIncident]) -> list[ShadedPeriod]:
    """The incidents within a history, oldest first, captioned where there is room."""
    drawn = history.drawn
    first, last = drawn[0].end, drawn[-1].end
    found: list[ShadedPeriod] = []
    free = 1.0
    for incident in (s.incident for s in incidents):
        until = last if incident.closed_at is None else incident.closed_at
        if until <= first or incident.began_at >= last:
            continue
        begin, end = ((at - first) / (last - first) for at in (max(incident.began_at, first), min(until, last)))
        left, right = room_for_words(begin, end, CAPTION)
        has_room = right <= free
        found.append(ShadedPeriod(incident.began_at, until, caption(incident) if has_room else ""))
        free = left if has_room else free
    return found[::-1]


def marked(snapshot: MonitorSnapshot, since: int, until: int) -> list[ShadedPeriod]:
    """New model versions and announcements in (since, until), seconds, as lines with words for a legend."""
    found = [(at, f"version {version}") for at, version in snapshot.came]
    found += [(one.since, one.note or "announced") for one in snapshot.noted]
    inside = sorted((at, words) for at, words in found if since < at < until)
    return [ShadedPeriod(at, at, words, "mark") for at, words in inside[-MOST_MARKS:]]


def summary(history: SeriesHistory, incidents: Sequence[StoredIncident]) -> str:
    """What the plot shows, in words."""
    known = [(p.value, p.end) for p in history.drawn if p.value is not None]
    count = len(stretches(history, incidents))
    template = TEMPLATES.get_template("figure_summary.txt")
    return template.render(last=known[-1], low=min(known), high=max(known), incidents=count)


def overview_spark(history: SeriesHistory) -> Markup:
    """The history as a small line, at least a tenth of its level high."""
    values = [p.value for p in thinned(history, FEWEST_POINTS)]
    known = [v for v in values if v is not None]
    if not known:
        return Markup("")
    low, high = min(known), max(known)
    room = max(0.0, LEAST_HEIGHT * abs(high) - (high - low)) / 2
    return Markup(
        spark(values, low - room, high + room, f"{brief(history.judged)}: from {number(low)} to {number(high)}")
    )


# ---- slices ----------------------------------------------------------------------------------------------------------


def _slices(history: SeriesHistory, series: Series | None, most: int) -> dict[str, Any]:
    if series is None or not series.comparison.slices:
        return {"slices": [], "against": "", "more_slices": 0}
    found = series.comparison.slices
    spread = max((max(v) - min(v) for v in (_known(history, c.key) for c in found) if v), default=0.0)
    points = {(p.dimension, p.slice): p for p in series.final}
    rows = [
        {"compared": c, "point": points.get(c.key), "spark": _slice_spark(history, c.key, spread)} for c in found[:most]
    ]
    return {"slices": rows, "against": series.comparison.against, "more_slices": len(found) - len(rows)}


def _known(history: SeriesHistory, key: SliceKey) -> list[float]:
    return [values[key] for _, values in history.slices if key in values]


def _slice_spark(history: SeriesHistory, key: SliceKey, spread: float) -> Markup:
    """Centred on its own middle, but on the same scale as its neighbours."""
    known = _known(history, key)
    if not known:
        return Markup("")
    middle = (min(known) + max(known)) / 2
    values = [values.get(key) for _, values in history.slices]
    words = f"from {number(min(known))} to {number(max(known))}"
    return Markup(spark(values, middle - spread / 2, middle + spread / 2, words))
