"""What evaluation has come to, as it is stored: conditions, where verdicts stand, and resets of the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitor.conditions.thresholds import Condition, ConditionName
from monitor.drift.state import DriftState
from monitor.drift.verdicts import Verdict


@dataclass(frozen=True)
class StoredCondition:
    """A stored condition; `identity` is that of the rule that came to it."""

    identity: str
    condition: Condition


@dataclass(frozen=True)
class VerdictCheckpoint:
    """What verdicts have come to.

    Attributes:
        identity: of what is judged and how; see `types.Monitor.drift_identity`.
        until: end of the last step that was looked at, seconds.
        series: ids of the definitions that were judged, and the conditions that had come about and were not over; of
            the oldest checkpoint only.
    """

    identity: str
    until: int
    state: DriftState | None
    series: tuple[str, ...] = ()
    conditions: Mapping[ConditionName, Condition] = field(default_factory=dict)


@dataclass(frozen=True)
class VerdictUpdate:
    """What judging more steps came to.

    Attributes:
        verdicts: of the new steps, oldest first.
        restated: all former ones are undone, except on steps that ended by `kept` and were not judged again.
        kept: seconds; what was judged by then may not be judged again, for its buckets are gone.
    """

    checkpoint: VerdictCheckpoint
    verdicts: Sequence[Verdict] = ()
    restated: bool = False
    kept: int = 0


@dataclass(frozen=True)
class BaselineReset:
    """Where somebody reset the baseline; instants in seconds.

    Attributes:
        judged_until: end of the last step that had been judged when it was said; None if there was none.
    """

    since: int
    author: str
    note: str
    judged_until: int | None = None

    @property
    def ahead(self) -> tuple[int, int] | None:
        """(since, until) of the time before it that was not judged yet: it belongs to a former level."""
        return None if self.judged_until is None else (self.judged_until, self.since)
