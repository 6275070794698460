"""The array types that rankmon computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def floats(values: Sequence[Any], unreadable: float = np.nan) -> Floats:
    """(n,) the values as floats: None becomes nan, anything else that is not a number becomes `unreadable`."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([as_number(value, unreadable) for value in values], np.float64)


def as_number(value: Any, unreadable: float) -> float:
    """The value as a float, as by `floats`."""
    try:
        return np.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return unreadable
