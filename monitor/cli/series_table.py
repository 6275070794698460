"""Series of windows as a table, for the command line and for files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from monitor.measures.measure import Measure
from monitor.series.intervals import DAY, REACH
from monitor.series.windows import History, Point, merged_in_time, points
from monitor.store import Store
from monitor.types import Definition, Judgments, Monitor, format_duration

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

    Windows of which nothing was read are left out, and those that cut a bucket that was rolled up. Where intervals
    would have to look into such buckets and cannot, they look back less far, or are left out: see `Past.before`.
    Columns: monitor, measure, window, definition, those of `windows.Point` with `end` as a UTC timestamp and `length`
    left out; nan where a point has None.
    """
    import pandas as pd

    since, until = span
    reach = since - max(lengths) - REACH
    by_judgments = isinstance(monitor.recipe, Judgments)
    wanted = dict.fromkeys([monitor.traffic, *(monitor.definition(m) for m in measures)])
    pasts = {d: Past.of(store, d, monitor.bucket, (reach, until), not with_slices) for d in wanted}
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
    return table


def _ends(history: History, width: int, span: tuple[int, int], length: int, step: int) -> range:
    """The multiples of `step` in (since, until], of those that may end a window of which something was read."""
    if not len(history.starts):
        return range(0)
    since, until = max(span[0], int(history.starts[0])), min(span[1], int(history.starts[-1]) + width + length)
    return range(since - since % step + step, until + 1, step)


@dataclass(frozen=True)
class Past:
    """The buckets of a series, those that were rolled up among them; `coarse`: [start, end) of each of these."""

    history: History
    coarse: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, store: Store, definition: Definition, width: int, span: tuple[int, int], overall_only: bool) -> Past:
        """What is stored of [since, until) seconds. Raises StoreError."""
        fine = store.history(definition, *span, overall_only=overall_only)
        longer = store.retention.coarse(definition, *span, overall_only=overall_only)
        if not longer:
            return cls(fine, ())
        parts = [fine, *(found.spread(seconds, width) for seconds, found in longer.items())]
        spans = sorted((start, start + seconds) for seconds, h in longer.items() for start in h.starts.tolist())
        return cls(merged_in_time(parts), tuple(spans))

    def cuts(self, instant: int) -> bool:
        """Whether it lies within a bucket that was rolled up."""
        at = bisect_right(self.coarse, (instant, 0)) - 1
        return at >= 0 and self.coarse[at][0] < instant < self.coarse[at][1]

    def before(self, end: int, length: int) -> History | None:
        """What the interval of the window [end - length, end) may look at; None if there can be none.

        It compares days that end when the window does, and windows of its length that end with them. A coarser bucket
        serves where it lies within one of these. Where one does not, only what came after it is looked at, if the
        window did too.
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
_NUMBERS = ["value", "lower", "upper", "empty_ratio", "label_coverage", "completeness"]


def _values(point: Point) -> tuple[object, ...]:
    return tuple(getattr(point, name) for name in _NAMES)


def stored_span(store: Store, monitor: Monitor) -> tuple[int, int] | None:
    """[first, end) of what is stored of a monitor's traffic, seconds; None if there is nothing."""
    newest = store.newest_bucket(monitor.traffic)
    coarse = store.retention.rolled_up(monitor.traffic, 0, 1 << 62)
    if newest is None:
        return coarse
    oldest = store.oldest_bucket(monitor.traffic)
    known = [start for start in (oldest, None if coarse is None else coarse[0]) if start is not None]
    return min(known), newest + monitor.bucket
