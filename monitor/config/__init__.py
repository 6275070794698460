"""The configuration: a YAML file, checked as a whole, as frozen values.

`load` reads it; every mistake in it is reported at once, with its file, line, path and remedy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitor.config.loader import load
    from monitor.config.schema import json_schema
    from monitor.config.values import Config, WebConfig

__all__ = ["Config", "WebConfig", "json_schema", "load"]

_ELSEWHERE = {"json_schema": "schema", "load": "loader"}


def __getattr__(name: str) -> Any:
    # What reads a part of the file, such as `healthcheck` every 30 s, does not pay for the whole model.
    if name not in __all__:
        raise AttributeError(name)
    return getattr(import_module(f"monitor.config.{_ELSEWHERE.get(name, 'values')}"), name)
