"""Elects who evaluates a monitor when several daemons share a store but have different rules.

If they took turns, each would close the other's incidents and page again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from monitor.service.periodic import LONGEST_RETRY
from monitor.store import Lease, Progress, Store
from monitor.store.lease import holder_in_words
from monitor.types import Monitor

log = logging.getLogger(__name__)

PATIENCE = 3
"""Missed runs after which a process counts as gone."""


def is_overdue(seconds: float, last: Progress) -> bool:
    """Whether a monitor not run for so long counts as orphaned."""
    return seconds >= PATIENCE * max(last.refresh or 0.0, LONGEST_RETRY)


class EvaluatorElection:
    """Decides whether this process may evaluate a monitor; the last one to evaluate keeps that right while alive."""

    def __init__(self, monitor: Monitor, store: Store, elapsed: Callable[[], float]) -> None:
        """`elapsed`: seconds of a monotonic clock."""
        self._monitor = monitor
        self._store = store
        self._elapsed = elapsed
        self._seen: tuple[str, int | None, float] | None = None
        self._warned = ""

    def is_mine(self, lease: Lease) -> bool:
        """Whether to evaluate in the run that holds the lease; warns once of another evaluator. Raises StoreError."""
        last = self._store.progress(self._monitor.name)
        by, own = last.judged_by or "", (self._monitor.judged_as, lease.holder)
        if not by or own[0] == last.judged_as or own[1] == by or self._store.leases.is_gone(by) or self._is_idle(last):
            self._seen, self._warned = None, ""
            return True
        if self._warned != by:
            log.warning(
                "monitor %s: %s already evaluates it with different rules or another `drift`; this process will not. "
                "Give both the same configuration, or rename this monitor",
                self._monitor.name,
                holder_in_words(by),
            )
        self._warned = by
        return False

    def _is_idle(self, last: Progress) -> bool:
        by, now = last.judged_by or "", self._elapsed()
        if self._seen is None or self._seen[:2] != (by, last.judged_run):
            self._seen = by, last.judged_run, now
        return is_overdue(now - self._seen[2], last)

    def taken(self, lease: Lease) -> dict[str, str | int]:
        """`Progress` fields that record who evaluated in this run."""
        return {"judged_by": lease.holder, "judged_as": self._monitor.judged_as, "judged_run": lease.token}
