"""Changes that explain what follows: new model versions, new baselines and announcements."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.config.values import Config
from monitor.evaluation.telling import Telling
from monitor.messages.notification import About, Notification, key
from monitor.messages.words import utc
from monitor.routing import Routing
from monitor.service.fall import ChartMark, marks_of
from monitor.store import Store
from monitor.types import Monitor

RECENT = 2 * 86_400
"""Seconds of data after which a change is past: a backfill finds many."""


def due_changes(store: Store, config: Config, telling: Telling, now: int) -> Iterator[tuple[str, Notification]]:
    """(target, change) of the last days, for the channels that their monitor's incidents can go to. Raises StoreError.

    `now`: seconds of the data's clock.
    """
    takers = {one.name for one in config.channels if one.TAKES_CHANGES}
    for monitor in config.monitors if takers else ():
        channels = {c for route in Routing(monitor, config.routes).routes for c in route.channels}
        targets = telling.receivers(sorted(channels & takers))
        for mark in marks_of(monitor, store, now - RECENT, now) if targets else ():
            told = _told(monitor, mark, telling.page)
            yield from ((target, told) for target in store.outbox.lacking(told.key, targets))


def _told(monitor: Monitor, mark: ChartMark, page: str) -> Notification:
    id_ = key("change", monitor.name, mark.at, mark.words)
    return Notification(
        kind="change",
        key=id_,
        monitor=monitor.name,
        incident=id_[:10],
        severity="info",
        began_at=mark.at,
        opened_at=mark.at,
        closed_at=None,
        title=f"{monitor.name}: {mark.words}",
        text=f"Since {utc(mark.at)}.",
        url=About(monitor.name, page=page).url(),
        runbook_url=monitor.runbook_url,
        labels=monitor.labels,
    )
