"""Whether a database can sum a monitor's numbers, by counting a small set of grades."""

from __future__ import annotations

import numpy as np

from monitor.measures.measure import Measure
from monitor.measures.relevance import GradeLimits
from monitor.types import Column, Events, Judgments, Monitor

MOST_GRADES = 12
"""Most distinct grades above 0 that are counted."""

USUAL_GRADES = (1.0, 2.0, 3.0, 4.0, 5.0)
"""Grades assumed for a column without further information; a bucket with others is read row by row."""


def obstacle(monitor: Monitor) -> str:
    """Why no database can sum up a monitor's measures; empty if it can.

    >>> from monitor.measures.measure import parse
    >>> from monitor.types import Rankings, Relation, TimeColumn
    >>> rankings = Rankings(Relation(("r",)), "q", "i", "p", TimeColumn("t"))
    >>> obstacle(Monitor("m", "s", rankings, Column("g"), (parse("ndcg@10"), parse("map@10"))))
    'map@10: average precision counts the relevant items above each one'
    """
    recipe = monitor.recipe
    if isinstance(recipe, Judgments):
        return "judgments: their fingerprint is kept, which needs the rows"
    if isinstance(recipe, Events) and recipe.combine == "sum":
        return "combine: sum makes too many different grades"
    if isinstance(recipe, Events) and any(rule.grade is None for rule in recipe.rules):
        return "a rule uses the event's own value, so there are too many different grades"
    for measure in monitor.measures:
        if reason := _against(measure):
            return f"{measure}: {reason}"
    found = grades(monitor)
    if len(found) > MOST_GRADES or not found:
        return f"there are {len(found) or 'no'} grades, and it needs 1 to {MOST_GRADES}"
    if not GradeLimits.of(monitor.measures, recipe.bound).allow(np.array(found)).all():
        return "not every measure accepts every grade"
    return ""


def _against(measure: Measure) -> str:
    if measure.ideal == "global":
        return "its ideal comes from judgments"
    if not measure.is_sparse:
        return "items of grade 0 have a gain"
    return measure.spec.sql if isinstance(measure.spec.sql, str) else ""


def grades(monitor: Monitor) -> tuple[float, ...]:
    """The possible grades above 0, rising."""
    recipe = monitor.recipe
    if isinstance(recipe, Events):
        return tuple(sorted({float(r.grade) for r in recipe.rules if r.grade}))
    if not isinstance(recipe, Column):
        return ()
    tables = [{float(grade) for grade, _ in m.gain} for m in monitor.measures if isinstance(m.gain, tuple)]
    highest = recipe.bound
    if tables:
        found = set.intersection(*tables)
    elif highest is None:
        found = set(USUAL_GRADES)
    else:
        found = set(np.arange(1.0, min(highest, MOST_GRADES + 1) + 1).tolist())
    allowed = GradeLimits.of(monitor.measures, highest)
    return tuple(g for g in sorted(found) if g > 0 and allowed.allow(np.array([g]))[0])
