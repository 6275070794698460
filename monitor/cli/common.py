"""Shared by commands: how to declare one, and how it opens configuration, store and source."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import click

from monitor.cli.options import format_option
from monitor.errors import InputError, StoreError

if TYPE_CHECKING:
    from rich.progress import Progress

    from monitor.config import Config
    from monitor.drift.verdicts import Verdict
    from monitor.measures.measure import Measure
    from monitor.service.app import App
    from monitor.source.engine import Database
    from monitor.store import Store
    from monitor.types import Monitor


T = TypeVar("T")
HELP = {"help_option_names": ["-h", "--help"]}


class Listing(click.Group):
    """A group that lists each command with its whole first sentence; click would truncate it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.sentences(ctx))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name, known = args[0], self.list_commands(ctx)
        if name in known or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from monitor.config.report import nearest

        ctx.fail(f"No such command {name!r}; {nearest(name, known, f'{ctx.command_path} --help lists them')}")

    def sentences(self, ctx: click.Context) -> list[tuple[str, str]]:
        """(name, first sentence of its help) of each command."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, first_sentence(one.help or "")) for name, one in found if one is not None]


def first_sentence(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def command(function: Callable[..., Any]) -> click.Command:
    """The command of a file in `monitor.cli.commands`: named after the file, with its docstring as help."""
    module = sys.modules[function.__module__]
    return click.command(_name(module.__name__), help=module.__doc__, context_settings=HELP)(function)


def group(module: str) -> click.Group:
    """As `command`, for a command with subcommands."""
    return Listing(_name(module), help=sys.modules[module].__doc__, no_args_is_help=True, context_settings=HELP)


def _name(module: str) -> str:
    return module.rpartition(".")[2].replace("_", "-")


def rendered(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Prints a command's result by `render` in the format of --format, and exits with its `exit_code`."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @format_option(*formats)
        @wraps(function)
        def run(*args: Any, style: str, **kwargs: Any) -> int:
            from monitor.cli.render import render

            found = function(*args, **kwargs)
            if text := render(found, style):
                click.echo(text)
            return int(getattr(found, "exit_code", 0))

        made: Callable[..., Any] = run
        return made

    return wrap


INTERRUPT_EVERY = 0.2
"""Seconds between attempts to cancel running reads."""


def load_config(path: Path, log: bool = False, unread: Collection[str] = ()) -> Config:
    """The configuration at `path`, with logging set up if `log`. Raises ConfigError. `unread` as in `load`.

    Its store is blamed for later faults of the command if it is damaged.
    """
    import os

    from monitor.config import load
    from monitor.logs import set_up

    config = load(path, os.environ, unread)
    if log:
        set_up(config.log.level, config.log.format)
    if (context := click.get_current_context(silent=True)) is not None:
        context.find_root().obj = config.store.url
    return config


def store_config(path: Path) -> Config:
    """The configuration for commands that use only the store: no secrets of sources or channels are needed."""
    return load_config(path, unread=("sources", "web", "channels", "routes", "reports", "templates"))


def progress() -> Progress:
    """A bar on standard error. With its redirections, rich would write it to the stream that escapes its colours."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises InputError if the file cannot be written within the block."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def stored(config: Config) -> Iterator[Store]:
    """The configuration's store, for reading."""
    missing = missing_store(config)
    if missing:
        raise StoreError(missing)
    with opened(config) as store:
        store.schema.check()
        yield store


def opened(config: Config) -> AbstractContextManager[Store]:
    """The configuration's store, with any schema; a missing SQLite file is created."""
    from monitor.store import Store

    return closing(Store(config.store.url, config.scheduler.lease))


def called(config: Path) -> str:
    """How to invoke rankmon on a configuration from any folder, for `words.command`."""
    installed = Path(sys.executable).with_name("rankmon")
    known = (path for path in (Path(sys.argv[0]), installed) if path.name == "rankmon" and path.is_file())
    program = next((shlex.quote(str(path.absolute())) for path in known), "rankmon")
    return f"{program} {{}} -c {shlex.quote(str(config.absolute()))}"


def missing_store(config: Config) -> str:
    """A note if the SQLite store does not exist yet; else empty."""
    url = config.store.url
    if url.get_backend_name() != "sqlite" or not url.database:
        return ""
    path = Path(url.database).absolute()
    # Opening would create it, and as this user.
    if path.exists() or not path.parent.is_dir():
        return ""
    return f"there is no store {path} yet; run rankmon backfill or rankmon run to create it"


def unwritable_store(config: Config) -> str:
    """Why this user cannot write an SQLite store in an existing folder; empty if nothing prevents it."""
    from monitor.store.files import fault_of

    url = config.store.url
    is_file = url.get_backend_name() == "sqlite" and bool(url.database)
    return fault_of(Path(str(url.database))) if is_file and Path(str(url.database)).parent.is_dir() else ""


