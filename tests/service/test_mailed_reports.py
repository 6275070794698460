"""Reports by mail: each due report comes once, whoever queues it, and of several missed ones only the last."""

from __future__ import annotations

import email
import email.policy
import threading
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from monitor.config.values import Config
from monitor.evaluation.notices import Recipients
from monitor.notify.email import EmailConfig
from monitor.routing import MailedReport
from monitor.service.due_notices import DueNotices, due_reports
from monitor.service.sender import Sender
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from tests.support.monitors import config, new_store
from tests.support.pages import DAY, START, fell, fill, watched
from tests.support.services import MailDouble
from tests.support.tallies import HOUR

BERLIN = ZoneInfo("Europe/Berlin")
WEEKLY = MailedReport(("mail",), 8 * 60, "Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("report", "now", "due"),
    [
        (WEEKLY, "2026-11-23 08:00", "2026-11-23 08:00"),
        (WEEKLY, "2026-11-23 07:59", "2026-11-16 08:00"),
        (WEEKLY, "2026-11-29 23:59", "2026-11-23 08:00"),
        (MailedReport(("mail",), 150, "Europe/Berlin", ("sun", "wed")), "2026-11-26 12:00", "2026-11-25 02:30"),
        (MailedReport(("mail",), 480, "Europe/Berlin", ("sun",)), "2026-10-25 12:00", "2026-10-25 08:00"),
        (MailedReport(("mail",), 480, "Europe/Berlin", ("sun",)), "2026-03-29 07:30", "2026-03-22 08:00"),
    ],
)
def test_the_due_time_follows_the_local_time_zone(report: MailedReport, now: str, due: str) -> None:
    assert report.due(at(now)) == at(due)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = new_store(database_url, 20)
    fill(made, watched("search"), range(START, START + 20 * DAY, HOUR), fell(START + 19 * DAY, START + 20 * DAY, 0.2))
    yield made
    made.close()


def configured(tmp_path: Path, port: int, *reports: MailedReport) -> Config:
    mail = EmailConfig(
        "mail", host="127.0.0.1", port=port, security="none", sender="r@test", to=("team@test", "boss@test")
    )
    return config(tmp_path, {"shop": "sqlite://"}, [watched("search")], channels=(mail,), reports=reports)


def mailer(store: Store, configuration: Config, now: str) -> DueNotices:
    recipients = Recipients({"mail": ("mail team@test", "mail boss@test")}, "https://mon.test/")
    found = partial(due_reports, store, configuration, recipients)
    return DueNotices(store, "due", found, lambda: None, lambda: at(now))


def sent(store: Store, configuration: Config, double: MailDouble) -> list[Any]:
    sender = Sender(store, Telemetry())
    sender.use(configuration.channels[0].receivers())
    sender.start()
    assert sender.settle(20)
    sender.stop()
    return [email.message_from_bytes(raw, policy=email.policy.default) for _, raw in double.mails]


def test_two_daemons_mail_a_report_once_to_each_recipient(store: Store, tmp_path: Path) -> None:
    with MailDouble(None) as double:
        made = configured(tmp_path, double.port, WEEKLY)
        for _ in range(3):
            both = [threading.Thread(target=mailer(store, made, "2026-11-23 08:00").run) for _ in range(2)]
            for each in both:
                each.start()
            for each in both:
                each.join()
        mails = sent(store, made, double)
        mailer(store, made, "2026-11-24 08:00").run()
        assert len(sent(store, made, double)) == 2
    assert sorted(one["To"] for one in mails) == ["boss@test", "team@test"]
    first = mails[0]
    assert first["Subject"] == "Ranking quality: search, 7 days"
    assert "unsubscribe" in first["List-Unsubscribe"]
    text = first.get_body(("plain",)).get_content()
    assert "| ndcg@10 |" in text
    leave = f"To stop receiving this report, ask {first['From']} to take {first['To']} off the mail channel."
    assert text.splitlines()[-2:] == ["", leave]
    (attached,) = first.iter_attachments()
    assert attached.get_filename() == "report.html"
    assert "<table" in attached.get_content()


def test_a_late_start_mails_only_the_last_due_report(store: Store, tmp_path: Path) -> None:
    with MailDouble(None) as double:
        made = configured(tmp_path, double.port, WEEKLY)
        for now in ("2026-11-02 08:00", "2026-11-25 17:00", "2026-11-29 17:00"):
            mailer(store, made, now).run()
        assert len(sent(store, made, double)) == 4, "the reports of 2 and 23 November, to each recipient"


def test_nothing_is_mailed_before_anything_is_stored(database_url: str, tmp_path: Path) -> None:
    empty = new_store(database_url)
    mailer(empty, configured(tmp_path, 9, WEEKLY), "2026-11-23 08:00").run()
    assert empty.outbox.queues() == {}
    empty.close()
