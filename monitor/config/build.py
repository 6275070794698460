"""From the file to the frozen configuration: read, check the shape, build the values, check them against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

import monitor.config.checks as checks
import monitor.config.drift as drift
import monitor.config.shape as shape
from monitor.config.alert_shape import Channel
from monitor.config.document import read
from monitor.config.explain import explain
from monitor.config.listening import parse_listen
from monitor.config.mapping import Shape
from monitor.config.monitors import build_monitor
from monitor.config.report import Report, Where
from monitor.config.retention import check_store_retention
from monitor.config.rules import LOG, build_channels, check_telling
from monitor.config.scope import Scope
from monitor.config.urls import database_url, store_url
from monitor.config.values import AccessConfig, Config, LogConfig, SchedulerConfig, SourceConfig, StoreConfig, WebConfig
from monitor.config.web_file import load_web_file
from monitor.errors import ConfigError
from monitor.types import Monitor

T = TypeVar("T", bound=Shape)


def load(path: Path, environ: Mapping[str, str], with_sources: bool = True) -> Config:
    """The configuration in the file `path`, with ${NAME} taken from `environ`.

    Args:
        with_sources: False for who reads none: then the configuration has none, and neither their passwords nor the
            variables in their URLs need to be at hand.

    Raises:
        ConfigError: with every mistake there is, each as `file:line: path.to.key: what is wrong; remedy`.
    """
    report = Report(path, unread="" if with_sources else "sources")
    parts = _parts(read(path, environ, report), report)
    sources = tuple(_sources(parts, report)) if with_sources else ()
    monitors = tuple(_monitors(parts, {s.name: s.url.get_backend_name() for s in sources}, report))
    channels = build_channels(parts.channels, report)
    access = _access(parts.web, environ, report)
    url = store_url(parts.store, ("store",), report) if parts.store is not None else None
    if parts.store is not None:
        check_store_retention(parts.store.retain, monitors, report)
    report.raise_if_any()
    assert parts.store is not None  # or it would have been reported, as with its URL
    assert url is not None
    return Config(
        path=path,
        store=StoreConfig(url, parts.store.retain),
        sources=sources,
        monitors=monitors,
        web=WebConfig(*parse_listen(parts.web.listen), access, parts.web.external_url or ""),
        scheduler=SchedulerConfig(parts.scheduler.workers, parts.scheduler.lease),
        log=LogConfig(parts.log.level, parts.log.format),
        channels=channels,
        lines=report.lines,
    )


@dataclass(frozen=True)
class _Parts:
    """The parts of a file whose shape is right, so that mistakes in one do not hide those in another."""

    store: shape.Store | None
    web: shape.Web
    log: shape.Log
    scheduler: shape.Scheduler
    sources: dict[str, shape.Source]
    source_names: tuple[str, ...]
    channels: dict[str, Channel]
    channel_names: tuple[str, ...]
    defaults: shape.Settings | None
    monitors: list[tuple[Where, shape.Monitor]]


def _parts(data: dict[str, Any], report: Report) -> _Parts:
    right = deepcopy(data)
    for error in _errors(data):
        report.add(*explain(error))
        if error["type"] == "extra_forbidden":
            _take_out(right, error["loc"])
    sources, monitors = right.get("sources"), right.get("monitors")
    named = sources if isinstance(sources, dict) else {}
    told = channels if isinstance(channels := right.get("channels"), dict) else {}
    listed = monitors if isinstance(monitors, list) else []
    return _Parts(
        store=_fit(shape.Store, right.get("store")),
        web=_fit(shape.Web, right.get("web")) or shape.Web(),
        log=_fit(shape.Log, right.get("log")) or shape.Log(),
        scheduler=_fit(shape.Scheduler, right.get("scheduler")) or shape.Scheduler(),
        sources={name: source for name, raw in named.items() if (source := _fit(shape.Source, raw))},
        source_names=tuple(named),
        channels={name: channel for name, raw in told.items() if (channel := _fit(Channel, raw))},
        channel_names=tuple(dict.fromkeys((LOG, *told))),
        defaults=_fit(shape.Settings, right.get("defaults", {})),
        monitors=[(("monitors", i), one) for i, raw in enumerate(listed) if (one := _fit(shape.Monitor, raw))],
    )


def _errors(data: dict[str, Any]) -> list[Any]:
    try:
        shape.Root.model_validate(data)
    except ValidationError as error:
        return list(error.errors(include_url=False))
    return []


def _fit(kind: type[T], data: Any) -> T | None:
    try:
        return kind.model_validate(data)
    except ValidationError:
        return None


def _take_out(data: Any, where: tuple[str | int, ...]) -> None:
    *path, last = where
    for step in path:
        data = data[step]
    data.pop(last, None)


def _access(web: shape.Web, environ: Mapping[str, str], report: Report) -> AccessConfig:
    if web.config_file is None:
        return AccessConfig()
    where, path = ("web", "config_file"), report.file.parent / web.config_file
    if not path.exists():
        report.add_no_file(where, web.config_file)
        return AccessConfig()
    try:
        return load_web_file(path, environ)
    except ConfigError as error:
        report.take_over(where, error.problems)
        return AccessConfig()


def _sources(parts: _Parts, report: Report) -> Iterator[SourceConfig]:
    for name, source in parts.sources.items():
        url = database_url(source, ("sources", name), report)
        if url is not None:
            yield SourceConfig(name, url, source.statement_timeout, source.max_concurrent)


def _monitors(parts: _Parts, dialects: Mapping[str, str], report: Report) -> Iterator[Monitor]:
    checks.check_names(parts.monitors, report)
    if parts.defaults is None:
        return  # what a monitor inherits is not known
    for where, one in parts.monitors:
        scope = Scope(where, one, parts.defaults, report)
        if parts.source_names:
            checks.check_source(scope, parts.source_names)
        if dialect := dialects.get(str(scope.setting("source"))):
            checks.check_selects(scope, dialect)
        check_telling(scope, parts.channel_names)
        drift.check_telling(scope, parts.channel_names)
        yield build_monitor(scope)
