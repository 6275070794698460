"""Do people look at different ranks than before? Compares the examination of the last days with earlier weeks.

A worse ranking moves clicks between ranks as a new page does, so shares of clicks by rank cannot tell the two apart.
Clicks on the same item of a query at different ranks can: both fits rest on them alone, whatever was ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from monitor.drift.constants import BUDGET_HOURS, LABELS_OPENING_RATIO, LEAST_REFERENCE_DAYS, REFERENCE_DAYS
from monitor.drift.verdicts import AlarmChange, Verdict
from monitor.measures.examination import (
    ALL,
    UNSURE,
    Examination,
    ExaminationShift,
    ShownCounts,
    clicked_again,
    corrected_change,
    estimate_parts,
    misfit,
    most_changed,
)
from monitor.measures.measure import Measure
from monitor.types import FARTHEST
from monitor.units import DAY

RECENT = 3 * DAY
"""Seconds of the newest fit: a change of the page is to be known in three days; test_examined holds its power."""

REFIT = 7 * DAY
"""Seconds after which the fit to compare with is made again, and of the newest fit while a change stands: a whole week,
like the weeks before."""

CONTRADICTED = "people look elsewhere, and corrected for that the measure fell less"
"""Why such an alarm is withdrawn."""

Counts = Callable[[int, int], Mapping[tuple[str, str], ShownCounts]]
"""[since, until) seconds -> counts of the requests served then, by part with an examination of its own:
(dimension, value), or `ALL`."""


class Examined(NamedTuple):
    """What one check says about the time from `at` on, seconds.

    Attributes:
        lower, upper: relative change of the corrected measure; None where people look where they did, or did lately.
        is_sound: clicks became fewer, and none were lost.
    """

    at: int
    lower: float | None
    upper: float | None
    is_sound: bool


class Misfit(NamedTuple):
    """A rank at which the table of a part, (dimension, value) or `ALL`, does not match the log's 95 % interval."""

    part: tuple[str, str]
    rank: int
    used: float
    value: float
    lower: float
    upper: float


