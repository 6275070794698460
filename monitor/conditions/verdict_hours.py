"""Input of verdicts: the stored partials as steps, read for the judged measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from monitor.drift.series import Hours
from monitor.measures.measure import Measure
from monitor.series import partials as b
from monitor.series.windows import History
from monitor.types import NONE, OVERALL, Drift
from monitor.units import HOUR


def step_of(bucket: int) -> int:
    """Seconds of a step for a bucket width: an hour, or the bucket if longer."""
    return max(bucket, HOUR)


def judged(measure: Measure) -> Measure:
    """The reading that verdicts use: others hide requests that lost all their labels."""
    return measure if measure.aggregate == "pooled" else replace(measure, empty="zero")


def hours(
    drift: Drift,
    width: int,
    history: History,
    traffic: History,
    refused: Mapping[int, int],
    counts_unlabelled: bool,
) -> Hours:
    """The whole steps of some final buckets of `width` seconds in which `mix_by` was read.

    Args:
        refused: start of a bucket -> refused rows.
        counts_unlabelled: whether a request without a label counts as 0 in the measure; else its value is unknown.
    """
    step, dimension = step_of(width), drift.mix_by or ""
    usable = traffic.final & _is_read(traffic, dimension)
    starts = np.intersect1d(history.starts[history.final], traffic.starts[usable])
    firsts, at, number = np.unique(starts // step, return_index=True, return_counts=True)
    whole = np.flatnonzero(number == step // width)
    kept = np.isin(starts // step, firsts[whole])
    starts, at = starts[kept], np.concatenate(([0], np.cumsum(number[whole])))[:-1]
    # A dimension without values has no requests either.
    names = tuple(value for of, value in traffic.slices if of == dimension) or (NONE,)

    sums = partial(_sums, starts, at)
    lost = np.array([float(refused.get(int(start), 0)) for start in starts])
    measured = partial(sums, history, dimension, names)
    requests, total = measured(b.REQUESTS), measured(b.TOTAL)

    def of_lists(dimension: str, names: Sequence[str], field: int) -> b.Floats:
        """(T, S) counts scaled up as if requests without results had brought the average."""
        every, none = (sums(traffic, dimension, names, one) for one in (b.REQUESTS, b.NO_RESULTS))
        some = sums(traffic, dimension, names, field)
        ratio = np.divide(every, every - none, out=np.ones(every.shape), where=every > none)
        return np.where(every > none, some * ratio, np.where(none > 0, every, some))

    unlabelled = np.zeros(requests.shape)
    if not counts_unlabelled:
        unlabelled = np.maximum(sums(traffic, dimension, names, b.REQUESTS) - requests, 0.0)
    return Hours(
        firsts[whole].astype(np.int64) * step,
        names,
        requests=requests,
        total=total,
        squares=measured(b.SQUARES),
        labelled=of_lists(dimension, names, b.LABELLED),
        unlabelled=unlabelled,
        ideal=_ideal(total, measured(b.NUM), measured(b.DEN)),
        events=of_lists("", [""], b.EVENTS)[:, 0],
        unmatched=of_lists("", [""], b.UNMATCHED)[:, 0],
        refused=np.add.reduceat(lost, at) if len(lost) else lost,
        shown=of_lists("", [""], b.IMPRESSIONS)[:, 0],
        rank_one=of_lists("", [""], b.RANK_ONE)[:, 0],
    )


def _ideal(total: b.Floats, found: b.Floats, ideal: b.Floats) -> b.Floats:
    """What was found over what it is worth; 1 where the measure divides by nothing."""
    return np.divide(found, total, out=np.ones(total.shape), where=(found > 0) & (ideal > 0) & (total > 0))


def _sums(starts: b.Ints, at: b.Ints, of: History, dimension: str, names: Sequence[str], field: int) -> b.Floats:
    """(T, S) sums of a field of some slices over buckets that start at `starts`, in steps numbered `at`."""
    rows = np.isin(of.starts, starts)
    place = {key: i for i, key in enumerate(of.slices)}
    found = np.zeros((int(rows.sum()), len(names)))
    for to, name in enumerate(names):
        if (dimension, name) in place:
            found[:, to] = of.sums[rows, place[dimension, name], field]
    summed: b.Floats = np.add.reduceat(found, at, axis=0) if len(found) else found
    return summed


def _is_read(traffic: History, dimension: str) -> b.Bools:
    """(B,) whether each bucket's requests have a value of the dimension; older buckets lack later dimensions."""
    field = b.REQUESTS
    inside = [i for i, (of, _) in enumerate(traffic.slices) if of == dimension]
    busy = traffic.sums[:, traffic.slices.index(OVERALL), field] > 0
    found: b.Bools = ~busy | (traffic.sums[:, inside, field].sum(axis=1) > 0)
    return found
