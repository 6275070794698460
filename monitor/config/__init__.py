"""The configuration: a YAML file, checked as a whole, as frozen values.

`load` reads it; every mistake in it is told at once, with its file, line, path and remedy.
"""

from monitor.config.build import load
from monitor.config.fields import RESERVED_LABELS, parse_listen
from monitor.config.schema import json_schema
from monitor.config.values import AccessConfig, Config, LogConfig, SchedulerConfig, SourceConfig, StoreConfig, WebConfig

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
