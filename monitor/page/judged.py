"""Recent verdicts as a figure: observed against expected, for the same hours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monitor.conditions.verdict_hours import judged
from monitor.drift.verdicts import VerdictPoint
from monitor.messages.explanation import title_of
from monitor.messages.words import brief
from monitor.page.chart import Line, Plot, ShadedPeriod
from monitor.page.figures import drawn, marked
from monitor.page.words import TEMPLATES, caption, change
from monitor.service.history import VerdictHistory
from monitor.service.snapshot import MonitorSnapshot
from monitor.types import format_duration
from monitor.units import DAY

MAX_PERIODS = 10
LASTING = frozenset({"positions_suspect", "labels_suspect", "labels_collapsed", "rows_refused"})
"""Verdicts on hours that keep distorting the daily mean that ends later."""


def judged_figure(snapshot: MonitorSnapshot, most: int) -> dict[str, Any] | None:
    """The basis of the verdicts, with at most `most` points; None if there is nothing to draw."""
    history, drift = snapshot.verdict_history, snapshot.monitor.drift
    points = [] if history is None else _thinned(history, most)
    known = [p for p in points if p.observed is not None]
    if history is None or drift is None or not known:
        return None
    measure, last = judged(drift.measure), known[-1]
    summary = TEMPLATES.get_template("judged_summary.txt").render(last=last, history=history)
    shown = Plot(
        f"plot:{snapshot.monitor.name}:judged",
        f"{brief(measure)} of {snapshot.monitor.name} and its baseline",
        summary,
        Line(str(measure), [p.end for p in points], [p.observed for p in points]),
        history.step * _thinning(history, most),
        [("baseline", [p.expected for p in points])],
        [
            s
            for s in (*_incidents(snapshot, points[-1].end), *_periods(history))
            if s.until > points[0].end and s.since < points[-1].end
        ]
        + (marks := marked(snapshot, points[0].end, points[-1].end)),
    )
    return {
        "title": f"{brief(measure)} over {format_duration(max(DAY, history.width))}, judged",
        "value": last.observed,
        "change": change(last.observed / last.expected - 1) if last.observed is not None and last.expected else "",
        "has_expected": any(p.expected is not None for p in points),
        "shades": {s.kind for s in shown.stretches},
        "told": list(_told(history)),
        "mix_by": drift.mix_by,
        "marks": marks,
        **drawn(shown),
    }


def _thinning(history: VerdictHistory, most: int) -> int:
    return max(1, -(-len(history.drawn) // most))


def _thinned(history: VerdictHistory, most: int) -> list[VerdictPoint]:
    every = history.step * _thinning(history, most)
    return [p for p in history.drawn[:-1] if p.end % every == 0] + list(history.drawn[-1:])


def _incidents(snapshot: MonitorSnapshot, now: int) -> Iterator[ShadedPeriod]:
    for incident in (s.incident for s in reversed(snapshot.incidents) if s.incident.matter == "quality"):
        until = now if incident.closed_at is None else incident.closed_at
        words = caption(incident) if incident.is_open and incident.began_at < now else ""
        yield ShadedPeriod(incident.began_at, until, words)


def _periods(history: VerdictHistory) -> Iterator[ShadedPeriod]:
    for period in history.troubles:
        yield ShadedPeriod(period.since, period.until, "", "trouble")
        if period.kind in LASTING:
            yield ShadedPeriod(period.until, period.until + DAY - history.width, "", "blurred")
    yield from (ShadedPeriod(s.since, s.until, "", "mix") for s in history.mixes)


def _told(history: VerdictHistory) -> Iterator[dict[str, Any]]:
    newest = history.newest
    for period in sorted((*history.troubles, *history.mixes), key=lambda s: s.since, reverse=True)[:MAX_PERIODS]:
        goes_on = newest is not None and period.until == newest.end
        yield {"period": period, "goes_on": goes_on, "name": title_of(period.kind) if period.kind else ""}
