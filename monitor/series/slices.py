"""Which values of a dimension have their own series, and when: places can be released.

A bucket is counted by the places at its start, so two reads of it give the same series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from monitor.types import FARTHEST, Slice

Gap = tuple[int, int | None]
"""[since, until) seconds; None: until further notice."""

BEGINNING = -(1 << 62)
"""Seconds before anything that is read."""


@dataclass(frozen=True)
class FullDimension:
    """A dimension with all places taken and values without one.

    Attributes:
        window: length of the window of the requests, as people write it.
        other_requests: those of the values without a place.
    """

    dimension: str
    places: int
    window: str
    other_requests: int
    requests: int

    def __str__(self) -> str:
        share = f"{100 * self.other_requests / self.requests:.1f} % of the requests of {self.window}"
        return f"all {self.places} places of {self.dimension} are taken, and {share} are `other`"


@dataclass(frozen=True)
class SliceRegistry:
    """The values ever admitted to each dimension, and when they had no place.

    Attributes:
        admitted: dimension -> values.
        gaps: (dimension, value) -> when it had none; without an entry it always has its place.
    """

    admitted: Mapping[str, set[str]]
    gaps: Mapping[tuple[str, str], Sequence[Gap]] = field(default_factory=dict)

    def at(self, instant: int) -> dict[str, set[str]]:
        """Dimension -> values with a place at an instant, seconds."""
        return {d: {v for v in values if not self._lacks(d, v, instant)} for d, values in self.admitted.items()}

    @property
    def present(self) -> dict[str, set[str]]:
        """Dimension -> values with a place as of the newest change."""
        return self.at(FARTHEST)

    def changes(self) -> list[int]:
        """Instants at which a place was given back or taken again, rising."""
        every = (edge for gaps in self.gaps.values() for gap in gaps for edge in gap)
        return sorted({edge for edge in every if edge is not None and edge != BEGINNING})

    def open_at(self, instant: int, slices: Sequence[Slice]) -> tuple[Slice, ...]:
        """The dimensions by which buckets of an instant are counted.

        Before a dimension's newest change no new value gets a place: a later bucket may have taken it.
        """
        newest = {key: max(edge for gap in gaps for edge in gap if edge is not None) for key, gaps in self.gaps.items()}
        shut = {dimension for (dimension, _), change in newest.items() if instant < change}
        return tuple(replace(s, max_values=0) if s.dimension in shut else s for s in slices)

    def _lacks(self, dimension: str, value: str, instant: int) -> bool:
        gaps = self.gaps.get((dimension, value), ())
        return any(since <= instant and (until is None or instant < until) for since, until in gaps)
