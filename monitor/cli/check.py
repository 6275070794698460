"""`rankmon check-config`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from monitor.cli.common import config_option, load_config
from monitor.core.types import format_duration
from monitor.errors import RankmonError


@click.command("check-config")
@config_option
@click.option("--connect", is_flag=True, help="Also read a little from every source and look at the store.")
def check_config(config_path: Path, connect: bool) -> int:
    """Check the configuration: all mistakes at once, each with file, line and remedy."""
    config = load_config(config_path)
    for monitor in config.monitors:
        windows = ", ".join(format_duration(w) for w in monitor.windows)
        click.echo(f"{monitor.name}: {', '.join(str(m) for m in monitor.measures)} over {windows}")
    problems = _connect(config_path) if connect else []
    for problem in problems:
        click.echo(f"rankmon: {problem}", err=True)
    click.echo("configuration is valid" + (" and everything answers" if connect and not problems else ""))
    return 3 if problems else 0


def _connect(config_path: Path) -> list[str]:
    from monitor.source.engine import Database
    from monitor.source.pull import Pull
    from monitor.store import Store

    config, problems, now = load_config(config_path), [], time.time()
    databases = {s.name: Database(s.name, s.url, s.statement_timeout) for s in config.sources}
    for monitor in config.monitors:
        try:
            pull = Pull(monitor, databases[monitor.source])
            fresh = pull.freshness(now - monitor.history, now)
            pull.read(int(now) - 1, int(now))
            age = _age(monitor.history, fresh.newest, now)
            ahead = f", {fresh.future_rows} rows dated in the future" if fresh.future_rows else ""
            click.echo(f"{monitor.name}: source {monitor.source} answers, {age}{ahead}")
        except RankmonError as error:
            problems.append(f"{monitor.name}: {error}")
    try:
        store = Store(config.store.url, config.scheduler.lease)
        with store.reading() as connection:
            connection.exec_driver_sql("SELECT 1")
        store.close()
    except RankmonError as error:
        problems.append(str(error))
    return problems


def _age(history: int, newest: float | None, now: float) -> str:
    if newest is None:
        return f"no request in {format_duration(history)}"
    return f"newest request is {format_duration(int(now - newest))} old"
