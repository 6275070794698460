"""The measure corrected for where people look and the plain one, in a few words, and a chart of the examination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from monitor.fields import format_duration
from monitor.measures.examination import Examination
from monitor.measures.measure import Measure
from monitor.messages.explanation import misfit
from monitor.messages.words import assumed, named, utc
from monitor.page.chart import Line, Plot, plot
from monitor.page.state import overall_point
from monitor.page.words import number
from monitor.service.snapshot import MonitorSnapshot

OFF = "People look elsewhere than before: until its table is replaced, the incident says how quality changed."
"""Of a corrected measure whose table is from before a change."""


def corrected(snapshot: MonitorSnapshot) -> Iterator[tuple[str, str]]:
    """(title, words); nothing without a measure with examination."""
    least = snapshot.monitor.min_completeness
    newest = [(one.length, one.measure, point) for one in snapshot.series if (point := overall_point(one, least))]
    is_off = snapshot.examined is not None and snapshot.examined.changed_since is not None
    for length, measure, point in newest:
        if not measure.examination:
            continue
        plain = next(((m, p) for window, m, p in newest if window == length and not m.examination), None)
        wrong = None if snapshot.examined is None or not measure.is_corrected else snapshot.examined.misfit(measure)
        off = f" {OFF}" if is_off else "" if wrong is None else f" {misfit(wrong)}."
        other = "" if plain is None else f"; {plain[0]}, not corrected: {number(plain[1].value)}"
        weights = "" if point.effective is None else f", worth {_weighed(measure, point.effective)}"
        yield (
            f"{measure.name}@{measure.k} over {format_duration(length)}, corrected for where people look",
            f"{number(point.value)} (95 %: {number(point.lower)} to {number(point.upper)}){weights}{other}. "
            f"{_meaning(measure)} It {assumed([measure])}.{off}",
        )
    if (found := snapshot.examined) is not None:
        changed = "" if found.changed_since is None else "; people look elsewhere than before"
        yield "Examination by rank, relative to the first", f"fitted {utc(found.since)} to {utc(found.at)}{changed}"


def _weighed(measure: Measure, effective: float) -> str:
    what = "requests with clicks" if measure.spec.aggregate == "pooled" else "clicks"
    return f"{effective:,.0f} {what} of equal weight"


def _meaning(measure: Measure) -> str:
    if what := measure.spec.what.replace("`", ""):
        return f"{what[0].upper()}{what[1:]}."
    told = "A click counts more where people look less, so a good item further down counts in full."
    return f"{told} It is a sum: compare its changes, not its size."


def examination_figures(snapshot: MonitorSnapshot) -> list[dict[str, Any]]:
    """A figure of the examination by rank for all traffic, and one for each slice with an estimate of its own.

    Each with that before; of a slice that was not known before, that of all traffic.
    """
    found, name = snapshot.examined, snapshot.monitor.name
    if found is None:
        return []
    shown = [("all traffic", "before", found.now, found.known)]
    for key, one in found.now.parts.items():
        before = found.known.parts.get(key)
        shown.append((named(*key), *(("all traffic", one, found.now) if before is None else ("before", one, before))))
    return [_figure(f"examination:{name}:{i}", name, *one) for i, one in enumerate(shown)]


def _figure(ident: str, monitor: str, title: str, against: str, fit: Examination, other: Examination) -> dict[str, Any]:
    values, lower, upper = (column.tolist() for column in (fit.value, fit.lower, fit.upper))
    told = ", ".join(
        f"{one:.2f} ({low:.2f} to {high:.2f})" for one, low, high in zip(values, lower, upper, strict=True)
    )
    drawn = Plot(
        ident,
        f"examination by rank of {monitor}, {title}",
        told,
        Line(title, range(1, len(values) + 1), values, lower, upper),
        1,
        [("baseline", other.value.tolist())],
        is_by_rank=True,
    )
    return {"title": title, "against": against, "svg": Markup(plot(drawn)), "words": told}
