"""Channels as frozen values: where notifications go. Secrets are left out of every repr."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """A URL that gets notifications as JSON; durations in seconds."""

    name: str
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout: int = 10
    give_up_after: int = 86400


@dataclass(frozen=True, slots=True)
class AlertmanagerConfig:
    """One or more Alertmanagers that all get every alert; durations in seconds."""

    name: str
    urls: tuple[str, ...] = field(repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout: int = 10
    give_up_after: int = 86400
    hold: int = 604800


ChannelConfig = WebhookConfig | AlertmanagerConfig
