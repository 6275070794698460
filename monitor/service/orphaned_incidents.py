"""Closes what is open of monitors that nobody runs any more, and says so to whoever was told of it.

That a monitor stands in no configuration known here does not mean that it is gone: several daemons may share a store,
each with monitors of its own, and a line that was lost is often put back a minute later. So it is watched first, for
some of the runs that it should have had, whoever runs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from monitor.errors import LeaseLost
from monitor.evaluation import withdraw
from monitor.service.election import LONGEST_RETRY, PATIENCE
from monitor.service.periodic import PeriodicTask
from monitor.service.runner import Desk
from monitor.store import Store

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""Seconds between two looks for monitors that are gone."""


class OrphanedIncidents:
    """Looks for monitors that have something open and are run by nobody, for as long as it runs."""

    def __init__(
        self, store: Store, names: Callable[[], Collection[str]], desk: Desk, elapsed: Callable[[], float]
    ) -> None:
        """`names`: the monitors that are configured here now; `elapsed`: seconds of a clock that is never set."""
        self._store = store
        self._names = names
        self._desk = desk
        self._elapsed = elapsed
        self._seen: dict[str, tuple[int, float]] = {}
        self._looking = PeriodicTask("withdrawing", "monitors that are gone", self.look, lambda: LOOK_EVERY)

    def start(self) -> None:
        """Begin."""
        self._looking.start()

    def stop(self) -> None:
        """End; a look that hangs is left behind."""
        self._looking.stop()

    def look(self) -> None:
        """Withdraw what is due. What cannot be now, for somebody has the lease, is seen to at a later look.

        Raises:
            StoreError: out of reach.
        """
        gone = set(self._store.alerts.watched()).difference(self._names())
        for name in self._seen.keys() - gone:
            del self._seen[name]
        for name in sorted(gone):
            run, now = self._store.leases.number(name), self._elapsed()
            seen, since = self._seen.setdefault(name, (run, now))
            if seen != run:
                self._seen[name] = (run, now)
            elif now - since >= PATIENCE * max(self._store.progress(name).refresh or 0.0, LONGEST_RETRY):
                with suppress(LeaseLost):
                    self._withdraw(name, run)

    def _withdraw(self, name: str, last_run: int) -> None:
        with self._store.hold(name) as lease:
            if lease.token == last_run + 1 and name not in self._names():
                withdraw(name, self._store, lease, replace(self._desk.telling(), real_now=time.time()))
                log.info("monitor %s: nobody runs it any more; what was open of it is withdrawn", name)
        self._desk.wake()
