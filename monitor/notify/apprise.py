"""Everything Apprise reaches: SMS, chat, push. It cannot resolve: an incident's end is one more message.

https://github.com/caronc/apprise. Install the extra `apprise`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from monitor.database_url import how_to_install
from monitor.errors import Undelivered
from monitor.fields import Text
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.notify import ChannelConfig, GiveUpAfter, OnlyReceiver, Receiver
from monitor.section import FromFile, key
from monitor.units import DAY

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

TYPES = {"critical": "failure", "warning": "warning", "info": "info"}


@dataclass(frozen=True, slots=True)
class AppriseConfig(ChannelConfig):
    """A service that Apprise reaches. It knows no resolve: an incident's end is one more message."""

    kind: ClassVar[str] = "apprise"

    url: Annotated[Text, FromFile, key("Apprise URL of the service; best set as ${NAME}.")] = field(repr=False)
    give_up_after: GiveUpAfter = DAY

    def receivers(self) -> list[Receiver]:
        return [Apprise(self)]

    def check(self) -> str:
        """Whether Apprise knows the URL, without a connection."""
        try:
            import apprise
        except ImportError:
            return f"is not checked, and sends nothing here: {_NOT_INSTALLED}"
        if apprise.Apprise.instantiate(self.url) is None:
            raise ValueError(f"url: {_UNKNOWN}")
        return ""


_NOT_INSTALLED = f"Apprise is not installed; run {how_to_install('apprise')}"
_UNKNOWN = "is unknown to Apprise; see https://github.com/caronc/apprise/wiki for the services and their URLs"


class Apprise(OnlyReceiver):
    """Sends notifications to one service."""

    def __init__(self, config: AppriseConfig) -> None:
        super().__init__(config.name, config.give_up_after)
        self._url = config.url

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> None:
        try:
            import apprise
        except ImportError:
            raise Undelivered(f"{self.channel}: {_NOT_INSTALLED}") from None
        service = apprise.Apprise()
        if not service.add(self._url):
            raise Undelivered(f"{self.channel}: its URL {_UNKNOWN}")
        kind = "success" if notification.is_over else TYPES[notification.severity]
        if not service.notify(body=notification.text or notification.title, title=notification.title, notify_type=kind):
            raise Undelivered(f"{self.channel}: the service did not accept it; Apprise gives no reason")
