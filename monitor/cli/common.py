"""What several commands share: finding the configuration, reading times, opening the parts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from monitor.config import Config, load
from monitor.core.types import Monitor, parse_duration
from monitor.errors import InputError

config_option = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    default="rankmon.yaml",
    envvar="RANKMON_CONFIG",
    show_default=True,
    show_envvar=True,
    help="Configuration file.",
)


def load_config(path: Path, log: bool = False) -> Config:
    """The configuration at `path`, with logging set up as it says if `log`. Raises ConfigError."""
    import os

    from monitor.logs import set_up

    config = load(path, os.environ)
    if log:
        set_up(config.log.level, config.log.format)
    return config


class Instant(click.ParamType[int]):
    """A moment: `2022-02-24`, `2022-02-24T05:00`, with or without a zone (UTC then); gives seconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds since 1970 UTC."""
        if isinstance(value, int):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time; write e.g. 2022-02-24 or 2022-02-24T05:00Z", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


class Span(click.ParamType[int]):
    """A duration such as 24h; gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def pick_monitors(config: Config, names: tuple[str, ...]) -> list[Monitor]:
    """The monitors of these names, all if none is named. Raises InputError for an unknown one."""
    known = {m.name: m for m in config.monitors}
    for name in names:
        if name not in known:
            raise InputError(f"there is no monitor {name!r}; known are {', '.join(known)}")
    return [known[n] for n in names] if names else list(config.monitors)


def monitor_option(multiple: bool = True) -> Callable[[Any], Any]:
    """The option that names monitors."""
    return click.option(
        "-m", "--monitor", "names", multiple=multiple, help="Name of a monitor; all without it." if multiple else ""
    )
