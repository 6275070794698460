"""Show how each monitor is read, and why: row by row (pull), or as sums computed by its database (pushdown).

The SQL is for the last whole bucket, with values filled in, so you can run it yourself. For large PostgreSQL tables, it
says if neither an index nor a partition limits the read.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from monitor.cli import exit_code
from monitor.cli.common import command, load_config, pick_monitors, source_of
from monitor.cli.options import config_option, monitors_option
from monitor.errors import SourceError
from monitor.source.choice import choose
from monitor.source.engine import Database
from monitor.source.plans import explained_now
from monitor.types import Monitor


@command
@config_option
@monitors_option
@click.option(
    "--sql/--no-sql", default=True, show_default=True, help="Print the SQL too; asks the source for column types."
)
def explain(config_path: Path, names: tuple[str, ...], sql: bool) -> int:
    config, code = load_config(config_path), 0
    for monitor in pick_monitors(config, names):
        try:
            with source_of(config, monitor) as database:
                _explain(monitor, database, sql)
        except SourceError as error:
            click.echo(f"rankmon: {monitor.name}: {error}", err=True)
            code = code or exit_code(error)
    return code


def _explain(monitor: Monitor, database: Database, sql: bool) -> None:
    if not sql:
        choice = choose(monitor, database.dialect)
        click.echo(f"{monitor.name}: {choice.way}: {choice.reason}")
        return
    choice, statements, scanned = explained_now(monitor, database, time.time())
    click.echo(f"{monitor.name}: {choice.way}: {choice.reason}")
    for text in scanned:
        click.echo(f"{monitor.name}: {text}")
    for statement in statements:
        click.echo(f"\n{statement};")
