"""Slices and model versions that started in the last two weeks, compared with the others."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.causes.version_mix import LEAST_REQUESTS, version_effect
from monitor.series import partials as b
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL
from monitor.units import DAY, WEEK

YOUNG = 14 * DAY
"""Seconds after which a slice or version counts as usual."""
MOST = 20
"""With more, new values are not notable: such dimensions change all the time."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A slice or model version that started recently.

    Attributes:
        since: start of its first bucket, seconds.
        share: of the requests since then.
        value, others: its mean and the others', of the same hours with the same weights.
        lower, upper: 95 % interval of the difference.
        within: `others` are in the same slices of this dimension; empty for all others.
        is_before: it alone serves its slices, so `others` are these in the same hours of the weeks before.
    """

    dimension: str
    slice: str
    since: int
    share: float
    value: float
    others: float
    lower: float
    upper: float
    within: str
    is_before: bool

    @property
    def difference(self) -> float:
        """From the others."""
        return self.value - self.others


def newcomers(history: History, by: str, until: int) -> list[Newcomer]:
    """The newcomers at an instant, worst first, MOST of them; without those of too few requests to compare.

    Args:
        history: of what is judged, from three weeks before `until` or earlier.
        by: dimension of the slices in which a version is compared; empty without one.
        until: end of the newest bucket, seconds.
    """
    known = history.between(until - YOUNG - WEEK, until)
    found = (newcomer(known, key, by, until) for key in known.slices if key[1] not in b.RESERVED)
    compared = (one for one in found if one is not None)
    return sorted(compared, key=lambda one: (one.upper, one.dimension, one.slice))[:MOST]


def newcomer(
    history: History, key: SliceKey, by: str, until: int, young: int = YOUNG, least: float = LEAST_REQUESTS
) -> Newcomer | None:
    """A slice or version compared with the others; None if it is not new, or has fewer requests than `least`.

    Args:
        history: from a week and `young` seconds before `until`, or from a week before it began.
    """
    since = history.began(key)
    if since is None or since < until - young:
        return None
    if not history.between(since - WEEK, since - WEEK + DAY).slice(OVERALL)[:, b.REQUESTS].any():
        return None  # nobody knows whether it is new
    effect = version_effect(history, key, "" if key[0] == by else by, (since, until), since, least)
    if effect is None:
        return None
    of_it, every = (float(history.between(since, until).slice(one)[:, b.REQUESTS].sum()) for one in (key, OVERALL))
    return Newcomer(
        *key, since, of_it / every, effect.value, effect.others, *effect.interval, effect.dimension, effect.is_before
    )
