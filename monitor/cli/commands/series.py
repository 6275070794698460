"""Print or export the stored series: value, 95 % interval, requests, empty ratio, label coverage, completeness.

Labels of a provisional window may still arrive. An interval is based on the days of its window (seven or more), or on
how far earlier windows moved: with few of them it is wide. Based on requests alone, it is too narrow. For a new or
redefined measure, it says from when on it is stored. A measure corrected by examination assumes that examination
depends only on the rank and matches its table: errors in the table move all values, and are not in the interval. The
effective sample size is the number of clicks, for `snips` of requests with clicks, of equal weight that would be as
informative.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pandas as pd

from monitor.cli.common import command, measures_of, pick_monitors, store_config, stored, writing
from monitor.cli.options import DurationParam, InstantParam, config_option, format_option, monitors_option
from monitor.cli.render import table_of
from monitor.database_url import how_to_install
from monitor.errors import InputError
from monitor.measures.measure import Measure, parse
from monitor.messages.tables import count, interval, number, percent
from monitor.messages.words import assumed, named, utc
from monitor.page.chart import Line, draw
from monitor.series.intervals import REACH
from monitor.series.windows import History, Point, merged_in_time, points
from monitor.store import Store
from monitor.types import FARTHEST, Definition, Judgments, Monitor, format_duration
from monitor.units import DAY

FORMATS = ("table", "csv", "json", "parquet", "svg")
WINDOWS = 7
"""Windows per series in a table without --from: of a week, and of a shorter step those of a day."""
_BASIS = {"long_run": "{} days of it", "history": "{} windows before", "sampling": "{} requests alone"}


@command
@config_option
@monitors_option
@click.option("--measure", "measures", multiple=True, help="Only this measure (default: all).")
@click.option(
    "--window", "windows", multiple=True, type=DurationParam(), help="Window length, e.g. 24h (default: the monitor's)."
)
@click.option(
    "--from",
    "since",
    type=InstantParam(),
    help="Only windows ending after this moment (default: 7 in a table, or 24 h of short ones; otherwise all).",
)
@click.option("--to", "until", type=InstantParam(), help="Latest window end.")
@click.option(
    "--step", type=DurationParam(), help="Time between window ends (default: the shortest window, at most a day)."
)
@click.option("--slices", is_flag=True, help="Add a row for each slice.")
@format_option(*FORMATS)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Output file; required for parquet."
)
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
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--from must be before --to")
    if output is not None and str(output) in FORMATS:
        raise click.UsageError(f"--output is a file name; for the format, use --format {output}")
    if style == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output")
    config, tables = store_config(config_path), []
    with stored(config) as store:
        for monitor in pick_monitors(config, names):
            wanted = measures_of(monitor, measures), _lengths(monitor, windows), (since, until), step
            table = _table(store, monitor, *wanted, slices, style == "table")
            if table is not None:
                tables.append(table)
    if tables:
        least = {monitor.name: monitor.min_completeness for monitor in config.monitors}
        write(pd.concat(tables, ignore_index=True), style, output, least)


def _table(
    store: Store,
    monitor: Monitor,
    measures: list[Measure],
    lengths: tuple[int, ...],
    bounds: tuple[int | None, int | None],
    step: int | None,
    slices: bool,
    for_people: bool,
) -> pd.DataFrame | None:
    """One monitor's series; None, with a printed reason, if there are none.

    `for_people`: without a start, show the newest windows only and say so.
    """
    every = max(monitor.bucket, min(*lengths, DAY)) if step is None else step
    if every < monitor.bucket or every % monitor.bucket:
        raise InputError(f"--step must be a multiple of the bucket, {format_duration(monitor.bucket)}")
    span = stored_span(store, monitor)
    if span is None:
        click.echo(f"{monitor.name}: nothing is stored for its current definition; run once or backfill", err=True)
        return None
    since, until = (given if given is not None else known for given, known in zip(bounds, span, strict=True))
    newest = min(until, span[1]) - max(WINDOWS * every, DAY)
    if for_people and bounds[0] is None and newest > since:
        click.echo(f"{monitor.name}: windows since {utc(newest)}; add --from {utc(since)[:10]} for all", err=True)
        since = newest
    table = series_table(store, monitor, measures, lengths, (since, until), every, slices)
    for text in _left_out(store, monitor, measures, (since, until)):
        click.echo(f"{monitor.name}: {text}", err=True)
    if table.empty:
        known = " to ".join(datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in span)
        why = f"nothing is stored for that time; there is {known} UTC"
        if since < span[1] and until > span[0]:
            why = f"no window of --step {format_duration(every)} ends in that time; give a shorter step"
        click.echo(f"{monitor.name}: {why}", err=True)
        return None
    return table


def _left_out(store: Store, monitor: Monitor, measures: Sequence[Measure], span: tuple[int, int]) -> Iterator[str]:
    """Measures not stored for part of the time in which others are: new or redefined."""
    oldest = store.oldest_bucket(monitor.traffic)
    begin = span[0] if oldest is None else max(span[0], oldest)
    for measure in measures:
        first = store.oldest_bucket(monitor.definition(measure))
        if first is None:
            yield f"nothing is stored for {measure} as defined now; run once, or backfill the past"
        elif begin < min(first, span[1]):  # else nothing is stored of the others either
            begun = f"{measure}, as defined now, is stored from {utc(first)} on"
            yield f"{begun}; backfill older data, as far as the source has it"


def _lengths(monitor: Monitor, windows: tuple[int, ...]) -> tuple[int, ...]:
    for window in windows:
        if window < monitor.bucket or window % monitor.bucket:
            raise InputError(f"--window {format_duration(window)} is not a multiple of the bucket of {monitor.name}")
    return windows or monitor.windows


def write(table: pd.DataFrame, style: str, output: Path | None, least: Mapping[str, float] | None = None) -> None:
    """Print the table, or write it to a file. Raises InputError if that fails.

    `least`: monitor -> share of a window that must have been read; others are marked in tables for people.
    """
    if output is None:
        sys.stdout.write(_text(table, style, least or {}))
        return
    try:
        with writing(output):
            if style == "parquet":
                table.to_parquet(output)
            else:
                output.write_text(_text(table, style, least or {}), encoding="utf-8")
    except ImportError as error:
        raise InputError(f"writing Parquet needs pyarrow; {how_to_install('parquet')}") from error


def _text(table: pd.DataFrame, style: str, least: Mapping[str, float]) -> str:
    texts: dict[str, Callable[[], Any]] = {
        "json": lambda: table.to_json(orient="records", date_format="iso", double_precision=15, indent=1),
        "csv": lambda: table.to_csv(index=False),
        "svg": lambda: picture(table),
        "table": lambda: _readable(table, least),
    }
    return str(texts[style]()).rstrip("\n") + "\n"


def picture(table: pd.DataFrame) -> str:
    """A chart of one monitor, measure and window, overall first. Raises InputError if the table holds more."""
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


def _readable(frame: pd.DataFrame, least: Mapping[str, float]) -> str:
    rows = [{n: None if v != v else v for n, v in row.items()} for row in frame.to_dict("records")]
    shows = {"slice": any(row["dimension"] for row in rows), EFFECTIVE: any(row.get("effective") for row in rows)}
    columns = {title: show for title, show in _COLUMNS.items() if shows.get(title, True)}
    states = {"state": lambda row: _state(row, least.get(row["monitor"], 0.0))}
    lines = table_of(columns | states, rows, left=(0, 1, 2, len(columns)))
    if told := assumed(parse(text) for text in frame["measure"].unique()):
        lines.append(f"With examination: {told}; errors of the table are not in the interval.")
    return "\n".join(lines)


def _state(row: Mapping[str, Any], least: float) -> str:
    is_incomplete = row["completeness"] is not None and row["completeness"] < least
    told = "final" if row["final"] else "provisional: labels still arriving"
    return told + ", incomplete" * is_incomplete


def _slice(row: Mapping[str, Any]) -> str:
    return named(row["dimension"], row["slice"]) if row["dimension"] else "all traffic"


EFFECTIVE = "effective sample"
_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "monitor": lambda row: row["monitor"],
    "measure": lambda row: row["measure"],
    "window": lambda row: row["window"],
    "window end (UTC)": lambda row: f"{row['end']:%Y-%m-%d %H:%M}",
    "slice": _slice,
    "value": lambda row: number(row["value"]),
    "95 % interval": lambda row: interval(row["lower"], row["upper"]),
    "interval from": lambda row: _BASIS.get(row["method"], "–").format(f"{row['basis']:,}"),
    "requests": lambda row: count(row["requests"]),
    EFFECTIVE: lambda row: count(row.get("effective")),
    "nothing relevant": lambda row: percent(row["empty_ratio"]),
    "labelled": lambda row: percent(row["label_coverage"]),
    "data read": lambda row: percent(row["completeness"]),
}


# ---- the windows as a table of pandas -------------------------------------------------------------------------------


def series_table(
    store: Store,
    monitor: Monitor,
    measures: Sequence[Measure],
    lengths: Sequence[int],
    span: tuple[int, int],
    step: int,
    with_slices: bool = False,
) -> pd.DataFrame:
    """Every window that ends in (since, until] at a multiple of `step`; one row per measure, length, end and slice.

    Leaves out windows of which nothing was read, and those that cut a rolled-up bucket. Where intervals cannot look
    into such buckets, they look back less far or are left out. Columns: monitor, measure, window, definition, those of
    `windows.Point` without `length` and with `end` as a UTC timestamp; nan where a point has None. There is no
    `effective` if no measure is corrected by examination.
    """
    since, until = span
    reach = since - max(lengths) - REACH
    by_judgments = isinstance(monitor.recipe, Judgments)
    wanted = dict.fromkeys([monitor.traffic, *(monitor.definition(m) for m in measures)])
    pasts = {d: StoredSeries.of(store, d, monitor.bucket, (reach, until), not with_slices) for d in wanted}
    rows = []
    for measure in measures:
        definition = monitor.definition(measure)
        past, traffic = pasts[definition], pasts[monitor.traffic].history
        for length in lengths:
            head = (monitor.name, str(measure), format_duration(length), definition.id)
            for end in _ends(past.history, monitor.bucket, span, length, step):
                cuts = any(p.cuts(end - length) or p.cuts(end) for p in (past, pasts[monitor.traffic]))
                if not cuts and len(past.history.between(end - length, end).starts):
                    history = past.before(end, length)
                    seen = history or past.history
                    found = points(measure, seen, traffic, monitor.bucket, length, end, by_judgments=by_judgments)
                    if history is None:
                        found = [replace(p, lower=None, upper=None, method="none", basis=0) for p in found]
                    rows += [(*head, *_values(point)) for point in found]
    names = ["monitor", "measure", "window", "definition", *_NAMES]
    table = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(_NUMBERS, "float64"))
    table["end"] = pd.to_datetime(table["end"], unit="s", utc=True)
    return table if any(measure.is_corrected for measure in measures) else table.drop(columns="effective")


def _ends(history: History, width: int, span: tuple[int, int], length: int, step: int) -> range:
    """Multiples of `step` in (since, until] that may end a window of which something was read."""
    if not len(history.starts):
        return range(0)
    since, until = max(span[0], int(history.starts[0])), min(span[1], int(history.starts[-1]) + width + length)
    return range(since - since % step + step, until + 1, step)


@dataclass(frozen=True)
class StoredSeries:
    """A series' buckets, including rolled-up ones; `coarse`: [start, end) of each of these."""

    history: History
    coarse: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls, store: Store, definition: Definition, width: int, span: tuple[int, int], overall_only: bool
    ) -> StoredSeries:
        """What is stored of [since, until) seconds. Raises StoreError."""
        fine = store.history(definition, *span, overall_only=overall_only)
        longer = store.retention.coarse(definition, *span, overall_only=overall_only)
        if not longer:
            return cls(fine, ())
        parts = [fine, *(found.spread(seconds, width) for seconds, found in longer.items())]
        spans = sorted((start, start + seconds) for seconds, h in longer.items() for start in h.starts.tolist())
        return cls(merged_in_time(parts), tuple(spans))

    def cuts(self, instant: int) -> bool:
        """Whether it lies within a rolled-up bucket."""
        at = bisect_right(self.coarse, (instant, 0)) - 1
        return at >= 0 and self.coarse[at][0] < instant < self.coarse[at][1]

    def before(self, end: int, length: int) -> History | None:
        """The history for the interval of the window [end - length, end); None if there can be no interval.

        It compares days that end when the window does, and windows of its length that end with them. A coarser bucket
        is used if it lies within one of these; else only what came after it, if the window did too.
        """
        reach = [span for span in self.coarse if end - max(REACH, length) < span[1] <= end]
        unfit = [s for s in reach if s[1] - s[0] > DAY or (end - s[1]) % (s[1] - s[0]) or length % (s[1] - s[0])]
        if not unfit:
            return self.history
        last = unfit[-1][1]
        if last > end - length:
            return None
        rows = self.history.rows(last, end)
        found = self.history.between(last, end)
        vars(found)["kept"] = self.history.kept[rows]
        return found


_NAMES = [f.name for f in fields(Point) if f.name != "length"]
_NUMBERS = ["value", "lower", "upper", "empty_ratio", "label_coverage", "completeness", "effective"]


def _values(point: Point) -> tuple[object, ...]:
    return tuple(getattr(point, name) for name in _NAMES)


def stored_span(store: Store, monitor: Monitor) -> tuple[int, int] | None:
    """[first, end) of a monitor's stored traffic, seconds; None if there is none."""
    newest = store.newest_bucket(monitor.traffic)
    coarse = store.retention.rolled_up(monitor.traffic, 0, FARTHEST)
    if newest is None:
        return coarse
    oldest = store.oldest_bucket(monitor.traffic)
    known = [start for start in (oldest, None if coarse is None else coarse[0]) if start is not None]
    return min(known), newest + monitor.bucket
