"""The generic webhook: its documented JSON, its signature and its keys."""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from monitor.conditions.evidence import kinds
from monitor.messages.notification import VERSION, Notification, notification
from monitor.notify.webhook import Webhook, WebhookConfig
from tests.support.notices import ABOUT, DROP, INCIDENT, SLICE, notice
from tests.support.receiver import Got, Receiver

GOLDEN = Path(__file__).parents[1] / "golden" / "webhook.json"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "webhook.md"
SECRET = "a key that nobody knows"


def delivered(made: Notification, now: float = 1_700_000_000.7, secret: str | None = SECRET) -> Got:
    with Receiver() as receiver:
        Webhook(WebhookConfig("inbox", receiver.url + "/hook", secret)).send(made, now)
        (got,) = receiver.taken
        return got


def test_the_body_equals_the_golden_document() -> None:
    made = notification("updated", ABOUT, INCIDENT, [DROP, SLICE], 1, "warning")
    got = delivered(made)
    assert got.headers["Content-Type"] == "application/json"
    assert got.document == json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert got.document["version"] == VERSION


def fields_below(kind: Any) -> Iterator[str]:
    """Field names of a dataclass and of the dataclasses nested in it."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        for name in (field.name for field in fields(kind)):
            yield name
            yield from fields_below(hints[name])
    for part in get_args(kind):
        yield from fields_below(part)


def test_every_sendable_field_is_documented() -> None:
    sent = {name for kind in (Notification, *kinds().values()) for name in fields_below(kind)}
    sent -= {"html"}  # only reports have it, and these go by mail
    assert {"findings", "before_when_fired", "concurrent", "usual", "dimension"} <= sent
    documented = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert sorted(sent - documented) == []


def test_a_receiver_can_verify_sender_and_time() -> None:
    got = delivered(notice())
    stamp = got.headers["X-Rankmon-Timestamp"]
    assert stamp == "1700000000"
    expected = hmac.new(SECRET.encode(), f"{stamp}.".encode() + got.body, hashlib.sha256).hexdigest()
    assert got.headers["X-Rankmon-Signature"] == f"sha256={expected}"
    assert SECRET not in str(got)


def test_without_a_secret_there_is_no_signature() -> None:
    assert "X-Rankmon-Signature" not in delivered(notice(), secret=None).headers


def test_a_repeated_notification_keeps_its_key() -> None:
    made = notification("firing", ABOUT, INCIDENT, [DROP], 0)
    first, again = delivered(made), delivered(made, 1_700_009_000.0)
    assert first.key == again.key == first.document["key"]
    assert first.body == again.body
    assert first.headers["X-Rankmon-Signature"] != again.headers["X-Rankmon-Signature"], "the time is signed too"


def test_different_notifications_have_different_keys() -> None:
    def made(**changes: Any) -> str:
        given: dict[str, Any] = {"kind": "updated", "about": ABOUT, "incident": INCIDENT, "number": 1} | changes
        return notification(given["kind"], given["about"], given["incident"], [DROP], given["number"]).key

    keys = [
        made(),
        made(kind="resolved"),
        made(number=2),
        made(about=replace(ABOUT, name="other")),
        made(incident=replace(INCIDENT, opened_at=INCIDENT.opened_at + 1)),
    ]
    assert len(set(keys)) == len(keys)
    assert made() == keys[0]
