"""The sums that a database can compute of a request's rows, as an algebra without SQL, and measures made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from monitor.measures.measure import Depth, Measure


@dataclass(frozen=True)
class Formula:
    """One measure of a request over its sums, in the expressions of the backend; see `kernels.Scores`.

    Attributes:
        empty: None: where the denominator is 0.
        value: None: numerator / denominator, undefined where that is 0.
        numerator, denominator: None if the measure has no pooled reading. Of a measure corrected by
            examination the numerator is the sum of squares of what its items add, for `partials.effective`.
    """

    empty: Any = None
    value: Any = None
    numerator: Any = None
    denominator: Any = None


class RequestSums(Protocol):
    """Sums over the rows of one request, as expressions that take `+`, `*`, `/`, `<=` and `==`."""

    def number(self, value: float) -> Any:
        """A constant."""

    def choose(self, condition: Any, then: float, otherwise: float) -> Any:
        """One constant if a condition holds, else another."""

    def hits(self, m: Measure) -> Any:
        """Number of relevant items within k."""

    def has_hits(self, m: Measure) -> Any:
        """Whether any relevant item is within k."""

    def lists_none(self, m: Measure) -> Any:
        """Whether the list has no relevant item."""

    def listed(self, m: Measure) -> Any:
        """Number of relevant items in the list."""

    def gained(self, m: Measure) -> Any:
        """Sum of the gains within k, discounted by rank if the measure is."""

    def gained_squares(self, m: Measure) -> Any:
        """Sum of the squares of the discounted gains within k."""

    def gains_nothing(self, m: Measure) -> Any:
        """Whether no item of the list has a gain."""

    def ideal(self, m: Measure) -> Any:
        """The ideal discounted gain."""

    def first(self, m: Measure) -> Any:
        """One over the rank of the first relevant item within k; 0 without one."""

    def ranks(self, m: Measure) -> Any:
        """Sum of the ranks of the relevant items within k."""

    def powers(self, m: Measure, base: float) -> Any:
        """Sum of base^(rank - 1) over the relevant items within k."""

    def shown(self, k: Depth) -> Any:
        """Number of items shown down to rank k, or the sum of a table over the ranks shown."""

    def shows_any(self) -> Any:
        """Whether any item was shown."""

    def never(self) -> Any:
        """A condition that never holds."""
