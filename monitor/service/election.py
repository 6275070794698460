"""Who judges a monitor where several daemons on a store run it by unlike rules: only one of them, as long as it lives.

By turns each would end what the other found, and page anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from monitor.store import Lease, Progress, Store
from monitor.store.lease import named
from monitor.types import Monitor

log = logging.getLogger(__name__)

LONGEST_RETRY = 300.0
"""Seconds between two runs of a monitor that fails, at the most; more where it is run less often."""

PATIENCE = 3
"""Runs that a process must have missed to count as gone."""


class EvaluatorElection:
    """Whether a process may judge a monitor now; who did so last goes first."""

    def __init__(self, monitor: Monitor, store: Store, elapsed: Callable[[], float]) -> None:
        """`elapsed`: seconds of a clock that is never set."""
        self._monitor = monitor
        self._store = store
        self._elapsed = elapsed
        self._seen: tuple[str, int | None, float] | None = None
        self._warned = ""

    def is_mine(self, lease: Lease) -> bool:
        """Whether to judge in the run that holds the lease. Another process that judges otherwise is told of, once.

        Raises:
            StoreError: the store is out of reach.
        """
        last = self._store.progress(self._monitor.name)
        by, own = last.judged_by or "", (self._monitor.judged_as, lease.holder)
        if not by or own[0] == last.judged_as or own[1] == by or self._store.leases.is_gone(by) or self._is_idle(last):
            self._seen, self._warned = None, ""
            return True
        if self._warned != by:
            text = (
                "monitor %s: %s judges it too, by other alert rules or another `drift` than this process: judging is "
            )
            text += "left to that one. Give both the same configuration, or this monitor another name"
            log.warning(text, self._monitor.name, named(by))
        self._warned = by
        return False

    def _is_idle(self, last: Progress) -> bool:
        """Whether the one that judged last has missed so many runs, by what was seen here, that it counts as gone."""
        by, now = last.judged_by or "", self._elapsed()
        if self._seen is None or self._seen[:2] != (by, last.judged_run):
            self._seen = by, last.judged_run, now
        return now - self._seen[2] >= PATIENCE * max(last.refresh or 0.0, LONGEST_RETRY)

    def taken(self, lease: Lease) -> dict[str, str | int]:
        """Fields of `Progress` by which others know that it was judged in this run."""
        return {"judged_by": lease.holder, "judged_as": self._monitor.judged_as, "judged_run": lease.token}
