"""From the file to the frozen configuration: read, check each part on its own, then the parts together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

import monitor.config.checks as checks
from monitor.conditions.rules import COVERAGE
from monitor.config.alerts import build_rules
from monitor.config.calendars import known_days
from monitor.config.document import read
from monitor.config.explain import explain
from monitor.config.report import Report, Scope
from monitor.config.templates import faults_of, read_templates
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
from monitor.errors import ConfigError, Where
from monitor.fields import Name
from monitor.messages.own import OwnTemplate
from monitor.notify import ChannelConfig, channel_kinds
from monitor.routing import MailedReport, Route
from monitor.section import keys_of, no_file, unreadable
from monitor.series.retention import least_age
from monitor.types import FINE_FOR, MODEL_VERSION, Monitor, Retention, RollUp, Slice
from monitor.units import DAY

LONGEST_BASELINE = 42 * DAY
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

_STAND_INS: Mapping[str, Any] = {
    "name": "unknown",
    "rankings": dict.fromkeys(("table", "request", "item", "position", "time"), "unknown"),
    "relevance": {"column": {"grade": "unknown", "max_grade": 1}},
    "measures": ["ndcg@10"],
}
"""Stand-ins for required values that cannot be read, so that the rest of the monitor can be checked."""


def load(path: Path, environ: Mapping[str, str], unread: Collection[str] = ()) -> Config:
    """The configuration in the file `path`, with ${NAME} taken from `environ`.

    Args:
        unread: keys at the top that the caller does not need: the configuration has nothing of them, and neither their
            passwords nor the variables in their URLs need to be at hand.

    Raises:
        ConfigError: with every mistake there is, each as `file:line: path.to.key: what is wrong; remedy`.
    """
    report = Report(path, unread)
    data = read(path, environ, report)
    parts = _Parts(report, data)
    sources = list(_sources(parts))
    config: dict[str, Any] = {n: parts.one(n) for n in ("store", "web", "log", "scheduler") if parts.has(n)}
    channels = tuple(_channels(parts))
    monitors = tuple(_monitors(parts, {s.name: s.url.get_backend_name() for s in sources}))
    config["routes"] = tuple(_routes(parts))
    config["reports"] = tuple(_reports(parts, channels))
    if parts.has("templates"):
        config["templates"] = _templates(parts, monitors)
    if config.get("web") is not None:
        config["web"] = _with_access(config["web"], environ, report)
    if config.get("store") is not None:
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

    def has(self, name: str) -> bool:
        """Whether the file says anything of a part that is read."""
        return name in self._data and name not in self.report.unread

    def one(self, name: str) -> Any:
        """A separate part; None if it is wrong."""
        return self.check(keys_of(File)[name].kind, self._data[name], (name,))

    def held(self, name: str) -> Any:
        """What a part contains in the file; nothing if it is not the list or mapping that it should be."""
        if not self.has(name):
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

    def check(self, kind: Any, given: Any, where: Where) -> Any:
        """What is made of a part of the file; None if it is wrong. An unknown key is reported and left out."""
        for _ in range(2):
            made, found = self._made(kind, given, where)
            if not found:
                return made
            if any(one["type"] != UNKNOWN_KEY for one in found):
                return None
            given = _without_unknown(given, found)
        return None

    def monitor(self, given: Any, scope: Scope) -> tuple[Any, frozenset[str]]:
        """What is made of a monitor, and the unreadable keys, which have stand-ins; None if it is not a mapping.

        `measures[]` is one of the measures. A rule that cannot be read is reported, and no key.
        """
        unknown = set[str]()
        while True:
            made, found = self._made(WrittenMonitor, given, scope.where, scope)
            if not found:
                return made, frozenset(unknown)
            if not all(one["loc"] for one in found):
                return None, frozenset()
            given = _without_unknown(given, found)
            for where in (one["loc"] for one in found if one["type"] != UNKNOWN_KEY):
                unknown |= _stand_in(given, where)

    def _made(self, kind: Any, given: Any, where: Where, scope: Scope | None = None) -> tuple[Any, list[Any]]:
        """(value, mistakes), which are reported."""
        try:
            kinds = tuple(channel_kinds().values()) if kind is Channel else ()
            return _adapter(kind, kinds).validate_python(given, context=self._files), []
        except ValidationError as error:
            # What is too short only because a wrong part was left out is reported by that part.
            found = [one for one in error.errors() if one["type"] != "too_short" or not one["input"]]
        for one in found:
            self._refuse({**one, "loc": (*where, *one["loc"])}, scope)
        return None, found

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


UNKNOWN_KEY = "unexpected_keyword_argument"


def _without_unknown(given: Any, mistakes: Sequence[Any]) -> Any:
    """A copy of a part without the keys that do not exist."""
    given = deepcopy(given)
    for *path, last in (one["loc"] for one in mistakes if one["type"] == UNKNOWN_KEY):
        place = given
        for step in path:
            place = place[step]
        place.pop(last, None)
    return given


def _stand_in(given: dict[str, Any], where: Where) -> set[str]:
    """Replace a monitor's wrong value by a readable one; the key that is unknown because of it."""
    name, *inner = str(where[0]), *where[1:]
    if name == "measures" and inner:
        given[name][inner[0]] = "ndcg@10"
        return {"measures[]"}
    if name == "alerts" and inner:
        given[name][inner[0]] = {"name": f"unknown-{inner[0]}", "measure": COVERAGE, "floor": 0.01}
        return set()
    given.pop(name, None)
    if name in _STAND_INS:
        given[name] = deepcopy(_STAND_INS[name])
    return {name}


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


