"""What people do about incidents, shown within seconds: acknowledgements and silences, which wait for no run.

They are looked up beside the requests for the page, so that a store that is slow, or out of reach, holds up no page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from monitor.service.periodic import PeriodicTask
from monitor.service.snapshot import Board, MonitorSnapshot, StoredIncident
from monitor.store import Store
from monitor.store.alerts import Acknowledgement

LOOK_EVERY = 2.0
"""Seconds between two looks at the store, each of them two short questions."""

Shown = TypeVar("Shown", StoredIncident, StoredIncident | None)


class AcknowledgementPoller:
    """Keeps the board's acknowledgements and silences as they are in the store."""

    def __init__(self, board: Board, store: Store, clock: Callable[[], float]) -> None:
        """`clock`: real seconds since 1970."""
        self._board = board
        self._store = store
        self._clock = clock
        self._looking = PeriodicTask("attention", "acknowledgements and silences", self.look, lambda: LOOK_EVERY)

    def start(self) -> None:
        """Begin."""
        self._looking.start()

    def stop(self) -> None:
        """End; a look that hangs is left behind."""
        self._looking.stop()

    def look(self) -> None:
        """Bring the board up to date once. Raises StoreError."""
        until: dict[str, float] = {}
        for silence in self._store.alerts.silences(self._clock()):
            until[silence.monitor] = max(silence.until, until.get(silence.monitor, 0.0))
        shown = self._board.snapshots
        open_ = [s.incident.id for one in shown.values() for s in (one.incident, one.data_incident) if s is not None]
        known = self._store.alerts.acknowledged(open_) if open_ else {}
        for name in shown:
            self._board.amend(name, partial(_with, known=known, silenced=until.get(name)))


def _with(snapshot: MonitorSnapshot, known: Mapping[str, Acknowledgement], silenced: float | None) -> MonitorSnapshot:
    """The same snapshot if nothing has changed."""

    def amended(stored: Shown) -> Shown:
        if stored is None or (found := known.get(stored.incident.id)) is None:
            return stored
        is_new = (stored.acknowledged_at, stored.acknowledged_by, stored.note) != (found.at, found.by, found.note)
        changed = replace(stored, acknowledged_at=found.at, acknowledged_by=found.by, note=found.note)
        return changed if is_new else stored

    changed = replace(
        snapshot,
        incident=amended(snapshot.incident),
        data_incident=amended(snapshot.data_incident),
        incidents=tuple(amended(s) for s in snapshot.incidents),
        silenced_until=silenced,
    )
    pairs = zip(
        (changed.incident, changed.data_incident, *changed.incidents),
        (snapshot.incident, snapshot.data_incident, *snapshot.incidents),
        strict=True,
    )
    is_same = silenced == snapshot.silenced_until and all(one is other for one, other in pairs)
    return snapshot if is_same else changed
