"""`rankmon series`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitor.cli.common import Instant, Span, config_option, load_config, monitor_option, pick_monitors
from monitor.core.measures import Measure, parse
from monitor.core.types import Monitor, format_duration
from monitor.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


FORMATS = ("table", "csv", "json", "parquet", "svg")


@click.command()
@config_option
@monitor_option()
@click.option("--measure", "measures", multiple=True, help="One of the monitor's measures; all without it.")
@click.option("--window", "windows", multiple=True, type=Span(), help="Length such as 24h; the monitor's without it.")
@click.option("--from", "since", type=Instant(), help="Ends after this moment; the first stored bucket without it.")
@click.option("--to", "until", type=Instant(), help="Ends at this moment at the latest.")
@click.option("--step", type=Span(), help="Time between ends; the window's length, a day at most, without it.")
@click.option("--slices", is_flag=True, help="Also a row for each slice.")
@click.option("--format", "style", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File; needed for parquet.")
def series(
    config_path: Path,
    names: tuple[str, ...],
    measures: tuple[str, ...],
    windows: tuple[int, ...],
    since: int | None,
    until: int | None,
    step: int | None,
    slices: bool,
    style: str,
    output: Path | None,
) -> None:
    """Print or export the stored series: value, 95 % interval, requests, empty ratio, label coverage, completeness."""
    import pandas as pd

    from monitor.series import series_table, stored_span
    from monitor.store import Store

    if style == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output")
    config = load_config(config_path)
    store = Store(config.store.url, config.scheduler.lease)
    store.schema.check()
    tables = []
    for monitor in pick_monitors(config, names):
        span = stored_span(store, monitor)
        if span is None:
            click.echo(f"{monitor.name}: nothing is stored for its present definition; run once or backfill", err=True)
            continue
        lengths = _lengths(monitor, windows)
        every = step or max(monitor.bucket, min(min(lengths), 86400))
        if every % monitor.bucket:
            raise InputError(f"--step must be a multiple of the bucket, {format_duration(monitor.bucket)}")
        bounds = (span[0] if since is None else since, span[1] if until is None else until)
        tables.append(series_table(store, monitor, _measures(monitor, measures), lengths, bounds, every, slices))
    store.close()
    if tables:
        write(pd.concat(tables, ignore_index=True), style, output)


def _lengths(monitor: Monitor, windows: tuple[int, ...]) -> tuple[int, ...]:
    for window in windows:
        if window < monitor.bucket or window % monitor.bucket:
            raise InputError(f"--window {format_duration(window)} is no multiple of the bucket of {monitor.name}")
    return windows or monitor.windows


def _measures(monitor: Monitor, texts: tuple[str, ...]) -> list[Measure]:
    """The measures asked for: any reading of a kernel that the monitor stores will do."""
    kernels = {m.kernel for m in monitor.measures}
    found = []
    for text in texts:
        try:
            measure = parse(text, monitor.recipe.bound)
        except ValueError as error:
            raise InputError(str(error)) from error
        if measure.kernel not in kernels:
            raise InputError(f"{monitor.name} stores {', '.join(sorted(map(str, kernels)))}, not {measure.kernel}")
        found.append(measure)
    return found or list(monitor.measures)


def write(table: pd.DataFrame, style: str, output: Path | None) -> None:
    """Print the table, or write it to a file."""
    if style == "parquet":
        try:
            table.to_parquet(output)
        except ImportError as error:
            raise InputError("writing Parquet needs pyarrow: pip install 'rankmon[parquet]'") from error
        return
    if style == "json":
        text = table.to_json(orient="records", date_format="iso", double_precision=15, indent=1)
    elif style == "csv":
        text = table.to_csv(index=False)
    elif style == "svg":
        text = picture(table)
    else:
        text = _readable(table)
    if output is None:
        sys.stdout.write(str(text).rstrip("\n") + "\n")
    else:
        output.write_text(str(text).rstrip("\n") + "\n", encoding="utf-8")


def picture(table: pd.DataFrame) -> str:
    """One chart of one monitor, measure and window, overall first. Raises InputError if the table holds more."""
    from monitor.chart import Line, draw

    kinds = table[["monitor", "measure", "window"]].drop_duplicates()
    if len(kinds) != 1:
        raise InputError("an SVG shows one series: name it with --monitor, --measure and --window")
    lines = []
    for (dimension, value), part in table.groupby(["dimension", "slice"], sort=True):
        columns = {c: [None if v != v else v for v in part[c].tolist()] for c in ("value", "lower", "upper")}
        at = [int(t.timestamp()) for t in part["end"]]
        lines.append(Line(f"{dimension} {value}".strip() or "overall", at, **columns))
    try:
        return draw(" · ".join(kinds.iloc[0]), lines)
    except ValueError as error:
        raise InputError(str(error)) from error


def _readable(table: pd.DataFrame) -> str:
    import pandas as pd

    def percent(share: float | None) -> str:
        return "–" if share is None or pd.isna(share) else f"{100 * share:.1f} %"

    def number(value: float | None) -> str:
        return "–" if value is None or pd.isna(value) else f"{value:.4f}"

    lines = pd.DataFrame(
        {
            "monitor": table["monitor"],
            "measure": table["measure"],
            "window": table["window"],
            "until (UTC)": table["end"].dt.strftime("%Y-%m-%d %H:%M"),
            "slice": [f"{d}={v}" if d else "" for d, v in zip(table["dimension"], table["slice"], strict=True)],
            "value": table["value"].map(number),
            "95 % interval": [
                f"{number(lo)} – {number(hi)}" for lo, hi in zip(table["lower"], table["upper"], strict=True)
            ],
            "requests": table["requests"],
            "empty": table["empty_ratio"].map(percent),
            "with label": table["label_coverage"].map(percent),
            "read": table["completeness"].map(percent),
            "": ["" if final else "provisional" for final in table["final"]],
        }
    )
    if not any(lines["slice"]):
        lines = lines.drop(columns="slice")
    return lines.to_string(index=False)
