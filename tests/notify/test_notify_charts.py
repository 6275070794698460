"""Charts in messages: where they go, and that a failing chart loses no message and no time."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.config import load
from monitor.errors import InputError
from monitor.messages.notification import Notification
from monitor.notify.webhook import Webhook, WebhookConfig
from monitor.service.app import App
from monitor.service.charts import Charts
from monitor.service.sender import Sender
from monitor.service.telemetry import Telemetry
from tests.cli.test_incidents_cli import filled
from tests.notify.test_notify_services import parsed, slack, to_mail, to_slack
from tests.service.test_fall import extra, size
from tests.service.test_notify_sender import Post, eventually, post
from tests.support.notices import notice, put
from tests.support.receiver import Receiver, Reply
from tests.support.services import MailDouble, SlackDouble

__all__ = ["extra", "filled", "post", "slack"]

PNG = b"\x89PNG\r\n\x1a\n of a fall"
FIRING, UPDATED, RESOLVED = notice("firing", number=0), notice("updated", number=1), notice("resolved", number=2)


def drawn(_: Notification) -> bytes:
    return PNG


def fails(_: Notification) -> bytes:
    raise InputError("its rule is gone")


# ---- mail ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mails() -> Iterator[MailDouble]:
    with MailDouble(None) as made:
        yield made


@pytest.fixture
def app(filled: Path, tmp_path: Path, mails: MailDouble) -> Iterator[App]:
    """A daemon with a mail channel and a stored incident; only its sender runs."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "rankmon.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    to = {"host": "localhost", "port": mails.port, "security": "none", "from": "a@b.test", "to": ["c@d.test"]}
    config |= {"channels": {"team": {"email": to}}, "store": {"url": f"sqlite:///{tmp_path}/store.db"}}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    made = App(load(path, {}))
    made.prepare()
    made.sender.start()
    yield made
    made.stop()


def mailed(app: App, mails: MailDouble) -> Any:
    """The parsed mail about the stored incident."""
    (stored,) = app.store.alerts.incidents()
    put(app.store, "team", [notice(incident=stored.incident.id, monitor="shop")], time.time())
    app.wake()
    eventually(lambda: mails.mails)
    return parsed(mails.mails[0])


@pytest.mark.usefixtures("extra")
def test_a_mail_embeds_the_chart_and_keeps_its_plain_text(app: App, mails: MailDouble) -> None:
    mail = mailed(app, mails)
    plain, related = mail.iter_parts()
    html, image = related.iter_parts()
    assert [p.get_content_type() for p in mail.walk()] == [
        "multipart/alternative",
        "text/plain",
        "multipart/related",
        "text/html",
        "image/png",
    ]
    assert size(image.get_content()) == (900, 720)
    assert image.get_content_disposition() == "inline"
    assert f'<img src="cid:{image["Content-ID"][1:-1]}"' in html.get_content()
    assert plain.get_content().splitlines() == FIRING.full_text.splitlines()
    assert "<pre>" not in html.get_content()
    assert html.get_content().count(FIRING.url) == 1


