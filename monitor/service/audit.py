"""Self-audit: reads a final bucket again in two ways, and some of its requests one by one.

Pull, pushdown and single requests share little code. If they disagree, rankmon misreads the source; if they agree
and the store differs, the source has changed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from math import isclose, nan
from typing import Literal

import numpy as np

from monitor.causes.inspection import Inspection
from monitor.errors import InputError, SourceError, Stopped
from monitor.measures.kernels import score
from monitor.measures.measure import Measure
from monitor.messages.words import utc
from monitor.series.finality import final_age
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, bucket_of, to_partials
from monitor.series.readings import MICROS, Answer, Reading
from monitor.service.reading import RequestSource, read_rows
from monitor.source.pull import Pull
from monitor.source.times import changes_clocks
from monitor.store import Progress, Store
from monitor.types import OTHER, OVERALL, TRAFFIC, Monitor
from monitor.units import DAY

LOOK_BACK = 7 * DAY
"""Age limit of audited buckets, seconds since they became final: the source may have purged older ones."""

SHARE = 0.02
"""Largest share of the reading time that audits may take."""

MAX_REQUESTS = 100
TOLERANCE = 1e-9
"""Relative tolerance for float sums added in another order."""

ATTEMPTS = 2
"""Two reads of a source being written may differ; two differing pairs in a row are no accident."""

STORED, PULL, PUSHDOWN, ONE_BY_ONE = "stored", "pull", "push-down", "request by request"

Result = Literal["agrees", "changed", "differs"]
RESULTS: tuple[Result, ...] = ("agrees", "changed", "differs")

Figures = Mapping[tuple[str, str, str, str], float]
"""(measure or `traffic`, dimension, value, field) -> sum of a bucket."""


@dataclass(frozen=True)
class Readers:
    """The ways to read a monitor; `pushdown` is None if the database cannot aggregate its buckets.

    `inspect` reads one request by id and time of serving, seconds.
    """

    pull: Pull
    pushdown: RequestSource | None
    inspect: Callable[[str, int], Inspection]


@dataclass(frozen=True)
class Difference:
    """A sum on which two ways of reading disagree."""

    what: str
    ways: tuple[str, str]
    figures: tuple[float, float]

    def __str__(self) -> str:
        (one, other), (first, second) = self.ways, self.figures
        return f"{self.what}: {first:.12g} by {one}, {second:.12g} by {other}".replace("by stored", "stored")


@dataclass(frozen=True)
class Audit:
    """Outcome of reading the bucket at `start` again: the largest difference; `requests` were read singly."""

    start: int
    result: Result
    ways: tuple[str, ...]
    requests: int = 0
    difference: Difference | None = None

    def __str__(self) -> str:
        said = {
            "agrees": "agrees with the store",
            "changed": f"rows or labels have changed in the source: {self.difference}; backfill --again reads them",
            "differs": f"rankmon reads the source wrongly: {self.difference}; please report it",
        }[self.result]
        return (
            f"bucket {utc(self.start)} read again ({', '.join(self.ways)}; {self.requests} requests one by one): {said}"
        )


def is_due(monitor: Monitor, progress: Progress, now: float) -> bool:
    """Whether today's audit is still to do; monitors are spread over the day."""
    offset = _hash(monitor.name, "") % DAY
    return progress.audited_at is None or (progress.audited_at + offset) // DAY < (now + offset) // DAY


