"""Changes that explain what comes after them: new model versions, new baselines, and what people announced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from monitor.config.values import Config
from monitor.evaluation.telling import Telling
from monitor.messages.notification import About, Notification, key
from monitor.messages.words import utc
from monitor.routing import Routing
from monitor.service.due_notices import DueNotice
from monitor.service.fall import ChartMark, marks_of
from monitor.store import Store
from monitor.types import Monitor

RECENT = 2 * 86_400
"""Seconds of data after which a change is past: a backfill finds many."""


class Changes:
    """Finds the changes that channels with change events are due."""

    def __init__(
        self,
        store: Store,
        config: Callable[[], Config],
        telling: Callable[[], Telling],
        data_clock: Callable[[], float],
    ) -> None:
        """`data_clock`: seconds of the data's clock."""
        self._store = store
        self._config = config
        self._telling = telling
        self._data_clock = data_clock

    def due(self, _: float) -> Iterator[DueNotice]:
        """Each change of the last days, for the channels that their monitor's incidents can go to."""
        takers = {one.name for one in self._config().channels if one.TAKES_CHANGES}
        for monitor in self._config().monitors if takers else ():
            channels = {c for route in Routing(monitor, self._config().routes).routes for c in route.channels}
            targets = self._telling().receivers(sorted(channels & takers))
            now = int(self._data_clock())
            for mark in marks_of(monitor, self._store, now - RECENT, now) if targets else ():
                yield DueNotice(_key(monitor, mark), targets, partial(self._told, monitor, mark))

    def _told(self, monitor: Monitor, mark: ChartMark) -> Notification:
        page = About(monitor.name, page=self._telling().page).url()
        return Notification(
            kind="change",
            key=_key(monitor, mark),
            monitor=monitor.name,
            incident=_key(monitor, mark)[:10],
            severity="info",
            began_at=mark.at,
            opened_at=mark.at,
            closed_at=None,
            title=f"{monitor.name}: {mark.words}",
            text=f"Since {utc(mark.at)}.",
            url=page,
            runbook_url=monitor.runbook_url,
            labels=monitor.labels,
        )


def _key(monitor: Monitor, mark: ChartMark) -> str:
    return key("change", monitor.name, mark.at, mark.words)
