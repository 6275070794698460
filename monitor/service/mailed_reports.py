"""Reports mailed on a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from monitor.config.values import Config
from monitor.errors import InputError
from monitor.evaluation.telling import Telling
from monitor.messages.notification import Notification, key
from monitor.messages.words import counted
from monitor.page.report import as_page, as_text
from monitor.routing import MailedReport
from monitor.service.reporting import QualityReport, report
from monitor.store import Store


def due_reports(store: Store, config: Config, telling: Telling, now: float) -> Iterator[tuple[str, Notification]]:
    """(target, report) of the last ones that were due; none while nothing is stored. Raises StoreError."""
    for wanted in config.reports:
        due = wanted.due(now)
        # The same for the same report, in every process.
        id_ = key("report", due, wanted.last, *wanted.channels, *wanted.monitors)
        targets = store.outbox.lacking(id_, telling.receivers(wanted.channels))
        if targets and (found := list(_reports(wanted, config, store))):
            told = _told(id_, due, wanted, found, telling.page)
            yield from ((target, told) for target in targets)


def _reports(wanted: MailedReport, config: Config, store: Store) -> Iterator[QualityReport]:
    for monitor in config.monitors:
        if not wanted.monitors or monitor.name in wanted.monitors:
            with suppress(InputError):  # nothing final yet
                yield report(monitor, store, wanted.last)


def _told(id_: str, due: int, wanted: MailedReport, found: list[QualityReport], url: str) -> Notification:
    pages, first = sum(one.pages for one in found), found[0]
    what = f"{counted(len(found), 'monitor')}, {counted(pages, 'page')}" if len(found) > 1 else first.monitor
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
        runbook_url="",
        labels=(),
        html=as_page(found),
    )
