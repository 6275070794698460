"""Microsoft Teams: an adaptive card to the webhook of a workflow ("When a Teams webhook request is received").

A workflow's webhook can change nothing that it posted, so each notification is a card of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from monitor.fields import HttpAddress
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify import OnlyReceiver, Receiver
from monitor.notify.http import HttpChannel, Poster
from monitor.section import FromFile, key

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

COLOURS = {"critical": "attention", "warning": "warning", "info": "accent"}


@dataclass(frozen=True, slots=True)
class TeamsConfig(HttpChannel):
    """A channel or chat of Microsoft Teams, by the webhook of a workflow."""

    kind: ClassVar[str] = "teams"

    url: Annotated[HttpAddress, FromFile, key("Webhook address of the workflow; best set as ${NAME}.")] = field(
        repr=False
    )

    def receivers(self) -> list[Receiver]:
        return [Teams(self)]


class Teams(OnlyReceiver):
    """Posts cards to one workflow."""

    def __init__(self, config: TeamsConfig) -> None:
        super().__init__(config.name, config.give_up_after)
        self._poster = Poster(config.url, config.timeout, config.ca_file)

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card(notification)}
        self._poster.post(json.dumps({"type": "message", "attachments": [content]}).encode(), {})


def card(notification: Notification) -> dict[str, Any]:
    """The adaptive card: title, five lines, and buttons that lead on."""
    colour = "good" if notification.is_over else COLOURS[notification.severity]
    title = {
        "type": "TextBlock",
        "text": _plainly(notification.title),
        "weight": "bolder",
        "wrap": True,
        "color": colour,
    }
    lines = [{"type": "TextBlock", "text": _plainly(t), "wrap": True, "spacing": "small"} for t in notification.lines]
    actions = [{"type": "Action.OpenUrl", "title": name, "url": url} for name, url in notification.links]
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [title, *lines],
        "actions": actions,
    }


def _plainly(text: str) -> str:
    """Text without a card's mark-up: it has links in brackets, emphasis by stars and underlines."""
    return "".join(f"\\{c}" if c in "\\*_[]" else c for c in text)
