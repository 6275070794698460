"""Polls the store for acknowledgements and silences, so the page shows them within seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TypeVar

from monitor.service.snapshot import Board, MonitorSnapshot, StoredIncident
from monitor.store import Store
from monitor.store.alerts import Acknowledgement

Acknowledgements = Mapping[str, Acknowledgement]
"""Incident id -> acknowledgement."""

ATTENDED = attrgetter("incident", "data_incident", "incidents", "silenced_until")
"""Snapshot fields that a poll may change."""

Stored = TypeVar("Stored", StoredIncident, StoredIncident | None)


class AcknowledgementPoller:
    """Keeps the board's acknowledgements and silences in step with the store."""

    def __init__(self, board: Board, store: Store) -> None:
        self._board = board
        self._store = store

    def poll(self) -> None:
        """Update the board once. Raises StoreError."""
        until: dict[str, float] = {}
        for silence in self._store.alerts.silences(time.time()):
            until[silence.monitor] = max(silence.until, until.get(silence.monitor, 0.0))
        shown = self._board.snapshots
        open_ = [s.incident.id for one in shown.values() for s in one.open_incidents]
        known = self._store.alerts.acknowledged(open_) if open_ else {}
        for name in shown:
            self._board.amend(name, partial(_amended, known=known, silenced=until.get(name)))


def _amended(snapshot: MonitorSnapshot, known: Acknowledgements, silenced: float | None) -> MonitorSnapshot:
    changed = replace(
        snapshot,
        incident=_acknowledged(snapshot.incident, known),
        data_incident=_acknowledged(snapshot.data_incident, known),
        incidents=tuple(_acknowledged(stored, known) for stored in snapshot.incidents),
        silenced_until=silenced,
    )
    return snapshot if ATTENDED(changed) == ATTENDED(snapshot) else changed


def _acknowledged(stored: Stored, known: Acknowledgements) -> Stored:
    found = None if stored is None else known.get(stored.incident.id)
    if stored is None or found is None:
        return stored
    return replace(stored, acknowledged_at=found.at, acknowledged_by=found.by, note=found.note)