def _reports(parts: _Parts, channels: Sequence[ChannelConfig]) -> Iterator[MailedReport]:
    names = [one["name"] for one in parts.held("monitors") if isinstance(one, dict) and "name" in one]
    unmailed = {one.name for one in channels if not one.MAILS}
    for index, given in enumerate(parts.held("reports")):
        if (found := parts.check(MailedReport, given, ("reports", index))) is not None:
            known = (parts.names("channels"), unmailed, names)
            checks.check_mailed(found, ("reports", index), *known, parts.report)
            yield found


def _templates(parts: _Parts, monitors: Sequence[Monitor]) -> tuple[OwnTemplate, ...]:
    """A user's templates; mistakes in them are reported by file and line."""
    where, report = ("templates",), parts.report
    if (name := parts.one("templates")) is None:
        return ()
    try:
        found, mistakes = read_templates(report.file.parent / name)
    except ValueError as error:
        report.add_of_file(where, name, str(error))
        return ()
    report.take_over(where, [*mistakes, *faults_of(found, monitors)])
    return tuple(found)


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
        written, unknown = parts.monitor(whole, scope)
        if written is None:
            continue
        monitor = _monitor(scope, written, unknown)
        if (names := parts.names("sources")) and "source" not in unknown:
            checks.check_source(scope, monitor.source, names)
        if dialect := dialects.get(monitor.source):
            checks.check_relations(scope, monitor, dialect)
        checks.check_channels(scope, monitor, (checks.LOG, *parts.names("channels")))
        checks.check_monitor(scope, monitor, unknown)
        if not unknown:
            yield monitor


def _with_defaults(own: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    whole = {"source": "", **defaults, **own}
    if isinstance(ours := own.get("labels"), dict) and isinstance(theirs := defaults.get("labels"), dict):
        whole["labels"] = theirs | ours
    return whole


def _monitor(scope: Scope, written: Any, unknown: frozenset[str]) -> Monitor:
    """The monitor, with what the file leaves to it; what is wrong with its alert rules is reported."""

    def has(name: str) -> bool:
        return scope.has(name) and name not in unknown

    values = {f.name: getattr(written, f.name) for f in fields(Monitor)}
    monitor = Monitor(**{**values, "alerts": ()})
    windows = monitor.windows if has("windows") else (max(DAY, monitor.bucket),)
    monitor = replace(monitor, windows=windows, slices=_with_version(monitor))
    monitor = replace(monitor, alerts=build_rules(scope, monitor, written.alerts, unknown))
    if not has("lookback"):
        complete = max(monitor.label_delay, monitor.ingest_delay) + monitor.bucket + monitor.refresh
        looked = [rule.reach for rule in monitor.alerts] + ([] if monitor.drift is None else [LONGEST_BASELINE])
        monitor = replace(monitor, lookback=max(*windows, DAY, complete, *looked))
    if not has("retention"):
        monitor = replace(monitor, retention=Retention(roll_up=RollUp(max(FINE_FOR, least_age(monitor)))))
    return monitor


def _with_version(monitor: Monitor) -> tuple[Slice, ...]:
    """The dimensions, with the model's version first unless it is listed."""
    version = monitor.rankings.model_version
    if version is None or any(s.dimension == MODEL_VERSION for s in monitor.slices):
        return monitor.slices
    return (Slice(MODEL_VERSION, version, MOST_VERSIONS), *monitor.slices)
