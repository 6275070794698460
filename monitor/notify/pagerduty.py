"""PagerDuty, through its Events API v2: an incident is one alert, identified by its `dedup_key`.

https://developer.pagerduty.com/docs/events-api-v2-overview. A request to retrain is a change event, and so
is what may explain an incident: a new version, a new baseline, an announcement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from monitor.fields import HttpAddress, Text
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify import OnlyReceiver, Receiver
from monitor.notify.http import HttpChannel, Poster
from monitor.section import FromFile, key

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

LONGEST_SUMMARY = 1024
"""Characters of a summary that PagerDuty takes."""

ACTIONS = {"resolved": "resolve", "withdrawn": "resolve", "acknowledged": "acknowledge"}


@dataclass(frozen=True, slots=True)
class PagerDutyConfig(HttpChannel):
    """A service of PagerDuty, by its integration key."""

    kind: ClassVar[str] = "pagerduty"
    ACKNOWLEDGES: ClassVar[bool] = True
    TAKES_CHANGES: ClassVar[bool] = True

    routing_key: Annotated[
        Text, FromFile, key("The service's integration key (Events API v2); best set as ${NAME}.")
    ] = field(repr=False)
    url: Annotated[HttpAddress, key("Address of the Events API; https://events.eu.pagerduty.com in the EU.")] = (
        "https://events.pagerduty.com"
    )

    def receivers(self) -> list[Receiver]:
        return [PagerDuty(self)]


class PagerDuty(OnlyReceiver):
    """Sends events to one service."""

    def __init__(self, config: PagerDutyConfig) -> None:
        super().__init__(config.name, config.give_up_after)
        self._key = config.routing_key
        base = config.url.rstrip("/")
        self._alerts, self._changes = (
            Poster(f"{base}/v2/{path}", config.timeout, config.ca_file) for path in ("enqueue", "change/enqueue")
        )

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        self.send_with(notification, now, prior, b"")

    def send_with(self, notification: Notification, now: float, prior: PriorDelivery, chart: bytes) -> None:
        """Send the event; an alarm for a test is resolved at once. Raises Undelivered.

        PagerDuty takes no file: if there is a chart, the event names its address on rankmon's page.
        """
        if notification.kind in ("retrain", "change"):
            self._post(self._changes, change(notification, now))
            return
        self._post(self._alerts, event(notification, ACTIONS.get(notification.kind, "trigger"), bool(chart)))
        if notification.kind == "test":
            self._post(self._alerts, event(notification, "resolve"))

    def _post(self, poster: Poster, event: dict[str, Any]) -> None:
        # The header hides the key in what is said of an answer; PagerDuty reads it in the body.
        body = json.dumps({"routing_key": self._key, **event}).encode()
        poster.post(body, {"Authorization": f"Token {self._key}"})


def event(notification: Notification, action: str, has_chart: bool = False) -> dict[str, Any]:
    """An event of the alert that stands for the notification's incident."""
    found = {"event_action": action, "dedup_key": notification.incident}
    if action != "trigger":
        return found
    payload = {
        "summary": notification.title[:LONGEST_SUMMARY],
        "source": notification.monitor,
        "severity": notification.severity,
        "timestamp": _time(notification.began_at),
        "component": notification.monitor,
        "class": notification.matter,
        "custom_details": {"text": notification.text, "details": notification.details, **dict(notification.labels)},
    }
    images = _images(notification) if has_chart else {}
    return {**found, "payload": payload, "client": "rankmon", **_links(notification), **images}


def change(notification: Notification, now: float) -> dict[str, Any]:
    """A change event: something that people may want to know and need not act on at once."""
    payload = {
        "summary": notification.title[:LONGEST_SUMMARY],
        "source": notification.monitor,
        "timestamp": _time(now),
        "custom_details": {"text": notification.text},
    }
    return {"payload": payload, **_links(notification)}


def _links(notification: Notification) -> dict[str, Any]:
    return {"links": [{"href": href, "text": name} for name, href in notification.links]}


def _images(notification: Notification) -> dict[str, Any]:
    """The chart by its address; PagerDuty shows none that is not served by HTTPS."""
    if not notification.url.startswith("https://"):
        return {}
    src = f"{notification.url}/chart.png"
    return {"images": [{"src": src, "href": notification.url, "alt": "The fall: measured and expected"}]}


def _time(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds")
