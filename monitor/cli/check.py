"""`rankmon check-config`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitor.cli import exit_code
from monitor.cli.common import config_option, load_config, missing_store
from monitor.core.types import format_duration
from monitor.errors import RankmonError

if TYPE_CHECKING:
    from monitor.config import Config
    from monitor.core.types import Monitor
    from monitor.source.engine import Database


@click.command("check-config")
@config_option
@click.option("--connect", is_flag=True, help="Also read a little from every source and look at the store.")
def check_config(config_path: Path, connect: bool) -> int:
    """Check the configuration: all mistakes at once, each with file, line and remedy."""
    config = load_config(config_path)
    for monitor in config.monitors:
        windows = ", ".join(format_duration(w) for w in monitor.windows)
        click.echo(f"{monitor.name}: {', '.join(str(m) for m in monitor.measures)} over {windows}")
        for rule in monitor.alerts:
            told = "paged by Prometheus" if monitor.paging == "prometheus" else f"tells {', '.join(monitor.notify)}"
            judged = f"{rule.judged} over {format_duration(rule.window)}"
            click.echo(f"  alert {rule.name}: {judged}, looks back {format_duration(rule.reach)}, {told}")
    problems = _connect(config) if connect else []
    for problem in problems:
        click.echo(f"rankmon: {problem}", err=True)
    if problems:
        click.echo("configuration is valid, but not everything answers")
        return exit_code(problems[0])
    click.echo("configuration is valid" + (" and everything answers" if connect else ""))
    return 0


def _connect(config: Config) -> list[RankmonError]:
    """Ask every source and the store; what is wrong with them."""
    from monitor.source.engine import Database

    databases = {s.name: Database(s.name, s.url, s.statement_timeout) for s in config.sources}
    problems: list[RankmonError] = []
    for monitor in config.monitors:
        try:
            click.echo(_ask(monitor, databases[monitor.source]))
        except RankmonError as error:
            problems.append(type(error)(f"{monitor.name}: {error}"))
    for database in databases.values():
        database.close()
    try:
        click.echo(_ask_store(config))
    except RankmonError as error:
        problems.append(error)
    return problems


def _ask(monitor: Monitor, database: Database) -> str:
    """Read a second of a monitor's rankings and labels, and say how new they are. Raises SourceError."""
    from monitor.source.pull import Pull

    now, pull = time.time(), Pull(monitor, database)
    fresh = pull.freshness(now - monitor.history, now)
    pull.read(int(now) - 1, int(now))
    age = f"no request in {format_duration(monitor.history)}"
    if fresh.newest is not None:
        age = f"newest request is {format_duration(int(now - fresh.newest))} old"
    ahead = f", {fresh.future_rows} rows dated in the future" if fresh.future_rows else ""
    return f"{monitor.name}: source {database.name} answers, {age}{ahead}"


def _ask_store(config: Config) -> str:
    """Look into the store. Raises StoreError."""
    from monitor.store import Store

    missing = missing_store(config)
    if missing:
        return f"store: {missing}"
    store = Store(config.store.url, config.scheduler.lease)
    try:
        if lacking := store.schema.lacks():
            return f"store: answers; {lacking}"
        store.schema.check()
    finally:
        store.close()
    return "store: answers"
