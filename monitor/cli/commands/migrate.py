"""Migrate the store to this version's schema. `run`, `once` and `backfill` do this automatically."""

from __future__ import annotations

from pathlib import Path

import click

from monitor.cli.common import command, opened, store_config
from monitor.cli.options import config_option


@command
@config_option
def migrate(config_path: Path) -> None:
    with opened(store_config(config_path)) as store:
        before, now = store.schema.migrate()
    click.echo(f"schema {now}, nothing to do" if before == now else f"schema {before or 'none'} -> {now}")
