"""Checks once a day where people look, for monitors with a measure corrected by examination."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from monitor.conditions.examined import ExaminationCheck, check
from monitor.evaluation.hours import drift_of, resets_of
from monitor.measures.examination import Examination, ShownCounts, estimate, estimates
from monitor.measures.measure import Measure
from monitor.series.intervals import DAY
from monitor.source.pull import Pull
from monitor.source.swaps import counts_by_slice, shown_counts
from monitor.store import Store
from monitor.types import Monitor


@dataclass
class Examiner:
    """Runs the checks of one monitor; `tried`: end of the newest day looked at in this process, seconds."""

    monitor: Monitor
    store: Store
    source: Pull
    tried: int = field(default=0, init=False)

    def advance(self, now: float) -> ExaminationCheck | None:
        """The check of the newest whole UTC day whose buckets are final, if it is due and there are days enough.

        Raises:
            ValueError: too few swaps.
            SourceError, StoreError: as their names say; each is tried again the next day.
        """
        measure, name = self.monitor.corrected, self.monitor.name
        end = None if measure is None else self.store.settled_end(self.monitor.traffic, self.monitor.bucket, 0, now)
        at = 0 if end is None else end - end % DAY
        if measure is None or at <= self.tried:
            return None
        was = self.store.verdicts.newest_check(name)
        self.tried = at
        if was is not None and was.at >= at:
            return None
        depth = measure.k or len(measure.examination)
        begun = max((reset.since for reset in resets_of(self.monitor, self.store)), default=0)

        def counts(since: int, until: int) -> ShownCounts:
            return shown_counts(self.source, since, until, depth)

        found = check(was, at, begun, drift_of(self.monitor).false_alarm_budget, depth, counts)
        if found is not None:
            found = replace(found, slices=self._by_slice(measure, found, depth))
            self.store.verdicts.put_check(name, found)
        return found

    def _by_slice(self, measure: Measure, found: ExaminationCheck, depth: int) -> dict[tuple[str, str], Examination]:
        """The looks of the slices that the measure has a table for, but of those with too few swaps."""
        column = next((s.column for s in self.monitor.slices if s.dimension == measure.dimension), None)
        if column is None:
            return {}
        counts, wanted = counts_by_slice(self.source, found.since, found.at, depth, column), dict(measure.by_slice)
        known = {value: of for value, of in counts.items() if (measure.dimension, value) in wanted}
        fits, _ = estimates(known, lambda _, of: estimate(of, depth))
        return {(measure.dimension, value): one for value, one in fits.items()}
