"""Columns to slice by that are no property of a request, or of each alone, for `check-config --connect`."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.series.readings import Reading
from monitor.source.mapped import columns_of
from monitor.source.remark import FEWEST, NOTABLE, Remark, percent
from monitor.types import MIXED, Monitor

ALONE = 0.5
"""Share of the requests as many of which have a value of their own, from which on slices by it say nothing."""


def unfit(monitor: Monitor, reading: Reading) -> Iterator[Remark]:
    """Slices that most rows of a request differ in, or that hardly two requests share."""
    size = len(reading.served)
    if size < FEWEST:
        return
    keys = {column: key for alias, key, column in columns_of(monitor) if alias == "r" and key[0] != "relevance"}
    for one in monitor.slices:
        values = reading.slices.get(one.dimension, ())
        mixed = sum(value == MIXED for value in values)
        if mixed > NOTABLE * size:
            yield Remark(
                keys[one.column],
                f"the rows of {mixed:,} of {size:,} requests ({percent(mixed, size)}) differ in {one.column!r}, and "
                f"such requests all count as {MIXED}; name a column that is the same in all rows of a request",
            )
        elif (distinct := len(set(values))) > max(ALONE * size, one.max_values):
            yield Remark(
                keys[one.column],
                f"{distinct:,} values of {one.column!r} among {size:,} requests: but for {one.max_values} of them all "
                "count as other; name a column whose values many requests share",
            )
