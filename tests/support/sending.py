"""A daemon reduced to its sender, to be killed: it delivers what waits in a store by one channel, then ends."""

from __future__ import annotations

from typing import Any

import apprise  # noqa: F401
from sqlalchemy.engine import make_url

from monitor.notify import ChannelConfig, channel_kinds, slack
from monitor.service import periodic
from monitor.service import sender as sending
from monitor.service.sender import Sender
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from tests.support.services import ROUTING_KEY, TOKEN

CHANNEL = "told"

channel_kinds()  # so that a forked process need not import them, nor what apprise brings


def channel(kind: str, port: int) -> ChannelConfig:
    """A channel to what listens on that port of this machine; `slack-webhook` is Slack without a token."""
    url = f"http://127.0.0.1:{port}"
    settings: dict[str, dict[str, Any]] = {
        "alertmanager": {"urls": (url,)},
        "apprise": {"url": f"json://127.0.0.1:{port}/"},
        "email": {"host": "127.0.0.1", "port": port, "security": "none", "sender": "r@test", "to": ("oncall@test",)},
        "pagerduty": {"url": url, "routing_key": ROUTING_KEY},
        "slack": {"url": f"{url}/api", "token": TOKEN, "channel": "C1"},
        "slack-webhook": {"webhook_url": url},
        "teams": {"url": url},
        "webhook": {"url": url},
    }
    return channel_kinds()[kind.partition("-")[0]](name=CHANNEL, **settings[kind])


def run(arguments: list[str]) -> int:
    """Deliver all that waits: URL of the store, kind of the channel, port."""
    url, kind, port = arguments
    sending.OUTBOX_EVERY, periodic.FIRST_RETRY, sending.LONGEST_RETRY = 0.05, 0.02, 0.1
    slack.SETTLED = 0.2
    store = Store(make_url(url), lease_seconds=20)
    sender = Sender(store, Telemetry())
    sender.use(channel(kind, int(port)).receivers())
    sender.start()
    is_done = sender.settle(60)
    sender.stop()
    store.close()
    return 0 if is_done else 1