@contextmanager
def prepared(config: Config) -> Iterator[App]:
    """A daemon's parts with the store at this version's schema, `interruptible`, and closed in the end."""
    from monitor.service.app import App

    with closing(App(config)) as app, interruptible(app):
        app.prepare()
        yield app


@contextmanager
def interruptible(app: App) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGINT cancel the app's reads, which raise Stopped.

    A handler can interrupt anything and must take no lock, so it only queues the signal for a thread. That thread
    interrupts repeatedly, as a statement may have begun since the last time.
    """
    signals: SimpleQueue[int] = SimpleQueue()
    ended = threading.Event()

    def wait() -> None:
        signals.get()
        while not ended.is_set():
            app.interrupt()
            ended.wait(INTERRUPT_EVERY)

    former = {n: signal.signal(n, lambda n, _: signals.put(n)) for n in (signal.SIGTERM, signal.SIGINT)}
    waiting = threading.Thread(target=wait, name="signals", daemon=True)
    waiting.start()
    try:
        yield
    finally:
        ended.set()
        signals.put(0)
        waiting.join()
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def pick_monitors(config: Config, names: tuple[str, ...]) -> list[Monitor]:
    """The named monitors, or all if none is named. Raises InputError for an unknown one."""
    return [config.monitor(name) for name in names] if names else list(config.monitors)


@contextmanager
def monitor_in_store(config_path: Path, name: str | None) -> Iterator[tuple[Monitor, Store]]:
    """A configured monitor, and the store. Raises what `load_config`, `Config.monitor` and `stored` do."""
    config = store_config(config_path)
    wanted = config.monitor(name)
    with stored(config) as store:
        yield wanted, store


def nothing_shown(monitor: Monitor, days: int) -> InputError:
    """The error if no request of the last `days` days has a query."""
    return InputError(f"{monitor.name}: no request with a query in these {days} days; change --to or --days")


def warn_of_two_pages(config: Config, monitor: Monitor, since: int, until: int) -> None:
    """Warn if people began to look elsewhere in [since, until) seconds, by the newest check, if the store has one."""
    from monitor.messages.words import utc

    try:
        with stored(config) as store:
            checked = store.verdicts.newest_check(monitor.name)
    except StoreError:
        return
    if checked is not None and checked.changed_since is not None and since < checked.changed_since < until:
        told = f"people look at other ranks since about {utc(checked.changed_since)}, and these days mix both"
        click.echo(f"rankmon: warning: {monitor.name}: {told}; choose days before or after it", err=True)


def source_of(config: Config, monitor: Monitor) -> AbstractContextManager[Database]:
    from monitor.source.engine import Database

    source = config.source(monitor.source)
    selects = partial(config.selects, source.name)
    return closing(Database(source.name, source.url, source.statement_timeout, selects=selects))


def finished(steps: Generator[Any, Any, T]) -> T:
    """Return value of a generator run to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: T = ended.value
            return found


def measures_of(monitor: Monitor, texts: Iterable[str]) -> list[Measure]:
    """The requested measures, in any reading of a kernel that the monitor computes; by default all of its own."""
    from monitor.measures.measure import parse

    try:
        found = [parse(text, monitor.recipe.bound) for text in texts]
    except ValueError as error:
        raise InputError(str(error)) from error
    kernels = {m.kernel for m in monitor.measures}
    for measure in found:
        if measure.kernel not in kernels:
            raise InputError(f"{monitor.name} computes {', '.join(sorted(map(str, kernels)))}, not {measure.kernel}")
    return found or list(monitor.measures)


def refused_in_words(refused: Mapping[str, int], unmatched: int | None, requests: int) -> str:
    """Refused counts by reason, and where to look if there are many for so many requests; empty if there are none."""
    from monitor.drift.constants import REFUSED_SHARE
    from monitor.messages.words import SEE_CHECKS, counted

    told = [counted(rows, reason) for reason, rows in sorted(refused.items()) if rows]
    if unmatched:
        told.append(f"{counted(unmatched, 'event')} for which no impression was found")
    many = sum(refused.values()) > REFUSED_SHARE * requests
    return ", ".join(told) + f"; that is a lot: {SEE_CHECKS}" * many


def level_of(verdict: Verdict | None) -> dict[str, Any]:
    """The level relative to the baseline's reference, as plain data."""
    return {
        "is_better_on_offer": verdict is not None and verdict.improved,
        "has_decayed": verdict is not None and verdict.decayed,
        "level_change": None if verdict is None else verdict.moved,
        "labels_change": None if verdict is None else verdict.labels_moved,
    }
