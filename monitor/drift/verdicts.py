"""The verdict on one step, and the open alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from monitor.arrays import Floats
from monitor.drift.series import slotted
from monitor.units import DAY

DataKind = Literal[
    "positions_suspect",
    "labels_suspect",
    "labels_collapsed",
    "rows_refused",
    "traffic_low",
    "slice_labels_suspect",
    "slice_labels_collapsed",
    "slice_missing",
]
"""Data faults, most severe first; a step reports the most severe."""
Kind = Literal["healthy", "degraded", DataKind, "not_enough_data", "announced"]
SLICE_KINDS = frozenset({"slice_labels_suspect", "slice_labels_collapsed", "slice_missing"})
"""The data of some slices broke: they are left out, the others are judged."""
GRAVITY: tuple[DataKind, ...] = get_args(DataKind)
DATA_KINDS = frozenset(GRAVITY)


@dataclass(frozen=True, slots=True)
class Part:
    """One slice's part in a change of the mean.

    Attributes:
        share_before, share: of the requests.
        before, value: its mean, before and now.
        within: what its own change adds to the change of the whole.
        mix: what its change of share adds, against a slice of average mean.
        z: its own change in standard errors, including noise beyond sampling.
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
    """An exact split of the mean's change, `value - before = within + mix`; the part that lowers it most is first."""

    before: float
    value: float
    within: float
    mix: float
    parts: tuple[Part, ...]


def split(
    slices: Sequence[str], shares: tuple[Floats, Floats], means: tuple[Floats, Floats], error: Floats | None = None
) -> Split:
    """The change from the first to the second of each pair, split into worse slices and another mix of them.

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
        opened_at: end of the step at which the evidence sufficed.
        effect: relative change of the mean since its fall began, against the expectation for the present mix.
        evidence: relative to the threshold: 1 is enough.
        tolerated: largest relative drop that is not a fall.
        value, before, requests: mean, expectation and requests since the fall began, excluding a possible recovery.
        back_since, recovery: start of the step from which on evidence of recovery grows, and its log odds.
        began, began_within: start of the step at which the fall most likely began, and the earliest and latest one,
            as known when the alarm opened.
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
    recovery: float = 0.0

    @property
    def fell_at(self) -> int:
        """Start of the fall as far as known: start of a step, seconds."""
        return self.since if self.began is None else self.began


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """An alarm that opened, closed, or was `withdrawn` because its baseline or slice is gone.

    For a closed one: start of the recovery (seconds), mean, expectation and requests since; and `below`, the relative
    change of that mean from the reference if it is clearly lower.
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
    """The labels that are left, over at most the last day since they became suspect.

    Attributes:
        since: end of the first suspect step, seconds.
        coverage, coverage_before: share of requests with a label.
        events, events_before: per request, including those that match no impression.
        unmatched, unmatched_before: share of the events that match no impression.
        span: seconds covered.
        worthless: as many labels as usual, but every request has a value of 0.
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
    """One step's verdict; figures are None if there is nothing to compute them from.

    Before there is a baseline, only `end`, `kind`, `requests`, `coverage`, `span`, `reference_days` and `lacks` are
    set. Announced steps also have what outlasts them: alarms, mix, `improved`, `decayed`, `moved` and `labels_moved`.
    With a baseline each field is set at every step, whatever the kind, unless it says otherwise.

    Attributes:
        end: of the step, seconds.
        kind: the most severe data fault, otherwise the model's state.
        alarms: open ones, overall first; frozen while the data are bad.
        changes: alarms that opened or closed; only at the step at which they did.
        pending: units with half the evidence of an alarm, on a log scale.
        observed, expected: mean of the last day's requests, and the baseline's expectation for the present mix; the
            expectation is None while a new level is learnt.
        observed_span: seconds since the first of these.
        requests, requests_expected: in the last `span` seconds: three hours, or a day for thin traffic.
        coverage, coverage_expected: label coverage of the last day. Without a baseline all of these cover the step.
        mix_shifted, mix_effect: whether the mix has moved the mean, and its relative effect.
        missing, lost: slices without traffic; slices that lost most labels while the others have theirs.
        labels: what is left of them; only if `kind` is `labels_suspect` or `labels_collapsed`.
        split: where the last day's change comes from; only at a step at which an alarm opens.
        fewer_labels: fewer of the last day's requests than usual are in the measure, for they have no label; only where
            requests without a label are in no measure, and never while a new level is learnt.
        improved, decayed: a week above the baseline, or clearly below it without an alarm.
        moved, labels_moved: relative change of the mean, or of the labels, in the last days against the reference; None
            while a new level is learnt, `labels_moved` also where requests without a label are in no measure.
        reference_days: days behind the baseline, or gathered so far.
        unjudged: share of the last day's requests in slices without a baseline; 0 while a new level is learnt.
        lacks: what a verdict, or a full reference, still needs; empty if nothing.
        refused, refused_before: refused rows, and the usual number; only if `kind` is `rows_refused`.
        shown, shown_before, rank_one, rank_one_before: items per request and those at rank 1, and the usual numbers;
            only if `kind` is `positions_suspect`.
        fault_end: end of the last bad step behind these, seconds; 0 for other kinds.
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
    rank_one: float | None = None
    rank_one_before: float | None = None
    fault_end: int = 0
    fewer_labels: bool = False

    @property
    def is_degraded(self) -> bool:
        """Whether an alarm is open: the model got worse."""
        return bool(self.alarms)

    @property
    def is_data(self) -> bool:
        """Whether the data broke."""
        return self.kind in DATA_KINDS


class VerdictPoint(NamedTuple):
    """A verdict for charts; fields as of `Verdict`, `mix_effect` None unless the mix has shifted."""

    end: int
    kind: str
    observed: float | None
    expected: float | None
    mix_effect: float | None


def first_whole(ends: Sequence[int], observed: Sequence[float | None], width: int) -> int:
    """Index of the first verdict whose mean covers a whole day, if judging began among them.

    Otherwise that of the first with a mean, or their number if none has one.

    >>> first_whole([0, 3600, 86400], [None, 0.5, 0.6], 3600), first_whole([0, 3600], [0.5, 0.6], 3600)
    (2, 0)
    """
    first = next((i for i, value in enumerate(observed) if value is not None), len(ends))
    if first in (0, len(ends)):
        return first
    return next((i for i in range(first, len(ends)) if ends[i] >= ends[first] + DAY - width), first)