@dataclass(frozen=True, eq=False)
class ExaminationCheck:
    """One day's comparison; instants in seconds.

    Attributes:
        since, at: span of the requests of `now`.
        known_since, known_until: span of those of `known`, from before the change if there is one.
        resumed: end of the last change; requests from before it are not fitted again.
        clicked: clicks per request of the last day, relative to those then.
        again: those at rank 1 relative to clicks on the same items then, with the 95 % interval, if clicks are fewer.
        changed_since: start of the span in which examination began to differ; None if it does not.
    """

    at: int
    since: int
    known_since: int
    known_until: int
    known: Examination
    now: Examination
    changed_since: int | None = None
    resumed: int = 0
    clicked: float = 1.0
    again: tuple[float, float, float] | None = None

    @cached_property
    def change(self) -> ExaminationShift:
        """Where examination differs most significantly."""
        return most_changed(self.known, self.now)

    @cached_property
    def corrected(self) -> tuple[float, float, float]:
        """Relative change of DCG, each fit's clicks corrected by its own examination, with its 95 % interval."""
        return corrected_change(self.known, self.now)

    def misfit(self, measure: Measure) -> Misfit | None:
        """Where a corrected measure's table surely differs from the examination of the earlier weeks; None if nowhere.

        While people look elsewhere, that is said instead.
        """
        tables = dict(measure.by_slice) or {ALL: measure.examination}
        for part, table in tables.items() if self.changed_since is None else ():
            one = self.known if part == ALL else self.known.parts.get(part)
            used = np.array([chance for _, chance in table])
            if one is not None and (rank := misfit(used, one)) is not None:
                found = (float(column[rank - 1]) for column in (used, one.value, one.lower, one.upper))
                return Misfit(part, rank, *found)
        return None

    @property
    def found(self) -> Examined:
        """A short summary."""
        # Before, days without the change may dilute it: it began at most RECENT after `changed_since`.
        is_whole = self.changed_since is not None and self.since >= self.changed_since + RECENT
        _, lower, upper = self.corrected if is_whole else (None, None, None)
        is_sound = self.again is not None and self.again[1] > self.clicked and self.again[2] >= 1
        return Examined(self.at, lower, upper, is_sound)

    def plain(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)} | {
            "known": self.known.plain(),
            "now": self.now.plain(),
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> ExaminationCheck:
        fits = {name: Examination.of(plain[name]) for name in ("known", "now")}
        again = None if plain["again"] is None else tuple(plain["again"])
        return cls(**{**plain, **fits, "again": again})


def check(
    was: ExaminationCheck | None, at: int, begun: int, budget: float, depth: int, counts: Counts
) -> ExaminationCheck | None:
    """The check of the days until `at`, seconds, a UTC midnight; None if there are too few days to compare with.

    A change stands, compared with the examination before it, until that is back or the baseline is reset after it
    began: then the newest examination is what later ones are compared with.

    Args:
        was: the check before.
        begun: the newest reset of the baseline, seconds; earlier requests are another page's.
        budget: false alarms in 90 days; one check a day shares them.
        depth: ranks to look at.

    Raises:
        ValueError: swaps are too few.
    """

    def every(since: int, until: int) -> ShownCounts:
        return ShownCounts.joined(list(counts(since, until).values()))

    found = _compared(was, at, begun, budget, lambda since, until: estimate_parts(counts(since, until), depth))
    if found is None:
        return None
    today, usual = every(at - DAY, at), found.known.clicks.sum() / max(found.known.requests, 1)
    found = replace(found, clicked=float(today.clicks_per_request / usual))
    if not found.clicked < LABELS_OPENING_RATIO:
        return found
    return replace(found, again=clicked_again(every(found.known_since, found.known_until), today, found.known.value))


def _compared(
    was: ExaminationCheck | None, at: int, begun: int, budget: float, fit: Callable[[int, int], Examination]
) -> ExaminationCheck | None:
    changed = was.changed_since if was is not None else None
    if was is not None and changed is not None and begun < changed:
        since = max(min(changed, at - 2 * RECENT) + RECENT, at - REFIT)
        found = replace(was, at=at, since=since, now=fit(since, at))
        return found if found.change.chance < UNSURE else replace(found, changed_since=None, resumed=at)
    accepted = None
    if was is not None and changed is not None:
        was = accepted = replace(
            was, at=at, known_since=was.since, known_until=was.at, known=was.now, changed_since=None
        )
    since, resumed = at - RECENT, 0 if was is None else was.resumed
    first = max(begun, resumed, since - REFERENCE_DAYS * DAY)
    is_enough = since - first >= LEAST_REFERENCE_DAYS * DAY
    if was is not None and was.known_since >= begun and not (is_enough and since - was.known_until >= REFIT):
        found = replace(was, at=at, since=since, now=fit(since, at))
    elif is_enough:
        found = ExaminationCheck(at, since, first, since, fit(first, since), fit(since, at), resumed=resumed)
    else:
        return accepted
    is_other = found.change.chance < min(UNSURE, budget * 24 / BUDGET_HOURS)
    return replace(found, changed_since=since if is_other else None)


def sound_spans(known: Sequence[Examined]) -> tuple[tuple[int, int], ...]:
    """Spans [since, until) of seconds from the checks that found all clicks to be there to the next."""
    ends = [*(one.at for one in known[1:]), FARTHEST]
    return tuple((one.at, end) for one, end in zip(known, ends, strict=False) if one.is_sound)


def contradicts(known: Sequence[Examined], end: int) -> Examined | None:
    """The check that may speak against alarms of a step that ends at `end`, seconds; None if none does.

    Args:
        known: oldest first.
    """
    newest = next((one for one in reversed(known) if one.at < end), None)
    return newest if newest is not None and newest.upper is not None and newest.upper >= 0 else None


def as_examined(verdict: Verdict, known: Sequence[Examined]) -> Verdict:
    """A verdict without the alarms that the corrected measure contradicts where people look elsewhere.

    It contradicts a fall below its 95 % interval, if that reaches 0 and its middle is nearer to 0 than to the fall.

    Args:
        known: oldest first.
    """
    newest = contradicts(known, verdict.end)
    if newest is None or newest.lower is None:
        return verdict
    middle = ((1 + newest.lower) * (1 + (newest.upper or 0.0))) ** 0.5 - 1
    gone = [alarm for alarm in verdict.alarms if alarm.effect < min(newest.lower, 2 * middle)]
    if not gone:
        return verdict
    left = tuple(alarm for alarm in verdict.alarms if alarm not in gone)
    ends = [AlarmChange(a.unit, "withdrawn", a.fell_at, a.value, a.before, a.requests, a.tolerated) for a in gone]
    kind = "healthy" if verdict.kind == "degraded" and not left else verdict.kind
    units = {alarm.unit for alarm in gone}
    kept = [change for change in verdict.changes if change.unit not in units]
    return replace(verdict, kind=kind, alarms=left, changes=(*kept, *ends))
