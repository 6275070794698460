"""What people see and do on the incident page: acknowledge, silence the monitor, label it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from monitor.conditions.incident import LABELS
from monitor.config.values import Config
from monitor.errors import InputError, StoreError
from monitor.evaluation.notices import Recipients
from monitor.messages.diagnosis import explanation_parts
from monitor.messages.notification import About, notification
from monitor.notify import acknowledging
from monitor.page.incident import SILENCES, IncidentView
from monitor.page.png import can_draw
from monitor.service.charts import drawn
from monitor.service.explaining import Explainer
from monitor.service.fall import fall_of
from monitor.store import Store
from monitor.store.alerts import StoredIncident

PAGES_AT_ONCE = 4
"""Pages shown and changes made at once: a store that hangs must not hold up metrics and health."""


@dataclass
class IncidentDesk:
    """Reads and changes incidents for the page. `config`, `recipients`: as of now; `wake` sends what is queued."""

    store: Store
    config: Callable[[], Config]
    recipients: Callable[[], Recipients]
    wake: Callable[[], None]
    _free: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(PAGES_AT_ONCE), init=False
    )

    @contextmanager
    def _busy(self) -> Iterator[None]:
        if not self._free.acquire(blocking=False):
            raise StoreError("store: too many incident pages are waiting for it; try again")
        try:
            yield
        finally:
            self._free.release()

    def view(self, incident: str) -> IncidentView | None:
        with self._busy():
            stored = self.store.alerts.incident(incident)
            return None if stored is None else self._view(stored)

    def chart(self, incident: str) -> bytes:
        """PNG of its fall; empty if there is none, or the extra `charts` is missing. Raises StoreError."""
        with self._busy(), suppress(InputError):
            return drawn(self.store, self.config().monitors, incident) if can_draw() else b""
        return b""

    def _view(self, stored: StoredIncident) -> IncidentView:
        it, recipients, fall = stored.incident, self.recipients(), None
        monitor = next((one for one in self.config().monitors if one.name == it.monitor), None)
        about = About(it.monitor, page=recipients.page, called=recipients.called)
        if monitor is not None:
            about = About(monitor.name, monitor.labels, monitor.runbook_url, recipients.page, recipients.called)
            try:
                fall = fall_of(monitor, self.store, stored)
            except InputError:
                fall = None
        told = notification(it.state, about, it, stored.findings, 0, most=len(stored.findings))
        silenced_until = self.store.alerts.silenced(time.time()).get(it.monitor)
        explainer = Explainer(monitor, self.config().path, stored, self.store)
        explanation = explanation_parts(next(explainer.each()), explainer.hours(), it.is_open)
        return IncidentView(stored, told, fall, explanation, silenced_until)

    def acknowledge(self, incident: str, by: str, note: str) -> bool:
        """Acknowledge it, and tell who takes that; False if there is none. Raises StoreError."""
        with self._busy():
            takers = acknowledging(self.config().channels)
            done = self.store.alerts.acknowledge(incident, by, note, time.time(), takers)
        self.wake()
        return done

    def silence(self, incident: str, span: str, by: str, note: str) -> bool:
        """Silence its monitor for one of SILENCES; False if there is no such incident or span. Raises StoreError."""
        now, seconds = time.time(), SILENCES.get(span)
        with self._busy():
            stored = self.store.alerts.incident(incident)
            if stored is None or seconds is None:
                return False
            self.store.alerts.silence(stored.incident.monitor, now, now + seconds, by, note)
        return True

    def label(self, incident: str, label: str, by: str, note: str) -> bool:
        """Say what it was; False if there is no such incident or label. Raises StoreError."""
        known = next((one for one in LABELS if one == label), None)
        with self._busy():
            return known is not None and self.store.alerts.label(incident, known, by, note)
