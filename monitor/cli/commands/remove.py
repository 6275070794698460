"""Delete everything stored about a monitor that is no longer in the configuration.

Its open incidents are withdrawn, and everyone who was notified hears of it. Back up the store first.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from monitor.cli.common import command, store_config, stored
from monitor.cli.options import config_option
from monitor.errors import InputError
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import withdraw
from monitor.messages.words import counted
from monitor.store.renaming import names
from monitor.store.renaming import remove as removed


@command
@config_option
@click.argument("monitor")
def remove(config_path: Path, monitor: str) -> None:
    config = store_config(config_path)
    if monitor in {one.name for one in config.monitors}:
        raise InputError(f"{monitor} is still configured; remove it from {config.path} and reload the daemon first")
    with stored(config) as store:
        if monitor not in (known := names(store)):
            raise InputError(f"nothing is stored for {monitor}; known are: {', '.join(sorted(known)) or 'none'}")
        with store.hold(monitor) as lease:
            withdraw(monitor, store, lease, Recipients(real_now=time.time()))
            number = removed(store, lease)
    click.echo(f"removed {monitor}: {counted(number, 'bucket')}, its incidents, silences and baselines")
