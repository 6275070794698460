"""Checks once a day where people look, for monitors with a measure corrected by examination."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.conditions.examined import ExaminationCheck, check
from monitor.evaluation.hours import drift_of, resets_of
from monitor.measures.examination import ShownCounts
from monitor.source.pull import Pull
from monitor.source.swaps import counts_by_table
from monitor.store import Store
from monitor.types import Monitor
from monitor.units import DAY


@dataclass
class Examiner:
    """Runs the checks of one monitor.

    Attributes:
        done, given_up: ends of the newest day checked, and of the newest day not to be tried again, in this process.
            Seconds; 0 if there is none.
        baseline: start of the newest baseline at the newest check in this process, seconds; 0 if there is none.
    """

    monitor: Monitor
    store: Store
    source: Pull
    done: int = field(default=0, init=False)
    given_up: int = field(default=0, init=False)
    baseline: int = field(default=0, init=False)

    def due(self, now: float) -> range:
        """Ends of the whole UTC days to check, whose buckets are final: those since the newest check, oldest first.

        Without one it is the newest day, and so it is again if a new baseline accepts a change. Days beyond `lookback`
        were not read after a downtime, and stay unchecked. Nothing is due on a day on which the source failed.
        """
        end = self.store.settled_end(self.monitor.traffic, self.monitor.bucket, 0, now)
        newest = 0 if end is None else end - end % DAY
        begun = self._newest_baseline
        if newest <= self.given_up or (newest <= self.done and begun <= self.baseline):
            return range(0)
        was = self.store.verdicts.newest_check(self.monitor.name)
        if was is not None and was.changed_since is not None and was.changed_since <= begun:
            return range(newest, newest + 1, DAY)
        last = max(self.done, 0 if was is None else was.at) or newest - DAY
        return range(max(last, newest - max(self.monitor.lookback // DAY, 1) * DAY) + DAY, newest + 1, DAY)

    @property
    def _newest_baseline(self) -> int:
        """Its start, seconds; 0 if there is none."""
        return max((reset.since for reset in resets_of(self.monitor, self.store)), default=0)

    def check(self, at: int) -> ExaminationCheck | None:
        """The check of the day until `at`, seconds; None if there are too few days to compare with.

        Raises:
            ValueError: too few swaps.
            SourceError, StoreError: the source or the store failed; the day stays due.
        """
        measure, name = self.monitor.corrected, self.monitor.name
        assert measure is not None  # else there is no examiner
        depth = measure.k or len(measure.examination)

        def counts(since: int, until: int) -> dict[tuple[str, str], ShownCounts]:
            return counts_by_table(self.source, since, until, depth, measure)

        was, budget = self.store.verdicts.newest_check(name), drift_of(self.monitor).false_alarm_budget
        self.baseline = self._newest_baseline
        try:
            found = check(was, at, self.baseline, budget, depth, counts)
        except ValueError:
            self.done = at
            raise
        self.done = at
        if found is not None:
            self.store.verdicts.put_check(name, found)
        return found
