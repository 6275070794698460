"""Orphaned monitors: their open incidents are withdrawn, and much later their buckets are deleted.

Another daemon on the store may run the monitor, or the configuration may restore it a minute later. So watch first:
whoever runs it takes its lease.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from monitor.errors import LeaseLost
from monitor.evaluation.run import withdraw
from monitor.service.election import is_overdue
from monitor.service.runner import Notifier
from monitor.store import Lease, Store
from monitor.types import FARTHEST

log = logging.getLogger(__name__)

DELETE_FOR = 1.0
"""Real seconds of deleting per call."""


class OrphanedIncidents:
    """Withdraws open incidents of monitors not run for several of their periods."""

    def __init__(
        self, store: Store, names: Callable[[], Collection[str]], notifier: Notifier, elapsed: Callable[[], float]
    ) -> None:
        """`names`: monitors configured here now; `elapsed`: seconds of a monotonic clock."""
        self._store = store
        self._names = names
        self._notifier = notifier
        self._elapsed = elapsed
        self._seen: dict[str, tuple[int, float]] = {}

    def withdraw(self) -> None:
        """Withdraw what is due; monitors whose lease is held wait for the next call. Raises StoreError."""
        gone = set(self._store.alerts.watched()).difference(self._names())
        self._seen = {name: seen for name, seen in self._seen.items() if name in gone}
        for name in sorted(gone):
            run, now = self._store.leases.number(name), self._elapsed()
            seen, since = self._seen.setdefault(name, (run, now))
            if seen != run:
                self._seen[name] = (run, now)
            elif is_overdue(now - since, self._store.progress(name)):
                with suppress(LeaseLost):
                    self._withdraw(name, run)

    def _withdraw(self, name: str, last_run: int) -> None:
        with self._store.hold(name) as lease:
            if lease.token == last_run + 1 and name not in self._names():
                withdraw(name, self._store, lease, replace(self._notifier.recipients(), real_now=time.time()))
                log.info("monitor %s: no daemon runs it any more; its open incidents are withdrawn", name)
        self._notifier.wake()


class OrphanedMonitors:
    """Deletes buckets of monitors not run for very long, by any clock, nor between two calls."""

    def __init__(self, store: Store, names: Callable[[], Collection[str]]) -> None:
        """`names`: monitors configured here now."""
        self._store = store
        self._names = names
        self._seen: dict[str, int] = {}

    def forget(self, before: float) -> None:
        """Delete buckets of monitors whose last run began before `before`, seconds. Raises StoreError."""
        began, found = time.monotonic(), self._store.retention.abandoned(before)
        seen, self._seen = self._seen, {name: self._store.leases.number(name) for name in found}
        for name in found:
            if name not in self._names() and seen.get(name) == self._seen[name]:
                with suppress(LeaseLost), self._store.hold(name) as lease:
                    self._seen[name] = lease.token
                    if lease.token == seen[name] + 1 and self._forget_all(name, lease, began):
                        log.info("monitor %s: not run for longer than store.retain; its buckets are deleted", name)

    def _forget_all(self, name: str, lease: Lease, began: float) -> bool:
        """Deletes as much as time allows; True if nothing is left."""
        while (day := self._store.retention.oldest_day(name, [(0, FARTHEST)])) is not None:
            if time.monotonic() - began >= DELETE_FOR:
                return False
            self._store.retention.forget(lease, *day)
        return True
