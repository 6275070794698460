"""One fold over final hours, from one checkpoint to the next, with its events. It uses no store and no clock.

`begin` decides where evaluation starts, for each set of conditions with one definition:

- unchanged past and definition (a run, a restart): at the checkpoint;
- changed definition (a changed rule, a baseline reset): at the oldest checkpoint; the time until now was lived through
  under the former definition, so only what still fires becomes an event, as of now;
- changed past (a restatement) or mere inspection (a replay): all of it at the oldest checkpoint.

Rolling up buckets moves the oldest checkpoint by the same fold. Any split of the hours into runs gives the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from monitor.conditions.checkpoint import BaselineReset, StoredCondition, VerdictCheckpoint, VerdictUpdate
from monitor.conditions.evidence import Evidence
from monitor.conditions.examined import Examined
from monitor.conditions.kinds.rows_refused import Refused
from monitor.conditions.kinds.threshold import Unjudged
from monitor.conditions.rules import Rule
from monitor.conditions.thresholds import Change, Condition, ConditionName, View
from monitor.drift.series import Hours
from monitor.drift.verdicts import Verdict, VerdictPoint
from monitor.series.windows import History
from monitor.types import Definition

GONE = "its rule, its slice, or the series the rule judges is gone"
CHANGED = "its rule, or the series it judges, was changed and no longer fires"
GOES_ON = "its rule, or the series it judges, was changed and still fires"


@dataclass(frozen=True)
class Checkpoint:
    """The state of an evaluation.

    Attributes:
        until: end of the last evaluated window, seconds; None before the first.
        verdicts: the verdict checkpoint, which may lag `until` by part of a step, and the newest verdicts.
    """

    until: int | None = None
    conditions: Mapping[ConditionName, StoredCondition] = field(default_factory=dict)
    verdicts: VerdictUpdate | None = None

    def firing(self) -> dict[ConditionName, StoredCondition]:
        return {name: kept for name, kept in self.conditions.items() if kept.condition.state == "firing"}

    def of(self, identity: str) -> dict[ConditionName, Condition]:
        """The conditions of an identity."""
        return {name: kept.condition for name, kept in self.conditions.items() if kept.identity == identity}


@dataclass
class EventBatch:
    """The events between two checkpoints.

    Attributes:
        evidence: of events; `newest` is of what fires at the end.
        unjudged: of firing rules, why the last window could not be judged; None where it could.
        reasons: of events that no window made.
        verdicts: as known at the end; None without new ones.
        lived: verdicts as they were at their time, oldest first.
    """

    changes: list[Change] = field(default_factory=list)
    evidence: dict[Change, Evidence] = field(default_factory=dict)
    newest: dict[ConditionName, Evidence] = field(default_factory=dict)
    unjudged: dict[ConditionName, Unjudged | None] = field(default_factory=dict)
    reasons: dict[Change, str] = field(default_factory=dict)
    verdicts: VerdictUpdate | None = None
    lived: list[Verdict] = field(default_factory=list)

    def add(self, more: EventBatch) -> None:
        self.changes += more.changes
        self.evidence |= more.evidence
        self.newest |= more.newest
        self.unjudged |= more.unjudged
        self.reasons |= more.reasons
        self.verdicts = more.verdicts or self.verdicts
        self.lived += more.lived


class FinalHours(Protocol):
    """The stored hours to evaluate, and what was found in them before."""

    @property
    def first(self) -> int | None:
        """Start of the oldest bucket from which on none was rolled up, seconds."""

    @property
    def rolled_up(self) -> tuple[VerdictCheckpoint | None, int]:
        """(oldest checkpoint of the verdicts, end of what was rolled up in seconds or 0)."""

    @property
    def examined(self) -> Sequence[Examined]:
        """What the checks of where people look found, oldest first."""

    def windows(self, since: int, until: int) -> Iterator[range]:
        """Ends of the windows in (since, until], in batches."""

    def view(self, rule: Rule, since: int, until: int) -> View:
        """The data to judge and describe the windows that end in (since, until]."""

    def history(self, definition: Definition, since: int, until: int) -> History: ...

    def steps(self, since: int, until: int) -> Iterator[Hours]:
        """The steps in [since, until) for verdicts, in batches."""

    def rollouts(self, since: int, until: int) -> tuple[tuple[int, float], ...]:
        """(end of a step, share of the requests that model versions gained) from a day before `since` on."""

    def refused(self, since: int, until: int) -> Refused:
        """The refused rows of the buckets that start in [since, until), without harmless reasons."""

    def drawn(self, since: int, until: int) -> Sequence[VerdictPoint]:
        """The stored verdicts on steps that ended in (since, until]."""

    def newest(self, kind: str | None = None) -> Verdict | None:
        """The newest stored verdict, of a kind if given."""

    def requests_since(self, label: int) -> int:
        """Requests in the buckets, final or not, that begin after the one of a label, seconds."""

    def empty_since(self, request: int) -> list[int]:
        """Starts of the buckets without requests after the one of a request, seconds, if the source has newer ones."""


@dataclass(frozen=True)
class Beginning:
    """Where evaluation begins.

    Attributes:
        since: end of the last window that is not evaluated, seconds.
        conditions, verdicts: as of then; `verdicts` also has the newest ones found.
        lived_until: end of the time lived through under another definition, seconds; None without one.
        succeeds: whether something fired by that definition, which continues or ends at once.
    """

    since: int
    conditions: Mapping[ConditionName, Condition] = field(default_factory=dict)
    verdicts: VerdictUpdate | None = None
    lived_until: int | None = None
    succeeds: bool = False

    def events(self, changes: Sequence[Change], following: int) -> dict[Change, Change]:
        """Change -> its event; for the time under another definition, only of what still fires.

        Args:
            following: end of the first window after `lived_until`, seconds.
        """
        if self.lived_until is None:
            return {change: change for change in changes}
        last = {change.name: change for change in changes if change.at <= self.lived_until}
        at = self.lived_until if self.succeeds else following
        fires = {change: replace(change, at=at) for change in last.values() if change.became == "firing"}
        return fires | {change: change for change in changes if change.at > self.lived_until}


class ConditionSet(Protocol):
    """Conditions judged by one definition: those of a rule, or all that verdicts make."""

    @property
    def identity(self) -> str:
        """Identity of everything that affects the result."""

    def has(self, name: ConditionName) -> bool:
        """Whether a condition belongs to this set, under whatever definition."""

    def judges(self, name: ConditionName) -> bool:
        """Whether a condition's slice is judged."""
        return True

    def newest(self, checkpoint: Checkpoint) -> Beginning | None:
        """The newest checkpoint, if it has these conditions under the current definition."""
        own = {name: c for name, c in checkpoint.of(self.identity).items() if self.has(name)}
        return Beginning(checkpoint.until, own) if own and checkpoint.until is not None else None

    def oldest(self, past: FinalHours, until: int) -> Beginning:
        """The oldest checkpoint, up to `until`."""
        return Beginning(until if past.first is None else min(past.first, until))

    def why_changed(self, identity: str) -> str:
        """Why a condition of another identity was withdrawn."""
        return CHANGED

    def advance(
        self, past: FinalHours, begin: Beginning, until: int
    ) -> tuple[Mapping[ConditionName, Condition], EventBatch]:
        """The conditions at `until`, seconds, and the events until then."""


