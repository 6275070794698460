"""Options shared by commands, and how they parse times."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from monitor.messages.words import on_one_line, storable

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


def format_option(*formats: str) -> Callable[[Any], Any]:
    """The --format option, passed as `style`; the first format is the default for people."""
    return click.option("--format", "style", type=click.Choice(formats), default=formats[0], show_default=True)


def monitors_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Monitors as arguments or with `--monitor`; passed as `names`, without duplicates."""

    @click.argument("monitors", nargs=-1, metavar="[MONITOR]...")
    @click.option("-m", "--monitor", "names", multiple=True, help="Only this monitor (default: all).")
    @wraps(command)
    def named(*args: Any, monitors: tuple[str, ...], names: tuple[str, ...], **kwargs: Any) -> Any:
        return command(*args, names=tuple(dict.fromkeys((*monitors, *names))), **kwargs)

    return named


def monitor_option(text: str = "Monitor (default: the only one).") -> Callable[[Any], Any]:
    """One monitor as an argument or with `--monitor`; passed as `monitor`, None if it is not named."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("monitor", required=False)
        @click.option("-m", "--monitor", "option", help=text)
        @wraps(command)
        def named(*args: Any, monitor: str | None, option: str | None, **kwargs: Any) -> Any:
            if monitor is not None and option is not None:
                raise click.UsageError("the monitor is given twice: use --monitor or MONITOR")
            return command(*args, monitor=monitor or option, **kwargs)

        return named

    return decorated


class RemarkParam(click.ParamType[str]):
    """A remark by people, on one line, so that it fits lists and tables."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return on_one_line(storable(value))


def note_option(text: str) -> Callable[[Any], Any]:
    """The option for what somebody has to say to what is done."""
    return click.option("--note", default="", type=RemarkParam(), help=text)


def by_option() -> Callable[[Any], Any]:
    """The option for who acts, by default the machine's user."""
    return click.option("--by", default=_user, type=RemarkParam(), help="Your name (default: your user name).")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"  # a container's user may have no name


class DurationParam(click.ParamType[int]):
    """A duration such as 24h; gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else self.seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def seconds(self, text: str) -> int:
        """Seconds of a text. Raises ValueError."""
        from monitor.types import parse_duration

        return parse_duration(text)


class InstantParam(DurationParam):
    """A moment: `2022-02-24`, `2022-02-24 05:00 UTC`, in any zone (UTC by default); gives seconds since 1970.

    Also accepts seconds since 1970, as in rankmon's JSON, from 1973 to 2286.
    """

    name = "time"

    def seconds(self, text: str) -> int:
        """Seconds since 1970 UTC. Raises ValueError."""
        from monitor.types import parse_instant

        return int(text) if text.isdecimal() and len(text) in (9, 10) else parse_instant(text)


def past_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The log's ranks and days that clicks are taken from; passed as `depth`, `days` and `until`."""
    for option in (
        click.option(
            "--to", "until", type=InstantParam(), help="End of these days (default: now minus the attribution)."
        ),
        click.option(
            "--days", type=click.IntRange(1, 365), default=28, show_default=True, help="Days of requests to use."
        ),
        click.option("--depth", type=click.IntRange(2, 50), default=10, show_default=True, help="Ranks to look at."),
    ):
        command = option(command)
    return command
