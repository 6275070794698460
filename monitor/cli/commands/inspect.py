"""Print one request from the source: its rows, events, grades, and how each value is computed.

REQUEST is its id, as in the request column. Refused rows are shown with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitor.causes.traced import Inspection
from monitor.causes.working import Derivation, work_out
from monitor.cli.common import InstantParam, command, config_option, format_option, load_config, pick_monitors
from monitor.cli.common import stored as open_store
from monitor.cli.inspect_page import Page, Stored, document, show
from monitor.errors import InputError, SourceError, StoreError
from monitor.measures.measure import Measure, parse
from monitor.types import Monitor

if TYPE_CHECKING:
    from monitor.config import Config


@command
@click.argument("request")
@config_option
@click.option("-m", "--monitor", "name", help="Monitor of the request; required if several match.")
@click.option("--measure", "measures", multiple=True, help="Only this measure (default: all).")
@click.option(
    "--at",
    type=InstantParam(),
    help="When it was served (any time in its bucket): finds it sooner.",
)
@click.option("--show-query", is_flag=True, help="Print the query text, which may be personal data.")
@format_option("table", "json")
def inspect(
    request: str,
    config_path: Path,
    name: str | None,
    measures: tuple[str, ...],
    at: int | None,
    show_query: bool,
    style: str,
) -> None:
    from monitor.source.engine import Database
    from monitor.source.inspect import inspect as look

    config = load_config(config_path)
    monitor = _monitor(config, name)
    wanted = _measures(monitor, measures)
    source = config.source(monitor.source)
    database = Database(source.name, source.url, source.statement_timeout)
    try:
        seen = look(monitor, database, request, at)
    finally:
        database.close()
    page = Page(seen, [_work_out(m, seen) for m in wanted], _stored(config, seen, wanted), show_query)
    if style == "json":
        click.echo(json.dumps(document(page), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        show(page, Console(markup=False, highlight=False, emoji=False))


def _monitor(config: Config, name: str | None) -> Monitor:
    found = pick_monitors(config, () if name is None else (name,))
    if len(found) != 1:
        raise InputError(f"whose request is it? Name one with --monitor: {', '.join(m.name for m in found)}")
    return found[0]


def _measures(monitor: Monitor, texts: tuple[str, ...]) -> list[Measure]:
    """The measures asked for, in any reading; all of the monitor's if none is."""
    kernels = {m.kernel for m in monitor.measures}
    try:
        found = [parse(text, monitor.recipe.bound) for text in texts]
    except ValueError as error:
        raise InputError(str(error)) from error
    for measure in found:
        if measure.kernel not in kernels:
            raise InputError(f"{monitor.name} computes {', '.join(sorted(map(str, kernels)))}, not {measure.kernel}")
    return found or list(monitor.measures)


def _work_out(measure: Measure, seen: Inspection) -> Derivation:
    try:
        return work_out(measure, seen)
    except ValueError as error:
        raise SourceError(f"{measure}: {error}", "data") from error


def _stored(config: Config, seen: Inspection, measures: Iterable[Measure]) -> Stored:
    try:
        with open_store(config) as store:
            definitions = {str(m): seen.monitor.definition(m) for m in measures}
            return {text: store.states(d, seen.bucket).get(seen.bucket) for text, d in definitions.items()}
    except StoreError as error:
        return str(error)
