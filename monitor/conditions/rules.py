"""Alert rules as values: what counts as a fall, how long it must last, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from monitor.fields import Count, Instant, PositiveDuration
from monitor.measures.measure import Measure
from monitor.section import Converted, Section, key
from monitor.units import WEEK

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From lowest to highest."""

COVERAGE = "label_coverage"
"""Judged instead of a measure: the share of traffic with a label."""


@dataclass(frozen=True, slots=True)
class Pinned(Section):
    """A period that always stays the baseline."""

    since: Annotated[Instant, key("Start of the period, UTC.", alias="from", examples=["2026-01-01"])]
    until: Annotated[Instant, key("End of the period, UTC.", alias="to", examples=["2026-01-15"])]


@dataclass(frozen=True, slots=True)
class Baseline(Section):
    """What a window is compared with. A pinned period is [since, until) seconds."""

    JUST_ONE = ("trailing", "weeks", "pinned")

    trailing: Annotated[PositiveDuration, key("The time right before the window, e.g. 21d. Default: none.")] = 0
    weeks: Annotated[
        Count,
        key("The same UTC hours of this many weeks before, for a series with a rhythm. Default: none.", ge=1, le=26),
    ] = 0
    pinned: Annotated[
        tuple[int, int] | None,
        Converted(Pinned, lambda period: (period.since, period.until)),
        key("A fixed good period."),
    ] = None

    def spans(self, end: int, length: int) -> tuple[tuple[int, int], ...]:
        """[since, until) seconds of the baseline of the window [end - length, end).

        >>> Baseline(trailing=100).spans(1000, 10)
        ((890, 990),)
        """
        if self.pinned is not None:
            return (self.pinned,)
        if self.weeks:
            return tuple((end - length - w * WEEK, end - w * WEEK) for w in range(1, self.weeks + 1))
        return ((end - length - self.trailing, end - length),)

    def reach(self, length: int) -> int:
        """Seconds needed before a window's end, window included, without a pinned period."""
        return length + (self.weeks * WEEK if self.weeks else self.trailing)


@dataclass(frozen=True, slots=True)
class Floor:
    """Fallen below `at`; over again from `back_at` on. For measures where lower is better: risen above `at`."""

    at: float
    back_at: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Fallen by more than `by` under the baseline; over again at most `back_at` under it.

    Both are shares of the baseline if `relative`, else differences. Of a measure that is better when it is lower they
    are rises.
    """

    by: float
    back_at: float
    relative: bool
    baseline: Baseline


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert rule of a monitor. Every final bucket is one evaluation, over the window it ends.

    Attributes:
        measure: None is the label coverage.
        window, lasting, resolve_lasting: seconds; the latter of consecutive evaluations before it fires or resolves.
        min_requests: in windows and baselines that are judged.
        slices: (dimension, value) judged too; value None is each value of the dimension.
    """

    name: str
    measure: Measure | None
    window: int
    limit: Floor | Drop
    lasting: int = 0
    resolve_lasting: int = 0
    min_requests: int = 1
    severity: Severity = "critical"
    retrain: bool = False
    overall: bool = True
    slices: tuple[tuple[str, str | None], ...] = ()

    @property
    def rises(self) -> bool:
        """Whether it fires at a rise instead of a fall."""
        return self.measure is not None and self.measure.is_better_lower

    @property
    def judged(self) -> str:
        """Text of what is judged: the measure's, or `label_coverage`."""
        return COVERAGE if self.measure is None else str(self.measure)

    @property
    def is_about_data(self) -> bool:
        """Whether it judges the labels instead of the model."""
        return self.measure is None

    @property
    def reach(self) -> int:
        """Seconds before a window's end that an evaluation looks at, pinned period aside."""
        return self.limit.baseline.reach(self.window) if isinstance(self.limit, Drop) else self.window


def is_beyond(value: float, limit: float, rises: bool) -> bool:
    """Whether a value is past a limit, on the side on which a rule fires.

    >>> is_beyond(1, 2, rises=False), is_beyond(2, 2, rises=False), is_beyond(3, 2, rises=True)
    (True, False, True)
    """
    return value > limit if rises else value < limit


def worst(severities: list[Severity]) -> Severity:
    """The highest of some severities.

    >>> worst(["info", "critical", "warning"])
    'critical'
    """
    return max(severities, key=SEVERITIES.index)
