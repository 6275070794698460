"""The verdict on one step, and the alarms that are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from monitor.drift.series import DAY, Floats, slotted

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
"""Faults of the data, the gravest first: a step has the gravest of several."""
Kind = Literal["healthy", "degraded", DataKind, "not_enough_data"]
SLICE_KINDS = frozenset({"slice_labels_suspect", "slice_labels_collapsed", "slice_missing"})
"""The data of some slices broke: these are left out, the others are judged."""
GRAVITY: tuple[DataKind, ...] = get_args(DataKind)
DATA_KINDS = frozenset(GRAVITY)


@dataclass(frozen=True, slots=True)
class Part:
    """One slice's part in a change of the mean.

    Attributes:
        before, value: its mean, before and now; the shares are of the requests.
        within: what its own change adds to the change of the whole.
        mix: what its change of share adds, against a slice of average mean.
        z: its own change in standard errors, noise beyond sampling included.
    """

    slice: str
    share_before: float
    share: float
    before: float
    value: float
    within: float
    mix: float
    z: float


@dataclass(frozen=True, slots=True)
class Split:
    """A change of the overall mean, exactly: `value - before = within + mix`; the part that lowers it most is first."""

    before: float
    value: float
    within: float
    mix: float
    parts: tuple[Part, ...]

    @property
    def by_z(self) -> tuple[Part, ...]:
        """The parts with the surest fall first."""
        return tuple(sorted(self.parts, key=lambda part: part.z))


def split(
    slices: Sequence[str], shares: tuple[Floats, Floats], means: tuple[Floats, Floats], error: Floats | None = None
) -> Split:
    """Split the change from the first to the second of each pair into worse within slices and another mix of them.

    With shares p and means m before (0) and now (1), the change is sum (m1 - m0)(p0 + p1)/2 + sum (p1 - p0)(m0 + m1)/2
    (Kitagawa, 1955, Components of a difference between two rates).

    Args:
        shares, means: (S,) before and now; shares sum to one.
        error: (S,) standard error of the change of each mean; None: z is 0.
    """
    (p0, p1), (m0, m1) = shares, means
    within, mix = (m1 - m0) * (p0 + p1) / 2, (p1 - p0) * (m0 + m1) / 2
    average = float((m0 * p0).sum() + (m1 * p1).sum()) / 2
    centred = (p1 - p0) * ((m0 + m1) / 2 - average)
    z = np.zeros(len(p0)) if error is None else np.divide(m1 - m0, error, out=np.zeros(len(p0)), where=error > 0)
    columns = zip(*(a.tolist() for a in (p0, p1, m0, m1, within, centred, z)), strict=True)
    parts = [Part(name, *column) for name, column in zip(slices, columns, strict=True)]
    before, value = float((m0 * p0).sum()), float((m1 * p1).sum())
    return Split(before, value, float(within.sum()), float(mix.sum()), tuple(sorted(parts, key=lambda p: p.within)))


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
        value, before, requests: mean, expectation and requests since its fall began, until it may be over.
        back_since: start of the step from which on evidence grows that it is over.
        began, began_within: starts of the step with which the fall most probably began, and of the first and last
            with which it may have, by what was known when it opened.
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
        """When its fall began as far as is known: start of a step, seconds."""
        return self.since if self.began is None else self.began


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """An alarm that opened, closed, or was `withdrawn` for its baseline or its slice is gone.

    Of what closed: since when evidence for that grew (seconds); mean, expectation and requests from there on; and
    `below`, the relative change of that mean from the reference, where it is clearly below that.
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
    """What is left of the labels, over at most the last day of the time for which they have been suspect.

    Attributes:
        since: end of the first step that was suspect, seconds.
        coverage, coverage_before: share of requests with a label.
        events, events_before: for each request, those that match no impression too.
        unmatched, unmatched_before: share of the events that match no impression.
        span: seconds that these are of.
        worthless: there are as many as ever, but no request is worth anything.
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
    """A slice that has lost most of its labels; fields as of `LabelLoss`."""

    slice: str
    since: int
    coverage: float | None
    coverage_before: float | None


@slotted
class Verdict:
    """One step's verdict; None where there is nothing to work a figure out from.

    Attributes:
        end: of the step, seconds.
        kind: the gravest fault of the data before the model's.
        alarms: that are open, overall first. While the data are bad they neither grow nor close.
        changes: alarms that opened or closed at this step.
        pending: units with half the evidence of an alarm, as logarithms.
        observed, expected: mean of the last day's requests, and what the baseline expects under the present mix.
        observed_span: seconds since the first of these.
        requests, requests_expected: of the last `span` seconds: three hours, or a day where traffic is thin.
        coverage, coverage_expected: label coverage of the last day. Without a baseline all of these are of the step.
        mix_shifted, mix_effect: whether the mix has moved the mean, and by how much, relative.
        missing, lost: slices that have no traffic any more; those that lost most labels, which the others have.
        labels: only while they are suspect; `refused` rows and items `shown` for each request likewise.
        split: where the last day's change comes from; only when an alarm opens.
        improved, decayed: the level has been above the baseline, or clearly below it without an alarm, for a week.
        moved, labels_moved: relative change of the mean, or of the labels, in the last days against the reference.
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
    """What a chart needs of a verdict; fields as of `Verdict`, `mix_effect` None where the mix has not shifted."""

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
