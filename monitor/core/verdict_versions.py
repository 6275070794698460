"""Which version of the model began to serve when a fall began, by the requests of each version that are stored."""

from __future__ import annotations

import numpy as np

from monitor.core import buckets as b
from monitor.core.drift.series import DAY, HOUR
from monitor.core.findings import NEW, NewVersion
from monitor.core.types import NONE, OTHER, OVERALL
from monitor.core.windows import History, SliceKey

NEAR = 6 * HOUR
"""Seconds between the beginning of a version and that of a fall, up to which they are taken for one time."""
NEAR_SHARE = 0.25
"""The same as a share of the time that it took to find the fall, where that is longer: so much less is known of when it
began."""
LEAST_SHARE = 0.05
"""Of the requests: a version that has fewer hardly moves the mean of all. None lowers it by more than its share."""

REQUESTS = b.TRAFFIC_FIELDS.index("requests")


def begun_with(
    traffic: History, dimension: str, fell_at: int, opened_at: int, now: int, width: int, step: int, fell: float = 0.0
) -> NewVersion | None:
    """The version that began to serve about when a fall began; of several the busiest, None if there is none.

    Args:
        traffic: what came in, back to some days before the fall.
        dimension: that of the versions.
        fell_at, opened_at: start of the first step that had fallen, and end of the one by which the alarm opened.
        now: end of the newest step.
        width, step: of a bucket, and of what is judged at once, seconds.
        fell: by how much of what it was the mean of all fell; of a slice 0, for a version may be of that alone.
    """
    near = max(NEAR, step, int(NEAR_SHARE * (opened_at - fell_at)))
    end = min(opened_at, fell_at + near + DAY)
    past = _last_day(traffic, fell_at - near)
    later = traffic.between(fell_at, end)
    keys = [key for key in traffic.slices if key[0] == dimension and key[1] not in (NONE, OTHER)]
    shares_before, shares = _shares(past, keys, dimension), _shares(later, keys, dimension)
    if shares_before is None or shares is None or not len(past.starts):
        return None
    just_before = _shares(past.between(int(past.starts[-1]) + width - step, fell_at), keys, dimension)
    served_already = shares_before if just_before is None else np.maximum(shares_before, just_before)
    is_new = (shares >= max(LEAST_SHARE, fell)) & (served_already < NEW * shares)
    former = keys[int(shares_before.argmax())][1]
    for i in np.argsort(-shares, kind="stable").tolist():
        around = traffic.between(fell_at - near, min(fell_at + near, end))
        least = NEW * float(shares[i]) if shares_before[i] > 0 else 0.0
        since = _first(around, keys[i], least) if is_new[i] else None
        if since is not None:
            until = _until(traffic.between(since, now), keys[i], width, now - step)
            served = _shares(traffic.between(since, max(end, since + step)), keys, dimension)
            share = float((shares if served is None else served)[i])
            return NewVersion(keys[i][1], former, since, fell_at, step, until, share, float(shares_before[i]))
    return None


def _last_day(traffic: History, until: int) -> History:
    """The day before, or before the last request by then: after a gap that is long ago."""
    before = traffic.between(int(traffic.starts[0]), until) if len(traffic.starts) else traffic
    busy = np.flatnonzero(before.slice(OVERALL)[:, REQUESTS] > 0)
    end = int(before.starts[busy[-1]]) if len(busy) else until
    return traffic.between(end + 1 - DAY, end + 1)


def _shares(part: History, keys: list[SliceKey], dimension: str) -> b.Floats | None:
    """(K,) of the requests; None where there are none, or where most have no version: it was not read yet."""
    every = part.slice(OVERALL)[:, REQUESTS].sum() if keys else 0.0
    read = sum(part.slice(key)[:, REQUESTS].sum() for key in part.slices if key[0] == dimension)
    if not every or read <= every / 2:
        return None
    found: b.Floats = np.array([part.slice(key)[:, REQUESTS].sum() for key in keys]) / every
    return found


def _first(part: History, key: SliceKey, least: float) -> int | None:
    """Start of the first bucket in which a version has more than this share of the requests."""
    every, theirs = (part.slice(k)[:, REQUESTS] for k in (OVERALL, key))
    busy = np.flatnonzero(theirs > least * every)
    return int(part.starts[busy[0]]) if len(busy) else None


def _until(part: History, key: SliceKey, width: int, now: int) -> int | None:
    """End of a version's last bucket, where the others have had requests since; None if it still serves."""
    every, theirs = (part.slice(k)[:, REQUESTS] for k in (OVERALL, key))
    end = int(part.starts[np.flatnonzero(theirs > 0)[-1]]) + width
    return end if end <= now and every[part.starts >= end].any() else None
