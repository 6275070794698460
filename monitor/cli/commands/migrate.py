"""Migrate the store to this version's schema. `run`, `once` and `backfill` do this automatically."""

from __future__ import annotations

from pathlib import Path

import click

from monitor.cli.common import command, load_config, opened
from monitor.cli.options import config_option


@command
@config_option
def migrate(config_path: Path) -> None:
    with opened(load_config(config_path, with_sources=False)) as store:
        before, now = store.schema.migrate()
    click.echo(f"schema {now}, nothing to do" if before == now else f"schema {before or 'none'} -> {now}")
