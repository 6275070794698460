"""The command `rankmon`.

Exit codes: 0 success; 1 a bug in rankmon, or out of memory; 2 wrong usage, configuration or input file; 3 a source
failed; 4 the store failed; 5 another process is writing the monitor; 6 a receiver did not accept a notification; 7
cannot listen on the address; 8 this machine's clock is wrong; 130 interrupted.

Times, such as those of --from, are UTC unless they name an offset: 2026-11-27, or 2026-11-27T08:00+01:00.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click

from monitor import __version__
from monitor.cli import commands
from monitor.cli.common import HELP, Listing, first_sentence
from monitor.errors import (
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
    exhausted,
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


class _Commands(Listing):
    """The files of `monitor.cli.commands`: each is imported when its command is called, none for the list."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name.replace("_", "-") for _, name, _ in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        module = name.replace("-", "_")
        gc.disable()  # what is imported stays; looking for garbage in it takes a quarter of a short command's time
        found: click.Command = getattr(importlib.import_module(f"{commands.__name__}.{module}"), module)
        gc.freeze()
        gc.unfreeze()  # both: it counts as looked through, and may still be taken apart when the process ends
        gc.enable()
        return found

    def sentences(self, ctx: click.Context) -> list[tuple[str, str]]:
        return [(name, first_sentence(_docstring(name.replace("-", "_")))) for name in self.list_commands(ctx)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output, such as `head`, has enough: no failure. The rest must go somewhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception:
            if ctx.obj is None:
                raise
            from monitor.store.engine import blaming_damage

            with blaming_damage(ctx.obj):
                raise
        return result


def _docstring(module: str) -> str:
    spec = importlib.util.find_spec(f"{commands.__name__}.{module}")
    path = Path(str(spec and spec.origin))
    return path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]


@click.group(cls=_Commands, context_settings=HELP, epilog=__doc__.partition("\n\n")[2])
@click.version_option(__version__, prog_name="rankmon")
def cli() -> None:
    """Watches ranking models in production: windowed NDCG@k and its peers, from your own SQL logs."""
    silence_drivers()


def main() -> None:
    _prepare_streams()
    # Until a command handles it, as Ctrl-C. By default it would do nothing to a container's first process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.argv[1:2] == ["run"]:
        # Until the daemon handles it: it has not read its configuration yet, so no reload is lost.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _leave(run(sys.argv[1:]))


def _prepare_streams() -> None:
    """Standard streams take any text; those that the caller closed lead nowhere, before a file takes their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave(code: int) -> NoReturn:
    """Ends the process; if no thread is at work, without taking it apart: a third of a short command's time."""
    if threading.active_count() > 1:
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Exit code of one command. Errors go to standard error, without a traceback."""
    with redirect_stdout(_Plain(sys.stdout)), redirect_stderr(_Plain(sys.stderr)):
        return _run(arguments)


@contextmanager
def _saying_why() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"the output cannot be written: {error.strerror}") from error


class _Plain:
    """A stream for people: text from outside can send no terminal commands or direction marks."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """rich writes here, and its colours are control codes; its output is made plain first."""

    def write(self, text: str) -> int:
        with _saying_why():
            return self.rich_proxied_file.write(plain(text))

    def flush(self) -> None:
        with _saying_why():
            self.rich_proxied_file.flush()

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
    except (MemoryError, RuntimeError) as error:
        if not (said := exhausted(error)):
            raise
        click.echo(f"rankmon: {said}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def exit_code(error: Exception) -> int:
    """Exit code for an error.

    >>> exit_code(LeaseLost("process 7 is writing it"))
    5
    """
    if isinstance(error, SourceError) and error.is_of_mapping:
        return exit_code(ConfigError([str(error)]))
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
