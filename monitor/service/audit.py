"""The self-audit: a final bucket is read again in two ways, and some of its requests one by one.

Pull and push-down share little SQL, and single requests are taken apart by code of their own. Where these disagree,
rankmon reads the source wrongly. Where they agree and what is stored differs, the source was changed since.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from math import nan
from typing import Literal, Protocol

import numpy as np

from monitor.causes.traced import Inspection
from monitor.errors import InputError, SourceError, Stopped, TooMany
from monitor.measures.kernels import score
from monitor.messages.words import utc
from monitor.series.finality import final_age
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, Partials, bucket_of, to_partials
from monitor.series.readings import MICROS, Answer, Reading
from monitor.store import Progress, Store
from monitor.types import OVERALL, TRAFFIC, Monitor

DAY = 86_400
LOOK_BACK = 7 * DAY
"""Buckets that became final in that time are audited: of older ones the source may have been purged."""

SHARE = 0.02
"""Of the time that goes into reading, what audits may take."""

MOST_REQUESTS = 100
TOLERANCE = 1e-9
"""Relative, for sums of floats that were added up in another order."""

ATTEMPTS = 2
"""Two reads of a source that is being written may differ; two such pairs in a row are no accident."""

STORED, PULL, PUSHDOWN, ONE_BY_ONE = "stored", "pull", "push-down", "request by request"

Result = Literal["agrees", "changed", "differs"]
RESULTS: tuple[Result, ...] = ("agrees", "changed", "differs")

Figures = Mapping[tuple[str, str, str, str], float]
"""(measure or `traffic`, dimension, value, field) -> sum of a bucket."""


class Reader(Protocol):
    """One way of reading."""

    def read(self, since: int, until: int) -> Answer:
        """The requests served in [since, until) seconds."""


class RowReader(Protocol):
    """The pull."""

    def read(self, since: int, until: int) -> Reading:
        """The requests served in [since, until) seconds, each by itself."""


@dataclass(frozen=True)
class Ways:
    """The ways of reading a monitor.

    Attributes:
        pushdown: None where the database cannot sum up the monitor's buckets.
        inspect: takes apart the request of an id that was served at an instant, seconds.
    """

    pull: RowReader
    pushdown: Reader | None
    inspect: Callable[[str, int], Inspection]


@dataclass(frozen=True)
class Difference:
    """A figure that differs: what it is, and what it comes to by each of two ways."""

    what: str
    ways: tuple[str, str]
    figures: tuple[float, float]

    def __str__(self) -> str:
        (one, other), (first, second) = self.ways, self.figures
        return f"{self.what}: {first:.12g} by {one}, {second:.12g} by {other}".replace("by stored", "stored")


@dataclass(frozen=True)
class Audit:
    """What reading a bucket again came to.

    Attributes:
        start: of the bucket, seconds.
        result: `agrees`, `changed` if the source is not what it was when the bucket was stored, or `differs`.
        ways: that were held against each other.
        requests: how many were read one by one.
        difference: the greatest; None if there is none.
    """

    start: int
    result: Result
    ways: tuple[str, ...]
    requests: int = 0
    difference: Difference | None = None

    def __str__(self) -> str:
        ways = ", ".join(self.ways)
        told = f"bucket {utc(self.start)} read again ({ways}; {self.requests} requests one by one)"
        if self.difference is None:
            return f"{told}: agrees with what is stored"
        if self.result == "differs":
            return f"{told}: rankmon reads the source wrongly: {self.difference}; please report it"
        return (
            f"{told}: the source was changed since, in rows or labels: {self.difference}; `backfill --again` takes it"
        )


def is_due(monitor: Monitor, progress: Progress, now: float) -> bool:
    """Whether the audit of the day is still to be made; monitors are spread over the day."""
    offset = _number(monitor.name, "") % DAY
    return progress.audited_at is None or (progress.audited_at + offset) // DAY < (now + offset) // DAY


def pick(monitor: Monitor, store: Store, now: float) -> int | None:
    """The bucket of the day: always the same, for as long as the same buckets are final. None if there is none."""
    since = bucket_of(int(now) - LOOK_BACK - final_age(monitor) - monitor.bucket, monitor.bucket)
    found = finals(monitor, store, since, int(now))
    return found[_number(monitor.name, str(int(now) // DAY)) % len(found)] if found else None


def finals(monitor: Monitor, store: Store, since: int, until: int) -> list[int]:
    """Starts of the final buckets in [since, until) seconds that have requests."""
    starts, final, _, _, requests = store.partials(monitor.traffic, since, until, overall_only=True, most=1)
    return sorted(start for start, is_final, n in zip(starts, final, requests, strict=True) if is_final and n)


def _number(*words: str) -> int:
    return int.from_bytes(blake2b("\0".join(words).encode(), digest_size=8).digest(), "big")


def audit(monitor: Monitor, start: int, store: Store, ways: Ways, stops: Callable[[], bool] = lambda: False) -> Audit:
    """Read a bucket by every way there is, and hold the figures against each other and against what is stored.

    Single requests are read for as long as the reading before took, or till there are `MOST_REQUESTS`.

    Raises:
        SourceError: the source does not answer.
        Stopped: `stops` said so.
    """
    look = _Look(monitor, start, store, ways, stops)
    for _ in range(ATTEMPTS):
        found = look.look()
        if found.result != "differs":
            break
    return found


@dataclass
class _Look:
    monitor: Monitor
    start: int
    store: Store
    ways: Ways
    stops: Callable[[], bool]
    parts: list[Reading] = field(default_factory=list)

    def look(self) -> Audit:
        """One round."""
        began = time.monotonic()
        self.parts = list(self._pulled(self.start, self.start + self.monitor.bucket))
        by_pull = self._figures(self.parts)
        by_sums = self._summed()
        took = time.monotonic() - began
        names = (PULL,) if by_sums is None else (PULL, PUSHDOWN)
        wrong = None if by_sums is None else _difference(by_pull, by_sums, (PULL, PUSHDOWN))
        requests = 0
        if wrong is None:
            requests, wrong = self._one_by_one(took)
        if wrong is not None:
            return Audit(self.start, "differs", names, requests, wrong)
        stored = self._stored()
        mine = {key: by_pull.get(key, 0.0) for key in stored}
        changed = _difference(stored, mine, (STORED, PULL))
        return Audit(self.start, "agrees" if changed is None else "changed", names, requests, changed)

    def _pulled(self, since: int, until: int) -> Iterator[Reading]:
        """The requests of [since, until), in halves where they are more than fit into memory at once."""
        if self.stops():
            raise Stopped
        try:
            yield self.ways.pull.read(since, until)
        except TooMany as error:
            if until - since <= 1:
                raise SourceError(f"{error} within a second", "data") from error
            yield from self._pulled(since, (since + until) // 2)
            yield from self._pulled((since + until) // 2, until)

    def _summed(self) -> Figures | None:
        """By push-down; None where the database cannot do it after all."""
        if self.ways.pushdown is None:
            return None
        if self.stops():
            raise Stopped
        try:
            return self._figures([self.ways.pushdown.read(self.start, self.start + self.monitor.bucket)])
        except SourceError as error:
            if error.reason not in ("query", "data", "resources"):
                raise
            return None

    def _figures(self, answers: list[Reading] | list[Answer]) -> Figures:
        places = self.store.places(self.monitor.name)
        slices, known = places.open_at(self.start, self.monitor.slices), places.at(self.start)
        kernels = dict.fromkeys(m.kernel for m in self.monitor.measures)
        parts = [to_partials(answer, self.monitor.bucket, kernels, slices, known) for answer in answers]
        every: Partials = sum(parts[1:], parts[0])
        found = {TRAFFIC: (TRAFFIC_FIELDS, every.traffic)} | {k: (FIELDS, c) for k, c in every.measures.items()}
        sums = {
            (kernel, dimension, value, name): float(number)
            for kernel, (fields, cells) in found.items()
            for (_, dimension, value), partial in cells.items()
            for name, number in zip(fields, partial, strict=True)
        }
        refused = {("refused", d, v, reason): float(rows) for ((_, d, v), reason), rows in every.refused.items()}
        return sums | refused

    def _stored(self) -> Figures:
        """Of all traffic; which slices have a place may have been otherwise when they were stored."""
        found = {}
        for definition in self.monitor.definitions:
            fields = TRAFFIC_FIELDS if definition.kernel == TRAFFIC else FIELDS
            for row in zip(
                *self.store.partials(definition, self.start, self.start + 1, overall_only=True), strict=True
            ):
                for name, number in zip(fields, row[4:], strict=True):
                    found[definition.kernel, *OVERALL, name] = float(number)
        return found

    def _one_by_one(self, most: float) -> tuple[int, Difference | None]:
        """(how many requests were read by themselves, the first value that differs from what the pull has)."""
        until, compared = time.monotonic() + most, 0
        every = [(place, i) for place, part in enumerate(self.parts) for i in range(len(part.ids))]
        random.Random(_number(self.monitor.name, str(self.start))).shuffle(every)
        kernels = dict.fromkeys(m.kernel for m in self.monitor.measures)
        scored = cache(lambda place, kernel: score(kernel, self.parts[place].taken_by(kernel)))
        for place, i in every[:MOST_REQUESTS]:
            part = self.parts[place]
            if self.stops():
                raise Stopped
            if compared and time.monotonic() > until:
                break
            id_, served = str(part.ids[i]), int(part.served[i])
            try:
                seen = self.ways.inspect(id_, served // MICROS)
            except InputError:  # its id is written otherwise than it is read
                continue
            if seen.served != served or seen.again:  # an id that comes again
                continue
            compared += 1
            for kernel in kernels:
                # Of a request by itself it is only known whether it is data for most measures: not for one that needs
                # no labels, nor for one that cannot take some of the grades.
                if (kernel.name == "no_results" and seen.no_sample) or kernel in part.limited:
                    continue
                mine = seen.taken_by(kernel).graded
                has_data = bool(part.taken_by(kernel).sampled[i]), bool(mine.sampled[0])
                by_pull = float(scored(place, kernel).value[i]) if has_data[0] else nan
                by_itself = float(score(kernel, mine).value[0]) if has_data[1] else nan
                if not np.isclose(by_pull, by_itself, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                    return compared, Difference(f"{kernel} of one request", (PULL, ONE_BY_ONE), (by_pull, by_itself))
        return compared, None


def _difference(one: Figures, other: Figures, ways: tuple[str, str]) -> Difference | None:
    """The greatest difference of two sets of figures, of all traffic if there is one; None if they are equal."""
    keys = sorted(one.keys() | other.keys())
    left, right = (np.array([found.get(key, 0.0) for key in keys]) for found in (one, other))
    apart = np.abs(left - right) / np.maximum(1.0, np.maximum(np.abs(left), np.abs(right)))
    if not (apart > TOLERANCE).any():
        return None
    weight = apart + [(2.0 if key[1] == OVERALL[0] else 0.0) for key in keys] * (apart > TOLERANCE)
    worst = int(np.argmax(weight))
    kernel, dimension, value, name = keys[worst]
    where = "all traffic" if dimension == OVERALL[0] else f"{dimension}={value}"
    return Difference(f"{kernel} {name} of {where}", ways, (float(left[worst]), float(right[worst])))


@dataclass
class Auditor:
    """Makes the audits of one monitor, cycle after cycle.

    Attributes:
        spent: seconds that audits took in this process.
    """

    monitor: Monitor
    store: Store
    ways: Ways
    spent: float = 0.0

    def advance(self, now: float, reading: float, stops: Callable[[], bool]) -> Audit | None:
        """The audit of the day, if it is still to be made and reading has taken long enough for it.

        It is noted before it begins, so that a process that it kills does not begin it anew for ever.

        Args:
            reading: seconds that the process has read the source for this monitor.

        Raises:
            SourceError, StoreError, Stopped: as of `audit`.
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
            return audit(self.monitor, start, self.store, self.ways, stops)
        except Stopped:
            self.store.record(self.monitor.name, audited_at=progress.audited_at)
            raise
        finally:
            self.spent += time.monotonic() - began
