"""The log channel: always there, for monitors without another channel."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monitor.messages.prior import NO_PRIOR, PriorDelivery

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

log = logging.getLogger("monitor.incidents")


class Log:
    """Writes notifications to rankmon's own log."""

    channel = target = "log"
    give_up_after = 86_400.0
    repeat: float | None = None

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        """Write it down; this cannot fail."""
        level = logging.INFO if notification.kind in ("resolved", "test") else logging.WARNING
        said = " | ".join(filter(None, map(str.strip, [notification.title, *notification.full_text.splitlines()])))
        log.log(level, "%s [%s, incident %s] %s", notification.kind, notification.severity, notification.incident, said)
