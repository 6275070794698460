"""What there is to say of one step: the verdict, and the alarms that are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from monitor.drift.diagnosis import Split
from monitor.drift.frozen import slotted
from monitor.drift.series import DAY

DataKind = Literal[
    "positions_missing",
    "labels_suspect",
    "labels_collapsed",
    "rows_refused",
    "traffic_low",
    "slice_labels_suspect",
    "slice_labels_collapsed",
    "slice_missing",
]
"""It is the data that broke, the gravest first: of several a step has the gravest, which hides the others."""
Kind = Literal["healthy", "degraded", DataKind, "not_enough_data"]
SLICE_KINDS = frozenset({"slice_labels_suspect", "slice_labels_collapsed", "slice_missing"})
"""The data of some slices broke: these are left out, the others are judged."""
GRAVITY: tuple[DataKind, ...] = get_args(DataKind)
DATA_KINDS = frozenset(GRAVITY)
"""It is the data that broke: no reason to retrain."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """An open alarm of one unit. Instants in seconds.

    Attributes:
        unit: the slice's name; empty for overall.
        since: start of the step from which on the evidence grew.
        opened_at: end of the step at which there was enough of it.
        effect: relative change of the mean since its fall began, against the expectation under the present mix.
        evidence: against the threshold: 1 is enough.
        tolerated: relative drop that is none.
        value, before: mean and expectation of the judged hours since its fall began, but not of those since it may be
            over.
        requests: in these.
        back_since: start of the step from which on evidence grows that it is over; None where there is none.
        began: start of the step with which the fall most probably began, by what was known when it opened.
        began_within: starts of the first and of the last step with which it may have begun.
    """

    unit: str
    since: int
    opened_at: int
    effect: float
    evidence: float
    tolerated: float
    value: float | None = None
    before: float | None = None
    requests: int = 0
    back_since: int | None = None
    began: int | None = None
    began_within: tuple[int, int] | None = None

    @property
    def fell_at(self) -> int:
        """When its fall began as far as that can be told: start of a step, seconds."""
        return self.since if self.began is None else self.began


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """An alarm that opened or closed at this step; `withdrawn` as its baseline or its slice is there no more.

    Attributes:
        since: of what closed, start of the step from which on the evidence for that grew, seconds.
        value, before, requests: mean, expectation and requests of the judged hours from there on.
        tolerated: relative drop that is none.
        below: relative change of that mean from what the reference had, where it is clearly below that.
    """

    unit: str
    became: Literal["firing", "resolved", "withdrawn"]
    since: int | None = None
    value: float | None = None
    before: float | None = None
    requests: int = 0
    tolerated: float = 0.0
    below: float | None = None


@dataclass(frozen=True, slots=True)
class LabelLoss:
    """What became of the labels, over at most the last day of the time for which they have been suspect.

    Attributes:
        since: end of the first step that was suspect, seconds.
        coverage, coverage_before: share of requests with a label.
        events, events_before: for each request, those that match no impression too.
        unmatched, unmatched_before: share of the events that match no impression.
        span: seconds that these are of.
        worthless: there are as many as ever, but not one request is worth anything.
    """

    since: int
    coverage: float | None
    coverage_before: float | None
    events: float | None
    events_before: float | None
    unmatched: float | None
    unmatched_before: float | None
    span: int = 0
    worthless: bool = False


@dataclass(frozen=True, slots=True)
class SliceLabelLoss:
    """A slice that has lost most of its labels.

    Attributes:
        since: end of the first step without them, seconds.
        coverage, coverage_before: share of its requests with a label, over at most the last day of that.
    """

    slice: str
    since: int
    coverage: float | None
    coverage_before: float | None


@slotted
class Verdict:
    """One step's verdict. `None` where there is nothing to work a figure out from.

    Attributes:
        end: of the step, seconds.
        kind: what is the matter, the gravest of the data's troubles before the model's.
        alarms: that are open, overall first. While the data are bad they neither
            grow nor close; that of a slice that is there no more is withdrawn.
        changes: alarms that opened or closed at this step.
        pending: units on their way to an alarm: half the threshold, as logarithms.
        observed, expected: mean of the last day's requests, and what the baseline expects under the present mix.
        observed_span: seconds since the first of these; less than a day where judging has begun, or there was a gap.
        requests, requests_expected: of the last three hours, or the last day where traffic is thin.
        span: seconds that these are of.
        coverage, coverage_expected: label coverage of the last day. Without a baseline all of these are of the step.
        mix_shifted: the mix has moved the mean; information, no reason to page.
        mix_effect: by how much, relative.
        missing: slices that had traffic and have none.
        lost: slices that have lost most of their labels while the others have theirs.
        labels: only while they are suspect.
        refused, refused_before: rows that were refused in `span`, and as many as usual for so many requests; only
            while it is these that are the matter.
        shown, shown_before: items a request in `span`, and as many as usual; only while positions are missing.
        split: where the last day's change comes from; only when an alarm opens.
        improved: the level has been above the baseline for a week, a new one is on offer.
        decayed: the level has been clearly below the reference for a week, and fell too slowly for an alarm.
        moved: relative change of the mean in the last days against the reference; None while no level is known, or an
            alarm on all traffic is open.
        labels_moved: the same of the share of requests with a label.
        reference_days: that the baseline rests on, or that there are so far.
        unjudged: share of the last day's requests that are of slices without a baseline.
        lacks: what is missing to a verdict, or to a full reference; empty if nothing.
    """

    end: int
    kind: Kind
    alarms: tuple[Alarm, ...] = ()
    changes: tuple[AlarmChange, ...] = ()
    pending: tuple[str, ...] = ()
    observed: float | None = None
    expected: float | None = None
    requests: float = 0.0
    requests_expected: float | None = None
    coverage: float | None = None
    coverage_expected: float | None = None
    mix_shifted: bool = False
    mix_effect: float = 0.0
    missing: tuple[str, ...] = ()
    labels: LabelLoss | None = None
    split: Split | None = None
    improved: bool = False
    reference_days: float = 0.0
    lacks: str = ""
    span: int = 0
    lost: tuple[SliceLabelLoss, ...] = ()
    observed_span: int = 0
    decayed: bool = False
    moved: float | None = None
    labels_moved: float | None = None
    unjudged: float = 0.0
    refused: float | None = None
    refused_before: float | None = None
    shown: float | None = None
    shown_before: float | None = None

    @property
    def is_degraded(self) -> bool:
        """Whether an alarm is open: the model got worse."""
        return bool(self.alarms)

    @property
    def is_data(self) -> bool:
        """Whether it is the data that broke."""
        return self.kind in DATA_KINDS


class VerdictPoint(NamedTuple):
    """What there is to draw of a verdict; fields as of `Verdict`.

    Attributes:
        mix_effect: None where the mix has not shifted.
    """

    end: int
    kind: str
    observed: float | None
    expected: float | None
    mix_effect: float | None


def first_whole(ends: Sequence[int], observed: Sequence[float | None], width: int) -> int:
    """Index of the first of some verdicts whose mean is of a whole day, where judging began among them.

    Else that of the first with a mean, and their number where none has one.

    >>> first_whole([0, 3600, 86400], [None, 0.5, 0.6], 3600), first_whole([0, 3600], [0.5, 0.6], 3600)
    (2, 0)
    """
    first = next((i for i, value in enumerate(observed) if value is not None), len(ends))
    if first in (0, len(ends)):
        return first
    return next((i for i in range(first, len(ends)) if ends[i] >= ends[first] + DAY - width), first)
