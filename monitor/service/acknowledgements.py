"""Polls the store for acknowledgements, silences and announcements, so the page shows them within seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType

from monitor.conditions.checkpoint import Announcement
from monitor.service.snapshot import Board, MonitorSnapshot, StoredIncident, announced_to
from monitor.store import Store
from monitor.store.alerts import Acknowledgement

Acknowledgements = Mapping[str, Acknowledgement]
"""Incident id -> acknowledgement."""

ATTENDED = attrgetter("opened", "incidents", "silenced_until", "noted", "announced")
"""Snapshot fields that a poll may change."""


def poll_acknowledgements(board: Board, store: Store) -> None:
    """Bring what people did on the board in step with the store, once. Raises StoreError."""
    until = store.alerts.silenced(time.time())
    shown = board.snapshots
    open_ = [s.incident.id for one in shown.values() for s in one.opened.values()]
    known = store.alerts.acknowledged(open_) if open_ else {}
    told = store.verdicts.every_announced()
    for name in shown:
        change = partial(_amended, known=known, silenced=until.get(name), announced=told.get(name, ()))
        board.amend(name, change)


def _amended(
    snapshot: MonitorSnapshot, known: Acknowledgements, silenced: float | None, announced: Iterable[Announcement]
) -> MonitorSnapshot:
    changed = replace(
        announced_to(snapshot, announced),
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
