"""The stored state of an evaluation: conditions, verdict checkpoints and baseline resets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monitor.conditions.thresholds import Condition, ConditionName
from monitor.drift.verdicts import Verdict

if TYPE_CHECKING:
    from monitor.drift.state import DriftState


@dataclass(frozen=True)
class StoredCondition:
    """A stored condition; `identity` is that of its rule."""

    identity: str
    condition: Condition


@dataclass(frozen=True)
class VerdictCheckpoint:
    """The state of verdicts.

    Attributes:
        identity: of what is judged and how; see `types.Monitor.drift_identity`.
        until: end of the last evaluated step, seconds.
        series: ids of the judged definitions; like the conditions not over yet, of the oldest checkpoint only.
    """

    identity: str
    until: int
    state: DriftState | None
    series: tuple[str, ...] = ()
    conditions: Mapping[ConditionName, Condition] = field(default_factory=dict)


@dataclass(frozen=True)
class VerdictUpdate:
    """The result of judging more steps.

    Attributes:
        verdicts: of the new steps, oldest first.
        restated: all former ones are undone, except on steps that ended by `kept` and were not judged again.
        kept: seconds; what was judged by then may not be judged again, because its buckets are gone.
    """

    checkpoint: VerdictCheckpoint
    verdicts: Sequence[Verdict] = ()
    restated: bool = False
    kept: int = 0


@dataclass(frozen=True)
class BaselineReset:
    """A baseline reset; instants in seconds.

    Attributes:
        judged_until: end of the last step judged when it was made; None without one.
    """

    since: int
    author: str
    note: str
    judged_until: int | None = None

    @property
    def ahead(self) -> tuple[int, int] | None:
        """(since, until) of the time before it that was not judged yet: it belongs to a former level."""
        return None if self.judged_until is None else (self.judged_until, self.since)


@dataclass(frozen=True)
class Announcement:
    """Something unusual that is announced for [since, until), seconds: neither judged nor learnt from.

    Attributes:
        is_new_level: what comes after is a new level, so a baseline begins at its end.
    """

    since: int
    until: int
    author: str
    note: str
    is_new_level: bool = False


def announced_before(announced: Sequence[Announcement], until: int) -> list[Announcement]:
    """What of some announcements affects steps that end by `until`, seconds."""
    return [
        replace(one, until=min(one.until, until), is_new_level=one.is_new_level and one.until < until)
        for one in announced
        if one.since < until
    ]
