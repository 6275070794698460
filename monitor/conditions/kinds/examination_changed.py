"""People look elsewhere than before: the page changed, not the model."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.arrivals import ArrivalEvidence, Arrivals, Unknown
from monitor.conditions.evidence import Matter, register
from monitor.measures.examination import ALL
from monitor.types import Drift, Monitor


@register
class ExaminationChanged(ArrivalEvidence):
    """`value`, `before`: examination of `rank` relative to rank 1, and its 95 % interval now.

    Attributes:
        part: (dimension, value) of those who look elsewhere; empty if all do.
        corrected: relative change of DCG, clicks of either time corrected by its examination, and the 95 % interval.
        accepted: whether it ended because the baseline was reset after it began.
    """

    kind: ClassVar[str] = "examination_changed"
    title: ClassVar[str] = "people look elsewhere"
    audience: ClassVar[Matter] = "layout"
    sound: ClassVar[str] = (
        "{% if it.accepted %}The baseline was reset: where people look now is what later days are compared with."
        "{% else %}People look where they did before.{% endif %}"
    )
    recovered: ClassVar[str] = "{{ 'the baseline was reset' if it.accepted else 'people look where they did before' }}"
    headline: ClassVar[str] = (
        "people look elsewhere{% if it.part[0] %} on {{ it.part[0]|named(it.part[1]) }}{% endif %}: "
        "rank {{ it.rank }} is looked at {{ '%.0f'|format(100 * it.value / it.before) }} % as often as before"
    )
    text: ClassVar[str] = """
{% set figure = "%.2f" %}
{% set share = "%+.0f" %}
{% if it.part[0] %}On {{ it.part[0]|named(it.part[1]) }} rank {% else %}Rank {% endif %}
{{ it.rank }} is now looked at {{ figure|format(it.value) }} times as often as rank 1
(95 %: {{ figure|format(it.lower) }} to {{ figure|format(it.upper) }}); before, it was {{ figure|format(it.before) }}.
Corrected for that, quality changed by {{ share|format(100 * it.corrected[0]) }} %
(95 %: {{ share|format(100 * it.corrected[1]) }} to {{ share|format(100 * it.corrected[2]) }} %).
This {{ it.part[0]|estimated }}."""
    advice: ClassVar[str] = (
        "{% if it.accepted %}unless the measure already has the new table, {% else %}"
        "check what changed on the page: layout, images, or the device mix. If the change is here to stay, {% endif %}"
        "run `rankmon examination fit --since` with the time of the change{% if it.part[0] %} and `--by "
        "{{ it.part[0] }}`{% endif %}, {{ 'and ' if it.accepted }}put its table into the measure"
        "{% if not it.accepted %}, and reset the baseline at {{ it.since|utc }}{% endif %}."
    )

    judged: str = "examination"
    part: tuple[str, str] = ALL
    rank: int = 1
    lower: float = 0.0
    upper: float = 0.0
    corrected: tuple[float, ...] = (0.0, 0.0, 0.0)
    accepted: bool = False

    @property
    def is_incomplete(self) -> bool:
        return self.accepted

    @property
    def where(self) -> str:
        return "=".join(filter(None, self.part))

    @classmethod
    def concerns(cls, monitor: Monitor) -> bool:
        """Whether a measure of the monitor is corrected by examination."""
        return monitor.corrected is not None

    @classmethod
    def detect(cls, seen: Arrivals, drift: Drift) -> Self | None:
        """The evidence if the newest check finds a change. Raises Unknown without a check in this cycle."""
        found = seen.arrived.examined
        if found is None:
            raise Unknown
        if found.changed_since is None:
            return None
        part, rank, _ = found.change
        now, known = found.now.parts.get(part, found.now), found.known.parts.get(part, found.known)
        at = rank - 1
        return replace(
            cls.at(drift, found.changed_since, found.at),
            compared_with="where people looked before",
            part=part,
            rank=rank,
            value=float(now.value[at]),
            lower=float(now.lower[at]),
            upper=float(now.upper[at]),
            before=float(known.value[at]),
            corrected=found.corrected,
        )

    def ended(self, seen: Arrivals) -> Self:
        """With why it ended: a check that finds people back notes its own day as the end of the change."""
        found = seen.arrived.examined
        return replace(self, accepted=found is not None and found.resumed <= self.since)
