"""Migrate the store to this version's schema. `run`, `once` and `backfill` do so by themselves."""

from __future__ import annotations

from pathlib import Path

import click

from monitor.cli.common import command, load_config
from monitor.cli.options import config_option


@command
@config_option
def migrate(config_path: Path) -> None:
    from monitor.store import Store

    config = load_config(config_path, with_sources=False)
    store = Store(config.store.url, config.scheduler.lease)
    try:
        before, now = store.schema.migrate()
    finally:
        store.close()
    click.echo(f"schema {now}, nothing to do" if before == now else f"schema {before or 'none'} -> {now}")
