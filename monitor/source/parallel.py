"""The pieces of a long read by sums, two at a time, in databases that work on a statement with one processor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
"""Effort that a read must be expected to take: below it, to ask twice costs more than it saves."""

PIECE = 8_000
"""Effort of a piece, about. What a database keeps of it while it sums up fits into its processor's cache."""

MARGINS = 4
"""How many times longer a piece is than what is gone through around it."""


class ParallelReader:
    """Reads long stretches in pieces, by two transactions at once; by `max_concurrent: 1` it never does.

    How long a stretch is going to take it knows from the one before; the first is read in two pieces. Not more
    transactions are open at the same time than the source allows: a piece that has no turn yet waits for it. What is
    known to be read row by row is read in one part, for pieces would take hardly less time.
    """

    def __init__(self, source: PushDown, cut_from: int = CUT_FROM, piece: int = PIECE, margins: int = MARGINS) -> None:
        """`cut_from` and `piece` are effort; a piece is at least `margins` times what is gone through around it."""
        self._source = source
        self._cut_from = cut_from
        self._piece = piece
        self._margins = margins
        self._per_second: float | None = None

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is; see `Pull.freshness`."""
        return self._source.freshness(since, now)

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """How many rows some spans have; see `Pull.row_counts`."""
        return self._source.row_counts(spans)

    def read(self, since: int, until: int) -> Answer:
        """As `PushDown.read`, in one part or several. If one fails, none begins after it; its error comes last.

        Raises:
            TooMany: as of `PushDown.read`; also if a piece took longer than a statement may, be it of one bucket: by
                itself it may not.
        """
        expected = self._cut_from if self._per_second is None else self._per_second * (until - since)
        pieces = self._cut(since, until, expected) if self._is_cut(since, until, expected) else []
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
                raise TooMany(f"more than can be summed up in time or memory: {error}") from error
            raise
        return tuple(found[number] for number in range(len(pieces)))

    def _is_cut(self, since: int, until: int, expected: float) -> bool:
        source = self._source
        if source.database.max_concurrent < 2 or not source.database.sql.by_one_processor:
            return False
        return expected >= self._cut_from and source.sums_up(since, until)

    def _cut(self, since: int, until: int, expected: float) -> list[tuple[int, int]]:
        """Pieces of about the same length that end where buckets do; as many as keep each small, but none too short.

        Their number is even, or one reader would wait for the other's last.
        """
        monitor, span = self._source.monitor, until - since
        recipe, bucket = monitor.recipe, monitor.bucket
        least = bucket
        if isinstance(recipe, Events):
            blocks = Blocks.of(monitor, recipe)
            # In less than a block it takes a statement more to count the events that are on nothing.
            least = max(blocks.width, self._margins * blocks.around)
        most = min(2 * max(1, round(expected / self._piece / 2)), span // least)
        for number in range(most - most % 2, 1, -2):
            edges = [round((since + span * i / number) / bucket) * bucket for i in range(1, number)]
            pieces = list(pairwise([since, *edges, until]))
            if all(end - start >= least for start, end in pieces):
                return pieces
        return [(since, until)]
