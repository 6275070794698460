"""The configuration as frozen values, made to be compared: equal ones need no restart."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import AfterValidator, BeforeValidator, InstanceOf, ValidationInfo, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from sqlalchemy.engine import URL

from monitor.config.alerts import Alert
from monitor.config.listening import DEFAULT, EVERYWHERE, parse_listen
from monitor.config.report import line_of, path_of
from monitor.config.urls import database_url, store_url
from monitor.errors import InputError, Where
from monitor.fields import Count, Maybe, Name, PageAddress, PositiveDuration, Text
from monitor.messages.own import OwnTemplate
from monitor.notify import ChannelConfig, channel_kinds
from monitor.routing import MailedReport, Route
from monitor.section import FromFile, OneOf, Section, key
from monitor.tls import TlsConfig
from monitor.types import Column, Monitor
from monitor.units import DAY

_Named = TypeVar("_Named", "Monitor", "SourceConfig")


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Who may access the web server: TLS, and (name, bcrypt hash) of its users.

    No users: everybody may. The hashes are left out of the repr.
    """

    path: Path | None = None
    tls: TlsConfig | None = None
    users: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


def _listen(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"is only a port; write the address too, e.g. 127.0.0.1:{value}")
    return parse_listen(value) if isinstance(value, str) else value


def _url(value: Any, info: ValidationInfo[Any]) -> Any:
    if isinstance(value, URL):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "must be text")
    return database_url(value, info.data.get("password"), info.context.folder)


DatabaseUrl = Annotated[InstanceOf[URL], BeforeValidator(_url), WithJsonSchema({"type": "string"})]


