"""Forgets the buckets of monitors that nobody has run for very long, a little at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from monitor.errors import LeaseLost
from monitor.store import Lease, Store

log = logging.getLogger(__name__)

AT_ONCE = 1.0
"""Real seconds after which the rest is left to the next look."""

ALWAYS = (0, 1 << 62)


class OrphanedMonitors:
    """Looks for such monitors. That they stand in no configuration known here does not mean that they are gone: they
    are left alone until nobody has held them between two looks either, whatever clock they were run by."""

    def __init__(self, store: Store, names: Callable[[], Collection[str]]) -> None:
        """`names`: the monitors that are configured here now."""
        self._store = store
        self._names = names
        self._seen: dict[str, int] = {}

    def forget(self, before: float) -> None:
        """Forget buckets of monitors whose last run began before then, in seconds.

        Raises:
            StoreError: the store is out of reach; what was forgotten stays so.
        """
        began, found = time.monotonic(), self._store.retention.abandoned(before)
        seen, self._seen = self._seen, {name: self._store.leases.number(name) for name in found}
        for name in found:
            if name not in self._names() and seen.get(name) == self._seen[name]:
                with suppress(LeaseLost), self._store.hold(name) as lease:
                    self._seen[name] = lease.token
                    if lease.token == seen[name] + 1 and self._forget_all(name, lease, began):
                        log.info(
                            "monitor %s: nobody ran it for longer than store.retain; its buckets are forgotten", name
                        )

    def _forget_all(self, name: str, lease: Lease, began: float) -> bool:
        """As much as there is time for; whether there is nothing left."""
        while (day := self._store.retention.oldest_day(name, [ALWAYS])) is not None:
            if time.monotonic() - began >= AT_ONCE:
                return False
            self._store.retention.forget(lease, *day)
        return True
