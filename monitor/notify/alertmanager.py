"""Alertmanager, by its API v2. Every Alertmanager of a cluster is a receiver of its own, as Prometheus has it.

Labels are those by which an alert stays the same alert; all that changes is in the annotations. An alert is posted
again every minute while it goes on, with an end that is days ahead: if rankmon dies, nothing is resolved by silence.
What resolves an alert is an explicit end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from monitor.conditions.rules import SEVERITIES, Severity
from monitor.config.channels import AlertmanagerConfig
from monitor.messages.notification import Notification
from monitor.notify.http import Poster, basic, place

PATH = "/api/v2/alerts"
REPEAT = 60.0
MATTERS = {"quality": "RankmonQualityDegraded", "data": "RankmonDataSuspect"}
NAMES = {"retrain": "RankmonRetrainRecommended", "test": "RankmonTest"}
"""Name of the alert by kind of notification; of all other kinds it goes by the matter."""
LASTS = {"test": 300.0, "retrain": 86_400.0}
"""Seconds that alerts last which nothing ends: a test, and a request that is made once."""
SKEW = 60.0
"""Seconds that Alertmanager's clock may be behind ours: an end in its future would not undo the one days ahead."""


class Alertmanager:
    """Posts alerts to one Alertmanager."""

    def __init__(self, config: AlertmanagerConfig, url: str) -> None:
        self.channel = config.name
        digest = hashlib.sha256(url.encode()).hexdigest()[:6]
        self.target = f"{config.name} {place(url)} {digest}" if len(config.urls) > 1 else config.name
        self.give_up_after = float(config.give_up_after)
        self.repeat: float | None = REPEAT
        self._hold = config.hold
        self._ahead = 0.0  # seconds that its clock is ahead of ours, if by more than SKEW
        self._headers = _authorization(config)
        self._poster = Poster(url.rstrip("/") + PATH, config.timeout, config.ca_file)

    def send(self, notification: Notification, now: float, former: Collection[Severity] = ()) -> None:
        """Post it, with times by Alertmanager's clock: by a wrong one of ours what goes on would end.

        Raises:
            Undelivered: it was not taken.
        """
        theirs = self._post(notification, now, former)
        if theirs is not None and abs(theirs - now - self._ahead) > SKEW:
            self._ahead = theirs - now
            self._post(notification, now, former)

    def _post(self, notification: Notification, now: float, former: Collection[Severity]) -> float | None:
        told = alerts(notification, now + self._ahead, self._hold, former)
        return self._poster.post(json.dumps(told).encode(), self._headers)


def alerts(
    notification: Notification, now: float, hold: float, former: Collection[Severity] = ()
) -> list[dict[str, Any]]:
    """The alerts that tell Alertmanager of a notification.

    Args:
        now: real seconds since 1970.
        hold: seconds that Alertmanager is to believe it without hearing of it again.
        former: severities under which Alertmanager may know it.

    Severity is a label, for routes go by it. Where it has changed, the alerts of the former ones end.
    """
    ended, lasts = now - SKEW, LASTS.get(notification.kind, hold)
    is_over = notification.kind in ("resolved", "withdrawn")
    found = [_alert(notification, notification.severity, ended if is_over else now + lasts)]
    known = {*former, notification.former_severity} - {notification.severity}
    return found + [_alert(notification, severity, ended) for severity in SEVERITIES if severity in known]


def _alert(notification: Notification, severity: str, ends: float) -> dict[str, Any]:
    labels = {
        **dict(notification.labels),
        "alertname": NAMES.get(notification.kind, MATTERS[notification.matter]),
        "monitor": notification.monitor,
        "severity": severity,
    }
    annotations = {
        "summary": notification.title,
        "description": notification.text,
        "runbook_url": notification.runbook_url,
        "incident": notification.incident,
        "state": notification.kind,
    }
    return {
        "labels": {n: v for n, v in labels.items() if v},
        "annotations": {n: v for n, v in annotations.items() if v},
        "startsAt": _time(min(notification.opened_at, ends - 1)),
        "endsAt": _time(ends),
        "generatorURL": notification.url,
    }


def _time(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _authorization(config: AlertmanagerConfig) -> dict[str, str]:
    if config.bearer_token is not None:
        return {"Authorization": f"Bearer {config.bearer_token}"}
    if config.username is not None:
        return basic(config.username, config.password or "")
    return {}
