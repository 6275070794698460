"""The state carried from step to step, and its JSON form."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.codec import decoded, encoded
from monitor.drift import VERSION
from monitor.drift import data_checks as checks
from monitor.drift.alarms import AlarmStates
from monitor.drift.baseline import DriftBaseline, Reference
from monitor.drift.levels import DailyCycle, ForecastErrors, Levels
from monitor.drift.series import frozen, widened
from monitor.drift.settings import DriftSettings
from monitor.units import DAY


@frozen
class RecentSteps:
    """The last day's steps: (9, R, S) sums as in `data_checks`, (5, R) events, unmatched, refused, items shown,
    items at rank 1.

    `sound` is (R, S), 0 where a slice was left out because its labels were lost.
    """

    sums: Floats
    crowd: Floats
    sound: Floats

    @classmethod
    def of(cls, sums: Floats, crowd: Floats, sound: Floats, whole: Floats) -> RecentSteps:
        """The steps with `whole` already computed."""
        found = cls(sums, crowd, sound)
        vars(found)["whole"] = whole
        return found

    @cached_property
    def whole(self) -> Floats:
        """(9, R) sums over all slices."""
        return np.add.reduce(self.sums, axis=2)

    @classmethod
    def empty(cls, steps: int, slices: int) -> RecentSteps:
        """A day of unknown steps."""
        return cls(np.zeros((checks.FIELDS, steps, slices)), np.zeros((5, steps)), np.ones((steps, slices)))


@frozen
class DataFaults:
    """The data faults and how long they have lasted. Instants in seconds; 0: none.

    Attributes:
        suspect_since, suspect_until: ends of the first step with suspect labels and of the last one they make unusable.
        collapsed: labels have been missing for a day.
        refused_until, short_until: the same for refused rows, and for lists shorter than usual.
        low: steps in a row with little traffic.
        silence: (S,) requests a slice should have had since it last had some.
        missing: (S,) steps for which it has been silent for too long.
        lost_since, lost_until: (S,) like `suspect_since` and `suspect_until`, for slices that lost their labels.
        most_lost: whether slices with most of the requests have, so that it concerns all traffic.
        worthless: labels are suspect because every value is 0 despite labels.
        held: labels are suspect because they explained what would have opened an alarm.
        by_version: fewer labels may come from a new model version; until the alarm on all traffic that followed closes.
    """

    suspect_since: int
    suspect_until: int
    collapsed: bool
    refused_until: int
    short_until: int
    low: int
    silence: Floats
    missing: Ints
    lost_since: Ints
    lost_until: Ints
    most_lost: bool
    worthless: bool
    held: bool
    by_version: bool

    @classmethod
    def empty(cls, slices: int) -> DataFaults:
        never = np.zeros(slices, np.int64)
        return cls(0, 0, False, 0, 0, 0, np.zeros(slices), never, never, never, False, False, False, False)


@frozen
class MixEffect:
    """The smoothed effect of the mix on the mean, as a fraction, and whether it has shifted."""

    over: float = 0.0
    under: float = 0.0
    is_shifted: bool = False

    @property
    def effect(self) -> float:
        """Relative change of the mean by the mix."""
        return self.over / self.under if self.under > 0 else 0.0


@frozen
class DriftState:
    """Everything that judging remembers. Instants in seconds.

    Attributes:
        until, busy_at: end of the last judged step, and of the last with any request.
        pinned_at: the last pin or reset; 0 if none.
        began: start of the reference's first step.
        first_seen: (S,) start of each slice's first step with a request, or of the day after its labels began.
        waited_for: (S,) whether a slice without a baseline had no labels yet when the day began.
        reference: kept until a baseline rests on a whole one; `fits`: how often one was fitted on it.
        improved, decayed: days in a row above the baseline, and clearly below it without an alarm.
        moved, labels_moved: as of `Verdict`.
        settled: whether the level is known; not in the first days of a new one.
        cycle: how the daily cycle has moved since the baseline was fitted, which already includes it.
    """

    step: int
    until: int
    pinned_at: int
    began: int
    busy_at: int
    slices: tuple[str, ...]
    first_seen: Ints
    waited_for: Bools
    reference: Reference | None
    baseline: DriftBaseline | None
    fits: int
    levels: Levels
    misses: ForecastErrors
    recent: RecentSteps
    standing: AlarmStates
    trouble: DataFaults
    mix: MixEffect
    improved: int
    decayed: int
    moved: float | None
    labels_moved: float | None
    settled: bool
    cycle: DailyCycle

    @classmethod
    def begin(
        cls, settings: DriftSettings, start: int, slices: tuple[str, ...] = (), first_seen: Ints | None = None
    ) -> DriftState:
        """The state with a new reference that begins at `start`."""
        count = len(slices)
        return cls(
            settings.step,
            start,
            settings.pin(start),
            start,
            start,
            slices,
            np.full(count, start, np.int64) if first_seen is None else first_seen,
            np.zeros(count, bool),
            Reference.empty(count),
            None,
            0,
            Levels.empty(start // DAY, count),
            ForecastErrors.empty(count + 1),
            RecentSteps.empty(settings.steps(24), count),
            AlarmStates.empty(count + 1, start),
            DataFaults.empty(count),
            MixEffect(),
            0,
            0,
            None,
            None,
            True,
            DailyCycle.empty(settings.step),
        )

    def going_on(self, **changes: Any) -> DriftState:
        """The state with these changes: ten times as fast as `replace` for so many fields."""
        found = object.__new__(DriftState)
        vars(found).update(vars(self), **changes)
        return found

    def padded(self, slices: tuple[str, ...], start: int) -> DriftState:
        """The state with new slices, whose first request is in the step that begins at `start`."""
        more, count = len(slices) - len(self.slices), len(slices)
        return replace(
            self,
            slices=slices,
            first_seen=np.concatenate([self.first_seen, np.full(more, start, np.int64)]),
            waited_for=np.pad(self.waited_for, (0, more)),
            reference=None if self.reference is None else self.reference.padded(count),
            baseline=None if self.baseline is None else self.baseline.padded(count),
            levels=self.levels.padded(count),
            misses=widened(self.misses, ForecastErrors.empty(count + 1)),
            recent=widened(self.recent, RecentSteps.empty(self.recent.sums.shape[1], count)),
            standing=widened(self.standing, AlarmStates.empty(count + 1, start)),
            trouble=widened(self.trouble, DataFaults.empty(count)),
        )

    def to_json(self) -> dict[str, Any]:
        """The state as JSON data, without loss."""
        return {"version": VERSION, "state": encoded(self)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> DriftState:
        """The state from `to_json`; raises ValueError if another version wrote it."""
        if plain.get("version") != VERSION:
            raise ValueError(f"drift state of version {plain.get('version')!r}, not {VERSION}")
        found: DriftState = decoded(cls, plain["state"])
        return found
