"""Routes open incidents again while nobody acknowledges them: later hours, escalations, repetitions.

The outbox is the only state: whoever has a notification of an incident there is not notified of its opening again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from monitor.errors import LeaseLost
from monitor.evaluation.telling import Telling
from monitor.messages.notification import Notification, key
from monitor.messages.words import lasting
from monitor.routing import reached, repeated
from monitor.service.runner import Notifier
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.store.outbox import OutboxEntry
from monitor.types import Monitor

LEASE = "escalation of incidents"
"""Lease of the one process that escalates at a time; no name of a monitor holds blanks."""


class Escalator:
    """Notifies whoever the routes name by now of the incidents that nobody has acknowledged."""

    def __init__(
        self, store: Store, monitors: Callable[[], Sequence[Monitor]], notifier: Notifier, clock: Callable[[], float]
    ) -> None:
        """`monitors`: those configured here now; `clock`: real seconds since 1970."""
        self._store = store
        self._monitors = monitors
        self._notifier = notifier
        self._clock = clock

    def run(self) -> None:
        """Queue what is due; nothing without routes. Raises StoreError."""
        telling = replace(self._notifier.telling(), real_now=self._clock())
        if not telling.routes or not any(self._due(telling)):
            return
        with suppress(LeaseLost), self._store.hold(LEASE) as lease:
            # The process that held the lease before may have queued it.
            self._store.alerts.notify(lease, list(self._due(telling)), telling.real_now)
        self._notifier.wake()

    def _due(self, telling: Telling) -> Iterator[tuple[str, Notification]]:
        known = {monitor.name: monitor for monitor in self._monitors()}
        silent = {silence.monitor for silence in self._store.alerts.silences(telling.real_now)}
        for stored in self._store.alerts.unanswered():
            name = stored.incident.monitor
            if name in known and name not in silent and (told := self._store.outbox.history(stored.incident.id)):
                yield from due(known[name], stored, told, telling)


def due(
    monitor: Monitor, stored: StoredIncident, told: Sequence[OutboxEntry], telling: Telling
) -> Iterator[tuple[str, Notification]]:
    """What an open, unacknowledged incident makes due by now, after all that was told of it, oldest first."""
    now, newest, by_target = telling.real_now, told[-1].notification, {one.target: one for one in told}
    since = next(one.created_at for one in told if one.notification.severity == newest.severity)
    routes = telling.decide(monitor, stored.incident)
    for target in telling.receivers(reached(routes, now - since)):
        if target not in by_target:
            said = f"Nobody has acknowledged it for {lasting(int(now - since))}."
            yield target, replace(newest, former_severity=None, details="\n".join(filter(None, (said, newest.details))))
    for channel, every in repeated(routes).items():
        for target in telling.receivers([channel]):
            last = by_target.get(target)
            if last is not None and last.sent_at is not None and last.sent_at <= now - every:
                again = key(monitor.name, stored.incident.id, "repeat", last.notification.key)
                yield target, replace(last.notification, kind="updated", key=again, former_severity=None)
