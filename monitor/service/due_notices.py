"""Queues what is due by the clock or by what is stored, and not by an incident: reports, and changes.

The outbox is the only state: what it has the key of was queued by some process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from monitor.errors import LeaseLost
from monitor.messages.notification import Notification
from monitor.store import Store

LEASE = "reports and changes"
"""Lease of the one process that queues at a time; no name of a monitor holds blanks."""


@dataclass(frozen=True)
class DueNotice:
    """A notification that some targets are due.

    Attributes:
        key: of the notification, the same in every process.
        make: makes it; None if there is nothing to say yet.
    """

    key: str
    targets: Sequence[str]
    make: Callable[[], Notification | None]


Finding = Callable[[float], Iterable[DueNotice]]
"""What is due by now, real seconds since 1970, whether it was queued or not."""


class DueNotices:
    """Queues each thing that is due once."""

    def __init__(
        self, store: Store, found: Sequence[Finding], wake: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        """`wake`: sends what is queued; `clock`: real seconds since 1970."""
        self._store = store
        self._found = found
        self._wake = wake
        self._clock = clock

    def run(self) -> None:
        """Queue what is due and was not queued. Raises StoreError."""
        now = self._clock()
        if not any(self._missing(now)):
            return
        with suppress(LeaseLost), self._store.hold(LEASE) as lease:
            for one in list(self._missing(now)):  # again: the process that held the lease before may have queued it
                if (notice := one.make()) is not None:
                    self._store.alerts.notify(lease, [(target, notice) for target in one.targets], now)
        self._wake()

    def _missing(self, now: float) -> Iterator[DueNotice]:
        for one in (due for found in self._found for due in found(now)):
            had = self._store.outbox.having(one.key) if one.targets else ()
            if left := [target for target in one.targets if target not in had]:
                yield DueNotice(one.key, left, one.make)
