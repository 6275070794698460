"""Report on the last days: values, incidents, slices that moved, new versions, labels and data."""

from __future__ import annotations

from pathlib import Path

import click

from monitor.cli.common import command, pick_monitors, store_config, stored, writing
from monitor.cli.options import DurationParam, config_option, format_option, monitors_option
from monitor.cli.render import render
from monitor.page.report import as_page, as_text
from monitor.service.reporting import report as reported

FORMATS = ("md", "html", "json")


@command
@config_option
@monitors_option
@click.option("--last", "span", type=DurationParam(), default="7d", show_default=True, help="How far it looks back.")
@format_option(*FORMATS)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Output file.")
def report(config_path: Path, names: tuple[str, ...], span: int, style: str, output: Path | None) -> None:
    config = store_config(config_path)
    with stored(config) as store:
        found = [reported(monitor, store, span) for monitor in pick_monitors(config, names)]
    if style == "json":
        text = render(found, "json")
    else:
        text = as_page(found) if style == "html" else "\n".join(as_text(found))
    if output is None:
        click.echo(text.rstrip("\n"))
        return
    with writing(output):
        output.write_text(text, encoding="utf-8")
