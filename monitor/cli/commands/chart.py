"""Draw an incident's fall for a message or a report: measured and expected values, when it began and opened.

Default: MONITOR's open quality incident, or its last days if there is none. A PNG needs the extra `charts`.
"""

from __future__ import annotations

from pathlib import Path

import click

from monitor.cli.commands.incidents import find
from monitor.cli.common import command, monitor_in_store, writing
from monitor.cli.options import config_option, monitor_option
from monitor.errors import InputError
from monitor.page.fall import draw_fall
from monitor.page.png import as_png
from monitor.service.fall import fall_of
from monitor.store import Store
from monitor.store.alerts import StoredIncident


@command
@config_option
@monitor_option()
@click.option("--incident", help="Id of an incident, open or closed.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="A .png or .svg.")
def chart(config_path: Path, monitor: str | None, incident: str | None, output: Path) -> None:
    if output.suffix not in (".png", ".svg"):
        raise InputError(f"{output} is neither .png nor .svg")
    with monitor_in_store(config_path, monitor) as (watched, store):
        svg = draw_fall(fall_of(watched, store, _shown(store, watched.name, incident)))
    drawn = svg.encode() if output.suffix == ".svg" else as_png(svg)
    with writing(output):
        output.write_bytes(drawn)


def _shown(store: Store, monitor: str, incident: str | None) -> StoredIncident | None:
    if incident is None:
        return store.alerts.state(monitor).open.get("quality")
    found = find(store, incident)
    if found.incident.monitor != monitor:
        raise InputError(f"incident {incident} belongs to {found.incident.monitor}, not to {monitor}")
    return found
