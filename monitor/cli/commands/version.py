"""Print the version of rankmon and of Python."""

from __future__ import annotations

import platform

import click

from monitor import __version__
from monitor.cli.common import command


@command
def version() -> None:
    click.echo(f"rankmon {__version__} (Python {platform.python_version()})")
