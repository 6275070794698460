"""What a database can sum up of a request's rows, as an algebra without SQL, and what a measure makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from monitor.measures.measure import Measure


@dataclass(frozen=True)
class Formula:
    """One measure of a request over its sums; see `kernels.Scores`. Expressions are of whoever sums up.

    Attributes:
        empty: None if that is where the denominator is 0.
        value: None if it is numerator / denominator, and undefined where that is 0.
        numerator, denominator: None where the measure has no pooled reading.
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
        """One constant where a condition holds, else another."""

    def hits(self, m: Measure) -> Any:
        """How many relevant items stand within k."""

    def has_hits(self, m: Measure) -> Any:
        """Whether any does."""

    def lists_none(self, m: Measure) -> Any:
        """Whether no relevant item stands anywhere in the list."""

    def listed(self, m: Measure) -> Any:
        """How many do."""

    def gained(self, m: Measure, is_discounted: bool) -> Any:
        """Gains within k, each times the discount of its rank or not."""

    def gains_nothing(self, m: Measure) -> Any:
        """Whether no item of the list has a gain."""

    def ideal(self, m: Measure) -> Any:
        """The most that a list could gain, discounted."""

    def first(self, m: Measure) -> Any:
        """One over the rank of the first relevant item within k; 0 without one."""

    def ranks(self, m: Measure) -> Any:
        """Sum of the ranks of the relevant items within k."""

    def powers(self, m: Measure, base: float) -> Any:
        """Sum of base^(rank - 1) over them."""

    def shown(self, k: int | None) -> Any:
        """How many items were shown down to a rank."""

    def shows_any(self) -> Any:
        """Whether any was."""

    def never(self) -> Any:
        """A condition that does not hold."""
