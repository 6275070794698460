"""Reports that are mailed by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from monitor.config.values import Config
from monitor.errors import InputError
from monitor.evaluation.telling import Telling
from monitor.messages.notification import Notification, key
from monitor.messages.words import counted
from monitor.page.report import as_page, as_text
from monitor.routing import MailedReport
from monitor.service.due_notices import DueNotice
from monitor.service.reporting import QualityReport, report
from monitor.store import Store


class MailedReports:
    """Finds the reports that are due."""

    def __init__(self, store: Store, config: Callable[[], Config], telling: Callable[[], Telling]) -> None:
        """`config`, `telling`: as they are now."""
        self._store = store
        self._config = config
        self._telling = telling

    def due(self, now: float) -> Iterator[DueNotice]:
        """The last one due of each; earlier ones are past."""
        for wanted in self._config().reports:
            at, targets = wanted.due(now), self._telling().receivers(wanted.channels)
            yield DueNotice(_key(wanted, at), targets, partial(self._made, wanted, at))

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
