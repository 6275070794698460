"""Polls the store for acknowledgements and silences, so the page shows them within seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType

from monitor.service.snapshot import Board, MonitorSnapshot, StoredIncident
from monitor.store import Store
from monitor.store.alerts import Acknowledgement

Acknowledgements = Mapping[str, Acknowledgement]
"""Incident id -> acknowledgement."""

ATTENDED = attrgetter("opened", "incidents", "silenced_until")
"""Snapshot fields that a poll may change."""


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
        open_ = [s.incident.id for one in shown.values() for s in one.opened.values()]
        known = self._store.alerts.acknowledged(open_) if open_ else {}
        for name in shown:
            self._board.amend(name, partial(_amended, known=known, silenced=until.get(name)))


def _amended(snapshot: MonitorSnapshot, known: Acknowledgements, silenced: float | None) -> MonitorSnapshot:
    changed = replace(
        snapshot,
        opened=MappingProxyType({matter: _acknowledged(stored, known) for matter, stored in snapshot.opened.items()}),
        incidents=tuple(_acknowledged(stored, known) for stored in snapshot.incidents),
        silenced_until=silenced,
    )
    return snapshot if ATTENDED(changed) == ATTENDED(snapshot) else changed


def _acknowledged(stored: StoredIncident, known: Acknowledgements) -> StoredIncident:
    found = known.get(stored.incident.id)
    if found is None:
        return stored
    return replace(stored, acknowledged_at=found.at, acknowledged_by=found.by, note=found.note)