def test_without_the_charts_extra_a_mail_has_no_chart(
    app: App, mails: MailDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("monitor.service.charts.can_draw", lambda: False)
    assert [p.get_content_type() for p in mailed(app, mails).iter_parts()] == ["text/plain", "text/html"]
    assert "chart" not in caplog.text


@pytest.mark.usefixtures("extra")
def test_a_chart_that_takes_too_long_is_left_out(
    app: App, mails: MailDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("monitor.service.charts.WITHIN", 1.0)
    calls, is_over = list[object](), threading.Event()

    def stuck(*given: object) -> None:
        calls.append(given)
        is_over.wait(60)

    monkeypatch.setattr("monitor.service.charts.fall_of", stuck)
    assert [p.get_content_type() for p in mailed(app, mails).iter_parts()] == ["text/plain", "text/html"]
    assert "for team: no chart: not drawn within 1 s; no further chart until it is" in caplog.text
    charts = Charts(app.store, lambda: app.config.monitors)
    (stored,) = app.store.alerts.incidents()
    with pytest.raises(TimeoutError):
        charts.draw(notice(incident=stored.incident.id, monitor="shop"))
    before = len(calls)
    assert charts.draw(notice(incident=stored.incident.id, monitor="shop")) == b""
    assert len(calls) == before, "no second drawing starts while one is stuck"
    is_over.set()
    eventually(lambda: charts._late is not None and not charts._late.is_alive())
    with pytest.raises(AttributeError):  # it draws again; the stubbed fall is None
        charts.draw(notice(incident=stored.incident.id, monitor="shop"))
    assert len(calls) == before + 1


def test_a_chart_that_fails_is_logged_once_and_loses_no_mail(
    post: Post, mails: MailDouble, caplog: pytest.LogCaptureFixture
) -> None:
    post.sender(to_mail(mails, security="none", username=None, password=None), draw=fails)
    post.put("mail", FIRING, RESOLVED)
    eventually(lambda: not post.store.outbox.queues())
    assert [parsed(m)["Subject"] for m in mails.mails] == [FIRING.title, RESOLVED.title]
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert said == ["firing of incident a for mail: no chart: its rule is gone"]


@pytest.mark.usefixtures("extra")
def test_only_a_stored_quality_fall_has_a_chart(app: App) -> None:
    charts = Charts(app.store, lambda: app.config.monitors)
    assert charts.draw(replace(FIRING, matter="data")) == b""
    for one in (FIRING, replace(FIRING, monitor="shop")):
        with pytest.raises(InputError, match="its monitor or incident is gone"):
            charts.draw(one)


def test_no_chart_is_drawn_for_a_channel_without_charts(post: Post) -> None:
    with Receiver() as receiver:
        post.sender(Webhook(WebhookConfig("inbox", receiver.url)), draw=fails)
        post.put("inbox", FIRING)
        eventually(lambda: not post.store.outbox.queues())
        assert receiver.titles() == ["a firing"]


# ---- Slack ---------------------------------------------------------------------------------------------------------


def asked(slack: SlackDouble) -> list[str]:
    """The API methods called, in order."""
    return [got.path.split("/")[2] for got in slack.receiver.got]


UPLOAD = ["files.getUploadURLExternal", "v1", "files.completeUploadExternal"]


def test_a_chart_is_uploaded_only_for_the_opening_message(post: Post, slack: SlackDouble) -> None:
    post.sender(to_slack(slack), draw=drawn)
    post.put("chat", FIRING)
    eventually(lambda: [m.shown for m in slack.messages.values()] == [[PNG]])
    post.put("chat", UPDATED, RESOLVED)
    eventually(lambda: not post.store.outbox.queues())
    (message,) = slack.messages.values()
    assert (message.files, message.thread) == ([PNG], [UPDATED.title, RESOLVED.title])
    assert message.shown == [PNG], "each edit keeps the chart"
    assert asked(slack) == ["chat.postMessage", *UPLOAD, "chat.update", *["chat.update", "chat.postMessage"] * 2]


def test_a_chart_slack_is_still_processing_is_shown_later(
    post: Post, slack: SlackDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.notify.slack.AGAIN_AFTER", 0.05)
    slack.reads_in = 2
    post.sender(to_slack(slack), draw=drawn)
    post.put("chat", FIRING)
    eventually(lambda: [m.shown for m in slack.messages.values()] == [[PNG]])
    assert asked(slack) == ["chat.postMessage", *UPLOAD, *["chat.update"] * 3]


def test_a_chart_deleted_from_slack_does_not_block_edits(post: Post, slack: SlackDouble) -> None:
    post.sender(to_slack(slack), draw=drawn)
    post.put("chat", FIRING)
    eventually(lambda: [m.shown for m in slack.messages.values()] == [[PNG]])
    slack.uploads.clear()
    post.put("chat", RESOLVED)
    eventually(lambda: not post.store.outbox.queues())
    assert [(m.text, m.shown) for m in slack.messages.values()] == [(RESOLVED.title, [])]
    assert post.attempts() == 0


def test_a_late_chart_does_not_overwrite_newer_text(post: Post, slack: SlackDouble) -> None:
    def slowly(_: Notification) -> bytes:
        post.put("chat", RESOLVED)
        return PNG

    post.sender(to_slack(slack), draw=slowly)
    post.put("chat", FIRING)
    eventually(lambda: [m.thread for m in slack.messages.values()] == [[RESOLVED.title]])
    assert [m.text for m in slack.messages.values()] == [RESOLVED.title]
    assert [m.shown for m in slack.messages.values()] == [[PNG]], "the resolving edit shows it"
    assert asked(slack) == ["chat.postMessage", *UPLOAD, "chat.update", "chat.postMessage"]


TROUBLES = {
    "500": Reply(500),
    "not ok": Reply(200, b'{"ok": false, "error": "missing_scope"}'),
    "hangs": Reply(hangs=5),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("step", UPLOAD)
def test_a_failed_upload_loses_no_message_and_no_time(
    post: Post,
    slack: SlackDouble,
    trouble: str,
    step: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("monitor.notify.slack.UPLOAD_WITHIN", 0.5)
    slack.trouble = lambda got: TROUBLES[trouble] if step in got.path else None
    post.sender(to_slack(slack), draw=drawn)
    post.put("chat", FIRING)
    eventually(lambda: any(step in got.path for got in slack.receiver.got))
    began = time.monotonic()
    post.put("chat", RESOLVED)
    eventually(lambda: not post.store.outbox.queues())
    assert time.monotonic() - began < 2
    assert [(m.text, m.thread) for m in slack.messages.values()] == [(RESOLVED.title, [RESOLVED.title])]
    assert post.attempts() == 0
    is_seen = step != "v1" or trouble != "not ok"  # at the upload address only the status counts
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [text.partition("no chart")[0] for text in said] == ["firing of incident a for chat: "] * is_seen


def test_messages_go_before_charts_however_many_wait(post: Post, slack: SlackDouble) -> None:
    storm = [notice(incident=f"storm {number}", title=f"storm {number}") for number in range(8)]
    for one in storm:
        post.put("chat", one)
    post.sender(to_slack(slack), draw=drawn)
    eventually(lambda: [len(m.files) for m in slack.messages.values()] == [1] * 8)
    eventually(lambda: [len(m.shown) for m in slack.messages.values()] == [1] * 8)
    assert asked(slack) == [*["chat.postMessage"] * 8, *[*UPLOAD, "chat.update"] * 8]


def test_a_token_without_upload_scope_is_reported(
    post: Post, slack: SlackDouble, caplog: pytest.LogCaptureFixture
) -> None:
    slack.trouble = lambda got: TROUBLES["not ok"] if UPLOAD[0] in got.path else None
    post.sender(to_slack(slack), draw=drawn)
    post.put("chat", FIRING)
    eventually(
        lambda: "refused: missing_scope; the token is missing the scope chat:write, or files:write" in caplog.text
    )


@pytest.mark.parametrize("step", UPLOAD)
def test_a_restart_between_message_and_chart_sends_neither_again(post: Post, slack: SlackDouble, step: str) -> None:
    slack.trouble = lambda got: Reply(hangs=60) if step in got.path else None
    sender = post.sender(to_slack(slack), draw=drawn)
    post.put("chat", FIRING)
    eventually(lambda: any(step in got.path for got in slack.receiver.got))
    sender.stop()
    before = asked(slack)
    slack.trouble = lambda _: None
    post.sender(to_slack(slack), draw=drawn)
    post.put("chat", RESOLVED)
    eventually(lambda: not post.store.outbox.queues())
    assert asked(slack) == [*before, "chat.update", "chat.postMessage"]
    assert [(m.text, m.thread) for m in slack.messages.values()] == [(RESOLVED.title, [RESOLVED.title])]


def test_no_chart_is_uploaded_before_its_message_is_recorded(
    post: Post, slack: SlackDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, uploaded = post.store.outbox.sent, list[bool]()

    def slow(id_: int, now: float, receipt: str | None = None) -> None:
        time.sleep(0.2)
        uploaded.append(UPLOAD[0] in asked(slack))
        recording(id_, now, receipt)

    monkeypatch.setattr(post.store.outbox, "sent", slow)
    post.sender(to_slack(slack), draw=drawn)
    post.put("chat", FIRING)
    eventually(lambda: [m.files for m in slack.messages.values()] == [[PNG]])
    assert uploaded == [False]


def test_a_single_run_waits_for_its_chart(post: Post, slack: SlackDouble) -> None:
    def slowly(_: Notification) -> bytes:
        time.sleep(0.5)
        return PNG

    sender = Sender(post.store, Telemetry(), post.clock, draw=slowly)
    sender.use([to_slack(slack)])
    post.put("chat", FIRING)
    assert sender.deliver(10, lambda: False) == 0
    sender.stop()
    assert [m.files for m in slack.messages.values()] == [[PNG]]
