"""A store that caches the past that one monitor's cycles read.

The past is read once, then only what was stored since. The lease number rises with each holder: if another process held
the lease since, the cache is emptied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Bools, Floats, Ints
from monitor.errors import LeaseLost, StoreError
from monitor.series.finality import final_age
from monitor.series.intervals import REACH
from monitor.series.partials import Partials, runs
from monitor.series.windows import History, SliceKey
from monitor.store.lease import Lease
from monitor.store.store import Store, Written
from monitor.types import OVERALL, Definition, Monitor
from monitor.units import DAY

SPARE = 2 * DAY
"""Seconds kept beyond what is needed, so that old buckets are dropped rarely."""

BLOCK = 512
"""Rows laid out together: one by one, long windows would pass through memory once per field."""

MOST_BYTES = 256 << 20
"""Bytes that all monitors of a process may cache; those that find it used up read the store each time."""


class MemoryBudget:
    """A memory budget shared by caches, in bytes."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self._taken: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def allows(self, owner: object, size: int) -> bool:
        """Whether `owner` may use `size` bytes instead of its share, and reserves them; if not, it loses its share."""
        with self._lock:
            self._taken.pop(owner, None)
            is_allowed = sum(self._taken.values()) + size <= self.most
            if is_allowed:
                self._taken[owner] = size
            return is_allowed

    def has(self, size: int) -> bool:
        """Whether a new owner may use `size` bytes."""
        with self._lock:
            return sum(self._taken.values()) + size <= self.most

    def free(self, owner: object) -> None:
        """Release the owner's share."""
        with self._lock:
            self._taken.pop(owner, None)


SHARED = MemoryBudget()


