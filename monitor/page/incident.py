"""The incident page, for a phone: five lines, chart, explanation, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from monitor import __version__
from monitor.conditions.incident import LABELS
from monitor.errors import InputError
from monitor.messages.diagnosis import Part
from monitor.messages.notification import Notification
from monitor.page.fall import draw_fall
from monitor.page.words import TEMPLATES
from monitor.service.fall import Fall
from monitor.service.snapshot import StoredIncident
from monitor.units import DAY, HOUR, WEEK

SILENCES = {"1h": HOUR, "8h": 8 * HOUR, "1d": DAY, "7d": WEEK}
"""Seconds for which the page offers to silence a monitor."""


@dataclass(frozen=True)
class IncidentView:
    """An incident as its page shows it.

    Attributes:
        told: as its newest notification would tell it.
        fall: what its chart shows; None if it has none.
        explanation: lines and tables of what was found when it began to fire.
        silenced_until: real seconds since 1970; None if its monitor is not silenced.
    """

    stored: StoredIncident
    told: Notification
    fall: Fall | None
    explanation: Sequence[Part]
    silenced_until: float | None


class IncidentSource(Protocol):
    """What the page of an incident needs. Each method raises StoreError."""

    def view(self, incident: str) -> IncidentView | None:
        """An incident; None if there is none."""

    def chart(self, incident: str) -> bytes:
        """PNG of its fall; empty if there is none, or the extra `charts` is missing."""

    def acknowledge(self, incident: str, by: str, note: str) -> bool:
        """Acknowledge it; False if there is none."""

    def silence(self, incident: str, span: str, by: str, note: str) -> bool:
        """Silence its monitor for one of SILENCES; False if there is no such incident or span."""

    def label(self, incident: str, label: str, by: str, note: str) -> bool:
        """Say what it was, one of LABELS; False if there is no such incident or label."""


def render_incident(view: IncidentView, may_change: bool) -> str:
    """The page; `may_change`: whether it has buttons, else it names the commands."""
    told, incident = view.told, view.stored.incident
    return TEMPLATES.get_template("incident.html").render(
        version=__version__,
        view=view,
        told=told,
        incident=incident,
        monitor_link=f"../monitors/{quote(incident.monitor, safe='')}",
        chart=_chart(view),
        may_change=may_change,
        labels=LABELS,
        spans=SILENCES,
    )


def _chart(view: IncidentView) -> str:
    try:
        return "" if view.fall is None else draw_fall(view.fall)
    except InputError:
        return ""
