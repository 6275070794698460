"""Checks once a day where people look, for monitors with a measure corrected by examination."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.conditions.examined import ExaminationCheck, check
from monitor.evaluation.hours import drift_of, resets_of
from monitor.measures.examination import ShownCounts
from monitor.series.intervals import DAY
from monitor.source.pull import Pull
from monitor.source.swaps import counts_by_table
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

        def counts(since: int, until: int) -> dict[tuple[str, str], ShownCounts]:
            return counts_by_table(self.source, since, until, depth, measure)

        found = check(was, at, begun, drift_of(self.monitor).false_alarm_budget, depth, counts)
        if found is not None:
            self.store.verdicts.put_check(name, found)
        return found
