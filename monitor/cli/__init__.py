"""The command `rankmon`.

Exit codes: 0 done; 1 a fault in rankmon itself; 2 wrong usage, configuration or input file; 3 a source did not answer
as it must; 4 the store did not; 5 another process is writing the monitor; 6 a receiver did not take a notification;
7 nothing can be served at the address; 8 this machine's clock is wrong; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TextIO

import click

from monitor import __version__
from monitor.cli.listing import Listing
from monitor.errors import (
    NO_MEMORY,
    ClockError,
    ConfigError,
    InputError,
    LeaseLost,
    RankmonError,
    SourceError,
    Stopped,
    StoreError,
    Undelivered,
    Unserved,
)
from monitor.logs import silence_drivers
from monitor.messages.words import plain

INTERRUPTED = 130

EXIT_CODES: tuple[tuple[type[RankmonError], int], ...] = (
    (ConfigError, 2),
    (InputError, 2),
    (SourceError, 3),
    (StoreError, 4),
    (LeaseLost, 5),
    (Undelivered, 6),
    (Unserved, 7),
    (ClockError, 8),
    (Stopped, INTERRUPTED),
)

_COMMANDS = {
    "run": ("daemon:run", "Run the daemon: read, compute, store and serve until SIGTERM."),
    "once": ("daemon:once", "Run one cycle of each monitor in the foreground, send notifications, and exit."),
    "backfill": ("backfill:backfill", "Compute the past."),
    "verify": (
        "verify:verify",
        "Read final buckets again in every way, and compare them with each other and with what is stored.",
    ),
    "series": (
        "series:series",
        "Print or export the stored series: value, 95 % interval, requests, empty ratio, label coverage, completeness.",
    ),
    "score": ("score:score", "Compute ranking measures on files."),
    "inspect": (
        "inspect:inspect",
        "Print one request from the source: its rows, events, grades, and how each value is computed.",
    ),
    "explain": (
        "explain:explain",
        "Show how each monitor is read, and why: row by row (pull), or as sums made by its database (pushdown).",
    ),
    "status": ("status:status", "Show each monitor as stored: last success, newest windows, verdict, alerts."),
    "incidents": ("incidents:incidents", "List, show and acknowledge incidents, and silence a monitor for a time."),
    "explain-incident": (
        "explain_incident:explain_incident",
        "Explain an incident: what fell, where, by how much, and which requests lost most.",
    ),
    "versions": (
        "versions:versions",
        "Compare two model versions over one period, and show all versions with their intervals.",
    ),
    "baseline": ("baseline:baseline", "Show the baseline of a monitor's verdicts, or start a new one."),
    "slices": (
        "slices:slices",
        "Show which slice values have a series of their own, or free places for other values.",
    ),
    "replay": (
        "replay:replay",
        "Replay the stored past: how often it would have paged, when, why and for how long, next to plain thresholds.",
    ),
    "power": (
        "power:power",
        "Print the smallest drop that shows within 24 hours, for each series at its traffic and noise.",
    ),
    "test-alert": (
        "test_alert:test_alert",
        "Send a test notification to each channel's receivers, directly, and print their answers.",
    ),
    "healthcheck": (
        "healthcheck:healthcheck",
        "Ask the daemon on this machine whether it is healthy.",
    ),
    "check-config": (
        "check:check_config",
        "Check the configuration: all mistakes at once, each with file, line and fix.",
    ),
    "migrate": ("daemon:migrate", "Migrate the store to this version's schema."),
    "hash-password": ("hash_password:hash_password", "Print a line for basic_auth_users in web.config_file."),
    "demo": ("demo:demo", "Simulate a shop with 35 days of searches, watch its ranking fall, and go on live."),
    "version": ("version:version", "Print the version of rankmon and of Python."),
}
"""Where a command is, and the first sentence of its docstring, so that `--help` imports none of them."""


class _Commands(Listing):
    """Imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"monitor.cli.{module}"), attribute)
        return command

    def sentences(self, ctx: click.Context) -> list[tuple[str, str]]:
        return [(name, sentence) for name, (_, sentence) in _COMMANDS.items()]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read our output, such as `head`, has enough: no failure. What is left of it must go somewhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=__doc__.partition("\n\n")[2]
)
@click.version_option(__version__, prog_name="rankmon")
def cli() -> None:
    """Watches ranking models in production: windowed NDCG@k and its peers, from your own SQL logs."""
    silence_drivers()


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.argv[1:2] == ["run"]:
        # Until the daemon notes it: it has not read its configuration yet, so nothing of it is lost.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; its exit code. Errors are written to standard error, without a traceback."""
    with redirect_stdout(_Plain(sys.stdout)), redirect_stderr(_Plain(sys.stderr)):
        return _run(arguments)


class _Plain:
    """A stream to people: text from outside can neither command their terminal nor turn its neighbours around."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """Where rich writes, whose own colours are commands; what it shows is made plain before."""

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(plain(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _run(arguments: list[str]) -> int:
    try:
        result = cli.main(arguments, prog_name="rankmon", standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except RankmonError as error:
        click.echo(f"rankmon: {error}", err=True)
        return exit_code(error)
    except MemoryError:
        click.echo(f"rankmon: {NO_MEMORY}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def exit_code(error: Exception) -> int:
    """What a command that ends with this error exits with.

    >>> exit_code(LeaseLost("process 7 is writing it"))
    5
    """
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
