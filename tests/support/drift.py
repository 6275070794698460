"""Hourly partials of a simulated ranking, for tests of drift verdicts: every request's value is 0 or one of two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from monitor.arrays import Floats
from monitor.drift.judge import judge_steps
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.drift.verdicts import Verdict
from monitor.units import DAY, HOUR

START = 19_000 * DAY
LOW, HIGH, UNLABELLED = 0.4, 1.0, 0.1
"""Values of labelled requests, and the share of requests without a label, whose value is 0."""

Change = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Ranking:
    """A simulated monitor: (days x steps, slices) means and traffic that tests change before they draw.

    Attributes:
        mean: expected value of a request.
        rate: expected requests.
        coverage: share of the requests that keep their label.
        items: shown for each request, all slices alike.
    """

    starts: np.ndarray
    mean: Floats
    rate: Floats
    coverage: Floats
    items: Floats
    step: int = HOUR

    @classmethod
    def of(
        cls, days: int, slices: int = 3, peak: float = 600.0, noise: float = 0.005, seed: int = 0, step: int = HOUR
    ) -> Ranking:
        """With a daily cycle of traffic and quality, and independent noise of each day."""
        rng = np.random.default_rng(seed)
        starts = START + np.arange(days * DAY // step, dtype=np.int64) * step
        angle = 2 * np.pi * (starts % DAY)[:, None] / DAY
        by_day = np.repeat(rng.normal(0, noise, (days, slices)), DAY // step, axis=0)
        level = np.linspace(0.5, 0.6, slices)
        mean = level * (1 + 0.02 * np.sin(angle) + by_day)
        rate = peak * step / HOUR / slices * (0.6 + 0.4 * np.cos(angle)) * np.ones(slices)
        return cls(starts, mean, rate, np.ones(mean.shape), np.full(len(starts), 10.0), step)

    def since(
        self,
        day: float,
        until: float = 1e9,
        *,
        mean: float = 1.0,
        rate: float = 1.0,
        coverage: float = 1.0,
        items: float = 1.0,
        slices: list[int] | None = None,
    ) -> Ranking:
        """With factors on what happens between two days."""
        at = (self.starts >= START + day * DAY) & (self.starts < START + until * DAY)
        columns = np.isin(np.arange(self.mean.shape[1]), range(self.mean.shape[1]) if slices is None else slices)
        where = at[:, None] & columns

        def changed(values: Floats, factor: float) -> Floats:
            return np.where(where, values * factor, values)

        return replace(
            self,
            mean=changed(self.mean, mean),
            rate=changed(self.rate, rate),
            coverage=changed(self.coverage, coverage),
            items=np.where(at, self.items * items, self.items),
        )

    def losing_labels(self, day: float, over: float, left: float) -> Ranking:
        """With labels that go missing little by little: from `day` on, until a share is `left` after `over` days."""
        gone = np.clip(((self.starts - START) / DAY - day) / over, 0, 1)
        return replace(self, coverage=self.coverage * (1 - (1 - left) * gone)[:, None])

    def draw(self, seed: int = 1, counts_unlabelled: bool = True) -> Hours:
        """The partials; requests without a label count 0, or are in no measure."""
        rng = np.random.default_rng(seed)
        size = rng.poisson(self.rate)
        high = np.clip((self.mean / (1 - UNLABELLED) - LOW) / (HIGH - LOW), 0, 1)
        labelled = rng.binomial(size, (1 - UNLABELLED) * self.coverage)
        many = rng.binomial(labelled, high)
        total = many * HIGH + (labelled - many) * LOW
        squares = many * HIGH**2 + (labelled - many) * LOW**2
        names = tuple(f"slice {i}" for i in range(self.mean.shape[1]))
        events = 2.0 * labelled.sum(axis=1)
        size_of_all = size.sum(axis=1)
        crowd = (events, 0.05 * events, np.zeros(len(events)), self.items * size_of_all, size_of_all * 1.0)
        measured = size if counts_unlabelled else labelled
        by_slice = (measured * 1.0, total, squares, labelled * 1.0, 1.0 * (size - measured), np.ones(size.shape))
        return Hours(self.starts, names, *by_slice, *crowd)


def day(number: float) -> int:
    """Seconds since 1970 of a day of the simulation."""
    return START + round(number * DAY)


def verdicts(hours: Hours, settings: DriftSettings | None = None) -> list[Verdict]:
    """Of all steps."""
    return judge_steps(settings or DriftSettings(), None, hours)[0]


def known(hours: Hours, settings: DriftSettings | None = None) -> DriftState:
    """The state after all steps."""
    state = judge_steps(settings or DriftSettings(), None, hours)[1]
    assert state is not None
    return state


def on(found: list[Verdict], day: float, until: float = 1e9) -> list[Verdict]:
    """Verdicts on steps that end in (day, until]."""
    return [v for v in found if START + day * DAY < v.end <= START + until * DAY]
