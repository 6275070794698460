"""The verdicts of the recent past as a figure: what was observed beside what was expected of the same hours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from monitor.conditions.verdict_hours import judged
from monitor.conditions.verdict_words import NAMES
from monitor.drift.verdicts import VerdictPoint
from monitor.messages.words import lasting
from monitor.page.chart import Line, Plot, ShadedPeriod, plot
from monitor.page.words import caption, change, number, utc
from monitor.service.history import VerdictHistory, VerdictPeriod
from monitor.service.snapshot import MonitorSnapshot
from monitor.types import format_duration

DAY = 86_400
MOST_SPELLS = 10
LASTING = frozenset({"positions_missing", "labels_suspect", "labels_collapsed", "rows_refused"})
"""Verdicts on hours that go on to blur the mean of the day that ends later."""


def judged_figure(snapshot: MonitorSnapshot, most: int) -> dict[str, Any] | None:
    """What the verdicts rest on, with at most so many points; None where there is nothing to draw yet."""
    trail, drift = snapshot.verdict_history, snapshot.monitor.drift
    points = [] if trail is None else _thinned(trail, most)
    known = [p for p in points if p.observed is not None]
    if trail is None or drift is None or not known:
        return None
    measure, last = judged(drift.measure), known[-1]
    shown = Plot(
        f"plot:{snapshot.monitor.name}:judged",
        f"{measure} of {snapshot.monitor.name} and its baseline",
        _summary(trail, last),
        Line(str(measure), [p.end for p in points], [p.observed for p in points]),
        trail.step * _thinning(trail, most),
        [("baseline", [p.expected for p in points])],
        [
            s
            for s in (*_incidents(snapshot, points[-1].end), *_periods(trail))
            if s.until > points[0].end and s.since < points[-1].end
        ],
    )
    low, high, _ = shown.scale
    return {
        "title": f"{measure} over {format_duration(max(DAY, trail.width))}, judged",
        "value": last.observed,
        "change": change(last.observed / last.expected - 1) if last.observed is not None and last.expected else "",
        "svg": Markup(plot(shown)),
        "summary": shown.summary,
        "axis": f"from {low:g} to {high:g}",
        "has_expected": any(p.expected is not None for p in points),
        "shades": {s.kind for s in shown.stretches},
        "told": list(_told(trail, drift.mix_by)),
    }


def _thinning(trail: VerdictHistory, most: int) -> int:
    return max(1, -(-len(trail.drawn) // most))


def _thinned(trail: VerdictHistory, most: int) -> list[VerdictPoint]:
    every = trail.step * _thinning(trail, most)
    return [p for p in trail.drawn[:-1] if p.end % every == 0] + list(trail.drawn[-1:])


def _summary(trail: VerdictHistory, last: VerdictPoint) -> str:
    against = "" if last.expected is None else f", {number(last.expected)} expected of the same hours at the same mix"
    troubles, mixes = len(trail.troubles), len(trail.mixes)
    said = [
        f"{number(last.observed)} at {utc(last.end)}{against}",
        f"bad data {_times(troubles)}" if troubles else "",
        f"a shift of the mix {_times(mixes)}" if mixes else "",
    ]
    return "; ".join(part for part in said if part) + "."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _incidents(snapshot: MonitorSnapshot, now: int) -> Iterator[ShadedPeriod]:
    """Those on the quality, oldest first; what is open goes on until `now`, seconds."""
    for incident in (s.incident for s in reversed(snapshot.incidents) if s.incident.matter == "quality"):
        until = now if incident.closed_at is None else incident.closed_at
        words = caption(incident) if incident.is_open and incident.began_at < now else ""
        yield ShadedPeriod(incident.began_at, until, words)


def _periods(trail: VerdictHistory) -> Iterator[ShadedPeriod]:
    for spell in trail.troubles:
        yield ShadedPeriod(spell.since, spell.until, "", "trouble")
        if spell.kind in LASTING:
            yield ShadedPeriod(spell.until, spell.until + DAY - trail.width, "", "blurred")
    yield from (ShadedPeriod(s.since, s.until, "", "mix") for s in trail.mixes)


def _told(trail: VerdictHistory, dimension: str | None) -> Iterator[dict[str, str]]:
    """The newest troubles and shifts in words, the newest first."""
    newest = trail.newest
    for spell in sorted((*trail.troubles, *trail.mixes), key=lambda s: s.since, reverse=True)[:MOST_SPELLS]:
        goes_on = newest is not None and spell.until == newest.end
        yield {
            "since": utc(spell.since),
            "until": "goes on" if goes_on else utc(spell.until),
            "lasted": lasting(spell.until - spell.since),
            "words": NAMES[spell.kind] if spell.kind else _mix(spell, dimension),
        }


def _mix(spell: VerdictPeriod, dimension: str | None) -> str:
    return f"the mix of {dimension} moved the mean by {change(spell.effect)} at the most; no page"
