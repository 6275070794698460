"""The configuration: a YAML file, checked as a whole, as frozen values.

`load` reads it; every mistake in it is told at once, with its file, line, path and remedy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitor.config.build import load
    from monitor.config.fields import RESERVED_LABELS
    from monitor.config.listening import parse_listen
    from monitor.config.schema import json_schema
    from monitor.config.values import (
        AccessConfig,
        Config,
        LogConfig,
        SchedulerConfig,
        SourceConfig,
        StoreConfig,
        WebConfig,
    )

__all__ = [
    "RESERVED_LABELS",
    "AccessConfig",
    "Config",
    "LogConfig",
    "SchedulerConfig",
    "SourceConfig",
    "StoreConfig",
    "WebConfig",
    "json_schema",
    "load",
    "parse_listen",
]

_ELSEWHERE = {
    "RESERVED_LABELS": "fields",
    "json_schema": "schema",
    "load": "build",
    "parse_listen": "listening",
}


def __getattr__(name: str) -> Any:
    # What reads a part of the file, such as `healthcheck` every 30 s, does not pay for the whole model.
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module(f"monitor.config.{_ELSEWHERE.get(name, 'values')}"), name)
