"""The baseline: what each slice's mean, label coverage and traffic are expected to be, hour of the week by hour."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.drift import mix, noise, seasons
from monitor.drift.noise import Noise
from monitor.drift.seasons import LEAST_VARIANCE, SeasonalMeans
from monitor.drift.series import DAY, WEEK, Bools, Floats, Hours, Ints, some
from monitor.drift.settings import DriftSettings

LEAST_REQUESTS, LEAST_OF_SLICE = 200, 30
"""In the reference, for a unit to be judged by itself; for a slice to have its part in overall."""
LEAST_COVERAGE_NOISE, LEAST_VOLUME_NOISE = 0.02, 0.12
NO_LABELS_Z, NO_LABELS_LEAST = 5, 3
"""Standard errors, and labels, that a step of the reference must lack to have lost them."""
LEAST_SPREAD, NEXT_TO_NONE = 0.05, 0.1
"""Relative spread of the labels of a step that is always taken; share of a day's below which they are lost."""
LEAST_BEFORE = 30
"""What requests would have been worth, by those that came later or by others, for it to be no chance that not one of
them was worth anything: labels of them had not begun."""
OUTLYING_Z, LEAST_OUTLYING, MOST_OUTLYING, LEAST_DAYS = 5.0, 0.03, 0.4, 7
"""A day of a reference that is as many robust standard deviations from its middle one, and by as much, is no usual one;
unless more than such a share are, or there are too few to tell."""
MAD = 1.4826
"""Standard deviations that the median absolute deviation is of, where they are normal."""
MOST_CHANCE = 0.2
"""Relative sampling error of a day beyond which none is said to stand out: of a hit now and then no day is usual."""
BY_SLICE = ("requests", "total", "labelled", "unlabelled")
"""What a reference keeps of each step and slice."""
ROUNDS = 3
"""Of looking for such days, for each that is left out shows others."""


