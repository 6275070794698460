"""PagerDuty, Slack, mail, Teams and Apprise: an incident's life as people see it there, and failures."""

from __future__ import annotations

import email
import email.policy
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.cli import run
from monitor.errors import StoreError, Undelivered
from monitor.messages.notification import Notification
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify.apprise import Apprise, AppriseConfig
from monitor.notify.email import Email, EmailConfig
from monitor.notify.pagerduty import PagerDuty, PagerDutyConfig
from monitor.notify.slack import Slack, SlackConfig
from monitor.notify.teams import Teams, TeamsConfig, card
from tests.config.test_config import MINIMAL
from tests.service.test_notify_sender import Post, eventually, post  # noqa: F401  a fixture
from tests.support import notices
from tests.support.notices import notice
from tests.support.receiver import Got, Receiver, Reply
from tests.support.services import ROUTING_KEY, TOKEN, MailDouble, PagerDutyDouble, SlackDouble, SlackMessage
from tests.support.web import Authority

FIRING, UPDATED, RESOLVED = notice("firing", number=0), notice("updated", number=1), notice("resolved", number=2)
INCIDENT = FIRING.incident
NOW = 1_700_000_000.0


@pytest.fixture
def pagerduty() -> Iterator[PagerDutyDouble]:
    made = PagerDutyDouble()
    yield made
    made.receiver.close()


@pytest.fixture
def slack() -> Iterator[SlackDouble]:
    made = SlackDouble()
    yield made
    made.receiver.close()


def to_pagerduty(double: PagerDutyDouble, **changes: Any) -> PagerDuty:
    return PagerDuty(PagerDutyConfig("pd", **{"routing_key": ROUTING_KEY, "url": double.receiver.url, **changes}))


def to_slack(double: SlackDouble, **changes: Any) -> Slack:
    known = {"token": TOKEN, "channel": "#alerts", "url": f"{double.receiver.url}/api"}
    return Slack(SlackConfig("chat", **{**known, **changes}))


def refused(receiver: Any, made: Notification = FIRING) -> str:
    with pytest.raises(Undelivered) as caught:
        receiver.send(made, NOW)
    return str(caught.value)


def comes_later(post: Post) -> None:  # noqa: F811
    """Lets time pass in steps of a minute until every queue is empty."""
    deadline = time.monotonic() + 30
    while post.store.outbox.queues():
        assert time.monotonic() < deadline
        post.later(60)
        time.sleep(0.05)


# ---- an incident's life, through the outbox ------------------------------------------------------------------------


def test_an_incident_is_one_pagerduty_alert(post: Post, pagerduty: PagerDutyDouble) -> None:  # noqa: F811
    sender = post.sender(to_pagerduty(pagerduty))
    post.put("pd", FIRING, UPDATED)
    eventually(lambda: len(pagerduty.alerts.get(INCIDENT, ())) == 2)
    sender.stop()
    post.sender(to_pagerduty(pagerduty))
    post.put("pd", RESOLVED)
    eventually(lambda: not post.store.outbox.queues())
    assert pagerduty.alerts == {INCIDENT: ["trigger", "trigger", "resolve"]}
    first = pagerduty.payloads[0]
    assert first["payload"]["severity"] == FIRING.severity
    assert first["payload"]["summary"] == FIRING.title
    assert first["payload"]["custom_details"]["text"] == FIRING.text
    assert [link["href"] for link in first["links"]] == [FIRING.url, FIRING.runbook_url]


