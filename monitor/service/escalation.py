"""Routes open incidents again while nobody acknowledges them: later hours, escalations, repeats.

The outbox is the only state: whoever has a notification of an incident there is not notified of its opening again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from monitor.evaluation.notices import Recipients
from monitor.messages.notification import Notification, key
from monitor.messages.words import lasting
from monitor.routing import reached, repeated
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.store.outbox import OutboxEntry
from monitor.types import Monitor


def escalations(
    store: Store, monitors: Sequence[Monitor], recipients: Recipients
) -> Iterator[tuple[str, Notification]]:
    """(target, notification) that is due of the incidents that nobody has acknowledged; none without routes.

    Raises StoreError.
    """
    if not recipients.routes:
        return
    known = {monitor.name: monitor for monitor in monitors}
    silent = store.alerts.silenced(recipients.real_now)
    for stored in store.alerts.unanswered():
        name = stored.incident.monitor
        if name in known and name not in silent and (told := store.outbox.history(stored.incident.id)):
            yield from due(known[name], stored, told, recipients)


def due(
    monitor: Monitor, stored: StoredIncident, told: Sequence[OutboxEntry], recipients: Recipients
) -> Iterator[tuple[str, Notification]]:
    """What an open, unacknowledged incident makes due by now, after all that was told of it, oldest first."""
    now, newest, by_target = recipients.real_now, told[-1].notification, {one.target: one for one in told}
    since = next(one.created_at for one in told if one.notification.severity == newest.severity)
    routes, said = recipients.decide(monitor, stored.incident), f"Not acknowledged for {lasting(int(now - since))}."
    for target in recipients.receivers(reached(routes, now - since)):
        if target not in by_target:
            yield target, newest.sent_again(said)
    for channel, every in repeated(routes).items():
        for target in recipients.receivers([channel]):
            last = by_target.get(target)
            if last is not None and last.sent_at is not None and last.sent_at <= now - every:
                again = key(monitor.name, stored.incident.id, "repeat", last.notification.key)
                yield target, replace(last.notification.sent_again(said), kind="updated", key=again)
