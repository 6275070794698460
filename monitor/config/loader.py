"""From the file to the frozen configuration: read, check each part on its own, then the parts together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

import monitor.config.checks as checks
from monitor.config.alerts import build_rules
from monitor.config.calendars import known_days
from monitor.config.document import read
from monitor.config.explain import explain
from monitor.config.report import Report, Scope, Where
from monitor.config.values import (
    Channel,
    Config,
    File,
    Settings,
    SourceConfig,
    WebConfig,
    WrittenMonitor,
)
from monitor.config.web_file import load_web_file
from monitor.errors import ConfigError
from monitor.fields import Name
from monitor.notify import ChannelConfig, channel_kinds
from monitor.routing import MailedReport, Route
from monitor.section import keys_of, no_file, unreadable
from monitor.series.retention import least_age
from monitor.types import FINE_FOR, MODEL_VERSION, Monitor, Retention, RollUp, Slice

DAY = 86_400
REACH = 42 * DAY
"""How far back is read for a baseline, unless `lookback` says otherwise."""

MOST_VERSIONS = 200
"""Model versions that get a series. Over years there are many, but few serve at the same time."""

_HOLDERS = {
    "sources": Annotated[dict[Name, Any], Field(min_length=1)],
    "channels": dict[Name, Any],
    "monitors": Annotated[list[Any], Field(min_length=1)],
    "routes": list[Any],
    "reports": list[Any],
}
"""What the parts of a file are that hold others, which are checked one by one."""


def load(path: Path, environ: Mapping[str, str], with_sources: bool = True) -> Config:
    """The configuration in the file `path`, with ${NAME} taken from `environ`.

    Args:
        with_sources: False for who reads none: then the configuration has none, and neither their passwords nor the
            variables in their URLs need to be at hand.

    Raises:
        ConfigError: with every mistake there is, each as `file:line: path.to.key: what is wrong; remedy`.
    """
    report = Report(path, unread="" if with_sources else "sources")
    data = read(path, environ, report)
    parts = _Parts(report, data)
    sources = list(_sources(parts)) if with_sources else []
    config: dict[str, Any] = {name: parts.one(name) for name in ("store", "web", "log", "scheduler")}
    channels = tuple(_channels(parts))
    monitors = tuple(_monitors(parts, {s.name: s.url.get_backend_name() for s in sources}))
    config["routes"] = tuple(_routes(parts))
    config["reports"] = tuple(_reports(parts, channels, monitors))
    if config["web"] is not None:
        config["web"] = _with_access(config["web"], environ, report)
    if config["store"] is not None:
        checks.check_store_retention(config["store"].retain, monitors, report)
    report.raise_if_any()
    return Config(path=path, sources=tuple(sources), monitors=monitors, channels=channels, lines=report.lines, **config)


class _Files:
    """The files that a configuration names, relative to itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> Any:
        """The content of a file, without its trailing newline; events of an `.ics`. Raises PydanticCustomError."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8").rstrip("\r\n")
        except FileNotFoundError:
            raise no_file(name) from None
        except UnicodeDecodeError:
            raise unreadable(name, "the file {file} is not written in UTF-8") from None
        except OSError as error:
            text = f"the file {{file}} cannot be read ({error.strerror}); let this user read it"
            raise unreadable(name, text) from None
        if not text:
            raise unreadable(name, "the file {file} is empty")
        if not name.endswith(".ics"):
            return text
        try:
            return known_days(text)
        except ValueError as error:
            raise unreadable(name, f"the file {{file}} {error}") from None


class _Parts:
    """Checks the parts of a file one by one, so mistakes in one do not hide those in another."""

    def __init__(self, report: Report, data: dict[str, Any]) -> None:
        self.report = report
        self._files = _Files(report.file.parent)
        self._data = data
        keys = keys_of(File)
        for name in data.keys() - keys.keys():
            self._refuse({"type": "unexpected_keyword_argument", "loc": (name,)})
        for name in (n for n, key in keys.items() if key.is_required and n not in data):
            self._refuse({"type": "missing", "loc": (name,)})

    def one(self, name: str) -> Any:
        """A separate part, or its default; None if it is wrong."""
        key = keys_of(File)[name]
        if name not in self._data and key.is_required:
            return None
        return self.check(key.kind, self._data.get(name, {}), (name,))

    def held(self, name: str) -> Any:
        """What a part contains in the file; nothing if it is not the list or mapping that it should be."""
        if name not in self._data:
            return ()
        given = self._data[name]
        self.check(_HOLDERS[name], given, (name,))
        return given if isinstance(given, list if name in ("monitors", "routes", "reports") else dict) else ()

    def names(self, name: str) -> tuple[str, ...]:
        """The names of what a part holds."""
        return tuple(given) if isinstance(given := self._data.get(name), dict) else ()

    def defaults(self) -> dict[str, Any]:
        """What monitors have in common, as written in the file."""
        if "defaults" not in self._data:
            return {}
        given = self._data["defaults"]
        self.check(Settings, given, ("defaults",))
        return given if isinstance(given, dict) else {}

    def check(self, kind: Any, given: Any, where: Where, scope: Scope | None = None) -> Any:
        """What is made of a part of the file; None if it is wrong.

        A key that does not exist, or a measure that cannot be, is reported and left out.
        """
        adapter = _adapter(kind, tuple(channel_kinds().values()))
        for _ in range(2):
            try:
                return adapter.validate_python(given, context=self._files)
            except ValidationError as error:
                # What is too short only because a wrong part was left out is reported by that part.
                found = [one for one in error.errors() if one["type"] != "too_short" or not one["input"]]
            for one in found:
                self._refuse({**one, "loc": (*where, *one["loc"])}, scope)
            given = deepcopy(given)
            for one in reversed(found):
                if one["type"] != "unexpected_keyword_argument" and not _is_measure(one["loc"]):
                    return None
                _take_out(given, one["loc"])
        return None

    def _refuse(self, error: Mapping[str, Any], scope: Scope | None = None) -> None:
        where, text = explain(error, File)
        place = scope.place(where[2:]) if scope is not None and where[2:] else where
        if error["type"] == "file":
            self.report.add_of_file(place, error["ctx"]["name"], text)
        else:
            self.report.add(place, text)


@cache
def _adapter(kind: Any, channels: tuple[type[ChannelConfig], ...]) -> TypeAdapter[Any]:
    """Made once, which takes longer than to load a file; `channels` because a package may add one."""
    return TypeAdapter(kind)


def _is_measure(where: Where) -> bool:
    return len(where) == 2 and where[0] == "measures"


def _take_out(data: Any, where: Where) -> None:
    *path, last = where
    for step in path:
        data = data[step]
    if isinstance(data, list):
        data[int(last)] = "ndcg@10"  # stands in for what could not be read
    else:
        data.pop(last, None)


def _with_access(web: WebConfig, environ: Mapping[str, str], report: Report) -> WebConfig:
    """With what its file says of TLS and passwords."""
    if (name := web.config_file) is None:
        return web
    where, path = ("web", "config_file"), report.file.parent / name
    if not path.exists():
        report.add_of_file(where, name, no_file(name).message())
        return web
    try:
        return replace(web, access=load_web_file(path, environ))
    except ConfigError as error:
        report.take_over(where, error.problems)
        return web


def _named(given: Any, name: str) -> Any:
    return {"(name)": name, **given} if isinstance(given, dict) else given


def _sources(parts: _Parts) -> Iterator[SourceConfig]:
    sources = parts.held("sources")
    for name in sources:
        found = parts.check(SourceConfig, _named(sources[name], name), ("sources", name))
        if found is not None:
            yield found


def _channels(parts: _Parts) -> Iterator[ChannelConfig]:
    channels = parts.held("channels")
    for name in channels:
        given, where = channels[name], ("channels", name)
        if name == checks.LOG:
            parts.report.add(where, "is the name of the built-in log channel; choose another")
            continue
        if isinstance(given, dict):
            given = {kind: _named(one, name) for kind, one in given.items()}
        if (found := parts.check(Channel, given, where)) is not None:
            yield found


def _routes(parts: _Parts) -> Iterator[Route]:
    known = (checks.LOG, *parts.names("channels"))
    for index, given in enumerate(parts.held("routes")):
        if (found := parts.check(Route, given, ("routes", index))) is not None:
            checks.check_route(found, ("routes", index), known, parts.report)
            yield found


def _reports(parts: _Parts, channels: Sequence[ChannelConfig], monitors: Sequence[Monitor]) -> Iterator[MailedReport]:
    for index, given in enumerate(parts.held("reports")):
        if (found := parts.check(MailedReport, given, ("reports", index))) is not None:
            checks.check_mailed(found, ("reports", index), channels, [m.name for m in monitors], parts.report)
            yield found


def _monitors(parts: _Parts, dialects: Mapping[str, str]) -> Iterator[Monitor]:
    given = parts.defaults()
    defaults = {name: value for name, value in given.items() if name in keys_of(Settings)}
    monitors = parts.held("monitors")
    scopes = [
        Scope(("monitors", index), one if isinstance(one, dict) else {}, defaults, parts.report)
        for index, one in enumerate(monitors)
    ]
    checks.check_names(scopes, parts.report)
    for scope, own in zip(scopes, monitors, strict=True):
        whole = _with_defaults(own, defaults) if isinstance(own, dict) else own
        written = parts.check(WrittenMonitor, whole, scope.where, scope)
        if written is None:
            continue
        monitor = _monitor(scope, written)
        if names := parts.names("sources"):
            checks.check_source(scope, monitor.source, names)
        if dialect := dialects.get(monitor.source):
            checks.check_selects(scope, monitor, dialect)
        checks.check_channels(scope, monitor, (checks.LOG, *parts.names("channels")))
        checks.check_monitor(scope, monitor)
        checks.check_engine(scope, monitor)
        yield monitor


def _with_defaults(own: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    whole = {"source": "", **defaults, **own}
    if isinstance(ours := own.get("labels"), dict) and isinstance(theirs := defaults.get("labels"), dict):
        whole["labels"] = theirs | ours
    return whole


def _monitor(scope: Scope, written: Any) -> Monitor:
    """The monitor, with what the file leaves to it; what is wrong with its alert rules is reported."""
    values = {f.name: getattr(written, f.name) for f in fields(Monitor)}
    monitor = Monitor(**{**values, "alerts": ()})
    windows = monitor.windows if scope.has("windows") else (max(DAY, monitor.bucket),)
    monitor = replace(monitor, windows=windows, slices=_with_version(monitor))
    monitor = replace(monitor, alerts=build_rules(scope, monitor, written.alerts))
    if not scope.has("lookback"):
        complete = max(monitor.label_delay, monitor.ingest_delay) + monitor.bucket + monitor.refresh
        looked = [rule.reach for rule in monitor.alerts] + ([] if monitor.drift is None else [REACH])
        monitor = replace(monitor, lookback=max(*windows, DAY, complete, *looked))
    if not scope.has("retention"):
        monitor = replace(monitor, retention=Retention(roll_up=RollUp(max(FINE_FOR, least_age(monitor)))))
    return monitor


def _with_version(monitor: Monitor) -> tuple[Slice, ...]:
    """The dimensions, with the model's version first unless it is listed."""
    version = monitor.rankings.model_version
    if version is None or any(s.dimension == MODEL_VERSION for s in monitor.slices):
        return monitor.slices
    return (Slice(MODEL_VERSION, version, MOST_VERSIONS), *monitor.slices)
