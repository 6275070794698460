"""Where the verdicts on a monitor stand: the baseline, and the newest verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.conditions.verdict_units import Unit, units_of
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.drift.verdicts import Verdict
from monitor.errors import InputError
from monitor.evaluation.checkpoint import identity_of, settings_of
from monitor.evaluation.verdicts import begun_anew, follow_drift
from monitor.store import Store
from monitor.store.alerts import AlertState
from monitor.store.verdicts import BaselineReset
from monitor.types import Drift, Monitor


@dataclass(frozen=True)
class Stand:
    """What the verdicts on a monitor rest on.

    Attributes:
        begun: moments at which somebody had the baseline begin anew, oldest first.
        state, verdict: the newest; None if there is nothing final yet.
    """

    monitor: str
    drift: Drift
    settings: DriftSettings
    begun: Sequence[BaselineReset]
    state: DriftState | None
    verdict: Verdict | None

    @property
    def units(self) -> list[Unit]:
        """Overall first, then the slices."""
        return units_of(self.settings, self.state)


def stand(monitor: Monitor, store: Store) -> Stand:
    """Where the verdicts stand: as stored, or found anew where the stored ones are of another configuration.

    Raises:
        InputError: the monitor has no `drift`.
        StoreError: the store is out of reach.
    """
    drift = drift_of(monitor)
    counts, begun = begun_anew(monitor, drift, store), store.verdicts.baselines(monitor.name)
    settings, stored = settings_of(monitor, drift, counts), store.verdicts.standing(monitor.name)
    if stored is not None and stored.identity == identity_of(monitor, drift, counts):
        return Stand(monitor.name, drift, settings, begun, stored.state, store.verdicts.newest(monitor.name))
    end = store.settled_end(monitor.traffic, monitor.bucket)
    found = None if end is None else follow_drift(monitor, drift, AlertState(), end, store).judged
    if found is None:
        return Stand(monitor.name, drift, settings, begun, None, None)
    last = found.verdicts[-1] if found.verdicts else None
    return Stand(monitor.name, drift, settings, begun, found.standing.state, last)


def drift_of(monitor: Monitor) -> Drift:
    """How verdicts on a monitor are found. Raises InputError if none are wanted."""
    if monitor.drift is None:
        raise InputError(f"{monitor.name} has no `drift:`, so it has no baseline; add `drift: {{}}` to it")
    return monitor.drift
