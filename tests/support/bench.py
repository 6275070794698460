"""A store, a monitor with verdicts, and a simulated past of it that is stored and judged as a daemon would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.conditions.arrivals import Arrived
from monitor.drift.series import Hours
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.messages.notification import Notification
from monitor.series import partials as b
from monitor.series.partials import Partials
from monitor.store import Lease, Store
from monitor.store.alerts import StoredIncident
from monitor.types import OVERALL, Drift, Monitor, RetrainRequests
from monitor.units import HOUR
from tests.support.monitors import new_store
from tests.support.tallies import watched

CHANNELS = {"team": ("team",), "data": ("data",)}


@dataclass
class Bench:
    """A store, a monitor, and a simulated past of it."""

    store: Store
    monitor: Monitor
    said: list[tuple[str, str, str]]
    notices: list[tuple[str, Notification]] = field(default_factory=list)
    refused_of: tuple[str, ...] = ()
    """Devices that the refused rows are of, in equal parts."""

    @property
    def is_on_postgres(self) -> bool:
        return self.store.dialect == "postgresql"

    @property
    def drift(self) -> Drift:
        assert self.monitor.drift is not None
        return self.monitor.drift

    def put(self, past: Hours, is_final: bool = True, read_at: float = 1e6, is_awaited: bool = False) -> None:
        """Store some hours."""
        with self.store.hold("search") as lease:
            self._put(lease, past, is_final, read_at, is_awaited)

    def _put(
        self, lease: Lease, past: Hours, is_final: bool = True, read_at: float = 1e6, is_awaited: bool = False
    ) -> None:
        tally = Partials(int(past.starts[0]), int(past.starts[-1]) + HOUR)
        tally.admitted = [("device", name) for name in past.slices]
        kernels = [str(measure.kernel) for measure in self.monitor.measures]
        for row, start in enumerate(past.starts.tolist()):
            if refused := int(past.refused[row]):
                tally.refused[(start, *OVERALL), "bad_position"] = refused
                for name in self.refused_of:
                    tally.refused[(start, "device", name), "bad_position"] = refused // len(self.refused_of)
            for column, key in enumerate([OVERALL, *(("device", name) for name in past.slices)]):
                at = slice(None) if key == OVERALL else column - 1
                requests, labelled = past.served[row, at].sum(), past.labelled[row, at].sum()
                measured = past.requests[row, at].sum()
                events = past.events[row] * labelled / max(past.labelled[row].sum(), 1)
                shown = past.shown[row] * requests / max(past.served[row].sum(), 1)
                extra = [events, past.unmatched[row] if key == OVERALL else 0.0]
                first = past.rank_one[row] * requests / max(past.served[row].sum(), 1)
                tally.traffic[start, *key] = np.array([requests, labelled, shown, 0, *extra, 0, first])
                sums = np.zeros(len(b.FIELDS))
                sums[[b.REQUESTS, b.EMPTY]] = measured, measured - labelled
                sums[[b.TOTAL, b.SQUARES]] = past.total[row, at].sum(), past.squares[row, at].sum()
                for kernel in kernels:
                    tally.measures.setdefault(kernel, {})[start, *key] = sums
        starts = range(tally.since, tally.until, HOUR)
        targets = dict.fromkeys(self.monitor.definitions, starts)
        finals, awaited = starts if is_final else [], starts if is_awaited else []
        self.store.write(lease, self.monitor, tally, targets, read_at, finals, force=True, awaited=awaited)

    def judge(self, until: int, current: bool = True, arrived: Arrived | None = None) -> None:
        with self.store.hold("search") as lease:
            self._judge(lease, until, current, arrived)

    def _judge(self, lease: Lease, until: int, current: bool = True, arrived: Arrived | None = None) -> None:
        recipients = Recipients(CHANNELS, "http://page/", time.time(), current)
        judgement = judge_monitor(self.monitor, until, self.store, lease, recipients, arrived)
        for target, notice in judgement.notices if judgement is not None else ():
            self.notices.append((target, notice))
            self.said.append((target, notice.kind, notice.title))

    def live(self, past: Hours, since: int, step: int = 6) -> None:
        """Store and judge some hours, a few at a time, from row `since` on."""
        for row in range(since, len(past.starts), step):
            some = past.rows(row, row + step)
            with self.store.hold("search") as lease:
                self._put(lease, some)
                self._judge(lease, int(some.starts[-1]) + HOUR)

    @property
    def incidents(self) -> list[StoredIncident]:
        """Oldest first."""
        return self.store.alerts.incidents()[::-1]


@contextmanager
def opened(url: str) -> Iterator[Bench]:
    """With an empty store."""
    store = new_store(url, 20)
    plain = watched()
    drift = Drift(plain.measures[0], mix_by="device", data_channels=("data",))
    yield Bench(store, replace(plain, drift=drift, notify=("team",), retrain=RetrainRequests(notify=("team",))), [])
    store.close()
