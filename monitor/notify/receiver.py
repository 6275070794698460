"""What all channels have in common: receivers, and how one says that it has not got something."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from monitor.conditions.rules import Severity
from monitor.messages.notification import Notification


class Receiver(Protocol):
    """One place that notifications go to.

    Attributes:
        channel: name of the channel in the configuration.
        target: name of this receiver in the outbox; it stays the same over restarts and holds no secret.
        give_up_after: seconds after which an incident that is over meanwhile need not be told of; its end always is.
        repeat: seconds between two reminders of what still goes on; None for no reminders.
    """

    channel: str
    target: str
    give_up_after: float
    repeat: float | None

    def send(self, notification: Notification, now: float, former: Collection[Severity] = ()) -> None:
        """Deliver; returns when the other side has said that it has it.

        Args:
            now: real seconds since 1970.
            former: severities under which it was told of this incident before.

        Raises:
            Undelivered: it has not.
        """
