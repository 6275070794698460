"""The baseline: expected mean, label coverage and traffic of each slice by hour of the week."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Bools, Floats, Ints
from monitor.drift import constants as c
from monitor.drift import data_checks as checks
from monitor.drift import noise, seasonality
from monitor.drift.noise import Noise
from monitor.drift.seasonality import SeasonalMeans
from monitor.drift.series import Hours, mapped, ratio, some, units
from monitor.drift.settings import DriftSettings
from monitor.units import DAY, WEEK

# ---- reference -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The T steps on which a baseline is fitted, kept until it rests on a whole reference.

    Attributes:
        good: (T,) 1 if data and model were well, as far as known.
        requests, total, labelled, unlabelled, ideal: (T, S) as in `Hours`; single precision to save space.
        squares: (S,) sum over all steps.
        crowd: (T, 5) events, unmatched, refused, items shown, items at rank 1.
    """

    starts: Ints
    good: Floats
    requests: NDArray[Any]
    total: NDArray[Any]
    labelled: NDArray[Any]
    unlabelled: NDArray[Any]
    ideal: NDArray[Any]
    squares: Floats
    crowd: Floats

    BY_SLICE = ("requests", "total", "labelled", "unlabelled", "ideal")
    BY_STEP = ("starts", "good", *BY_SLICE, "crowd")

    @classmethod
    def empty(cls, slices: int) -> Reference:
        nothing = np.zeros((0, slices), np.float32)
        starts = np.zeros(0, np.int64)
        none = (nothing, nothing, nothing, nothing, nothing)
        return cls(starts, np.zeros(0), *none, np.zeros(slices), np.zeros((0, 5)))

    def padded(self, slices: int) -> Reference:
        """The reference with zeros for new slices."""
        more = slices - len(self.squares)
        squares = np.pad(self.squares, (0, more))
        return mapped(self, lambda a: np.pad(a, ((0, 0), (0, more))), self.BY_SLICE, squares=squares)

    def with_more(self, hours: Hours, good: Floats) -> Reference:
        """The reference with further steps."""
        new = {name: getattr(hours, name) for name in ("starts", *self.BY_SLICE)}
        new |= {"good": good, "crowd": np.stack(hours.crowd, axis=1)}
        both = ((name, getattr(self, name), more) for name, more in new.items())
        longer = {name: np.concatenate([old, more.astype(old.dtype)]) for name, old, more in both}
        return Reference(**longer, squares=np.cumsum(np.concatenate([self.squares[None], hours.squares]), axis=0)[-1])

    def without(self, since: int) -> Reference:
        """The reference with the steps from `since` on marked as bad."""
        return replace(self, good=np.where(self.starts >= since, 0.0, self.good))

    def latest(self, since: int) -> Reference:
        """The steps from `since` on; the sums of squares shrink in proportion."""
        at = self.starts >= since
        share = self.requests[at].sum(axis=0) / np.maximum(self.requests.sum(axis=0), 1)
        return mapped(self, lambda a: a[at], self.BY_STEP, squares=self.squares * share)

    def from_first_worth(self) -> Reference:
        """The steps since labels began; all if they have not begun."""
        size, total = (a.sum(axis=1, keepdims=True) for a in (self.requests, self.total))
        first = int(np.count_nonzero(~_begun(size, total)))
        return mapped(self, lambda a: a[first:], self.BY_STEP) if first else self

    def precise(self) -> Reference:
        """The reference in double precision, for sums."""
        return mapped(self, lambda a: a.astype(np.float64), self.BY_SLICE)

    @property
    def served(self) -> NDArray[Any]:
        """(T, S) requests, in the measure or not."""
        return self.requests + self.unlabelled

    def days(self, until: int) -> int:
        """Number of UTC days before `until` (seconds) with good steps that had requests."""
        busy = (self.good > 0) & (self.requests.sum(axis=1) > 0) & (self.starts < until)
        return len(np.unique(self.starts[busy] // DAY))

    def silent(self, settings: DriftSettings) -> Bools:
        """(T,) steps in an outage: a day or longer without requests, at hours of the week that usually have some."""
        size, step = self.served.sum(axis=1), settings.step
        slot = settings.slots(self.starts)
        is_busy = np.bincount(slot, size, WEEK // step)[slot] > 0
        edges = np.flatnonzero(np.diff(np.concatenate([[True], size > 0, [True]])))
        found, longest = np.zeros(len(size), bool), DAY // step
        for first, after in zip(edges[::2], edges[1::2], strict=True):
            if after - first >= longest:
                found[first:after] = is_busy[first:after]
        return found

    @property
    def begun(self) -> Bools:
        """(T, S) whether a slice's labels had begun; True if unclear."""
        return _begun(self.requests, self.total)

    @property
    def is_label_all(self) -> bool:
        """Whether requests with a label are all worth the same: then fewer labels are what a worse model looks like."""
        labelled, total, squares = (float(a.sum()) for a in (self.labelled, self.total, self.squares))
        return labelled * squares < (1 + c.NEXT_TO_NONE**2) * total**2

    def usable(self, settings: DriftSettings) -> Floats:
        """(T,) 1 for `good` steps with about the usual labels."""
        size, some = self.served.sum(axis=1), self.labelled.sum(axis=1)
        if self.is_label_all:
            return self.good
        if self.unlabelled.any():
            return self.good * _has_labels(settings, self.starts, size, some)
        of_day, day = np.unique(self.starts // DAY, return_inverse=True)
        seen, found_some = np.bincount(day, size, len(of_day)), np.bincount(day, some, len(of_day))
        busy = seen > 0
        share = np.median(found_some[busy] / seen[busy]) if busy.any() else 0.0
        error = np.sqrt(size * share * (1 - share) + (c.LABELS_SPREAD * share * size) ** 2 + 1e-9)
        return self.good * (some >= size * share - np.maximum(c.SURE_Z * error, c.LABELS_LACKING))

    def counts(self, settings: DriftSettings) -> Floats:
        """(T, S) 1 for usable steps since a slice's labels began."""
        found: Floats = self.usable(settings)[:, None] * self.begun
        return found


def counted(settings: DriftSettings, reference: Reference) -> Floats:
    """(T, S) 1 for usable steps since a slice's labels began, except days on which it or the total stood out."""
    reference = reference.precise()
    slot, variance = settings.slots(reference.starts), _variance(reference)
    kept = reference.counts(settings)
    for _ in range(c.OUTLYING_ROUNDS):
        size, total = reference.requests * kept, reference.total * kept
        means = seasonality.fit_means(slot, settings.step, size, total, variance)
        expected = size * means.of_any_weekday().table(settings.step)[slot]
        outlying = _outlying(reference.starts // DAY, np.stack([total, expected, size * variance]))
        if not (outlying & (kept > 0)).any():
            break
        kept = kept * ~outlying
    return kept


def _outlying(days: Ints, sums: Floats) -> Bools:
    """(T, S) steps of days in a spell, of a slice or of the total, that is too far off to be chance."""
    numbers, first, number = np.unique(days, return_index=True, return_inverse=True)
    total, expected, chance = units(np.add.reduceat(sums, first, axis=1))
    has = expected > 0
    scale = np.where(has, expected, 1.0)
    moved, chance = np.where(has, total / scale - 1, 0.0), chance / scale**2
    of_units = [_spells(numbers % 7, *columns) for columns in zip(moved.T, chance.T, has.T, strict=True)]
    stands_out = np.stack(of_units, axis=1)
    return (stands_out[:, :1] | stands_out[:, 1:])[number]


def _spells(weekday: Ints, moved: Floats, chance: Floats, has: Bools) -> Bools:
    """(N,) days that are part of a spell: a run of days whose common shift, weekdays apart, is beyond chance.

    By (N,) relative deviations of days, their sampling variance, and whether they are known. The clearest run is taken
    out first; more than OUTLYING_SHARE of the days are another level and no spell.
    """
    found, most = np.zeros(len(has), bool), int(c.OUTLYING_SHARE * np.count_nonzero(has))
    while len(left := np.flatnonzero(has & ~found)) > c.LASTING_DAYS:
        run = _clearest_run(weekday[left], moved[left], chance[left], most)
        if run is None:
            break
        found[left[run]] = True
        if found.sum() > most:
            return np.zeros(len(has), bool)
    return found


def _clearest_run(weekday: Ints, moved: Floats, chance: Floats, most: int) -> slice | None:
    """The run of up to `most` days that a shift explains best; None if weekdays and noise explain them about as well.

    By the likelihood of a level, a shift, weekday effects as wide as fits best, and noise that may exceed sampling.
    """
    count = len(moved)
    lengths, firsts = np.repeat(np.arange(1, most + 1), count), np.tile(np.arange(count), most)
    fits = firsts + lengths <= count
    firsts, lengths = firsts[fits], lengths[fits]
    if not len(firsts):
        return None
    runs = (np.arange(count) - firsts[:, None]) // lengths[:, None] == 0
    spreads = c.SHARED_SPREAD * 2.0 ** np.arange(5)  # a usual one, up to sixteen times as wide
    noise = np.diag(chance + c.STEP_NOISE**2) + 1 / c.FREE_PRECISION
    covariance = noise + spreads[:, None, None] ** 2 * (weekday[:, None] == weekday)
    precision = np.linalg.inv(covariance)
    size, off = ((runs @ precision) * runs).sum(axis=2), runs @ (precision @ moved)[..., None]
    whole, shift = moved @ precision @ moved, off[..., 0].T / size.T

    def likelihood(rest: Floats, free: int) -> Floats:
        scale = np.maximum(rest / free, 1.0)
        found: Floats = -(count * np.log(scale) + rest / scale + np.linalg.slogdet(covariance)[1]) / 2
        return found

    with_shift = likelihood(whole - shift**2 * size.T, count - 2)
    clear = with_shift.max(axis=1) - likelihood(whole, count - 1).max()
    is_large = np.abs(shift[np.arange(len(shift)), with_shift.argmax(axis=1)]) > c.OUTLYING_CHANGE
    best = int(np.where(is_large, clear, 0.0).argmax())
    return slice(firsts[best], firsts[best] + lengths[best]) if is_large[best] and clear[best] > c.SPELL_LOG else None


def _begun(size: Floats, total: Floats) -> Bools:
    """(T, S) whether labels had begun; True where leading zeros may be chance."""
    found: Bools = np.logical_or.accumulate(total > 0, axis=0)
    before, after = (size * ~found).sum(axis=0), (size * found).sum(axis=0)
    found |= before * total.sum(axis=0) < c.LEAST_WORTH * np.maximum(after, 1)
    return found


def _has_labels(settings: DriftSettings, starts: Ints, size: Floats, labelled: Floats) -> Bools:
    """(T,) whether labels are as usual for the hour and the weekday: some are only given at certain times."""
    weekday, hour = np.divmod(settings.slots(starts), settings.day)
    share = _share(hour, settings.day, size, labelled)[hour]
    share = np.clip(share * _share(weekday, 7, size * share, labelled)[weekday], 0, 1)
    usual = size * share
    enough = usual >= c.LEAST_WORTH
    off = np.abs(labelled[enough] / usual[enough] - 1)
    spread = max(c.LABELS_SPREAD, c.MAD * float(np.median(off))) if len(off) else c.LABELS_SPREAD
    error = np.sqrt(usual * (1 - share) + (spread * usual) ** 2 + 1e-9)
    found: Bools = labelled >= usual - np.maximum(c.SURE_Z * error, c.LABELS_LACKING)
    # However wide the spread, a day without any label has lost them.
    day = np.unique(starts // DAY, return_inverse=True)[1]
    had, should = np.bincount(day, labelled), np.bincount(day, usual)
    return found & ~((had < c.NEXT_TO_NONE * should) & (should >= c.LEAST_WORTH))[day]


def _share(which: Ints, count: int, size: Floats, labelled: Floats) -> Floats:
    return np.bincount(which, labelled, count) / np.maximum(np.bincount(which, size, count), 1e-9)


# ---- baseline ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DriftBaseline:
    """What is expected of S slices, and their noise.

    Attributes:
        since, until: fitted on [since, until), seconds; the first step with requests starts at `since`.
        days, requests: in the reference.
        known: (S,) slices with a baseline; the others borrow the common cycle.
        alone: (S,) slices with enough data to be judged alone.
        quality, coverage: expected means of the measure and of the label coverage.
        weekdays: (7,) factor on the coverage by weekday, from Thursday on; 1 if unlabelled requests count 0.
        volume, volume_of_all: (S, K + 1), (K + 1,) log-linear coefficients of the requests per step.
        coverage_noise, volume_noise, mix_noise: relative standard deviations beyond sampling.
        is_label_all: as `Reference.is_label_all`.
        rank_variance: of the items at rank 1 of a request.
        silence: (S,) mean worth of a silence in requests: 1 by chance, more where requests come in bursts.
        ideal: what values were divided by, on average.
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
    is_label_all: bool
    volume_noise: float
    mix_noise: float
    rank_variance: float
    silence: Floats
    ideal: float

    @cached_property
    def tables(self) -> Floats:
        """(3, P, S) expected mean, label coverage and requests for the slots of a week."""
        shares = np.clip(self.coverage.table(self.step) * np.repeat(self.weekdays, DAY // self.step)[:, None], 0, 1)
        return np.stack([self.quality.table(self.step), shares, seasonality.volume_table(self.volume, self.step)])

    @cached_property
    def _counted(self) -> Floats | None:
        """(1, S) 1 for slices with a baseline, as floats for speed; None if all have one."""
        return None if self.known.all() else self.known[None].astype(np.float64)

    def of_known(self, sums: Floats) -> Floats:
        """(T, S) with 0 for slices without a baseline. Read-only: it may be `sums` itself."""
        return sums if self._counted is None else sums * self._counted

    @cached_property
    def variance_of_known(self) -> Floats:
        """(1, S) variance of a request's value; 0 for slices without a baseline."""
        return self.of_known(self.quality.variance[None])

    @cached_property
    def has_thin_slices(self) -> bool:
        """Whether any slice has a baseline that is too thin to judge it alone."""
        return some(self.known & ~self.alone)

    @cached_property
    def judged(self) -> Bools:
        """(U,) which units are judged; a single slice is overall."""
        alone = self.alone if len(self.alone) > 1 else self.alone & False
        return np.concatenate([[self.known.any()], alone])

    def padded(self, slices: int) -> DriftBaseline:
        """The baseline with new slices that have none yet."""
        more = slices - len(self.known)

        def wider(means: SeasonalMeans) -> SeasonalMeans:
            return replace(
                means,
                level=np.concatenate([means.level, np.full(more, 1.0)]),
                variance=np.concatenate([means.variance, np.full(more, c.LEAST_VARIANCE)]),
                own=np.concatenate([means.own, np.zeros((more, means.own.shape[1]))]),
            )

        found = mapped(self, lambda flags: np.concatenate([flags, np.zeros(more, bool)]), ("known", "alone"))
        volume = np.concatenate([self.volume, np.tile(self.volume_of_all, (more, 1))])
        silence = np.concatenate([self.silence, np.full(more, self.silence.max())])
        noise = self._each_noise(lambda a: np.concatenate([a, np.full(more, _typical(a, found.known))]))
        found = mapped(found, wider, ("quality", "coverage"), volume=volume, noise=noise, silence=silence)
        return found.with_strangers(~found.known)

    def with_strangers(self, which: Bools) -> DriftBaseline:
        """The baseline in which these slices have no level of their own: the common cycle around 1."""

        def strange(means: SeasonalMeans) -> SeasonalMeans:
            own = np.where(which[:, None], 0.0, means.own)
            return replace(means, level=np.where(which, 1.0, means.level), own=own)

        units_of = np.concatenate([[False], which])
        noise = self._each_noise(lambda a: np.where(units_of, _typical(a, self.known), a))
        volume = np.where(which[:, None], self.volume_of_all, self.volume)
        return mapped(self, strange, ("quality", "coverage"), volume=volume, noise=noise)

    def _each_noise(self, function: Callable[[Floats], Floats]) -> Noise:
        return mapped(self.noise, function, [f.name for f in fields(Noise)])

    def with_noise(self, found: Noise) -> DriftBaseline:
        return replace(self, noise=found)

    def admitting(self, which: Bools, level: Floats, variance: Floats, requests: Floats) -> DriftBaseline:
        """The baseline in which these slices are judged, with (S,) mean and variance of so many requests."""
        quality = replace(
            self.quality,
            level=np.where(which, level, self.quality.level),
            variance=np.where(which, np.maximum(variance, c.LEAST_VARIANCE), self.quality.variance),
        )
        error = quality.variance / requests / np.maximum(quality.level, 1e-9) ** 2
        was_thin = np.concatenate([[False], which & self.known])
        errors = np.where(was_thin, np.concatenate([[0.0], error]), self.noise.level_error)
        found = self.with_noise(replace(self.noise, level_error=errors))
        return replace(found, known=self.known | which, alone=self.alone | which, quality=quality)


def _typical(of_units: Floats, known: Bools) -> float:
    """A cautious figure for slices without a baseline: the largest of the known ones, or overall's."""
    slices = of_units[1:][known[: len(of_units) - 1]]
    return float(slices.max()) if len(slices) else float(of_units[0])


def fit(settings: DriftSettings, reference: Reference, kept: Floats) -> DriftBaseline:
    """The baseline fitted on the parts of a reference that count, (T, S) `kept`."""
    reference = reference.precise()
    step, slot = settings.step, settings.slots(reference.starts)
    size, total, labelled = reference.requests * kept, reference.total * kept, reference.labelled * kept
    served = reference.served
    asked, heard = served * kept, ~reference.silent(settings)
    known, alone = _known(settings, reference, size)
    share = labelled.sum(axis=0) / np.maximum(asked.sum(axis=0), 1)
    quality = seasonality.fit_means(slot, step, size, total, _variance(reference))
    coverage = seasonality.fit_means(slot, step, asked, labelled, share * (1 - share))
    every = np.concatenate([served, served.sum(axis=1, keepdims=True)], axis=1)
    volume = seasonality.fit_volume(slot, step, every, reference.good * heard)
    weekdays, shares = np.ones(7), coverage.table(step)[slot]
    if not settings.counts_unlabelled:
        weekdays = _by_weekday(slot // settings.day, asked * shares, labelled)
        shares = shares * weekdays[slot // settings.day][:, None]
    mean, expected = quality.table(step)[slot], seasonality.volume_table(volume[:-1], step)[slot]
    row, busy = (reference.starts - reference.starts[0]) // step, size.sum(axis=1) > 0
    in_measure = expected if settings.counts_unlabelled else expected * np.clip(shares, 0, 1)
    return DriftBaseline(
        step,
        int(reference.starts[busy.argmax()]),
        int(reference.starts[reference.good > 0][-1]) + step,
        len(np.unique(reference.starts[busy] // DAY)),
        float(size.sum()),
        known,
        alone,
        quality,
        coverage,
        weekdays,
        volume[:-1],
        volume[-1],
        noise.measure(row, settings.hours, size * known, total * known, size * mean * known, quality.variance),
        _coverage_noise(settings, asked, labelled, shares),
        reference.is_label_all,
        _volume_noise(settings, reference, expected.sum(axis=1), heard),
        noise.mix_noise(settings, size, in_measure, mean),
        _rank_variance(settings, reference),
        _silence(reference, expected),
        ratio(float((total * reference.ideal).sum()), float(total.sum())) or 1.0,
    ).with_strangers(~known)


def _known(settings: DriftSettings, reference: Reference, size: Floats) -> tuple[Bools, Bools]:
    """(S,) slices with enough data to be a part of overall, and to be judged alone."""
    first = reference.starts[((reference.requests > 0) & reference.begun).argmax(axis=0)]
    span = reference.starts[-1] + settings.step - first
    count, total = size.sum(axis=0), reference.total.sum(axis=0)
    is_worthless = (total == 0) & (count * float(total.sum()) >= c.LEAST_WORTH * max(float(count.sum()), 1.0))
    old = (span >= settings.least_reference - DAY) & ~is_worthless
    return old & (count >= c.LEAST_OF_SLICE), old & (count >= c.LEAST_REQUESTS)


def _by_weekday(weekday: Ints, expected: Floats, labelled: Floats) -> Floats:
    seen, usual = (np.bincount(weekday, sums.sum(axis=1), 7) for sums in (labelled, expected))
    return np.divide(seen, usual, out=np.ones(7), where=usual >= c.LEAST_WORTH)


def _variance(reference: Reference) -> Floats:
    size = np.maximum((reference.requests * reference.begun).sum(axis=0), 1)
    return np.maximum(reference.squares / size - (reference.total.sum(axis=0) / size) ** 2, c.LEAST_VARIANCE)


def _coverage_noise(settings: DriftSettings, size: Floats, labelled: Floats, share: Floats) -> float:
    """Relative standard deviation of coverage beyond chance, over spans with enough requests to tell it from chance."""
    each = size.sum() / max(np.count_nonzero(size.sum(axis=1)), 1)
    length = min(int(np.ceil(c.LEAST_REQUESTS / max(each, 1.0))), settings.day)

    def spans(of_slices: Floats) -> Floats:
        return of_slices[: len(size) // length * length].sum(axis=1).reshape(-1, length).sum(axis=1)

    whole, expected = spans(size), np.maximum(spans(size * share), 1e-9)
    off, chance = spans(labelled) / expected - 1, spans(size * share * (1 - share)) / expected**2
    excess = (whole * (off**2 - chance)).sum() / max(float(whole.sum()), 1.0)
    return max(float(np.sqrt(max(excess, 0))), c.COVERAGE_NOISE)


def _volume_noise(settings: DriftSettings, reference: Reference, expected: Floats, heard: Bools) -> float:
    """Relative standard deviation of three hours' requests beyond chance; (T,) `heard`: not in an outage."""
    count = len(expected) // settings.few * settings.few

    def spans(steps: NDArray[Any]) -> NDArray[Any]:
        return steps[:count].reshape(-1, settings.few)

    whole = spans(heard).all(axis=1)
    seen = spans(reference.served.sum(axis=1)).sum(axis=1)[whole]
    fit = np.maximum(spans(expected).sum(axis=1), 1e-9)[whole]
    excess = (fit * ((seen / fit - 1) ** 2 - 1 / fit)).sum() / max(float(fit.sum()), 1e-9)
    return max(float(np.sqrt(max(excess, 0))), c.VOLUME_NOISE)


def _rank_variance(settings: DriftSettings, reference: Reference) -> float:
    """Variance of the items at rank 1 of a request, from those of three hours, as far as they were well."""
    count = len(reference.starts) // settings.few * settings.few
    well = (
        reference.good[:count, None] * np.stack([reference.served.sum(axis=1), reference.crowd[:, -1]], axis=1)[:count]
    )
    size, ranked = well.reshape(-1, settings.few, 2).sum(axis=1).T
    has = size > 0
    if not has.any():
        return 0.0
    each = ranked[has] / size[has]
    return float((size[has] * (each - np.median(each)) ** 2).mean())


def _silence(reference: Reference, expected: Floats) -> Floats:
    """(S,) mean worth of a silence, from the longest one: of n silences by chance it is worth about ln n requests."""
    served = reference.served * reference.good[:, None]
    silent, usual = checks.silences(served, expected * reference.good[:, None])
    longest, worth = np.zeros(served.shape[1]), np.zeros(served.shape[1])
    for is_silent, more in zip(silent, usual, strict=True):
        worth = np.where(is_silent, worth + more, 0.0)
        longest = np.maximum(longest, worth)
    number = np.clip(np.minimum(served.sum(axis=0), len(served)), np.e, None)
    return np.maximum(longest / np.log(number), 1.0)