@dataclass(frozen=True, slots=True)
class _Database(Section):
    """How to reach a database. The URL may hold a password, so it is left out of the repr."""

    password: Annotated[Maybe[str], FromFile, key("Password; best set as ${NAME}. Default: none.")] = field(
        default=None, repr=False, kw_only=True
    )
    url: Annotated[
        DatabaseUrl,
        FromFile,
        key("SQLAlchemy URL of the database; a relative path of SQLite or DuckDB is relative to this file."),
    ] = field(repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class StoreConfig(_Database):
    """Where rankmon keeps its own tables: SQLite (a relative path starts at this file's folder) or PostgreSQL."""

    url: Annotated[
        DatabaseUrl,
        AfterValidator(store_url),
        FromFile,
        key("SQLAlchemy URL of the database; a relative path of SQLite is relative to this file."),
    ] = field(repr=False, kw_only=True)
    retain: Annotated[
        PositiveDuration,
        key(
            "How long closed incidents, their transitions, verdicts, and the buckets of removed monitors are kept. "
            "Other buckets follow their monitor's `retention`."
        ),
    ] = 730 * DAY


@dataclass(frozen=True, slots=True)
class SourceConfig(_Database):
    """One of your databases, read-only."""

    name: Annotated[str, SkipJsonSchema(), key("Its key.", alias="(name)")]
    statement_timeout: Annotated[PositiveDuration, key("Time limit of one query.")] = 60
    max_concurrent: Annotated[
        Count,
        key(
            "Maximum number of concurrent queries; monitors take turns. Above 1, a long push-down read may run as "
            "two queries at a time.",
            ge=1,
            le=64,
        ),
    ] = 4


@dataclass(frozen=True, slots=True)
class WebConfig(Section):
    """Where metrics and pages are served, and to whom; port 0 is any free one."""

    listen: Annotated[
        tuple[str, int],
        BeforeValidator(_listen),
        WithJsonSchema({"type": "string"}),
        key(f"Address and port. Default: {DEFAULT}, localhost only."),
    ] = parse_listen(DEFAULT)
    external_url: Annotated[
        PageAddress,
        key("Address at which people reach the page, for links in notifications. Default: the listen address."),
    ] = ""
    host_names: Annotated[
        tuple[Text, ...],
        key(
            "Further names by which it is reached. With them, requests under any other name are refused: only IP "
            "addresses, names without a dot and the host of `external_url` are accepted too."
        ),
    ] = ()
    config_file: Annotated[
        Maybe[Text],
        key(
            "File with TLS and passwords in the format of Prometheus exporters, relative to this file. Default: "
            "none, plain HTTP without passwords."
        ),
    ] = None
    access: Annotated[InstanceOf[AccessConfig], SkipJsonSchema(), key("The file's content.", alias="(access)")] = (
        AccessConfig()
    )

    @property
    def host(self) -> str:
        return self.listen[0]

    @property
    def port(self) -> int:
        return self.listen[1]

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
class LogConfig(Section):
    """What is logged to standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], key("Minimum level.")] = "info"
    format: Annotated[Literal["text", "json"], key("Text for people or JSON for machines.")] = "text"


@dataclass(frozen=True, slots=True)
class SchedulerConfig(Section):
    """How monitors are run."""

    workers: Annotated[Count, key("Number of monitors of one source that run at the same time.", ge=1, le=64)] = 4
    lease: Annotated[PositiveDuration, key("How long a dead process can block others from writing its monitors.")] = 30


_HINTS = get_type_hints(Monitor, include_extras=True)
_OWN = ("name", "rankings", "recipe", "measures", "slices", "alerts", "drift")
"""What is of one monitor; `defaults` can hold all else."""


def _as_written(name: str, doc: str, left_out: tuple[str, ...], **changes: Any) -> Any:
    """A section with the fields of a monitor, as written in the file."""
    found = [
        (f.name, changes.get(f.name, _HINTS[f.name]), field(default="" if f.name == "source" else f.default))
        if f.default is not MISSING or f.name == "source"
        else (f.name, _HINTS[f.name])
        for f in sorted(fields(Monitor), key=lambda f: f.default is not MISSING or f.name == "source")
        if f.name not in left_out
    ]
    return make_dataclass(
        name, found, bases=(Section,), frozen=True, namespace={"__doc__": doc, "__module__": __name__}
    )


Settings = _as_written("Settings", "What a monitor may leave to `defaults`, and that to what is built in.", _OWN)
WrittenMonitor = _as_written(
    "WrittenMonitor",
    "One ranking to watch.",
    (),
    alerts=Annotated[tuple[Alert, ...], key("Alert rules. Default: none.", max_length=50)],
)
Channel = Annotated[ChannelConfig, OneOf(channel_kinds)]


@dataclass(frozen=True)
class File(Section):
    """Configuration of rankmon."""

    store: Annotated[StoreConfig, key("Where rankmon keeps its own tables.", examples=["{url: sqlite:///rankmon.db}"])]
    sources: Annotated[
        dict[Name, SourceConfig],
        key(
            "Your databases, by name.",
            min_length=1,
            examples=["{shop: {url: postgresql+psycopg://reader@host/name}}"],
        ),
    ]
    monitors: Annotated[
        tuple[WrittenMonitor, ...],  # type: ignore[valid-type]  # made above, of the fields of a monitor
        key("The monitors.", min_length=1, examples=["[{name: search, ...}]"]),
    ]
    web: Annotated[WebConfig, key("Where metrics and pages are served. Default: localhost only.")] = WebConfig()
    log: Annotated[LogConfig, key("Logging. Default: as below.")] = LogConfig()
    scheduler: Annotated[SchedulerConfig, key("How many monitors run at once, and the lease. Default: as below.")] = (
        SchedulerConfig()
    )
    channels: Annotated[
        dict[Name, Channel], key("Where notifications go, by name; `log` always exists. Default: only `log`.")
    ] = field(default_factory=dict)
    routes: Annotated[
        tuple[Route, ...],
        key(
            "Who is notified of what, for all monitors. The first matching route decides; if none matches, "
            "the monitor's `notify` and `data_channels` do. Monitors paged by Prometheus have only these. "
            "Default: none."
        ),
    ] = ()
    reports: Annotated[tuple[MailedReport, ...], key("Reports to mail regularly. Default: none.")] = ()
    templates: Annotated[
        Maybe[Text],
        key(
            "Folder with your own message templates: `title.txt`, `page.txt`, `details.txt`; relative to this file. "
            "Default: the built-in ones."
        ),
    ] = None
    defaults: Annotated[
        Settings,  # type: ignore[valid-type]
        key("Defaults for all monitors."),
    ] = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a configuration file says, checked; `lines` says where in the file."""

    path: Path
    store: StoreConfig
    sources: tuple[SourceConfig, ...]
    monitors: tuple[Monitor, ...]
    web: WebConfig = WebConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    log: LogConfig = LogConfig()
    channels: tuple[ChannelConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    reports: tuple[MailedReport, ...] = ()
    templates: tuple[OwnTemplate, ...] = ()
    lines: Mapping[Where, int] = field(default_factory=dict, compare=False, repr=False)

    def place(self, *where: str | int) -> str:
        """`rankmon.yaml:12: monitors[0].rankings.item`, of a value that stands there, or of what would hold it."""
        return f"{self.path}:{line_of(where, self.lines)}: {path_of(where)}"

    def monitor(self, name: str | None) -> Monitor:
        """The monitor of that name, or the only one.

        Raises:
            InputError: there is none, or several and no name.
        """
        if name is not None:
            return _named(name, self.monitors, "monitor")
        if len(self.monitors) > 1:
            raise InputError(f"name a monitor: {', '.join(one.name for one in self.monitors)}")
        return self.monitors[0]

    def source(self, name: str) -> SourceConfig:
        """The source of that name.

        Raises:
            InputError: there is none.
        """
        return _named(name, self.sources, "source")

    def selects(self, source: str) -> list[str]:
        """Every `select:` that is sent to a source."""
        parts = [part for m in self.monitors if m.source == source for part in (m.rankings, m.recipe)]
        return [part.relation.select for part in parts if not isinstance(part, Column)]


def _named(name: str, values: tuple[_Named, ...], what: str) -> _Named:
    for value in values:
        if value.name == name:
            return value
    raise InputError(f"there is no {what} {name!r}; known are {', '.join(v.name for v in values)}")
