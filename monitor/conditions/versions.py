"""The model version that may have caused a fall: one that went live then, or a young, clearly worse one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.causes.newcomers import YOUNG
from monitor.causes.version_mix import LEAST_REQUESTS, version_effect
from monitor.conditions.verdict_hours import step_of
from monitor.series import partials as b
from monitor.series.windows import History, SliceKey
from monitor.types import MODEL_VERSION, NONE, OTHER, OVERALL
from monitor.units import DAY, HOUR

NEAR = 6 * HOUR
"""Seconds between the start of a version and that of a fall that count as simultaneous."""
NEAR_SHARE = 0.25
"""`NEAR` as a share of the time to detection, if longer: the start of the fall is less certain then."""
LEAST_SHARE = 0.05
"""Least share of the requests: a smaller version hardly moves the mean of all, which it can only lower by its share."""

SPAN = 7 * DAY
"""Longest span over which a version is compared, seconds."""
LEAST_PART = 1 / 3
"""Least part of the fall of the mean of all that a version must cause."""
LATE = 2 * DAY
"""Seconds by which a fall may have begun before it could be found, if it is small or requests are few."""
GREW = 0.5
"""Largest part of its present share that a version had before a rollout step reported with a fall."""
CLEARLY = 4.0
"""Standard errors."""
SURE = 2.58
"""Standard errors (99 %): the few young versions of a fall are compared once, and must explain a good part of it."""

NEW = 0.1
"""A slice is new if it had less than this part of its present share of the requests: when a fall is found, a new model
version has served for some hours."""


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A model version that went live around the start of a fall; instants in seconds.

    Attributes:
        former: the version with the most requests the day before.
        since: start of its first bucket, or of the first with clearly more requests than before.
        fell_at: start of the step of `step` seconds in which the fall most probably began; `fell_within`, of the first
            and the last step in which it may have begun.
        until: end of its last bucket, if it no longer serves.
        share, share_before: of the requests of its last day, and of the day before it began.
    """

    version: str
    former: str
    since: int
    fell_at: int
    step: int
    until: int | None
    share: float
    share_before: float
    fell_within: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WeakVersion:
    """A young model version that is clearly worse than the others; instants in seconds.

    Attributes:
        value, others: its mean and the others', of the same hours with the same weights, since it began to serve or
            since the fall began.
        lower, upper: 95 % interval of the difference.
        until: end of its last bucket, if it no longer serves.
        dimension: `others` are in the same slices of this; empty for all others.
        is_before: it alone serves its slices, so `others` are these in the same hours of the weeks before.
    """

    version: str
    since: int
    value: float
    others: float
    lower: float
    upper: float
    share: float
    until: int | None = None
    dimension: str = ""
    is_before: bool = False

    @property
    def part(self) -> float:
        """Its effect on the mean of all."""
        return self.share * (self.value - self.others)


