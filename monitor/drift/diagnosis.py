"""Where a drop comes from: worse within slices, or another mix of them.

Kitagawa (1955), Components of a difference between two rates: with shares p and means m of the slices before (0) and
now (1), sum m1 p1 - sum m0 p0 = sum (m1 - m0)(p0 + p1)/2 + sum (p1 - p0)(m0 + m1)/2, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.drift.series import Floats


@dataclass(frozen=True, slots=True)
class Part:
    """One slice's part in a change of the mean.

    Attributes:
        slice: its name.
        share_before, share: of the requests.
        before, value: its mean; `before` where it has none.
        within: what its own change adds to the change of the whole.
        mix: what its change of share adds, against a slice of average mean.
        z: its own change in standard errors, noise beyond sampling included.
    """

    slice: str
    share_before: float
    share: float
    before: float
    value: float
    within: float
    mix: float
    z: float


@dataclass(frozen=True, slots=True)
class Split:
    """A change of the overall mean, split exactly: `value - before = within + mix`.

    Attributes:
        parts: slice by slice, the one that lowers the whole most by its own change first.
    """

    before: float
    value: float
    within: float
    mix: float
    parts: tuple[Part, ...]

    @property
    def by_z(self) -> tuple[Part, ...]:
        """The slices whose own fall is the surest first."""
        return tuple(sorted(self.parts, key=lambda part: part.z))


def split(
    slices: Sequence[str], shares: tuple[Floats, Floats], means: tuple[Floats, Floats], error: Floats | None = None
) -> Split:
    """Split the change from the first to the second of each pair.

    Args:
        shares, means: (S,) before and now; shares sum to one.
        error: (S,) standard error of the change of each mean; None: z is 0.
    """
    (p0, p1), (m0, m1) = shares, means
    within, mix = (m1 - m0) * (p0 + p1) / 2, (p1 - p0) * (m0 + m1) / 2
    average = float((m0 * p0).sum() + (m1 * p1).sum()) / 2
    centred = (p1 - p0) * ((m0 + m1) / 2 - average)
    z = np.zeros(len(p0)) if error is None else np.divide(m1 - m0, error, out=np.zeros(len(p0)), where=error > 0)
    columns = zip(*(c.tolist() for c in (p0, p1, m0, m1, within, centred, z)), strict=True)
    parts = [Part(name, *column) for name, column in zip(slices, columns, strict=True)]
    before, value = float((m0 * p0).sum()), float((m1 * p1).sum())
    return Split(before, value, float(within.sum()), float(mix.sum()), tuple(sorted(parts, key=lambda p: p.within)))
