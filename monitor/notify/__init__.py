"""Notifying people: one file per channel, with its configuration and its sending. Other packages can add channels.

All that a channel needs is a `ChannelConfig` with a `kind`, in a module of this folder or one that an entry point of
the group `rankmon.channels` names: then the file may hold `channels: {NAME: {KIND: ...}}`, and schema and reference
have its keys.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, runtime_checkable

from pydantic.json_schema import SkipJsonSchema

from monitor.fields import PositiveDuration
from monitor.messages.prior import NO_PRIOR, PriorDelivery
from monitor.section import Section, key

if TYPE_CHECKING:
    from monitor.messages.notification import Notification

GROUP = "rankmon.channels"
"""Entry points by which other packages add channels: each names a module that defines one."""

GiveUpAfter = Annotated[
    PositiveDuration,
    key(
        "How long to retry intermediate notifications of an incident. The newest one of an open incident, and its "
        "resolve, are retried for as long as a daemon has the channel."
    ),
]
"""A channel's key, a day unless the file says otherwise."""

_KINDS: dict[str, type[ChannelConfig]] = {}


class Receiver(Protocol):
    """One place that notifications go to.

    Attributes:
        channel: name of the channel in the configuration.
        target: name of this receiver in the outbox; it stays the same over restarts and holds no secret.
        give_up_after: seconds after which an incident that is over meanwhile need not be told of; its end always is.
        repeat: seconds between two reminders of open incidents; None for no reminders.
    """

    channel: str
    target: str
    give_up_after: float
    repeat: float | None

    def send(self, notification: Notification, now: float, prior: PriorDelivery = NO_PRIOR) -> str | None:
        """Deliver; returns when the other side has said that it has it.

        The store keeps the text that it returns, and passes it on with the incident's next notification; None keeps
        the former one.

        Args:
            now: real seconds since 1970.
            prior: what it was told of this incident before.

        Raises:
            Undelivered: it has not.
        """


@runtime_checkable
class ChartInside(Protocol):
    """A receiver whose messages can hold a chart of the fall."""

    def send_with(self, notification: Notification, now: float, prior: PriorDelivery, chart: bytes) -> str | None:
        """As `send`, with a PNG."""


@runtime_checkable
class ChartAfter(Protocol):
    """A receiver that takes a chart after the message that opens an incident."""

    def add_chart(self, notification: Notification, receipt: str, chart: bytes) -> str:
        """Add a PNG to a delivered message, by what `send` returned; a few seconds at most. Raises Undelivered.

        Returns:
            The receipt from now on.
        """

    def show_chart(self, notification: Notification, receipt: str) -> None:
        """Show an added PNG in the message, as it stands with this notification. Raises Undelivered."""


class OnlyReceiver:
    """A channel's only receiver, named as the channel, which is not reminded."""

    repeat: float | None = None

    def __init__(self, channel: str, give_up_after: float) -> None:
        self.channel = self.target = channel
        self.give_up_after = float(give_up_after)


@dataclass(frozen=True, slots=True)
class ChannelConfig(Section):
    """A channel as configured: what all kinds have. Durations in seconds; secrets are left out of every repr.

    A path is relative to the configuration file: a validator of its key makes it `info.context.folder / path`, as that
    of `ca_file` in `monitor.notify.http` does.
    """

    kind: ClassVar[str] = ""
    ACKNOWLEDGES: ClassVar[bool] = False
    """Whether its receivers take an acknowledgement; others get none."""

    TAKES_CHANGES: ClassVar[bool] = False
    """Whether its receivers are told of new versions, new baselines and announcements."""
    MAILS: ClassVar[bool] = False
    """Whether its receivers take reports."""

    name: Annotated[str, SkipJsonSchema(), key("Its key.", alias="(name)")]

    def __init_subclass__(cls, **more: Any) -> None:
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    def receivers(self) -> Sequence[Receiver]:
        """Where its notifications go."""
        raise NotImplementedError

    def check(self) -> str:
        """Check what takes long, for check-config; a remark on what cannot be checked, or empty.

        Raises:
            ValueError: what is wrong with it.
        """
        return ""


def acknowledging(channels: Sequence[ChannelConfig]) -> list[str]:
    """Targets that take an acknowledgement."""
    return [receiver.target for one in channels if one.ACKNOWLEDGES for receiver in one.receivers()]


def channel_kinds() -> Mapping[str, type[ChannelConfig]]:
    """The kinds of channels there are, by the key of each."""
    _import_kinds()
    return dict(sorted(_KINDS.items()))


@cache
def _import_kinds() -> None:
    """Once a process: to look for entry points is to read a file of every package that is installed."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    for entry in entry_points(group=GROUP):
        entry.load()