def begun_with(
    traffic: History, dimension: str, fell_at: int, opened_at: int, now: int, width: int, step: int, fell: float = 0.0
) -> NewVersion | None:
    """The version that began to serve about when a fall began; the busiest of several, None without any.

    Args:
        traffic: back to some days before the fall.
        fell_at, opened_at: start of the first fallen step, and end of the one that opened the alarm.
        now: end of the newest step.
        width, step: of a bucket, and of a step, seconds.
        fell: relative fall of the mean of all; 0 for a slice, because a version may serve that alone.
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
    is_new |= _grew(served_already, shares, max(LEAST_SHARE, fell), float(later.slice(OVERALL)[:, b.REQUESTS].sum()))
    for i in np.argsort(-shares, kind="stable").tolist():
        around = traffic.between(fell_at - near, min(fell_at + near, end))
        least = (float(shares_before[i]) + float(shares[i])) / 2 if shares_before[i] > 0 else 0.0
        since = _first(around, keys[i], least) if is_new[i] else None
        if since is not None:
            until = served_until(traffic, keys[i], since, now, width, step)
            last = now if until is None else until
            served = _shares(traffic.between(max(since, last - DAY), last), keys, dimension)
            share = float((shares if served is None else served)[i])
            others = np.where(np.arange(len(keys)) == i, 0.0, shares_before)
            former = keys[int((others if others.any() else shares_before).argmax())][1]
            return NewVersion(keys[i][1], former, since, fell_at, step, until, share, float(shares_before[i]))
    return None


def rollouts(traffic: History, dimension: str, step: int, since: int, until: int) -> tuple[tuple[int, float], ...]:
    """(end, share) of steps in whose last hours model versions clearly gained this share of the requests.

    Compared with the day before. Of steps that end in (since, until], seconds; `traffic` reaches two days further back.
    """
    keys = [key for key in traffic.slices if key[0] == dimension and key[1] not in (NONE, OTHER)]
    if not keys or not len(traffic.starts):
        return ()
    begin, near = max(since, int(traffic.starts[0])), max(NEAR, step)
    ends = np.arange(begin - begin % step + step, until + 1, step)
    counts = np.stack([traffic.slice(key)[:, b.REQUESTS] for key in (OVERALL, *keys)], axis=1)
    total = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)])
    at, lately, day_before = (total[np.searchsorted(traffic.starts, ends - ago)] for ago in (0, near, near + DAY))
    (every, now), (every_before, before) = ((sums[:, :1], sums[:, 1:]) for sums in (at - lately, lately - day_before))
    is_known = (now.sum(axis=1) > every[:, 0] / 2) & (before.sum(axis=1) > every_before[:, 0] / 2)
    # Wilson's lower bound for a share of 1: a few requests say little.
    share, share_before = now / (every + CLEARLY**2), before / np.maximum(every_before, 1.0)
    gained = np.where((share_before <= GREW * share) & is_known[:, None], share - share_before, 0.0).sum(axis=1)
    return tuple((int(ends[i]), float(gained[i])) for i in np.flatnonzero(gained > 0))


def _grew(before: b.Floats, now: b.Floats, least: float, requests: float) -> b.Bools:
    """(K,) whether versions gained by a rollout step what the mean may have fallen by, beyond chance."""
    gained, error = now - before, np.sqrt(now * (1 - now) / max(requests, 1.0))
    found: b.Bools = (before <= GREW * now) & (gained >= least) & (gained > CLEARLY * error)
    return found


def weak(
    history: History, dimension: str, fell: tuple[int, int], until: int, lost: float, by: str = ""
) -> WeakVersion | None:
    """The young version that takes most from the mean of all, if clearly worse than what its users get otherwise.

    What it already took some days before the fall does not count.

    Args:
        history: of what is judged, back to some weeks before the fall, without hours of bad data.
        fell: starts of the first step that may have fallen, and of the most probable first one, seconds.
        until: end of the newest step.
        lost: fall of the mean of all.
        by: dimension of the slices in which a version is compared; empty without one.
    """
    losses, (surely_before, fell_at) = list[tuple[float, WeakVersion]](), (fell[0] - LATE, fell[1])
    lately = max(fell_at, until - SPAN), until
    for key in history.slices:
        if key[0] != dimension or key[1] in (NONE, OTHER):
            continue
        since = history.began(key)
        if since is None or since < fell_at - YOUNG:
            continue
        share, earlier = _share(history, key, lately)[0], (since, surely_before)
        # As bad as ever, it took more as it was given more; or it got worse itself.
        whole = _clearly_worse(history, key, by, (since, until), min(since, fell_at))
        if whole is not None:
            before = _share(history, key, (surely_before - DAY, surely_before))[0]
            losses.append(((share - before) * (whole.others - whole.value), replace(whole, share=share)))
        now = _clearly_worse(history, key, by, lately, min(since, fell_at))
        if now is not None:
            losses.append((min(_taken(history, key, by, earlier), 0.0) - now.part, replace(now, since=since)))
    causes = [(round(part, 9), one) for part, one in losses if part >= LEAST_PART * lost > 0]  # of equals, the longer
    return max(causes, key=lambda one: one[0], default=(0.0, None))[1]


def _clearly_worse(history: History, key: SliceKey, by: str, span: tuple[int, int], began: int) -> WeakVersion | None:
    share, others = _share(history, key, span)
    if others < LEAST_REQUESTS or not LEAST_SHARE <= share <= 1 - LEAST_SHARE:
        return None
    seen = version_effect(history, key, by, span, began)
    if seen is None or seen.difference > -SURE * seen.error:
        return None
    return WeakVersion(
        key[1], span[0], seen.value, seen.others, *seen.interval, share, None, seen.dimension, seen.is_before
    )


def _taken(history: History, key: SliceKey, by: str, span: tuple[int, int]) -> float:
    if span[0] >= span[1]:
        return 0.0
    seen = version_effect(history, key, by, span, span[0])
    return 0.0 if seen is None else _share(history, key, span)[0] * seen.difference


def _share(history: History, key: SliceKey, span: tuple[int, int]) -> tuple[float, float]:
    """(a version's share of the requests, number of the others' requests)."""
    window = history.between(*span)
    every, theirs = (float(window.slice(k)[:, b.REQUESTS].sum()) for k in (OVERALL, key))
    return theirs / max(every, 1.0), every - theirs


def _last_day(traffic: History, until: int) -> History:
    """The last day before `until`, or before the last request by then: after a gap that is long ago."""
    before = traffic.between(int(traffic.starts[0]), until) if len(traffic.starts) else traffic
    busy = np.flatnonzero(before.slice(OVERALL)[:, b.REQUESTS] > 0)
    end = int(before.starts[busy[-1]]) if len(busy) else until
    return traffic.between(end + 1 - DAY, end + 1)


def _shares(part: History, keys: list[SliceKey], dimension: str) -> b.Floats | None:
    """(K,) shares of the requests; None without any, or if most have no version: it was not read yet."""
    every = part.slice(OVERALL)[:, b.REQUESTS].sum() if keys else 0.0
    read = sum(part.slice(key)[:, b.REQUESTS].sum() for key in part.slices if key[0] == dimension)
    if not every or read <= every / 2:
        return None
    found: b.Floats = np.array([part.slice(key)[:, b.REQUESTS].sum() for key in keys]) / every
    return found


def _first(part: History, key: SliceKey, least: float) -> int | None:
    every, theirs = (part.slice(k)[:, b.REQUESTS] for k in (OVERALL, key))
    busy = np.flatnonzero(theirs > least * every)
    return int(part.starts[busy[0]]) if len(busy) else None


def served_until(traffic: History, key: SliceKey, since: int, now: int, width: int, step: int) -> int | None:
    """End of the last bucket of a version that has served since `since`, if it no longer serves at `now`; else None."""
    return _until(traffic.between(since, now), key, width, now - step)


def version_until(traffic: History, key: SliceKey, since: int, end: int, width: int) -> int | None:
    """`served_until` for any slice at `end`, by whole steps; None if it is not of a model version."""
    return served_until(traffic, key, since, end, width, step_of(width)) if key[0] == MODEL_VERSION else None


def _until(part: History, key: SliceKey, width: int, now: int) -> int | None:
    every, theirs = (part.slice(k)[:, b.REQUESTS] for k in (OVERALL, key))
    if not theirs.any():
        return None
    end = int(part.starts[np.flatnonzero(theirs > 0)[-1]]) + width
    return end if end <= now and every[part.starts >= end].any() else None
