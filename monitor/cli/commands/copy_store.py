"""Copy the store of another configuration into the empty store of this one, as from SQLite to PostgreSQL.

Stop the daemon first. Series, incidents, acknowledgements, silences, baselines and waiting notifications are copied,
all or nothing.
"""

from __future__ import annotations

from pathlib import Path

import click

from monitor.cli.common import command, config_option, load_config, stored


@command
@click.argument("former", metavar="FORMER_CONFIG", type=click.Path(path_type=Path))
@config_option
def copy_store(former: Path, config_path: Path) -> None:
    from monitor.store import Store
    from monitor.store.copying import copy

    config, was = load_config(config_path, with_sources=False), load_config(former, with_sources=False)
    with stored(was) as source:
        target = Store(config.store.url, config.scheduler.lease)
        try:
            found = copy(source, target)
        finally:
            target.close()
    told = ", ".join(f"{rows:,} of {table}" for table, rows in found.items() if rows)
    click.echo(f"copied {sum(found.values()):,} rows: {told or 'none, the store is empty'}")
