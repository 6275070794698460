"""`rankmon version`."""

from __future__ import annotations

import platform

import click

from monitor import __version__


@click.command()
def version() -> None:
    """Print the version of rankmon and of Python."""
    click.echo(f"rankmon {__version__} (Python {platform.python_version()})")
