"""Queues the reports that are due. The outbox is the only state: what it has the key of was queued by some process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from monitor.config.values import Config
from monitor.errors import InputError, LeaseLost
from monitor.evaluation.telling import Telling
from monitor.messages.notification import Notification, key
from monitor.messages.words import counted
from monitor.page.report import as_page, as_text
from monitor.routing import MailedReport
from monitor.service.reporting import QualityReport, report
from monitor.store import Store

LEASE = "reports by mail"
"""Lease of the one process that queues at a time; no name of a monitor holds blanks."""


class ReportMailer:
    """Mails what `reports` of the configuration says."""

    def __init__(
        self,
        store: Store,
        config: Callable[[], Config],
        telling: Callable[[], Telling],
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`config`, `telling`: as they are now; `wake`: sends what is queued; `clock`: real seconds since 1970."""
        self._store = store
        self._config = config
        self._telling = telling
        self._wake = wake
        self._clock = clock

    def run(self) -> None:
        """Queue the last report due of each, unless it was; earlier ones are past. Raises StoreError."""
        now = self._clock()
        if not any(self._missing(now)):
            return
        with suppress(LeaseLost), self._store.hold(LEASE) as lease:
            for wanted, due, targets in list(self._missing(now)):
                notice = self._made(wanted, due)
                if notice is not None:
                    self._store.alerts.notify(lease, [(target, notice) for target in targets], now)
        self._wake()

    def _missing(self, now: float) -> Iterator[tuple[MailedReport, int, list[str]]]:
        for wanted in self._config().reports:
            due, targets = wanted.due(now), self._telling().receivers(wanted.channels)
            had = self._store.outbox.having(_key(wanted, due))
            if left := [target for target in targets if target not in had]:
                yield wanted, due, left

    def _made(self, wanted: MailedReport, due: int) -> Notification | None:
        """None if nothing is stored yet of any monitor."""
        found = list(self._reports(wanted))
        if not found:
            return None
        pages, first = sum(one.pages for one in found), found[0]
        what = f"{counted(len(found), 'monitor')}, {counted(pages, 'page')}" if len(found) > 1 else first.monitor
        name, text, id_ = first.monitor, "\n".join(as_text(found)), _key(wanted, due)
        return Notification(
            kind="report",
            key=id_,
            monitor=name,
            incident=id_[:10],
            severity="info",
            began_at=first.since,
            opened_at=due,
            closed_at=first.until,
            title=f"Ranking quality: {what}, {counted(wanted.last // 86_400, 'day')}",
            text=text,
            url=self._telling().page,
            runbook_url="",
            labels=(),
            html=as_page(found),
        )

    def _reports(self, wanted: MailedReport) -> Iterator[QualityReport]:
        for monitor in self._config().monitors:
            if not wanted.monitors or monitor.name in wanted.monitors:
                with suppress(InputError):  # nothing final yet
                    yield report(monitor, self._store, wanted.last)


def _key(wanted: MailedReport, due: int) -> str:
    """The same for the same report, in every process."""
    return key("report", due, wanted.last, *wanted.channels, *wanted.monitors)
