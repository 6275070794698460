"""Copy the store of another configuration into the empty store of this one, for example from SQLite to PostgreSQL.

Stop the daemon first. Series, incidents, acknowledgements, silences, baselines and waiting notifications are copied,
all or nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from monitor.cli.common import command, opened, store_config, stored
from monitor.cli.options import config_option
from monitor.errors import InputError
from monitor.service.election import is_overdue
from monitor.store import Store
from monitor.store.copying import copy
from monitor.store.lease import holder_in_words


@command
@click.argument("former", metavar="FORMER_CONFIG", type=click.Path(path_type=Path))
@config_option
def copy_store(former: Path, config_path: Path) -> None:
    config, was = store_config(config_path), store_config(former)
    with stored(was) as source:
        for monitor in was.monitors:
            _refuse_served(source, monitor.name)
        with opened(config) as target:
            found = copy(source, target)
    told = ", ".join(f"{rows:,} of {table}" for table, rows in found.items() if rows)
    click.echo(f"copied {sum(found.values()):,} rows: {told or 'none, the store is empty'}")


def _refuse_served(store: Store, monitor: str) -> None:
    """A daemon holds no lease between two runs, and would continue with the old store."""
    last = store.progress(monitor)
    by, ran = last.judged_by or "", time.time() - (last.last_attempt_at or 0.0)
    if by and by != store.leases.holder and not store.leases.is_gone(by) and not is_overdue(ran, last):
        raise InputError(f"{holder_in_words(by)} ran {monitor} {ran:.0f} s ago; stop it first")
