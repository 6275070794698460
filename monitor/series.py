"""Series of windows as a table, for the command line and for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from monitor.core.intervals import REACH
from monitor.core.measures import Measure
from monitor.core.types import Judgments, Monitor, format_duration
from monitor.core.windows import Point, points
from monitor.store import Store

if TYPE_CHECKING:
    import pandas as pd


def series_table(
    store: Store,
    monitor: Monitor,
    measures: Sequence[Measure],
    lengths: Sequence[int],
    span: tuple[int, int],
    step: int,
    with_slices: bool = False,
) -> pd.DataFrame:
    """Every window that ends in (since, until] at a multiple of `step`, one row a measure, length, end and slice.

    Windows of which nothing was read are left out. Columns: monitor, measure, window, definition, those of
    `windows.Point` with `end` as a UTC timestamp and `length` left out.
    """
    import pandas as pd

    since, until = span
    reach = since - max(lengths) - REACH
    traffic = store.history(monitor.traffic, reach, until, overall_only=not with_slices)
    rows = []
    for measure in measures:
        definition = monitor.definition(measure)
        history = store.history(definition, reach, until, overall_only=not with_slices)
        for length in lengths:
            for end in range(since - since % step + step, until + 1, step):
                if not len(history.between(end - length, end).starts):
                    continue
                found = points(
                    measure,
                    history,
                    traffic,
                    monitor.bucket,
                    length,
                    end,
                    by_judgments=isinstance(monitor.recipe, Judgments),
                )
                head = (monitor.name, str(measure), format_duration(length), definition.id)
                rows += [(*head, *_values(p)) for p in found]
    names = ["monitor", "measure", "window", "definition", *_NAMES]
    table = pd.DataFrame(rows, columns=names)
    table["end"] = pd.to_datetime(table["end"], unit="s", utc=True)
    return table


_NAMES = [f.name for f in fields(Point) if f.name != "length"]


def _values(point: Point) -> tuple[object, ...]:
    return tuple(getattr(point, name) for name in _NAMES)


def stored_span(store: Store, monitor: Monitor) -> tuple[int, int] | None:
    """[first, end) of what is stored of a monitor's traffic, seconds; None if there is nothing."""
    newest = store.newest_bucket(monitor.traffic)
    if newest is None:
        return None
    starts = store.history(monitor.traffic, 0, newest + 1, overall_only=True).starts
    return int(starts[0]), newest + monitor.bucket