def fold_hours(
    checkpoint: Checkpoint,
    past: FinalHours,
    conditions: Callable[[Sequence[BaselineReset]], Sequence[ConditionSet]],
    resets: Sequence[tuple[int, BaselineReset]],
    until: int,
) -> tuple[Checkpoint, EventBatch]:
    """The checkpoint at `until`, seconds, and the events since the given one.

    Args:
        conditions: baseline resets -> the sets to judge.
        resets: (end of the last window evaluated without it, reset).
    """
    events, moments = EventBatch(), {at for at, _ in resets if (checkpoint.until or 0) < at < until}
    for end in (*sorted(moments), until):
        resets_known = [reset for at, reset in resets if at <= (checkpoint.until or 0)]
        checkpoint = _advance(checkpoint, past, conditions(resets_known), end, events)
    return checkpoint, events


def _advance(
    checkpoint: Checkpoint, past: FinalHours, sets: Sequence[ConditionSet], until: int, events: EventBatch
) -> Checkpoint:
    gone, after = _gone(checkpoint, sets, until), dict[ConditionName, StoredCondition]()
    evidence = {change: events.newest[change.name] for change in gone if change.name in events.newest}
    new_events = EventBatch(list(gone), evidence, reasons=gone)
    for one in sets:
        start = begin(replace(checkpoint, verdicts=new_events.verdicts or checkpoint.verdicts), past, one, until)
        if start is not None:
            conditions, more = one.advance(past, start, until)
            after |= {name: StoredCondition(one.identity, condition) for name, condition in conditions.items()}
            new_events.add(more)
    _join_what_goes_on(new_events)
    events.add(new_events)
    return Checkpoint(until, after, new_events.verdicts or checkpoint.verdicts)


def begin(checkpoint: Checkpoint, past: FinalHours, one: ConditionSet, until: int) -> Beginning | None:
    """Where a set is evaluated from; None if it joins with the next window."""
    if (newest := one.newest(checkpoint)) is not None:
        return newest
    if checkpoint.until is None:
        return one.oldest(past, until)
    succeeds = any(one.has(name) for name in checkpoint.firing())
    if until == checkpoint.until and not succeeds:
        return None
    # What fired at the oldest checkpoint and still does is an event too, so start with nothing firing.
    oldest = replace(one.oldest(past, checkpoint.until), conditions={})
    return replace(oldest, lived_until=checkpoint.until, succeeds=succeeds)


def _gone(checkpoint: Checkpoint, sets: Sequence[ConditionSet], until: int) -> dict[Change, str]:
    """Firing conditions that are no longer judged -> (their closing event, why)."""
    gone, at = dict[Change, str](), until if checkpoint.until is None else checkpoint.until
    for name, kept in checkpoint.firing().items():
        owner = next((one for one in sets if one.has(name)), None)
        if owner is not None and kept.identity == owner.identity and owner.judges(name):
            continue
        change = Change(name, "info", False, "firing", "withdrawn", kept.condition.since or at, at)
        is_changed = owner is not None and kept.identity not in ("", owner.identity)
        gone[change] = owner.why_changed(kept.identity) if owner is not None and is_changed else GONE
    return gone


def _join_what_goes_on(events: EventBatch) -> None:
    """Merges an end and an immediate new beginning after a change of definition into one event."""
    begun = {(c.name, c.at): c for c in events.changes if c.became == "firing"}
    for ended in [change for change, why in events.reasons.items() if why == CHANGED]:
        if (again := begun.get((ended.name, ended.at))) is not None:
            joined = replace(again, was="firing")
            events.changes = [c for c in events.changes if c not in (ended, again)] + [joined]
            del events.reasons[ended]
            events.reasons[joined] = GOES_ON
            if again in events.evidence:
                events.evidence[joined] = events.evidence.pop(again)
