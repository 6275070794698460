"""The configuration as frozen values, made to be compared: equal ones need no restart."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from monitor.config.channels import ChannelConfig
from monitor.config.report import Where, line_of, path_of
from monitor.errors import InputError
from monitor.tls import TlsConfig

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from monitor.types import Monitor

Level = Literal["debug", "info", "warning", "error"]
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that stand for all of a machine's own -> the one by which it reaches itself."""

_Named = TypeVar("_Named", "Monitor", "SourceConfig")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """rankmon's own database. The URL may hold a password, so it is left out of the repr.

    Attributes:
        retain: seconds that incidents which are over, what belongs to them, and verdicts stay.
    """

    url: URL = field(repr=False)
    retain: int = 730 * 86_400


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Under what conditions the web is served: TLS, and (name, bcrypt hash) of those who may see it.

    No users: everybody may. The hashes are left out of the repr.
    """

    path: Path | None = None
    tls: TlsConfig | None = None
    users: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """Where metrics and pages are served, and to whom; port 0 is any free one. `external_url`: for links."""

    host: str = "127.0.0.1"
    port: int = 9184
    access: AccessConfig = AccessConfig()
    external_url: str = ""

    def page_url(self, port: int | None = None) -> str:
        """Address of the page for links, with a slash at its end; `port` is the one listened on, where it was any.

        Nobody reaches an address that stands for all of a machine's own: then it goes by the machine's name.
        """
        if self.external_url:
            return self.external_url.rstrip("/") + "/"
        host = socket.gethostname() if self.host in EVERYWHERE else self.host
        scheme = "http" if self.access.tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port if port is None else port}/"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is logged, and for whom."""

    level: Level = "info"
    format: Literal["text", "json"] = "text"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How monitors are run; `lease` in seconds."""

    workers: int = 4
    lease: int = 30


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A database to read; `statement_timeout` in seconds. The URL is left out of the repr.

    Attributes:
        max_concurrent: statements on it at the same time.
    """

    name: str
    url: URL = field(repr=False)
    statement_timeout: int = 60
    max_concurrent: int = 4


@dataclass(frozen=True, slots=True)
class Config:
    """All that a configuration file says, checked; `lines` says where in the file."""

    path: Path
    store: StoreConfig
    sources: tuple[SourceConfig, ...]
    monitors: tuple[Monitor, ...]
    web: WebConfig = WebConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    log: LogConfig = LogConfig()
    channels: tuple[ChannelConfig, ...] = ()
    lines: Mapping[Where, int] = field(default_factory=dict, compare=False, repr=False)

    def place(self, *where: str | int) -> str:
        """`rankmon.yaml:12: monitors[0].rankings.item`, of a value that stands there, or of what would hold it."""
        return f"{self.path}:{line_of(where, self.lines)}: {path_of(where)}"

    def monitor(self, name: str) -> Monitor:
        """The monitor of that name.

        Raises:
            InputError: there is none.
        """
        return _named(name, self.monitors, "monitor")

    def source(self, name: str) -> SourceConfig:
        """The source of that name.

        Raises:
            InputError: there is none.
        """
        return _named(name, self.sources, "source")


def _named(name: str, values: tuple[_Named, ...], what: str) -> _Named:
    for value in values:
        if value.name == name:
            return value
    raise InputError(f"there is no {what} {name!r}; there are {', '.join(v.name for v in values)}")
