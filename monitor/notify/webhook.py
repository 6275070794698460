"""The generic webhook: a notification as JSON, signed.

The body is `Notification.plain()`. `Idempotency-Key` is the same whenever the same thing is sent again. With a secret,
`X-Rankmon-Signature` is `sha256=` and the hexadecimal HMAC-SHA256 of `X-Rankmon-Timestamp`, a dot, and the body.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from monitor.fields import HttpAddress, Maybe, Text
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify import OnlyReceiver, Receiver
from monitor.notify.http import HttpChannel, Poster
from monitor.section import FromFile, key

if TYPE_CHECKING:
    from monitor.messages.notification import Notification


@dataclass(frozen=True, slots=True)
class WebhookConfig(HttpChannel):
    """A URL that gets notifications as JSON."""

    kind: ClassVar[str] = "webhook"

    url: Annotated[HttpAddress, FromFile, key("Address to POST to.")] = field(repr=False)
    secret: Annotated[Maybe[Text], FromFile, key("Key to sign the body with; best set as ${NAME}. Default: none.")] = (
        field(default=None, repr=False)
    )

    def receivers(self) -> list[Receiver]:
        return [Webhook(self)]


class Webhook(OnlyReceiver):
    """Posts notifications to one URL."""

    def __init__(self, config: WebhookConfig) -> None:
        super().__init__(config.name, config.give_up_after)
        self._secret = config.secret
        secrets = () if config.secret is None else (config.secret,)
        self._poster = Poster(config.url, config.timeout, config.ca_file, secrets=secrets)

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        body = json.dumps(notification.plain()).encode()
        self._poster.post(body, headers(notification, body, self._secret, now))


def headers(notification: Notification, body: bytes, secret: str | None, now: float) -> dict[str, str]:
    """Those that go with a body; `now` in seconds since 1970."""
    timestamp = str(int(now))
    found = {"Idempotency-Key": notification.key, "X-Rankmon-Timestamp": timestamp}
    if secret is not None:
        digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        found["X-Rankmon-Signature"] = f"sha256={digest}"
    return found
