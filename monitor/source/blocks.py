"""How far from an event the row may lie that it falls on, when events on nothing are looked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.series.readings import MICROS
from monitor.source.prepared import rounded_down, rounded_up
from monitor.types import Events, Monitor

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Blocks:
    """Stretches of time on a fixed grid, so that what is found does not depend on how much is read at once.

    Attributes:
        width: of a block, in seconds.
        before, after: seconds before and after its block within which an event's row is looked for.
    """

    width: int
    before: int
    after: int

    @classmethod
    def of(cls, monitor: Monitor, recipe: Events) -> Blocks:
        """The grid of a monitor."""
        span = monitor.max_request_span
        return cls(max(monitor.bucket, recipe.attribution), recipe.attribution + span, span)

    def cut(self, since: int, until: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Parts [since, until) of the range that lie in one block each, and the reach of each."""
        for block in range(since - since % self.width, until, self.width):
            part = max(block, since), min(block + self.width, until)
            yield *part, self.reach(*part)

    def reach(self, since: int, until: int) -> tuple[int, int]:
        """[since, until) of the rows that some event in that range may fall on; seconds as these."""
        return rounded_down(since, self.width) - self.before, rounded_up(until, self.width) + self.after

    @property
    def around(self) -> int:
        """Seconds that are gone through before and after what is read, for the rows of its events and their events."""
        return self.before + self.after

    def is_near(self, event: Ints, row: Ints) -> Bools:
        """(n,) whether each event may fall on its row, by the microseconds of both."""
        block = event - event % (self.width * MICROS)
        near: Bools = (row >= block - self.before * MICROS) & (row < block + (self.width + self.after) * MICROS)
        return near
