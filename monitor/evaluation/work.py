"""What there is to judge, and what judging it comes to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from monitor.conditions.arrivals import Arrived
from monitor.conditions.findings import Finding, Unjudged
from monitor.conditions.incident import Placed
from monitor.conditions.thresholds import Change, ConditionName
from monitor.errors import Stopped
from monitor.evaluation.views import Views
from monitor.store.alerts import AlertState, Kept, StoredIncident
from monitor.store.verdicts import VerdictUpdate
from monitor.types import Monitor

GONE = "its rule, its slice, or the series that the rule judges is there no more"
CHANGED = "its rule, or what that judges, was changed, and as it is now it does not fire"
GOES_ON = "its rule, or what that judges, was changed, and as it is now it fires too"
RESTATED = "the data that it rested on were read again and say otherwise"
REMOVED = "the monitor is configured no more"


@dataclass(frozen=True)
class Work:
    """What there is to judge: up to `end`, seconds, from where `state` left off.

    Attributes:
        now: seconds of the data's clock.
        arrived: the newest that the source shows; None if it was not looked at.
        is_past: a moment of the past is looked at, of which nothing is known that was said later.
        is_over: whether the process is to end.
    """

    monitor: Monitor
    state: AlertState
    end: int
    views: Views
    now: float = 0.0
    arrived: Arrived | None = None
    is_past: bool = False
    is_over: Callable[[], bool] = bool

    def go_on(self) -> None:
        """Raises Stopped if the process is to end."""
        if self.is_over():
            raise Stopped(f"monitor {self.monitor.name}: judging was stopped")

    def as_open(self, id_: str) -> StoredIncident | None:
        """What was stored of an incident that was open; None if it was not."""
        return next((s for s in self.state.open.values() if s.incident.id == id_), None)


@dataclass
class Followed:
    """What following the rules and the verdicts came to.

    Attributes:
        unjudged: of rules that fire, why they say nothing of the last window; None where they do.
        reasons: of changes that no window made.
        drift: verdicts to be stored; None if there is nothing new.
    """

    conditions: dict[ConditionName, Kept] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    findings: dict[Change, Finding] = field(default_factory=dict)
    newest: dict[ConditionName, Finding] = field(default_factory=dict)
    unjudged: dict[ConditionName, Unjudged | None] = field(default_factory=dict)
    reasons: dict[Change, str] = field(default_factory=dict)
    drift: VerdictUpdate | None = None


@dataclass(frozen=True)
class Result:
    """What judging came to, before anybody is told.

    Attributes:
        incidents: those that were open, as they are now, and new ones.
        placed: every change of a condition, with its incident.
        removed: ids of incidents that were undone and of which nobody knows.
        undone: ids of open incidents that others know of, but that better data have undone.
        since: end of the time that cannot be judged again, seconds; what was recorded of it stays.
    """

    followed: Followed
    incidents: Sequence[StoredIncident]
    placed: Sequence[Placed] = ()
    removed: Sequence[str] = ()
    undone: Collection[str] = ()
    anew: bool = False
    since: int = 0
