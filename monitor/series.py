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
    `windows.Point` with `end` as a UTC timestamp and `length` left out; nan where a point has None.
    """
    import pandas as pd

    since, until = span
    reach = since - max(lengths) - REACH
    by_judgments = isinstance(monitor.recipe, Judgments)
    wanted = dict.fromkeys([monitor.traffic, *(monitor.definition(m) for m in measures)])
    histories = {d: store.history(d, reach, until, overall_only=not with_slices) for d in wanted}
    rows = []
    for measure in measures:
        definition = monitor.definition(measure)
        history, traffic = histories[definition], histories[monitor.traffic]
        for length in lengths:
            head = (monitor.name, str(measure), format_duration(length), definition.id)
            for end in range(since - since % step + step, until + 1, step):
                if len(history.between(end - length, end).starts):
                    found = points(measure, history, traffic, monitor.bucket, length, end, by_judgments=by_judgments)
                    rows += [(*head, *_values(point)) for point in found]
    names = ["monitor", "measure", "window", "definition", *_NAMES]
    table = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(_NUMBERS, "float64"))
    table["end"] = pd.to_datetime(table["end"], unit="s", utc=True)
    return table


_NAMES = [f.name for f in fields(Point) if f.name != "length"]
_NUMBERS = ["value", "lower", "upper", "empty_ratio", "label_coverage", "completeness"]


def _values(point: Point) -> tuple[object, ...]:
    return tuple(getattr(point, name) for name in _NAMES)


def stored_span(store: Store, monitor: Monitor) -> tuple[int, int] | None:
    """[first, end) of what is stored of a monitor's traffic, seconds; None if there is nothing."""
    newest = store.newest_bucket(monitor.traffic)
    if newest is None:
        return None
    starts = store.history(monitor.traffic, 0, newest + 1, overall_only=True).starts
    return int(starts[0]), newest + monitor.bucket