@dataclass(frozen=True)
class Reference:
    """The T steps that a baseline is to be fitted on, kept until it rests on a whole reference.

    Attributes:
        starts: (T,) seconds.
        good: (T,) 1 where data and model were well, as far as was known.
        requests, total, labelled, unlabelled: (T, S) as of `Hours`.
        squares: (S,) sum over all steps.
        crowd: (T, 4) events, unmatched, refused, items shown.
    """

    starts: Ints
    good: Floats
    requests: NDArray[Any]
    total: NDArray[Any]
    labelled: NDArray[Any]
    unlabelled: NDArray[Any]
    squares: Floats
    crowd: Floats

    @classmethod
    def empty(cls, slices: int) -> Reference:
        """Without steps."""
        nothing = np.zeros((0, slices), np.float32)
        starts = np.zeros(0, np.int64)
        return cls(starts, np.zeros(0), nothing, nothing, nothing, nothing, np.zeros(slices), np.zeros((0, 4)))

    def padded(self, slices: int) -> Reference:
        """With columns of zeros for slices that were not seen before."""
        more = slices - len(self.squares)
        wide = {name: np.pad(getattr(self, name), ((0, 0), (0, more))) for name in BY_SLICE}
        return replace(self, **wide, squares=np.pad(self.squares, (0, more)))

    def with_more(self, hours: Hours, good: Floats) -> Reference:
        """With further steps. Sums are kept in single precision: there are many of them."""

        def longer(before: NDArray[Any], more: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([before, more.astype(before.dtype)])

        crowd = np.stack(hours.crowd, axis=1)
        return Reference(
            longer(self.starts, hours.starts),
            longer(self.good, good),
            longer(self.requests, hours.requests),
            longer(self.total, hours.total),
            longer(self.labelled, hours.labelled),
            longer(self.unlabelled, hours.unlabelled),
            np.cumsum(np.concatenate([self.squares[None], hours.squares]), axis=0)[-1],
            longer(self.crowd, crowd),
        )

    def without(self, since: int) -> Reference:
        """With the steps from `since` on marked as bad."""
        return replace(self, good=np.where(self.starts >= since, 0.0, self.good))

    def latest(self, since: int) -> Reference:
        """The steps from `since` on; the sums of squares shrink in proportion."""
        at = self.starts >= since
        share = self.requests[at].sum(axis=0) / np.maximum(self.requests.sum(axis=0), 1)
        return Reference(
            self.starts[at],
            self.good[at],
            self.requests[at],
            self.total[at],
            self.labelled[at],
            self.unlabelled[at],
            self.squares * share,
            self.crowd[at],
        )

    def from_first_worth(self) -> Reference:
        """Without the steps before labels began; all of them if they have not."""
        size, total = (a.sum(axis=1, keepdims=True) for a in (self.requests, self.total))
        first = int(np.count_nonzero(~_begun(size, total)))
        if not first:
            return self
        names = ("starts", "good", *BY_SLICE, "crowd")
        return replace(self, **{name: getattr(self, name)[first:] for name in names})

    def precise(self) -> Reference:
        """In double precision, to be added up."""
        return replace(self, **{name: getattr(self, name).astype(np.float64) for name in BY_SLICE})

    @property
    def served(self) -> NDArray[Any]:
        """(T, S) requests that came, in the measure or not."""
        found: NDArray[Any] = self.requests + self.unlabelled
        return found

    def days(self, until: int) -> int:
        """UTC days before `until`, seconds, with good steps that had requests."""
        busy = (self.good > 0) & (self.requests.sum(axis=1) > 0) & (self.starts < until)
        return len(np.unique(self.starts[busy] // DAY))

    def silent(self, step: int) -> Bools:
        """(T,) steps without any request for a day and longer, at hours of the week that have had some: an outage."""
        size, week = self.served.sum(axis=1), WEEK // step
        slot = seasons.slots(self.starts, step)
        is_busy = np.bincount(slot, size, week)[slot] > 0
        edges = np.flatnonzero(np.diff(np.concatenate([[True], size > 0, [True]])))
        found, longest = np.zeros(len(size), bool), DAY // step
        for first, after in zip(edges[::2], edges[1::2], strict=True):
            if after - first >= longest:
                found[first:after] = is_busy[first:after]
        return found

    @property
    def begun(self) -> Bools:
        """(T, S) whether labels of a slice had begun; True where it is not clear that they had not."""
        return _begun(self.requests, self.total)

    @property
    def usable(self) -> Floats:
        """(T,) 1 for steps that are `good` and whose labels were there.

        What is usual is told by days: most steps of one request or two may well have a label each.
        """
        size, some = self.served.sum(axis=1), self.labelled.sum(axis=1)
        if self.unlabelled.any():
            return self.good * _has_labels(self.starts, size, some)
        of_day, day = np.unique(self.starts // DAY, return_inverse=True)
        seen, found_some = np.bincount(day, size, len(of_day)), np.bincount(day, some, len(of_day))
        busy = seen > 0
        share = np.median(found_some[busy] / seen[busy]) if busy.any() else 0.0
        error = np.sqrt(size * share * (1 - share) + (0.05 * share * size) ** 2 + 1e-9)
        found: Floats = self.good * (some >= size * share - np.maximum(NO_LABELS_Z * error, NO_LABELS_LEAST))
        return found


@dataclass(frozen=True)
class DriftBaseline:
    """What is expected of S slices, with how far they wander from it by themselves.

    Attributes:
        since, until: it was fitted on steps in [since, until), seconds; the first one with requests begins at `since`.
        days: with requests, of those.
        requests: that it rests on.
        known: (S,) which slices have a baseline; the others borrow the common cycle until they have one.
        alone: (S,) which of them have enough of one to be judged by themselves.
        quality, coverage: expected means of the measure, and shares of requests with a label.
        weekdays: (7,) times which share has one on a weekday, from Thursday on; 1 where such a request counts 0.
        volume, volume_of_all: (S, K + 1), (K + 1,) log-linear coefficients of the requests in a step.
        noise: of the units.
        coverage_noise, volume_noise, mix_noise: relative standard deviations beyond sampling.
    """

    step: int
    since: int
    until: int
    days: float
    requests: float
    known: Bools
    alone: Bools
    quality: SeasonalMeans
    coverage: SeasonalMeans
    weekdays: Floats
    volume: Floats
    volume_of_all: Floats
    noise: Noise
    coverage_noise: float
    volume_noise: float
    mix_noise: float

    @cached_property
    def tables(self) -> Floats:
        """(3, P, S) for the slots of a week: expected mean, label coverage, requests."""
        shares = np.clip(self.coverage.table(self.step) * np.repeat(self.weekdays, DAY // self.step)[:, None], 0, 1)
        volume = seasons.volume_table(self.volume, self.step)
        found: Floats = np.stack([self.quality.table(self.step), shares, volume])
        return found

    def at(self, starts: Ints) -> Floats:
        """(3, T, S) the `tables` at T steps of one day."""
        first, count = int(starts[0]), len(starts)
        if int(starts[-1]) - first == (count - 1) * self.step:  # as ever: none is missing
            slot = first % WEEK // self.step
            return self.tables[:, slot : slot + count]
        return self.tables[:, seasons.slots(starts, self.step)]

    @cached_property
    def _counted(self) -> Floats | None:
        """(1, S) 1 where a slice has a baseline, as numbers, which NumPy multiplies by faster; None if all have."""
        return None if self.known.all() else self.known[None].astype(np.float64)

    def of_known(self, sums: Floats) -> Floats:
        """(T, S) with 0 for slices without a baseline; not to be written to, for it may be `sums` itself."""
        return sums if self._counted is None else sums * self._counted

    @cached_property
    def variance_of_known(self) -> Floats:
        """(1, S) variance of a request's value; 0 where a slice has no baseline."""
        return self.of_known(self.quality.variance[None])

    @cached_property
    def has_thin_slices(self) -> bool:
        """Whether any slice has a baseline, but not enough of one to be judged by itself."""
        return some(self.known & ~self.alone)

    @cached_property
    def judged(self) -> Bools:
        """(U,) which units are judged: a single slice is overall."""
        alone = self.alone if len(self.alone) > 1 else self.alone & False
        return np.concatenate([[self.known.any()], alone])

    def padded(self, slices: int) -> DriftBaseline:
        """With slices that have no baseline yet."""
        more = slices - len(self.known)
        none = np.zeros(more, bool)
        return self._wider(more, np.concatenate([self.known, none]), np.concatenate([self.alone, none]))

    def _wider(self, more: int, known: Bools, alone: Bools) -> DriftBaseline:
        volume = np.concatenate([self.volume, np.tile(self.volume_of_all, (more, 1))])
        quality, coverage = _wider_means(self.quality, more, 1.0), _wider_means(self.coverage, more, 1.0)
        wider = [np.concatenate([a, np.full(more, _typical(a, self.known))]) for a in _columns(self.noise)]
        return replace(
            self, known=known, alone=alone, quality=quality, coverage=coverage, volume=volume, noise=Noise(*wider)
        ).with_strangers(~known)

    def with_strangers(self, which: Bools) -> DriftBaseline:
        """These slices without a level of their own: their expectation is the common cycle around 1."""
        quality = _strange(self.quality, which)
        coverage = _strange(self.coverage, which)
        volume = np.where(which[:, None], self.volume_of_all, self.volume)
        columns = [np.where(np.concatenate([[False], which]), _typical(a, self.known), a) for a in _columns(self.noise)]
        return replace(self, quality=quality, coverage=coverage, volume=volume, noise=Noise(*columns))

    def with_noise(self, found: Noise) -> DriftBaseline:
        """With what is known of the noise by now."""
        return replace(self, noise=found)

    def admitting(self, which: Bools, level: Floats, variance: Floats, requests: Floats) -> DriftBaseline:
        """These slices with a level of their own, from now on judged.

        Args:
            which: (S,)
            level, variance: (S,) of a request's value.
            requests: (S,) that these rest on.
        """
        quality = replace(
            self.quality,
            level=np.where(which, level, self.quality.level),
            variance=np.where(which, np.maximum(variance, LEAST_VARIANCE), self.quality.variance),
        )
        error = quality.variance / requests / np.maximum(quality.level, 1e-9) ** 2
        was_thin = np.concatenate([[False], which & self.known])
        errors = np.where(was_thin, np.concatenate([[0.0], error]), self.noise.level_error)
        noise_ = replace(self.noise, level_error=errors)
        return replace(self, known=self.known | which, alone=self.alone | which, quality=quality, noise=noise_)


def _columns(found: Noise) -> tuple[Floats, ...]:
    return tuple(getattr(found, f.name) for f in fields(found))


def _typical(of_units: Floats, known: Bools) -> float:
    """A cautious figure for a slice without a baseline: the largest of those that have one, or overall's."""
    slices = of_units[1:][known[: len(of_units) - 1]]
    return float(slices.max()) if len(slices) else float(of_units[0])


def _wider_means(means: SeasonalMeans, more: int, level: float) -> SeasonalMeans:
    return replace(
        means,
        level=np.concatenate([means.level, np.full(more, level)]),
        variance=np.concatenate([means.variance, np.full(more, LEAST_VARIANCE)]),
        own=np.concatenate([means.own, np.zeros((more, means.own.shape[1]))]),
    )


def _strange(means: SeasonalMeans, which: Bools) -> SeasonalMeans:
    return replace(means, level=np.where(which, 1.0, means.level), own=np.where(which[:, None], 0.0, means.own))


def counted(settings: DriftSettings, reference: Reference) -> Floats:
    """(T, S) 1 for what counts of a slice in a reference.

    Steps that are usable, not before its labels began, and of no day on which the slice or all of them stood out: a
    fall that was seen by nobody, or a feast, is not what is usual, and still less how much a day differs from the next.
    """
    reference = reference.precise()
    slot, variance = seasons.slots(reference.starts, settings.step), _variance(reference)
    kept: Floats = reference.usable[:, None] * reference.begun
    for _ in range(ROUNDS):
        size, total = reference.requests * kept, reference.total * kept
        expected = size * seasons.fit_means(slot, settings.step, size, total, variance).table(settings.step)[slot]
        outlying = _outlying(reference.starts // DAY, np.stack([total, expected, size * variance]))
        if not (outlying & (kept > 0)).any():
            break
        kept = kept * ~outlying
    return kept


def _outlying(days: Ints, sums: Floats) -> Bools:
    """(T, S) the steps of days that stand out, by (3, T, S) sums of values, their expectation and sampling variance."""
    _, first, number = np.unique(days, return_index=True, return_inverse=True)
    total, expected, chance = noise.units(np.add.reduceat(sums, first, axis=1))
    has = (expected > 0) & (np.sqrt(chance) <= MOST_CHANCE * expected)
    scale = np.where(has, expected, 1.0)
    moved = np.where(has, total / scale - 1, np.nan)
    enough = has.sum(axis=0) >= LEAST_DAYS
    moved[:, ~enough] = 0.0
    off = np.abs(moved - np.nanmedian(moved, axis=0))
    error = np.maximum(MAD * np.nanmedian(off, axis=0), np.sqrt(chance) / scale)
    stands_out = has & (off > OUTLYING_Z * error) & (off > LEAST_OUTLYING)
    stands_out &= stands_out.sum(axis=0) <= MOST_OUTLYING * has.sum(axis=0)
    found: Bools = (stands_out[:, :1] | stands_out[:, 1:])[number]
    return found


def fit(settings: DriftSettings, reference: Reference, kept: Floats) -> DriftBaseline:
    """The baseline that a reference gives, of which (T, S) `kept` counts. It sees nothing else."""
    reference = reference.precise()
    step, slot = settings.step, seasons.slots(reference.starts, settings.step)
    size, total, labelled = reference.requests * kept, reference.total * kept, reference.labelled * kept
    asked = reference.served * kept
    known, alone = _known(settings, reference, size)
    share = labelled.sum(axis=0) / np.maximum(asked.sum(axis=0), 1)
    quality = seasons.fit_means(slot, step, size, total, _variance(reference))
    coverage = seasons.fit_means(slot, step, asked, labelled, share * (1 - share))
    served = reference.served
    every = np.concatenate([served, served.sum(axis=1, keepdims=True)], axis=1)
    heard = ~reference.silent(step)
    volume = seasons.fit_volume(slot, step, every, reference.good * heard)
    weekdays, shares = np.ones(7), coverage.table(step)[slot]
    if not settings.counts_unlabelled:
        weekdays = _by_weekday(reference.starts, asked * shares, labelled)
        shares = shares * weekdays[reference.starts // DAY % 7][:, None]
    mean, expected = quality.table(step)[slot], seasons.volume_table(volume[:-1], step)[slot]
    row = (reference.starts - reference.starts[0]) // step
    busy = size.sum(axis=1) > 0
    moved = noise.measure(row, settings.hours, size * known, total * known, size * mean * known, quality.variance)
    found = DriftBaseline(
        step,
        int(reference.starts[busy.argmax()]),
        int(reference.starts[-1]) + step,
        len(np.unique(reference.starts[busy] // DAY)),
        float(size.sum()),
        known,
        alone,
        quality,
        coverage,
        weekdays,
        volume[:-1],
        volume[-1],
        moved,
        _coverage_noise(asked, labelled, shares),
        _volume_noise(settings, reference, expected.sum(axis=1), heard),
        mix.noise(settings, size, expected if settings.counts_unlabelled else expected * np.clip(shares, 0, 1), mean),
    )
    return found.with_strangers(~known)


def _known(settings: DriftSettings, reference: Reference, size: Floats) -> tuple[Bools, Bools]:
    """Slices that have been there for long enough: often enough for a part in overall, and to be judged alone."""
    first = reference.starts[((reference.requests > 0) & reference.begun).argmax(axis=0)]
    span = reference.starts[-1] + settings.step - first
    count, total = size.sum(axis=0), reference.total.sum(axis=0)
    is_worthless = (total == 0) & (count * float(total.sum()) >= LEAST_BEFORE * max(float(count.sum()), 1.0))
    old = (span >= settings.least_reference - DAY) & ~is_worthless
    return old & (count >= LEAST_OF_SLICE), old & (count >= LEAST_REQUESTS)


def _begun(size: Floats, total: Floats) -> Bools:
    """(T, S) whether there were labels yet, by (T, S) sums; True where zeros at the beginning may be chance."""
    found: Bools = np.logical_or.accumulate(total > 0, axis=0)
    before, after = (size * ~found).sum(axis=0), (size * found).sum(axis=0)
    found |= before * total.sum(axis=0) < LEAST_BEFORE * np.maximum(after, 1)
    return found


def _has_labels(starts: Ints, size: Floats, labelled: Floats) -> Bools:
    """(T,) whether requests had about the labels of their hour of the day and their day of the week.

    Where these say nothing of whether people liked what they saw, they may well be given by day, or on weekdays, only.
    """
    hours, hour = np.unique(starts % DAY, return_inverse=True)
    share = _share(hour, len(hours), size, labelled)[hour]
    weekday = starts // DAY % 7
    share = np.clip(share * _share(weekday, 7, size * share, labelled)[weekday], 0, 1)
    usual = size * share
    enough = usual >= LEAST_BEFORE
    off = np.abs(labelled[enough] / usual[enough] - 1)
    spread = max(LEAST_SPREAD, MAD * float(np.median(off))) if len(off) else LEAST_SPREAD
    error = np.sqrt(usual * (1 - share) + (spread * usual) ** 2 + 1e-9)
    found: Bools = labelled >= usual - np.maximum(NO_LABELS_Z * error, NO_LABELS_LEAST)
    # However widely they spread: a day without any has lost them.
    day = np.unique(starts // DAY, return_inverse=True)[1]
    had, should = np.bincount(day, labelled), np.bincount(day, usual)
    return found & ~((had < NEXT_TO_NONE * should) & (should >= LEAST_BEFORE))[day]


def _by_weekday(starts: Ints, expected: Floats, labelled: Floats) -> Floats:
    """(7,) labels over those expected, (T, S), of each weekday from Thursday on: on some there may be none at all."""
    weekday = starts // DAY % 7
    seen, usual = (np.bincount(weekday, sums.sum(axis=1), 7) for sums in (labelled, expected))
    found: Floats = np.divide(seen, usual, out=np.ones(7), where=usual >= LEAST_BEFORE)
    return found


def _share(which: Ints, count: int, size: Floats, labelled: Floats) -> Floats:
    """(count,) labels over requests of each group."""
    found: Floats = np.bincount(which, labelled, count) / np.maximum(np.bincount(which, size, count), 1e-9)
    return found


def _variance(reference: Reference) -> Floats:
    size = np.maximum((reference.requests * reference.begun).sum(axis=0), 1)
    found: Floats = np.maximum(reference.squares / size - (reference.total.sum(axis=0) / size) ** 2, LEAST_VARIANCE)
    return found


def _coverage_noise(size: Floats, labelled: Floats, share: Floats) -> float:
    """Relative standard deviation of a step's coverage beyond sampling, over all slices."""
    whole, expected = size.sum(axis=1), (size * share).sum(axis=1)
    chance = (size * share * (1 - share)).sum(axis=1)
    off = (labelled.sum(axis=1) - expected) / np.maximum(expected, 1e-9)
    excess = whole * (off**2 - chance / np.maximum(expected, 1e-9) ** 2)
    return max(float(np.sqrt(max(excess.sum() / max(whole.sum(), 1), 0))), LEAST_COVERAGE_NOISE)


def _volume_noise(settings: DriftSettings, reference: Reference, expected: Floats, heard: Bools) -> float:
    """Relative standard deviation of three hours' requests beyond chance; (T,) `heard`: not in an outage."""
    together = settings.steps(3)
    count = len(expected) // together * together
    whole = heard[:count].reshape(-1, together).all(axis=1)
    seen = reference.served.sum(axis=1)[:count].reshape(-1, together).sum(axis=1)[whole]
    fit = np.maximum(expected[:count].reshape(-1, together).sum(axis=1), 1e-9)[whole]
    excess = (fit * ((seen / fit - 1) ** 2 - 1 / fit)).sum() / max(float(fit.sum()), 1e-9)
    return max(float(np.sqrt(max(excess, 0))), LEAST_VOLUME_NOISE)
