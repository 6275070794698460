"""What a receiver was notified of before."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monitor.conditions.rules import Severity


@dataclass(frozen=True, slots=True)
class PriorDelivery:
    """What a receiver knows of an incident from earlier notifications.

    Attributes:
        severities: under which it was told, or may have been.
        receipt: what `send` returned last, such as the id of a message that later ones belong to; "" if nothing.
        begun_at: when an attempt at this very notification began whose answer nobody heard, so that it may have
            it; real seconds since 1970, None for the first attempt.
    """

    severities: Collection[Severity] = ()
    receipt: str = ""
    begun_at: float | None = None


NO_PRIOR = PriorDelivery()
"""Nothing."""
