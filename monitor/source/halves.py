"""The halves of a long read by sums at the same time, in databases that work on a statement with one processor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from monitor.core.summed import Answer, effort
from monitor.source.pull import Freshness
from monitor.source.pushdown import PushDown
from monitor.source.speech import HABITS, family_of

WORTH_HALVING = 20_000
"""Effort that a read must be expected to take: below it, to ask twice costs more than it saves."""


class InHalves:
    """Reads long stretches by two transactions at once; by `max_concurrent: 1` it never does.

    How long a stretch is going to take it knows from the one before. No more transactions are open at the same time
    than the source allows: a half that has no turn yet waits for it. What is read row by row is read in one part, for
    two would take more memory and hardly less time.
    """

    def __init__(self, source: PushDown, worth: int = WORTH_HALVING) -> None:
        """`worth`: effort from which on a read is halved."""
        self._source = source
        self._worth = worth
        self._per_second = 0.0

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is; see `Pull.freshness`."""
        return self._source.freshness(since, now)

    def read(self, since: int, until: int) -> Answer:
        """As `PushDown.read`, in one part or two. If one half fails, it is told when both are done."""
        monitor = self._source.monitor
        middle = (since + until) // 2 // monitor.bucket * monitor.bucket
        if middle <= since or not self._is_faster or self._per_second * (until - since) < self._worth:
            found: Answer = self._source.read(since, until)
        else:
            with ThreadPoolExecutor(1, f"second half of {monitor.name}") as other:
                second = other.submit(self._source.read, middle, until)
                first = self._source.read(since, middle)
                found = (first, second.result())
        self._per_second = effort(found) / (until - since)
        return found

    @property
    def _is_faster(self) -> bool:
        database = self._source.database
        habits = HABITS.get(family_of(database.dialect))
        return database.max_concurrent > 1 and habits is not None and habits.by_one and not self._source.yields
