"""Alertmanager, through its API v2. Every member of a cluster is a separate receiver, as in Prometheus.

Labels are those by which an alert stays the same alert; all that changes is in the annotations. An alert is posted
again every minute while it lasts, with an end days ahead: if rankmon dies, nothing resolves because of silence.
What resolves an alert is an explicit end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from monitor.conditions.rules import SEVERITIES, Severity
from monitor.fields import HttpAddress, Maybe, PositiveDuration, Text, format_duration
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify import Receiver
from monitor.notify.http import HttpChannel, Poster, basic, place
from monitor.section import FromFile, Secret, fault, key, refuse
from monitor.units import WEEK

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

PATH = "/api/v2/alerts"
REPEAT = 60.0
MATTERS = {"quality": "RankmonQualityDegraded", "data": "RankmonDataSuspect", "layout": "RankmonLayoutChanged"}
NAMES = {"retrain": "RankmonRetrainRecommended", "test": "RankmonTest"}
"""Name of the alert by kind of notification; of all other kinds it goes by the matter."""
LASTS = {"test": 300.0, "retrain": 86_400.0}
"""Seconds that alerts last which nothing ends: a test, and a request that is made once."""
SKEW = 60.0
"""Seconds that Alertmanager's clock may be behind ours: an end in its future would not undo the one days ahead."""
LEAST_HOLD = 300
"""Seconds that Alertmanager has to believe an alert at least: several reminders may be late or lost."""


def _base(url: str) -> str:
    if urlsplit(url).query or urlsplit(url).fragment:
        raise ValueError("has a query string or fragment; give the address without it")
    return url


def _each_once(urls: tuple[str, ...]) -> tuple[str, ...]:
    refuse(*(fault("is listed twice; keep one", i) for i, url in enumerate(urls) if url in urls[:i]))
    return urls


def _long(hold: int) -> int:
    if hold >= LEAST_HOLD:
        return hold
    text = f"{format_duration(hold)} is so short that alerts would end between two reminders, which are a minute apart"
    raise ValueError(f"{text}; give {format_duration(LEAST_HOLD)} or more, preferably days")


@dataclass(frozen=True, slots=True)
class AlertmanagerConfig(HttpChannel):
    """Alertmanagers, by their API v2. All of them get every alert."""

    kind: ClassVar[str] = "alertmanager"

    urls: Annotated[
        tuple[Annotated[HttpAddress, AfterValidator(_base)], ...],
        AfterValidator(_each_once),
        Secret,
        key("Addresses of the Alertmanagers.", min_length=1, examples=["[http://alertmanager:9093]"]),
    ] = field(repr=False)
    username: Annotated[Maybe[Text], key("User name for basic authentication. Default: none.")] = None
    password: Annotated[Maybe[str], FromFile, key("Password; best set as ${NAME}. Default: none.")] = field(
        default=None, repr=False
    )
    bearer_token: Annotated[Maybe[Text], FromFile, key("Token; best set as ${NAME}. Default: none.")] = field(
        default=None, repr=False
    )
    hold: Annotated[
        PositiveDuration,
        AfterValidator(_long),
        key("How long Alertmanager keeps an alert after rankmon stops repeating it."),
    ] = WEEK

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.username is not None and self.bearer_token is not None:
            raise ValueError("has a username and a bearer token; keep just one of them")
        if self.password is not None and self.username is None:
            raise ValueError("has a password but no `username:`; add it")
        if self.username is not None and self.password is None:
            raise ValueError("has a username but no `password:` or `password_file:`; add one")
        return self

    def receivers(self) -> list[Receiver]:
        return [Alertmanager(self, url) for url in self.urls]


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

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        """Post it, with times by Alertmanager's clock: by a wrong one of ours, ongoing alerts would end.

        Raises:
            Undelivered: it was not taken.
        """
        theirs = self._post(notification, now, prior.severities)
        if theirs is not None and abs(theirs - now - self._ahead) > SKEW:
            self._ahead = theirs - now
            self._post(notification, now, prior.severities)

    def _post(self, notification: Notification, now: float, former: Collection[Severity]) -> float | None:
        told = alerts(notification, now + self._ahead, self._hold, former)
        return self._poster.post(json.dumps(told).encode(), self._headers).date


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
    found = [_alert(notification, notification.severity, ended if notification.is_over else now + lasts)]
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