class CachedStore(Store):
    """A store for the cycles of one monitor; not thread-safe.

    Answers as the store does, provided the monitor is written through it.
    """

    def __init__(self, store: Store, monitor: Monitor, budget: MemoryBudget = SHARED) -> None:
        """Reads nothing yet. Caches nothing while another process holds the monitor."""
        vars(self).update(vars(store))  # share its connections and parts
        self.name = monitor.name
        self._width = monitor.bucket
        self._reach = reach(monitor) + SPARE
        self._budget = budget
        self._token: int | None = None
        self._known: dict[Definition, _CachedSeries] = {}
        self._refused = 0

    @contextmanager
    def hold(self, monitor: str) -> Iterator[Lease]:
        """As `Store.hold`; empties the cache if another process held the monitor since, or may do so now."""
        try:
            with super().hold(monitor) as lease:
                if monitor == self.name:
                    if self._token is None or lease.token != self._token + 1:
                        self.forget()
                    self._token = lease.token
                yield lease
        except (LeaseLost, StoreError):
            self.forget()
            self._token = None
            raise

    def forget(self) -> None:
        self._known.clear()
        self._budget.free(self)

    def history(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> History:
        """As `Store.history`, from memory for what cycles look at."""
        cached = self._known.get(definition) or self._learn(definition, until)
        if cached is None or until <= cached.since:
            return super().history(definition, since, until, overall_only)
        if cached.stale:
            for begin, end in runs(sorted(cached.stale), self._width, len(cached.stale)):
                cached.replace(begin, end, self._read(definition, begin, end))
            cached.stale.clear()
            self._account()
        found = cached.between(since, until, overall_only)
        if since >= cached.since:
            return found
        earlier = super().history(definition, since, cached.since, overall_only)
        return found.after(earlier) if len(earlier.starts) else found

    def write(
        self,
        lease: Lease,
        monitor: Monitor,
        partials: Partials,
        targets: Mapping[Definition, Sequence[int]],
        *more: Any,
        **named: Any,
    ) -> Written:
        """As `Store.write`; cached buckets are read again when next needed."""
        for definition, starts in targets.items():
            if definition in self._known:
                self._known[definition].stale.update(starts)
        return super().write(lease, monitor, partials, targets, *more, **named)

    def _learn(self, definition: Definition, until: int) -> _CachedSeries | None:
        """Cache what cycles look at of a series; None if it is not to be cached or reaches back too far."""
        if self._refused and not self._budget.has(self._refused):
            return None  # reading all of it only to be refused again would be expensive
        if self._token is None:
            self._token = self.leases.released(self.name)
        newest = None if self._token is None else self.newest_bucket(definition)
        if newest is None or until <= newest - self._reach:
            return None
        read = self._read(definition, newest - self._reach, newest + self._width)
        self._known[definition] = _CachedSeries(newest - self._reach, self._reach, read)
        self._account()
        return self._known.get(definition)

    def _account(self) -> None:
        """Reserve the memory in use, or drop the cache."""
        size = sum(known.size for known in self._known.values())
        self._refused = 0 if self._budget.allows(self, size) else size
        if self._refused:
            self._known.clear()

    def _read(self, definition: Definition, since: int, until: int) -> _Rows:
        columns = self.partials(definition, since, until)
        read = History.of(columns, len(columns) - 4)
        place = {name: i for i, name in enumerate(read.slices)}
        there = np.zeros(read.sums.shape[:2], bool)
        of = [place[key] for key in zip(columns[2], columns[3], strict=True)]
        there[np.searchsorted(read.starts, np.array(columns[0], np.int64)), of] = True
        return read.starts, read.final, read.slices, read.sums, there


def reach(monitor: Monitor) -> int:
    """Most seconds before the newest bucket that judging, snapshot and trails look at, pinned buckets aside."""
    rules, windows = monitor.alerts, max([*monitor.windows, *(rule.window for rule in monitor.alerts)])
    judged = REACH + max([windows, *(rule.reach + rule.window for rule in rules)])
    drawn = windows + max([REACH, *(rule.reach for rule in rules)])
    return max(judged, drawn) + final_age(monitor) + 2 * max(DAY, monitor.bucket)


class _CachedSeries:
    """The buckets of one series from `since` on, each field in the smallest type that holds it exactly."""

    def __init__(self, since: int, span: int, read: _Rows) -> None:
        """`span`: least seconds kept before the newest bucket."""
        self.since = since
        self._span = span
        self.stale: set[int] = set()
        self._laid_out: tuple[int, int, ref[Floats]] | None = None
        self._put(*read)

    @property
    def size(self) -> int:
        return self._there.nbytes + sum(field.nbytes for field in self._fields)

    def _put(self, starts: Ints, final: Bools, slices: tuple[SliceKey, ...], sums: Floats, there: Bools) -> None:
        self._count, self._slices, self._laid_out = len(starts), slices, None
        room = ((0, max(24, len(starts) // 16)), (0, 0))
        self._starts, self._final, self._there = np.pad(starts, room[:1]), np.pad(final, room[:1]), np.pad(there, room)
        self._fields = [np.pad(_packed(sums[..., i]), room) for i in range(sums.shape[2])]

    def between(self, since: int, until: int, overall_only: bool) -> History:
        lo, hi = (int(at) for at in np.searchsorted(self._starts[: self._count], [since, until]))
        there, slices = self._there[lo:hi], self._slices
        if overall_only:
            return History(self._starts[lo:hi], self._final[lo:hi], slices[:1], self._sums(lo, hi, np.s_[:1]))
        if (kept := there.any(axis=0) | (np.arange(len(slices)) == 0)).all():
            return History(self._starts[lo:hi], self._final[lo:hi], slices, self._shared(lo, hi))
        names = tuple(name for name, is_kept in zip(slices, kept.tolist(), strict=True) if is_kept)
        return History(self._starts[lo:hi], self._final[lo:hi], names, self._sums(lo, hi, np.flatnonzero(kept)))

    def _shared(self, lo: int, hi: int) -> Floats:
        """(B, S, F) of some buckets, read-only: part of the last result while it is still referenced."""
        if self._laid_out is not None:
            first, end, held = self._laid_out
            if first <= lo and hi <= end and (sums := held()) is not None:
                return sums[lo - first : hi - first]
        sums = self._sums(lo, hi)
        sums.flags.writeable = False
        self._laid_out = (lo, hi, ref(sums))
        return sums

    def _sums(self, lo: int, hi: int, of: slice | Ints = np.s_[:]) -> Floats:
        """(B, S, F) of some buckets and slices."""
        columns = [field[lo:hi, of] for field in self._fields]
        found = np.empty((*columns[0].shape, len(columns)))
        for begin in range(0, len(found), BLOCK):
            rows = np.s_[begin : begin + BLOCK]
            for i, column in enumerate(columns):
                found[rows, :, i] = column[rows]
        return found

    def replace(self, since: int, until: int, new: _Rows) -> None:
        self._laid_out = None
        if not set(new[2]) <= set(self._slices):
            names = (OVERALL, *sorted({*self._slices, *new[2]} - {OVERALL}))
            self._put(*_columns(self._rows(0, self._count), names))
        starts, final, _, sums, there = rows = _columns(new, self._slices)
        lo, hi = (int(at) for at in np.searchsorted(self._starts[: self._count], [since, until]))
        end = lo + len(starts)
        if hi == self._count and end <= len(self._starts):
            self._count = end
        elif end != hi:
            self._put_all(self._rows(0, lo), rows, self._rows(hi, self._count))
            return
        self._starts[lo:end], self._final[lo:end], self._there[lo:end] = starts, final, there
        for i, field in enumerate(self._fields):
            column = _packed(sums[..., i])
            self._fields[i] = field = field.astype(np.promote_types(field.dtype, column.dtype), copy=False)
            field[lo:end] = column

    def _put_all(self, *parts: _Rows) -> None:
        starts, final, sums, there = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 3, 4))
        self.since = max(self.since, int(starts[-1]) - self._span) if len(starts) else self.since
        kept = np.s_[int(np.searchsorted(starts, self.since)) :]
        self._put(starts[kept], final[kept], self._slices, sums[kept], there[kept])

    def _rows(self, lo: int, hi: int) -> _Rows:
        return self._starts[lo:hi], self._final[lo:hi], self._slices, self._sums(lo, hi), self._there[lo:hi]


_Rows = tuple[Ints, Bools, tuple[SliceKey, ...], Floats, Bools]


def _columns(rows: _Rows, names: tuple[SliceKey, ...]) -> _Rows:
    """Rows reordered by other slices; zeros where they had none."""
    starts, final, slices, sums, there = rows
    if slices == names:
        return rows
    place = {name: i for i, name in enumerate(names)}
    at = [place[name] for name in slices]
    wider, known = np.zeros((len(starts), len(names), sums.shape[2])), np.zeros((len(starts), len(names)), bool)
    wider[:, at], known[:, at] = sums, there
    return starts, final, names, wider, known


def _packed(column: Floats) -> NDArray[Any]:
    """Numbers in the smallest type that holds them exactly; only counts up to 2^32 - 1 are narrowed."""
    if column.size and not (column.min() >= 0 and column.max() < 1 << 32):
        return column
    packed = column.astype(np.uint16 if not column.size or column.max() < 1 << 16 else np.uint32)
    return packed if (packed == column).all() else column