def test_an_acknowledgement_reaches_only_pagerduty_and_only_once(
    post: Post,  # noqa: F811
    pagerduty: PagerDutyDouble,
    slack: SlackDouble,
    tmp_path: Path,
) -> None:
    config = yaml.safe_load(MINIMAL)
    config["store"] = {"url": post.store.url.render_as_string(hide_password=False)}
    config["channels"] = {"pd": {"pagerduty": {"routing_key": "x"}}, "chat": {"slack": {"webhook_url": "http://x/"}}}
    (tmp_path / "rankmon.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    id_ = notices.INCIDENT.id
    ack = ["incidents", "ack", id_, "--by", "ann", "--config", str(tmp_path / "rankmon.yaml")]
    notices.incident(post.store, id_)
    post.sender(to_pagerduty(pagerduty), to_slack(slack))
    for target in ("pd", "chat"):
        post.put(target, notice("firing", id_))
    assert [run(ack), run(ack)] == [0, 0]
    post.put("pd", notice("resolved", id_, 1))
    assert run(ack) == 0
    eventually(lambda: not post.store.outbox.queues())
    assert pagerduty.alerts == {id_: ["trigger", "acknowledge", "resolve"]}
    assert "payload" not in pagerduty.payloads[1]
    assert [target for target, kind in post.rows("target", "kind") if kind == "acknowledged"] == ["pd"]


def test_an_incident_stays_one_slack_message_across_a_restart(post: Post, slack: SlackDouble) -> None:  # noqa: F811
    sender = post.sender(to_slack(slack))
    post.put("chat", FIRING)
    eventually(lambda: not post.store.outbox.queues())
    sender.stop()
    post.sender(to_slack(slack))  # it knows the message from the store
    post.put("chat", UPDATED, RESOLVED)
    eventually(lambda: not post.store.outbox.queues())
    (message,) = slack.messages.values()
    assert (message.text, message.edits) == (RESOLVED.title, 2)
    assert message.thread == [UPDATED.title, RESOLVED.title]


def test_a_message_is_not_posted_twice_when_the_store_fails_to_record_it(
    post: Post,  # noqa: F811
    slack: SlackDouble,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noting, tries = post.store.outbox.sent, []

    def full(id_: int, now: float, receipt: str | None = None) -> None:
        tries.append(id_)
        if len(tries) < 3:
            raise StoreError("store: the disk is full")
        noting(id_, now, receipt)

    monkeypatch.setattr(post.store.outbox, "sent", full)
    post.sender(to_slack(slack))
    post.put("chat", FIRING, RESOLVED)
    comes_later(post)
    assert [(m.text, m.thread) for m in slack.messages.values()] == [(RESOLVED.title, [RESOLVED.title])]


TROUBLES = {
    "429": Reply(429, headers={"Retry-After": "1"}),
    "500": Reply(500),
    "503": Reply(503, b"busy"),
    "hangs": Reply(hangs=3),
    "not ok": Reply(200, b'{"ok": false, "error": "fatal_error"}'),
    "no answer of slack": Reply(200, b"<html>"),
}


def patience(trouble: str) -> int:
    """Timeout in seconds: shorter than a hanging answer; otherwise longer than a stall of the test machine."""
    return 1 if trouble == "hangs" else 30


def first_three(reply: Reply) -> Callable[[Got], Reply | None]:
    """Answers the first three requests with this trouble."""
    replies = iter([reply] * 3)
    return lambda _: next(replies, None)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_messages_slack_refuses_arrive_later_once_and_in_order(
    post: Post,  # noqa: F811
    slack: SlackDouble,
    trouble: str,
) -> None:
    slack.trouble = first_three(TROUBLES[trouble])
    post.sender(to_slack(slack, timeout=patience(trouble)))
    post.put("chat", FIRING, UPDATED, RESOLVED)
    comes_later(post)
    (message,) = slack.messages.values()
    assert (message.text, message.thread) == (RESOLVED.title, [UPDATED.title, RESOLVED.title])


@pytest.mark.parametrize("trouble", [name for name in TROUBLES if "slack" not in name and name != "not ok"])
def test_events_pagerduty_refuses_arrive_later_once_and_in_order(
    post: Post,  # noqa: F811
    pagerduty: PagerDutyDouble,
    trouble: str,
) -> None:
    pagerduty.trouble = first_three(TROUBLES[trouble])
    post.sender(to_pagerduty(pagerduty, timeout=patience(trouble)))
    post.put("pd", FIRING, UPDATED, RESOLVED)
    comes_later(post)
    assert pagerduty.alerts == {INCIDENT: ["trigger", "trigger", "resolve"]}


# ---- PagerDuty -----------------------------------------------------------------------------------------------------


def test_a_retrain_request_is_a_pagerduty_change_event(pagerduty: PagerDutyDouble) -> None:
    made = notice("retrain", number=3)
    to_pagerduty(pagerduty).send(made, NOW)
    assert (pagerduty.changes, pagerduty.alerts) == ([made.title], {})


def test_a_test_notification_leaves_no_open_alert(pagerduty: PagerDutyDouble) -> None:
    to_pagerduty(pagerduty).send(notice("test", number=0), NOW)
    assert [*pagerduty.alerts.values()] == [["trigger", "resolve"]]


@pytest.mark.parametrize(
    ("page", "chart", "named"),
    [
        ("https://mon.test/incidents/a", b"PNG", ["https://mon.test/incidents/a/chart.png"]),
        ("https://mon.test/incidents/a", b"", []),
        ("http://mon.test/incidents/a", b"PNG", []),
        ("", b"PNG", []),
    ],
)
def test_pagerduty_gets_a_chart_address_only_over_https(
    pagerduty: PagerDutyDouble, page: str, chart: bytes, named: list[str]
) -> None:
    to_pagerduty(pagerduty).send_with(replace(notice("firing", number=0), url=page), NOW, NO_PRIOR, chart)
    (sent,) = pagerduty.payloads
    assert [image["src"] for image in sent.get("images", ())] == named


def test_a_wrong_routing_key_is_reported_without_the_key(pagerduty: PagerDutyDouble) -> None:
    wrong = "R9999999999999999999999999999999"
    said = refused(to_pagerduty(pagerduty, routing_key=wrong))
    assert "answered 400" in said
    assert wrong not in said


# ---- Slack ---------------------------------------------------------------------------------------------------------


def test_a_deleted_slack_message_is_posted_again(slack: SlackDouble) -> None:
    assert to_slack(slack).send(UPDATED, NOW, PriorDelivery((), "C1 7.7")) == "C1 1.000100"
    assert [m.text for m in slack.messages.values()] == [UPDATED.title]


def test_a_message_posted_without_a_receipt_is_found_again(slack: SlackDouble) -> None:
    made, many = to_slack(slack, channel="C1"), 900
    for number in range(many):
        slack.messages[f"{number}.0"] = SlackMessage("x" * 4000, keys=[f"{number:040x}"])
    again = PriorDelivery(begun_at=NOW - 60)
    assert made.send(FIRING, NOW, again) == f"C1 {many + 1}.000100", "not there yet"
    assert made.send(FIRING, NOW, again) == f"C1 {many + 1}.000100"
    slack.error = "missing_scope"
    assert "missing_scope" in refused(made), "without the permission to look, it posts"
    slack.trouble = lambda got: Reply(503) if "/conversations." in got.path else None
    slack.error = ""
    with pytest.raises(Undelivered, match="503"):
        made.send(FIRING, NOW, again)
    assert len(slack.messages) == many + 1


@pytest.mark.parametrize(
    ("changes", "error", "remedy"),
    [
        ({"token": "xoxb-of-somebody-else"}, "", "invalid_auth; give a valid token"),
        ({"channel": "#nowhere"}, "", "channel_not_found; no such channel for this bot"),
        ({}, "token_revoked", "the token was revoked; give a new one"),
        ({}, "not_in_channel", "invite the bot to the channel"),
        ({}, "something_new", "refused: something_new"),
    ],
)
def test_a_slack_error_with_status_200_is_an_error(
    slack: SlackDouble, changes: dict[str, Any], error: str, remedy: str
) -> None:
    slack.error = error
    said = refused(to_slack(slack, **changes))
    assert remedy in said
    assert "xoxb" not in said


def test_outside_text_cannot_mention_people(slack: SlackDouble) -> None:
    to_slack(slack).send(replace(FIRING, title="shop: <!channel> & <https://evil.test|here>"), NOW)
    (message,) = slack.messages.values()
    assert message.text == "shop: &lt;!channel&gt; &amp; &lt;https://evil.test|here&gt;"


def test_an_incoming_webhook_gets_each_notification() -> None:
    with Receiver(lambda _: Reply(200, b"ok")) as receiver:
        (made,) = SlackConfig("chat", webhook_url=f"{receiver.url}/services/T0/B0/secret").receivers()
        for each in (FIRING, RESOLVED):
            made.send(each, NOW)
        assert [got.document["text"] for got in receiver.taken] == [FIRING.title, RESOLVED.title]


# ---- mail ----------------------------------------------------------------------------------------------------------


def to_mail(double: MailDouble, **changes: Any) -> Email:
    known: dict[str, Any] = {"host": "localhost", "port": double.port, "username": "me", "password": "open-sesame"}
    config = EmailConfig("mail", sender="rankmon@example.com", to=("oncall@example.com",), **{**known, **changes})
    return Email(config, "oncall@example.com")


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
    return made


def parsed(mail: tuple[str, bytes]) -> Any:
    return email.message_from_bytes(mail[1], policy=email.policy.default)


def test_mails_of_an_incident_form_a_thread(trusted: Authority) -> None:
    with MailDouble(trusted.issue(host="localhost")) as double:
        for number, each in enumerate((FIRING, UPDATED, RESOLVED)):
            to_mail(double).send(replace(each, key=f"{number:040x}"), NOW)
        first, *later = map(parsed, double.mails)
    assert first["Subject"] == FIRING.title
    assert {m["References"] for m in later} == {m["In-Reply-To"] for m in later} == {first["Message-ID"]}
    assert len({m["Message-ID"] for m in (first, *later)}) == 3
    assert first["Auto-Submitted"] == "auto-generated"
    plain, html = first.get_body(("plain",)).get_content(), first.get_body(("html",)).get_content()
    assert all(line in plain for line in FIRING.text.splitlines())
    assert FIRING.url in plain
    assert f'<a href="{FIRING.url}">' in html


def test_outside_text_is_escaped_in_mail_html(trusted: Authority) -> None:
    with MailDouble(trusted.issue(host="localhost")) as double:
        to_mail(double).send(replace(FIRING, text="<script>alert(1)</script>"), NOW)
        (made,) = map(parsed, double.mails)
    assert "<script>" not in made.get_body(("html",)).get_content()


def test_without_the_required_tls_no_mail_is_sent() -> None:
    with MailDouble(None) as double:
        for security in ("starttls", "tls"):
            said = refused(to_mail(double, security=security))
            assert "does not offer the required TLS; set `security:` to what it offers" in said
        to_mail(double, security="none", username=None, password=None).send(FIRING, NOW)
        assert len(double.mails) == 1


def test_a_wrong_password_and_an_untrusted_certificate_are_reported(trusted: Authority) -> None:
    with MailDouble(trusted.issue(host="localhost")) as double:
        said = refused(to_mail(double, password="a-wrong-one"))
        assert "login refused (535)" in said
        assert "a-wrong-one" not in said
    with MailDouble(trusted.issue(host="elsewhere.test")) as double:
        assert "certificate is not trusted" in refused(to_mail(double))
    assert "cannot be reached (Connection refused)" in refused(to_mail(double))


def test_a_temporary_refusal_leaves_a_mail_undelivered(trusted: Authority) -> None:
    with MailDouble(trusted.issue(host="localhost"), refuses="451 greylisted, come back later") as double:
        assert "answered 451 greylisted" in refused(to_mail(double))


def test_a_password_echoed_by_a_mail_server_is_masked(trusted: Authority) -> None:
    with MailDouble(trusted.issue(host="localhost"), refuses="451 open-sesame is busy") as double:
        assert "answered 451 *** is busy" in refused(to_mail(double))


def test_each_mail_address_has_its_own_queue() -> None:
    made = EmailConfig("mail", "smtp.example.com", "r@example.com", ("a@example.com", "b@example.com")).receivers()
    assert [one.target for one in made] == ["mail a@example.com", "mail b@example.com"]


# ---- Teams, Apprise ------------------------------------------------------------------------------------------------


def test_teams_gets_an_adaptive_card() -> None:
    with Receiver(lambda _: Reply(202)) as receiver:
        Teams(TeamsConfig("teams", receiver.url + "/workflows/secret")).send(FIRING, NOW)
        (got,) = receiver.taken
    (attachment,) = got.document["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert [action["url"] for action in attachment["content"]["actions"]] == [FIRING.url, FIRING.runbook_url]
    assert card(replace(FIRING, title="a [link](https://evil.test)"))["body"][0]["text"] == (
        r"a \[link\](https://evil.test)"
    )


def test_apprise_delivers_known_urls_and_reports_failures() -> None:
    with Receiver() as receiver:
        url = receiver.url.replace("http://", "json://")
        Apprise(AppriseConfig("other", url)).send(RESOLVED, NOW)
        (got,) = receiver.taken
    assert (got.document["title"], got.document["type"]) == (RESOLVED.title, "success")
    assert "is unknown to Apprise" in refused(Apprise(AppriseConfig("other", "nothing-such://x")))
    assert "did not accept it" in refused(Apprise(AppriseConfig("other", url)))


APPRISED = """\
store: {url: sqlite:///store.db}
sources: {shop: {url: sqlite:///none.db}}
channels:
  phone: {apprise: {url: "URL"}}
  other: {apprise: {url: "json://localhost"}}
monitors:
  - name: search
    source: shop
    rankings: {table: log, request: r, item: i, position: p, time: t}
    relevance: {column: {grade: g}}
    measures: [ndcg@10]
"""


@pytest.mark.parametrize("url", ["nothing-such://open-sesame", "open-sesame", "slack://open-sesame/open-sesame"])
def test_check_config_reports_an_unknown_apprise_url_without_showing_it(
    tmp_path: Path, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rankmon.yaml"
    path.write_text(APPRISED.replace("URL", url), encoding="utf-8")
    assert run(["check-config", str(path)]) == 2
    assert run(["test-alert", "-c", str(path), "--channel", "phone"]) != 0
    out, err = capfd.readouterr()
    assert f"{path}:4: channels.phone.apprise: url: is unknown to Apprise" in err
    assert "channels.other" not in err
    assert "open-sesame" not in out + err


def test_without_apprise_check_config_says_it_cannot_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    path = tmp_path / "rankmon.yaml"
    path.write_text(APPRISED.replace("URL", "nothing-such://x"), encoding="utf-8")
    assert run(["check-config", str(path)]) == 0
    assert "channels.phone.apprise: is not checked, and sends nothing here: Apprise is not installed; run" in (
        capfd.readouterr().err
    )


def test_channel_secrets_are_absent_from_repr_and_targets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "a-secret-that-is-long"
    made = (
        PagerDutyConfig("a", secret),
        SlackConfig("b", token=secret, channel="#x"),
        SlackConfig("c", webhook_url=f"https://hooks.test/{secret}"),
        EmailConfig("d", "smtp.test", "a@b.test", ("c@d.test",), username="me", password=secret),
        TeamsConfig("e", f"https://flows.test/{secret}"),
        AppriseConfig("f", f"json://{secret}@host"),
    )
    assert secret not in repr(made) + json.dumps([r.target for one in made for r in one.receivers()])
