"""Queues notifications outside evaluations: due reports and changes, and open incidents that nobody acknowledges.

The outbox is the only state: what was queued for a target, by whichever process, is not due for it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from monitor.config.values import Config
from monitor.errors import InputError, LeaseLost
from monitor.evaluation.notices import Recipients
from monitor.messages.notification import About, Notification, key
from monitor.messages.words import counted, utc
from monitor.page.report import as_page, as_text
from monitor.routing import MailedReport, Routing
from monitor.service.fall import ChartMark, marks_of
from monitor.service.reporting import QualityReport, report
from monitor.store import Store
from monitor.types import Monitor
from monitor.units import DAY

RECENT = 2 * DAY
"""Seconds of data after which a change is past: a backfill finds many."""


@dataclass(frozen=True)
class DueNotices:
    """Queues each thing that is due once.

    Attributes:
        lease: of the one process that queues at a time; no name of a monitor holds blanks.
        found: (target, notification) of what is due by now, real seconds since 1970, and was not queued.
        wake: sends what is queued.
        clock: real seconds since 1970.
    """

    store: Store
    lease: str
    found: Callable[[float], Iterable[tuple[str, Notification]]]
    wake: Callable[[], None]
    clock: Callable[[], float] = time.time

    def run(self) -> None:
        """Queue what is due and was not queued. Raises StoreError."""
        now = self.clock()
        if not any(self.found(now)):
            return
        with suppress(LeaseLost), self.store.hold(self.lease) as lease:
            for due in self.found(now):  # again: the process that held the lease before may have queued it
                self.store.alerts.notify(lease, [due], now)
        self.wake()


def due_reports(store: Store, config: Config, recipients: Recipients, now: float) -> Iterator[tuple[str, Notification]]:
    """(target, report) of the last ones that were due; none while nothing is stored. Raises StoreError."""
    for wanted in config.reports:
        due = wanted.due(now)
        # The same for the same report, in every process.
        id_ = key("report", due, wanted.last, *wanted.channels, *wanted.monitors)
        targets = store.outbox.lacking(id_, recipients.receivers(wanted.channels))
        if targets and (found := list(_reports(wanted, config, store))):
            told = _mailed(id_, due, wanted, found, recipients.page)
            yield from ((target, told) for target in targets)


def _reports(wanted: MailedReport, config: Config, store: Store) -> Iterator[QualityReport]:
    for monitor in config.monitors:
        if not wanted.monitors or monitor.name in wanted.monitors:
            with suppress(InputError):  # nothing final yet
                yield report(monitor, store, wanted.last)


def _mailed(id_: str, due: int, wanted: MailedReport, found: list[QualityReport], url: str) -> Notification:
    incidents, first = sum(len(one.incidents) for one in found), found[0]
    what = f"{counted(len(found), 'monitor')}, {counted(incidents, 'incident')}" if len(found) > 1 else first.monitor
    return Notification(
        kind="report",
        key=id_,
        monitor=first.monitor,
        incident=id_[:10],
        severity="info",
        began_at=first.since,
        opened_at=due,
        closed_at=first.until,
        title=f"Ranking quality: {what}, {counted(wanted.last // 86_400, 'day')}",
        text="\n".join(as_text(found)),
        url=url,
        html=as_page(found),
    )


def due_changes(store: Store, config: Config, recipients: Recipients, now: int) -> Iterator[tuple[str, Notification]]:
    """(target, change) of the last days, for the channels that their monitor's incidents can go to. Raises StoreError.

    New model versions, new baselines, and what people announced explain what comes after them. `now`: seconds of the
    data's clock.
    """
    takers = {one.name for one in config.channels if one.TAKES_CHANGES}
    for monitor in config.monitors if takers else ():
        channels = {c for route in Routing(monitor, config.routes).routes for c in route.channels}
        targets = recipients.receivers(sorted(channels & takers))
        for mark in marks_of(monitor, store, now - RECENT, now) if targets else ():
            told = _changed(monitor, mark, recipients.page)
            yield from ((target, told) for target in store.outbox.lacking(told.key, targets))


def _changed(monitor: Monitor, mark: ChartMark, page: str) -> Notification:
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
