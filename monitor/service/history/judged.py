"""What verdicts said of the recent past, to be drawn: observed beside expected, and when what was the matter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from monitor.service.history.series import MOST_POINTS, SPAN, grid_step

from monitor.conditions.verdict_hours import step_of
from monitor.drift.verdicts import DATA_KINDS, VerdictPoint, first_whole
from monitor.store import Store
from monitor.types import Monitor


@dataclass(frozen=True, slots=True)
class Spell:
    """Steps in a row of which the same was said.

    Attributes:
        since, until: start of the first step and end of the last, seconds.
        kind: the verdict; empty where it is the mix that has shifted.
        effect: by how much the mix moved the mean at the most, relative.
    """

    since: int
    until: int
    kind: str = ""
    effect: float = 0.0

    def and_then(self, other: Spell) -> Spell:
        """Both in one; the other is of the same and follows at once."""
        return replace(self, until=other.until, effect=max(self.effect, other.effect, key=abs))


@dataclass(frozen=True)
class JudgedTrail:
    """The recent verdicts on a monitor, oldest first.

    Attributes:
        width: of the steps that are judged, seconds.
        step: seconds between the ends of points; every end is a multiple of it, but for the newest.
        points: on an even grid, and the newest.
        troubles: when the data were not fit to be judged, or those of slices.
        mixes: when the mix of slices had moved the mean.
    """

    width: int
    step: int
    points: tuple[VerdictPoint, ...] = ()
    troubles: tuple[Spell, ...] = ()
    mixes: tuple[Spell, ...] = ()

    @property
    def drawn(self) -> tuple[VerdictPoint, ...]:
        """The points from the first on that has the value of a day; of less than one where there is no more yet."""
        ends, observed = [p.end for p in self.points], [p.observed for p in self.points]
        return self.points[first_whole(ends, observed, self.width) :]

    @property
    def newest(self) -> VerdictPoint | None:
        """The newest verdict."""
        return self.points[-1] if self.points else None

    def onward(self, found: Sequence[VerdictPoint], oldest: int) -> JudgedTrail:
        """With further verdicts, and without what ended by `oldest`, seconds."""
        every = [*self.points[-1:], *found]
        points = [*self.points[:-1], *(p for p in every[:-1] if p.end % self.step == 0), *every[-1:]]
        troubles = _spells(found, self.width, lambda one: one.kind if one.kind in DATA_KINDS else None)
        mixes = _spells(found, self.width, lambda one: None if one.mix_effect is None else "")
        return replace(
            self,
            points=tuple(p for p in points if p.end > oldest),
            troubles=tuple(s for s in _joined(self.troubles, troubles) if s.until > oldest),
            mixes=tuple(s for s in _joined(self.mixes, mixes) if s.until > oldest),
        )


def judged_onward(monitor: Monitor, store: Store, now: float, former: JudgedTrail | None) -> JudgedTrail | None:
    """The verdicts of the time that trails show; None where a monitor has none.

    Args:
        now: seconds.
        former: as it was before; what it holds is not read again.

    Raises:
        StoreError: the store is out of reach.
    """
    if monitor.drift is None:
        return None
    width = step_of(monitor.bucket)
    trail, oldest = former or JudgedTrail(width, grid_step(width, MOST_POINTS)), int(now) - SPAN
    known = oldest if trail.newest is None else max(oldest, trail.newest.end)
    return trail.onward(store.verdicts.drawn(monitor.name, known, int(now)), oldest)


def _spells(found: Iterable[VerdictPoint], width: int, said: Callable[[VerdictPoint], str | None]) -> list[Spell]:
    """Where verdicts, oldest first, say something; what follows at once and says the same is one."""
    spells: list[Spell] = []
    for kind, run in groupby(found, said):
        if kind is not None:
            one_by_one = [Spell(one.end - width, one.end, kind, one.mix_effect or 0.0) for one in run]
            spells += _joined((), one_by_one)
    return spells


def _joined(before: Iterable[Spell], after: Iterable[Spell]) -> list[Spell]:
    found = list(before)
    for spell in after:
        if found and found[-1].until == spell.since and found[-1].kind == spell.kind:
            found[-1] = found[-1].and_then(spell)
        else:
            found.append(spell)
    return found
