"""Conditions on arrivals, seen in the source before any bucket is affected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from monitor.conditions.evidence import Evidence, kinds, severity_of
from monitor.conditions.examined import ExaminationCheck
from monitor.types import Drift, Monitor


@dataclass(frozen=True)
class Misread:
    """A figure (`what`) of the bucket [since, until) on which a self-audit's two readings disagree; empty if none."""

    since: int
    until: int
    what: str


@dataclass(frozen=True)
class Arrived:
    """The source's newest request and event, seconds; None if none, or not checked.

    `audited`, `examined`: results of a self-audit, and of a check of where people look; None without one.
    """

    request: float | None
    label: float | None = None
    audited: Misread | None = None
    examined: ExaminationCheck | None = None


NOTHING_YET = Arrived(None)


@dataclass(frozen=True)
class Arrivals:
    """Input of a condition on arrivals.

    Attributes:
        now: seconds of the data's clock.
        usual_events: events per request; None if unknown.
        requests_since: requests in the stored buckets after an instant.
        empty_since: starts of the buckets after an instant, before the newest request, that have no request.
    """

    monitor: Monitor
    arrived: Arrived
    now: float
    usual_events: Callable[[], float | None] = field(default=lambda: None)
    requests_since: Callable[[float], int] = field(default=lambda since: 0)
    empty_since: Callable[[float], Sequence[int]] = field(default=lambda since: ())


class Unknown(Exception):
    """Whether a condition holds is unknown now: it stays as it is."""


@dataclass(frozen=True, kw_only=True)
class ArrivalEvidence(Evidence):
    """Missing or wrong arrivals; `allowed` seconds of it are normal."""

    precedence: ClassVar[int] = 0
    """Above 0: while it fires it is shown instead of the newest verdict, lowest first."""

    allowed: int = 0

    @classmethod
    def detect(cls, seen: Arrivals, drift: Drift) -> Self | None:
        """The evidence if the condition holds. Raises Unknown if that is unknown now."""
        raise NotImplementedError

    def ended(self, seen: Arrivals) -> Self:
        """With what the end leaves behind."""
        return self

    @classmethod
    def at(cls, drift: Drift, since: int, now: int, allowed: int = 0) -> Self:
        """The evidence at `now` of a condition that has held since `since`."""
        return cls(
            rule=cls.kind,
            severity=severity_of(drift, cls.kind),
            end=now,
            window=max(now - since, 1),
            since=since,
            value=0.0,
            allowed=allowed,
        )


def arrival_kinds() -> list[type[ArrivalEvidence]]:
    """The kinds of conditions on arrivals, by name."""
    return [kind for _, kind in sorted(kinds().items()) if issubclass(kind, ArrivalEvidence)]


def shown_as_verdict() -> list[str]:
    """Names of the conditions shown instead of a verdict, by precedence."""
    return [kind.kind for kind in sorted(arrival_kinds(), key=lambda kind: kind.precedence) if kind.precedence]
