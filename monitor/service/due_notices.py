"""Queues notifications outside evaluations: due reports and changes, and open incidents that nobody acknowledges.

The outbox is the only state: what was queued for a target, by whichever process, is not due for it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from monitor.errors import LeaseLost
from monitor.messages.notification import Notification
from monitor.store import Store


@dataclass(frozen=True)
class DueNotices:
    """Queues each thing that is due once.

    Attributes:
        lease: of the one process that queues at a time; no name of a monitor holds blanks.
        found: (target, notification) of what is due by now, real seconds since 1970, and was not queued.
        wake: sends what is queued.
        clock: real seconds since 1970.
    """

    store: Store
    lease: str
    found: Callable[[float], Iterable[tuple[str, Notification]]]
    wake: Callable[[], None]
    clock: Callable[[], float] = time.time

    def run(self) -> None:
        """Queue what is due and was not queued. Raises StoreError."""
        now = self.clock()
        if not any(self.found(now)):
            return
        with suppress(LeaseLost), self.store.hold(self.lease) as lease:
            for due in self.found(now):  # again: the process that held the lease before may have queued it
                self.store.alerts.notify(lease, [due], now)
        self.wake()
