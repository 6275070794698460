"""The generic webhook: a notification as JSON, signed.

The body is `Notification.plain()`. `Idempotency-Key` is the same whenever the same thing is sent again. With a secret,
`X-Rankmon-Signature` is `sha256=` and the hexadecimal HMAC-SHA256 of `X-Rankmon-Timestamp`, a dot, and the body.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection

from monitor.conditions.rules import Severity
from monitor.config.channels import WebhookConfig
from monitor.messages.notification import Notification
from monitor.notify.http import Poster


class Webhook:
    """Posts notifications to one URL."""

    repeat: float | None = None

    def __init__(self, config: WebhookConfig) -> None:
        self.channel = self.target = config.name
        self.give_up_after = float(config.give_up_after)
        self._secret = config.secret
        self._poster = Poster(config.url, config.timeout, config.ca_file)

    def send(self, notification: Notification, now: float, former: Collection[Severity] = ()) -> None:
        """Post it. Raises Undelivered."""
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