def pick(monitor: Monitor, store: Store, now: float) -> int | None:
    """Start of today's bucket, stable while the set of final buckets is; None if there is none."""
    since = bucket_of(int(now) - LOOK_BACK - final_age(monitor) - monitor.bucket, monitor.bucket)
    found = finals(monitor, store, since, int(now))
    return found[_hash(monitor.name, str(int(now) // DAY)) % len(found)] if found else None


def finals(monitor: Monitor, store: Store, since: int, until: int) -> list[int]:
    """Starts of final buckets in [since, until) seconds that have requests."""
    return [start for start, why in auditable(monitor, store, since, until).items() if not why]


def auditable(monitor: Monitor, store: Store, since: int, until: int) -> dict[int, str]:
    """Start of each stored bucket in [since, until) seconds, rising -> why it cannot be audited; empty if it can."""
    starts, final, _, _, requests = store.partials(monitor.traffic, since, until, overall_only=True, most=1)
    found = sorted(zip(starts, final, requests, strict=True))
    return {start: _why_not(monitor, start, bool(is_final), number) for start, is_final, number in found}


def _why_not(monitor: Monitor, start: int, is_final: bool, requests: int) -> str:
    if not is_final:
        return "not final yet"
    if requests:
        return ""
    if changes_clocks(monitor.rankings.time, start, start + monitor.bucket):
        return "without requests, as clocks changed: those of the hour that occurs twice count in the bucket before"
    return "without requests"


def _hash(*words: str) -> int:
    return int.from_bytes(blake2b("\0".join(words).encode(), digest_size=8).digest(), "big")


def audit(monitor: Monitor, start: int, store: Store, readers: Readers, stops: Callable[[], bool] = bool) -> Audit:
    """Read a bucket in every way; compare the results with each other and with the store.

    Single requests are read for as long as the bulk reads took, at most MAX_REQUESTS.

    Raises:
        SourceError: the source does not answer.
        Stopped: `stops` returned True.
    """
    auditing = _Auditing(monitor, start, store, readers, stops)
    for _ in range(ATTEMPTS):
        found = auditing.attempt()
        if found.result != "differs":
            break
    return found


@dataclass(frozen=True)
class _Auditing:
    monitor: Monitor
    start: int
    store: Store
    readers: Readers
    stops: Callable[[], bool]

    @property
    def kernels(self) -> dict[Measure, None]:
        return dict.fromkeys(m.kernel for m in self.monitor.measures)

    def attempt(self) -> Audit:
        began = time.monotonic()
        self._check()
        parts = []
        for part in read_rows(self.readers.pull, self.start, self.start + self.monitor.bucket):
            parts.append(part)
            self._check()
        by_pull, by_sums = self._figures(parts), self._pushed_down()
        took = time.monotonic() - began
        ways = (PULL,) if by_sums is None else (PULL, PUSHDOWN)
        requests, wrong = 0, None if by_sums is None else _difference(by_pull, by_sums, (PULL, PUSHDOWN))
        if wrong is None:
            requests, wrong = self._one_by_one(parts, took)
        if wrong is not None:
            return Audit(self.start, "differs", ways, requests, wrong)
        stored = self._stored({dimension for _, dimension, _, _ in by_pull})
        changed = _difference(stored, {key: by_pull.get(key, 0.0) for key in stored}, (STORED, PULL))
        return Audit(self.start, "agrees" if changed is None else "changed", ways, requests, changed)

    def _check(self) -> None:
        if self.stops():
            raise Stopped

    def _pushed_down(self) -> Figures | None:
        if self.readers.pushdown is None:
            return None
        self._check()
        try:
            return self._figures([self.readers.pushdown.read(self.start, self.start + self.monitor.bucket)])
        except SourceError as error:
            if error.reason not in ("query", "data", "resources"):
                raise
            return None

    def _figures(self, answers: Sequence[Answer]) -> Figures:
        registry = self.store.places(self.monitor.name)
        slices, known = registry.open_at(self.start, self.monitor.slices), registry.at(self.start)
        parts = [to_partials(answer, self.monitor.bucket, self.kernels, slices, known) for answer in answers]
        every = sum(parts[1:], parts[0])
        found = {TRAFFIC: (TRAFFIC_FIELDS, every.traffic)} | {k: (FIELDS, c) for k, c in every.measures.items()}
        sums = {
            (kernel, dimension, value, name): float(number)
            for kernel, (fields, cells) in found.items()
            for (_, dimension, value), partial in cells.items()
            for name, number in zip(fields, partial, strict=True)
        }
        refused = {("refused", d, v, reason): float(rows) for ((_, d, v), reason), rows in every.refused.items()}
        return sums | refused

    def _stored(self, dimensions: Collection[str]) -> Figures:
        """Those of all traffic and of slices by some dimensions, but for the values that had no series when stored."""
        found: dict[tuple[str, str, str, str], float] = {}
        for definition in self.monitor.definitions:
            fields = TRAFFIC_FIELDS if definition.kernel == TRAFFIC else FIELDS
            for _, _, dimension, value, *row in zip(
                *self.store.partials(definition, self.start, self.start + 1), strict=True
            ):
                if dimension in dimensions and value != OTHER:
                    key = definition.kernel, dimension, value
                    found |= {(*key, name): float(v) for name, v in zip(fields, row, strict=True)}
        return found

    def _one_by_one(self, parts: Sequence[Reading], seconds: float) -> tuple[int, Difference | None]:
        until, compared = time.monotonic() + seconds, 0
        every = [(place, i) for place, part in enumerate(parts) for i in range(len(part.ids))]
        random.Random(_hash(self.monitor.name, str(self.start))).shuffle(every)
        scored = cache(lambda place, kernel: score(kernel, parts[place].taken_by(kernel)).value)
        for place, i in every[:MAX_REQUESTS]:
            self._check()
            if compared and time.monotonic() > until:
                break
            part = parts[place]
            if (seen := self._inspected(part, i)) is None:
                continue
            compared += 1
            for kernel in self.kernels:
                # Single requests do not show whether they count for a measure without labels, or for one that
                # cannot take some of the grades.
                if (kernel.is_of_lists and seen.no_sample) or kernel in part.limited:
                    continue
                mine = seen.taken_by(kernel).graded
                by_pull = float(scored(place, kernel)[i]) if part.taken_by(kernel).sampled[i] else nan
                by_itself = float(score(kernel, mine).value[0]) if mine.sampled[0] else nan
                if not _is_same(by_pull, by_itself):
                    return compared, Difference(f"{kernel} of one request", (PULL, ONE_BY_ONE), (by_pull, by_itself))
        return compared, None

    def _inspected(self, part: Reading, i: int) -> Inspection | None:
        served = int(part.served[i])
        try:
            seen = self.readers.inspect(str(part.ids[i]), served // MICROS)
        except InputError:  # the id is written differently than it is read
            return None
        return None if seen.served != served or seen.again else seen


def _is_same(one: float, other: float) -> bool:
    is_close = isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return is_close or (one != one and other != other)


def _difference(one: Figures, other: Figures, ways: tuple[str, str]) -> Difference | None:
    keys = sorted(one.keys() | other.keys())
    left, right = (np.array([found.get(key, 0.0) for key in keys]) for found in (one, other))
    apart = np.abs(left - right) / np.maximum(1.0, np.maximum(np.abs(left), np.abs(right)))
    if not (apart > TOLERANCE).any():
        return None
    is_overall = np.array([key[1] == OVERALL[0] for key in keys])
    worst = int(np.argmax(apart + 2.0 * (is_overall & (apart > TOLERANCE))))
    kernel, dimension, value, name = keys[worst]
    where = "all traffic" if is_overall[worst] else f"{dimension}={value}"
    return Difference(f"{kernel} {name} of {where}", ways, (float(left[worst]), float(right[worst])))


@dataclass
class Auditor:
    """Runs one monitor's audits; `spent` is the seconds they took in this process."""

    monitor: Monitor
    store: Store
    readers: Readers
    spent: float = 0.0

    def advance(self, now: float, reading: float, stops: Callable[[], bool]) -> Audit | None:
        """Today's audit, if due and affordable: audits may take SHARE of `reading`, the seconds spent reading so far.

        Recorded before it starts, so a process killed by it does not retry forever.

        Raises:
            SourceError, StoreError, Stopped: as `audit`.
        """
        progress = self.store.progress(self.monitor.name)
        if not is_due(self.monitor, progress, now) or self.spent > SHARE * reading:
            return None
        start = pick(self.monitor, self.store, now)
        if start is None:
            return None
        self.store.record(self.monitor.name, audited_at=now)
        began = time.monotonic()
        try:
            return audit(self.monitor, start, self.store, self.readers, stops)
        except Stopped:
            self.store.record(self.monitor.name, audited_at=progress.audited_at)
            raise
        finally:
            self.spent += time.monotonic() - began
