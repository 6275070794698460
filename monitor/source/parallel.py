"""Splits long push-down reads into pieces, two at a time, for databases that use one CPU per statement."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from threading import Lock

from monitor.errors import SourceError, TooMany
from monitor.series.partials import effort
from monitor.series.readings import Answer, Part
from monitor.source.pull import Freshness
from monitor.source.pushdown import PushDown
from monitor.source.times import Blocks
from monitor.types import Events

CUT_FROM = 20_000
"""Expected effort from which splitting pays off."""

PIECE = 8_000
"""Target effort per piece; its working set fits the CPU cache."""

MARGINS = 4
"""Minimum ratio of a piece's length to the margins read around it."""


class ParallelReader:
    """Reads long ranges in pieces over two concurrent transactions; never with `max_concurrent: 1`.

    It predicts effort from the previous read; the first read is split in two. A piece waits for its turn if the source
    allows no further ones. Ranges known to need row-by-row reads are not split, which would save little.
    """

    def __init__(self, source: PushDown, cut_from: int = CUT_FROM, piece: int = PIECE, margins: int = MARGINS) -> None:
        """`cut_from` and `piece` are effort; a piece is at least `margins` times the margins read around it."""
        self._source = source
        self._cut_from = cut_from
        self._piece = piece
        self._margins = margins
        self._per_second: float | None = None

    def freshness(self, since: float, now: float) -> Freshness:
        return self._source.freshness(since, now)

    def held(self) -> AbstractContextManager[None]:
        return self._source.held()

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        return self._source.row_counts(spans)

    def read(self, since: int, until: int) -> Answer:
        """`PushDown.read`, in one or several pieces. After a failure no new piece starts; its error is raised last.

        Raises:
            TooMany: as in `PushDown.read`; also if even one bucket hit the statement limit; read alone, it may fit.
        """
        expected = self._cut_from if self._per_second is None else self._per_second * (until - since)
        can_be_two = self._source.database.max_concurrent > 1 and self._source.database.sql.by_one_processor
        is_cut = can_be_two and expected >= self._cut_from and self._source.sums_up(since, until)
        pieces = self._cut(since, until, expected) if is_cut else []
        found: Answer = self._by_two(pieces) if len(pieces) > 1 else self._source.read(since, until)
        self._per_second = effort(found) / (until - since)
        return found

    def _by_two(self, pieces: Sequence[tuple[int, int]]) -> tuple[Part, ...]:
        waiting, found, lock = deque(range(len(pieces))), dict[int, Part](), Lock()

        def take() -> int | None:
            with lock:
                return waiting.popleft() if waiting else None

        def read_on() -> None:
            try:
                while (number := take()) is not None:
                    found[number] = self._source.read(*pieces[number])
            except BaseException:
                with lock:
                    waiting.clear()
                raise

        try:
            with ThreadPoolExecutor(1, f"second reader of {self._source.monitor.name}") as other:
                second = other.submit(read_on)
                read_on()
                second.result()
        except SourceError as error:
            if error.reason in ("timeout", "resources"):
                raise TooMany(f"too much to sum within time or memory: {error}") from error
            raise
        return tuple(found[number] for number in range(len(pieces)))

    def _cut(self, since: int, until: int, expected: float) -> list[tuple[int, int]]:
        """An even number of similar pieces on bucket boundaries, so that neither reader waits for the other's last."""
        monitor, span = self._source.monitor, until - since
        recipe, bucket = monitor.recipe, monitor.bucket
        least = bucket
        if isinstance(recipe, Events):
            blocks = Blocks.of(monitor, recipe)
            # Less than a block needs one more statement, to count unmatched events.
            least = max(blocks.width, self._margins * blocks.around)
        most = min(2 * max(1, round(expected / self._piece / 2)), span // least)
        for number in range(most - most % 2, 1, -2):
            edges = [round((since + span * i / number) / bucket) * bucket for i in range(1, number)]
            pieces = list(pairwise([since, *edges, until]))
            if all(end - start >= least for start, end in pieces):
                return pieces
        return [(since, until)]
