"""A new model version is worse than the others at the same time, so season, mix and drift affect both."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from monitor.causes.newcomers import YOUNG, Newcomer
from monitor.conditions.evidence import QualityEvidence, register, severity_of
from monitor.conditions.verdict_hours import judged, step_of
from monitor.drift.constants import AWAY_EXPECTED, BUDGET_HOURS, FALL_TYPICAL, LEAST_TOLERATED, TOLD_UNTIL
from monitor.series import partials as b
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL, Drift
from monitor.units import DAY, HOUR

BUDGET_SHARE = 0.1
"""Share of the budget of false alarms for all versions that are compared at one time."""


@register
class VersionWorse(QualityEvidence):
    """A version's mean since it began, against the others' (`before`), of the `requests` in hours that both served.

    Attributes:
        share: of the requests of the last day; 0 if it no longer serves.
        found: gain per request relative to the others'; 0 if the measure has none. Where that fell by less than half as
            much as the mean, rather the ideal rose: people find more in its lists.
    """

    kind: ClassVar[str] = "version_worse"
    title: ClassVar[str] = "new version worse"
    is_grave: ClassVar[bool] = True
    headline: ClassVar[str] = (
        "{{ it|subject }} {{ '%.1f'|format(100 * it.loss) }} % below the others, at {{ it.share|share }} of requests"
    )
    fired: ClassVar[str] = "verdict new version worse: significantly below the others at the same time"
    recovered: ClassVar[str] = "{{ 'no longer significantly below the others' if it.share else 'no longer served' }}"
    text: ClassVar[str] = """
{{ it|subject }} is {{ it.value|written(it) }} {{ it|span }} ({{ it.requests|count }} requests), \
{{ '%.1f'|format(100 * it.change|abs) }} % {{ "below" if it.change < 0 else "above" }} {{ it.compared_with }} \
({{ it.before|written(it) }}; 95 %: {{ it.lower|written(it) }} to {{ it.upper|written(it) }}). \
{% if it.share %}It serves {{ it.share|share }} of the last day's requests.{% else %}It no longer serves.{% endif %} \
{%- if not is_over %} Statistically significant, no matter how often you look.{% endif %}
{%- if not is_short %} Requests with nothing relevant count as 0.{% endif %}"""

    advice: ClassVar[str] = (
        "{% if it.share %}check that its events are logged like the others'; if so, roll model version "
        "{{ it.slice|shown }} back. `rankmon versions` compares them.{% else %}check whether quality is normal without "
        "model version {{ it.slice|shown }}, which no longer serves.{% endif %}"
    )

    share: float = 0.0
    found: float = 0.0

    def holds(self, drift: Drift, versions: int, was_worse: bool) -> bool:
        """Whether the version takes more from the mean of all than is tolerated, and that is beyond chance.

        The odds of a difference as large as falls usually are, against none, are those of a normal mixture: they pass
        1 / a at any time with a chance of at most a (Robbins, 1970), so it may be looked at every hour.

        Args:
            versions: compared at this time.
            was_worse: it held before; then the 95 % interval of the difference decides.
        """
        assert self.value is not None
        assert self.before is not None
        assert self.upper is not None
        lost, error = self.before - self.value, (self.upper - self.value) / 1.96
        part = TOLD_UNTIL if was_worse else 1.0
        is_small = self.share * lost < part * LEAST_TOLERATED * self.before
        if self.upper >= self.before or is_small or self.found > 1 - part * lost / self.before / 2:
            return False
        usual = FALL_TYPICAL * self.before
        explained = usual**2 / (usual**2 + error**2)
        odds = (math.log(1 - explained) + explained * (lost / error) ** 2) / 2
        chance = drift.false_alarm_budget * BUDGET_SHARE * YOUNG / (BUDGET_HOURS * HOUR) / versions
        return was_worse or odds > -math.log(chance)


def compared(drift: Drift, one: Newcomer, known: History, end: int, width: int) -> VersionWorse:
    """A new version at `end`, seconds, by the history it was found in, of buckets of `width` seconds."""
    key, day = (one.dimension, one.slice), known.between(end - DAY, end)
    requests = known.slice(key)[:, b.REQUESTS]
    is_shared = requests < known.slice(OVERALL)[:, b.REQUESTS]
    since_last = known.slice(OVERALL)[np.flatnonzero(requests)[-1] + 1 :, b.REQUESTS].sum()
    of_it, every = (float(day.slice(of)[:, b.REQUESTS].sum()) for of in (key, OVERALL))
    is_gone = one.share * since_last >= AWAY_EXPECTED
    return VersionWorse(
        rule=VersionWorse.kind,
        severity=severity_of(drift, VersionWorse.kind),
        judged=str(judged(drift.measure)),
        dimension=one.dimension,
        slice=one.slice,
        end=end,
        window=end - one.since,
        since=one.since + step_of(width),
        requests=int(requests[is_shared].sum()),
        value=one.value,
        lower=one.others + one.lower,
        upper=one.others + one.upper,
        before=one.others,
        threshold=one.others,
        compared_with=f"the others{f' in the same {one.within}' if one.within else ''} at the same time",
        share=0.0 if is_gone else of_it / max(every, 1.0),
        found=_found(known.between(one.since, end), key),
    )


def _found(served: History, key: SliceKey) -> float:
    """A version's gain per request relative to the others' in the same hours; 0 if the measure has no gain."""
    of_it, others = served.slice(key), served.slice(OVERALL) - served.slice(key)
    both = (of_it[:, b.REQUESTS] > 0) & (others[:, b.REQUESTS] > 0)
    (size, gain), (rest, usual) = ((sums[both, b.REQUESTS], b.gain(sums[both])) for sums in (of_it, others))
    expected = float((size * usual / (size + rest)).sum())
    return float((rest * gain / (size + rest)).sum()) / expected if expected > 0 else 0.0
