"""The halves of a long read by sums at the same time, in databases that work on a statement with one processor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from monitor.core.summed import Answer, effort
from monitor.core.types import Events
from monitor.errors import SourceError, TooMany
from monitor.source.blocks import Blocks
from monitor.source.pull import Freshness
from monitor.source.pushdown import PushDown
from monitor.source.speech import HABITS, family_of

HALVED_FROM = 20_000
"""Effort that a read must be expected to take: below it, to ask twice costs more than it saves."""


class InHalves:
    """Reads long stretches by two transactions at once; by `max_concurrent: 1` it never does.

    How long a stretch is going to take it knows from the one before. No more transactions are open at the same time
    than the source allows: a half that has no turn yet waits for it. Each half may hold as many rows, and have the
    database take as much memory, as a whole read. What is known to be read row by row is read in one part, for two
    would take hardly less time.
    """

    def __init__(self, source: PushDown, halved_from: int = HALVED_FROM) -> None:
        """`halved_from`: effort."""
        self._source = source
        self._halved_from = halved_from
        self._per_second = 0.0

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is; see `Pull.freshness`."""
        return self._source.freshness(since, now)

    def read(self, since: int, until: int) -> Answer:
        """As `PushDown.read`, in one part or two. If one half fails, it is told when both have ended.

        Raises:
            TooMany: as of `PushDown.read`; also if one half took longer than a statement may, be it of one bucket: by
                itself it may not.
        """
        bucket = self._source.monitor.bucket
        middle = (since + until) // 2 // bucket * bucket
        halved = self._is_halved(since, middle, until)
        found: Answer = self._halves(since, middle, until) if halved else self._source.read(since, until)
        self._per_second = effort(found) / (until - since)
        return found

    def _halves(self, since: int, middle: int, until: int) -> Answer:
        try:
            with ThreadPoolExecutor(1, f"second half of {self._source.monitor.name}") as other:
                second = other.submit(self._source.read, middle, until)
                first = self._source.read(since, middle)
                return first, second.result()
        except SourceError as error:
            if error.reason in ("timeout", "resources"):
                raise TooMany(f"more than can be summed up in time or memory: {error}") from error
            raise

    def _is_halved(self, since: int, middle: int, until: int) -> bool:
        source, recipe = self._source, self._source.monitor.recipe
        habits = HABITS.get(family_of(source.database.dialect))
        if source.database.max_concurrent < 2 or habits is None or not habits.by_one_processor:
            return False
        # In less than a block it takes a statement more to count the events that are on nothing.
        least = Blocks.of(source.monitor, recipe).width if isinstance(recipe, Events) else 1
        if middle - since < least or until - middle < least:
            return False
        return self._per_second * (until - since) >= self._halved_from and source.sums_up(since, until)
