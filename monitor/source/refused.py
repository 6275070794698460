"""Reasons for which much of a sample is refused, for `check-config --connect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from monitor.measures.relevance import REASONS
from monitor.series.readings import Reading
from monitor.source.remark import FEWEST, NOTABLE, TIME_OF_EVENTS, Key, Remark, percent
from monitor.types import Events, Judgments, Monitor

NOTABLE_GRADES = 0.02
"""Share of grades refused for one reason, from which on it is told: sound ones are never refused, so that a few per
cent are a wrong limit or another notation."""

FEWEST_GRADES = 5
"""Refused grades below which they are taken for slips of the pen."""

_KEYS: dict[str, Key] = {
    "null_request": ("rankings", "request"),
    "null_item": ("rankings", "item"),
    "bad_time": ("rankings", "time"),
    "ambiguous_time": ("rankings", "time"),
    "long_request": ("max_request_span",),
    "early_event": TIME_OF_EVENTS,
    "late_event": ("relevance", "events", "attribution"),
}
_HINTS = {
    "long_request": "; is the id unique, or max_request_span too short?",
    "early_event": "; are both times in the same zone?",
}
OF_GRADES = {
    "bad_grade": "name a column that holds numbers, or make them numbers in a `select:`",
    "grade_above_max": "is `max_grade` the highest there is?",
    "negative_grade": "a grade is 0 or more, and NULL where nobody has rated; make them so in a `select:`",
}
"""Reasons why a grade is refused, and what mends it."""
_BY_THEMSELVES = ("null_position", "bad_position", "mixed_slice")
"""Reasons that others look at: the positions, and the columns to slice by."""


def refusals(monitor: Monitor, reading: Reading, why_early: str = "") -> Iterator[Remark]:
    """Reasons for which much of the sample is refused. `why_early`: that of events before their serving, if known."""
    hints = _HINTS | ({"early_event": why_early} if why_early else {})
    counts = {reason: int(rows.sum()) for reason, rows in reading.refusals.counts.items()}
    for reason, strays in reading.strays.items():
        counts[reason] = counts.get(reason, 0) + len(strays)
    if not isinstance(monitor.recipe, Events):
        yield from _on_grades(monitor, reading, {reason: counts.pop(reason, 0) for reason in OF_GRADES})
    for reason, refused in sorted(counts.items()):
        every = refused + int((reading.events if reason.endswith("_event") else reading.impressions).sum())
        if reason == "mixed_query":
            every = len(reading.served)
        if reason not in _BY_THEMSELVES and refused >= FEWEST and refused > NOTABLE * every:
            text = f"{refused:,} of {every:,} are refused as {reason}: {REASONS[reason]}{hints.get(reason, '')}"
            yield Remark(_KEYS.get(reason, ("relevance",)), text)


def _on_grades(monitor: Monitor, reading: Reading, counts: Mapping[str, int]) -> Iterator[Remark]:
    """Reasons for which many grades of a column or of judgments are refused, of the grades of items shown.

    Few logs have more than some grades other than 0, and these say it all: so the share of either is looked at.
    """
    bound, depth = monitor.recipe.bound, monitor.depth
    # What a measure alone refuses has a label all the same, and is among those that are judged.
    refused_by_all = sum(n for reason, n in counts.items() if reason != "grade_above_max" or bound is not None)
    every = int(reading.judged.sum()) + refused_by_all
    rows = reading.rankings
    is_judged = np.full(rows.rank.shape, True) if depth is None else rows.rank <= depth
    telling = int(np.count_nonzero(rows.grade[is_judged])) + refused_by_all
    place = "judgments" if isinstance(monitor.recipe, Judgments) else "column"
    for reason, refused in sorted(counts.items()):
        if refused >= FEWEST_GRADES and refused >= NOTABLE_GRADES * min(every, telling):
            which = f"{refused:,} of the {every:,} grades of items shown ({percent(refused, every)})"
            if telling < every:
                which += f", and of the {telling:,} that are not 0 ({percent(refused, telling)}),"
            text = f"{which} are refused as {reason}: {_why_refused(monitor, reason)}; {OF_GRADES[reason]}"
            yield Remark(("relevance", place, "grade"), text)


def _why_refused(monitor: Monitor, reason: str) -> str:
    """What is wrong with grades that are refused for a reason, as this monitor is configured."""
    if reason == "bad_grade" and not any(isinstance(m.gain, tuple) for m in monitor.measures):
        return "they are no numbers"
    if reason == "grade_above_max" and (bound := monitor.recipe.bound) is not None:
        return f"they are over {bound:g}"
    return REASONS[reason]
