"""Reads a source in steps that are not too large for the source or this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from monitor.errors import SourceError, TooMany
from monitor.series.partials import Partials, bucket_of, to_partials
from monitor.series.readings import Answer, Reading
from monitor.types import Monitor
from monitor.units import DAY, Span

if TYPE_CHECKING:
    from monitor.source.pull import Freshness

log = logging.getLogger(__name__)

TOO_SLOW = ("timeout", "resources")
"""Reasons of a SourceError after which smaller reads may succeed."""


class RequestSource(Protocol):
    """What a cycle needs of the source; spans are [since, until) in seconds."""

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is."""

    def held(self) -> AbstractContextManager[None]:
        """Within the block, what takes long to open stays open between reads."""

    def row_counts(self, spans: Sequence[Span]) -> list[int]:
        """Ranking rows in each span."""

    def read(self, since: int, until: int) -> Answer:
        """Requests served in [since, until) with their labels, or their sums."""


class RowReader(Protocol):
    """Reads single requests."""

    def read(self, since: int, until: int) -> Reading:
        """Requests served in [since, until) seconds with their labels."""


@dataclass
class BatchSize:
    """Buckets per read, adapted to keep a read near `rows`.

    `growth`: largest factor per read. `slow`: limit until `slow_until` (monotonic): larger reads took too long.
    """

    rows: int = 200_000
    most: int = 168
    buckets: int = 12
    growth: int = 16
    slow: int = 0
    slow_until: float = 0.0

    @property
    def at_most(self) -> int:
        """Most buckets to read at once now."""
        return min(self.most, self.slow) if time.monotonic() < self.slow_until else self.most

    def learn(self, rows: int, buckets: int) -> None:
        """Adjust to a read of `buckets` buckets that returned `rows` rows."""
        fitting = int(self.rows * buckets / max(rows, 1))
        self.buckets = max(1, min(fitting, self.at_most, self.growth * self.buckets))

    def shrink(self, buckets: int) -> None:
        """Halve the limit for a day: the source took too long."""
        self.slow, self.slow_until = max(1, buckets // 2), time.monotonic() + DAY
        self.buckets = min(self.buckets, self.slow)


def read_partials(
    monitor: Monitor,
    source: RequestSource,
    since: int,
    until: int,
    known: Mapping[str, set[str]],
    batch_size: BatchSize | None = None,
) -> Partials:
    """Partials of [since, until), halved where the read is too large for memory or for the source's timeout.

    Args:
        known: dimension -> values that have a series.
        batch_size: learns which reads take too long.
    """
    batch_size = batch_size or BatchSize(most=1 << 62)
    if until - since > batch_size.at_most * monitor.bucket:  # learned on the way
        return _in_halves(monitor, source, since, until, known, batch_size)
    try:
        answer = source.read(since, until)
    except SourceError as error:
        if error.reason not in TOO_SLOW or until - since <= monitor.bucket:
            raise
        buckets = (until - since) // monitor.bucket
        log.info("monitor %s: read of %d buckets timed out; splitting: %s", monitor.name, buckets, error)
        batch_size.shrink(buckets)
        return _in_halves(monitor, source, since, until, known, batch_size)
    except TooMany as error:
        if until - since <= 1:
            text = f"{error} within a second and max_request_span around it; lower max_request_span, or check the times"
            raise SourceError(f"monitor {monitor.name}: {text}", "data") from error
        return _in_halves(monitor, source, since, until, known, batch_size)
    kernels = dict.fromkeys(m.kernel for m in monitor.measures)
    return to_partials(answer, monitor.bucket, kernels, monitor.slices, known)


def _in_halves(
    monitor: Monitor,
    source: RequestSource,
    since: int,
    until: int,
    known: Mapping[str, set[str]],
    batch_size: BatchSize,
) -> Partials:
    edge = bucket_of((since + until) // 2, monitor.bucket)
    middle = edge if edge > since else (since + until) // 2
    first = read_partials(monitor, source, since, middle, known, batch_size)
    admitted = {dimension: set(values) for dimension, values in known.items()}
    for dimension, value in first.admitted:
        admitted.setdefault(dimension, set()).add(value)
    return first + read_partials(monitor, source, middle, until, admitted, batch_size)


def read_rows(source: RowReader, since: int, until: int) -> Iterator[Reading]:
    """Single requests of [since, until), halved where they are too many for memory."""
    try:
        yield source.read(since, until)
    except TooMany as error:
        if until - since <= 1:
            raise SourceError(f"{error} within a second", "data") from error
        middle = (since + until) // 2
        yield from read_rows(source, since, middle)
        yield from read_rows(source, middle, until)
