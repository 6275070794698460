"""Between instants and what a time column holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from monitor.core.types import TimeColumn
from monitor.errors import SourceError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_PER_SECOND = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}


def bound(column: TimeColumn, instant: float) -> object:
    """`instant` (seconds since 1970 UTC, cut to whole ones) as a value that the column can be compared with.

    Text is cut after the seconds, so that `12:00:00` sorts before `12:00:00Z` and before `12:00:00.5`.
    """
    whole = int(instant // 1)
    if column.format in _PER_SECOND:
        return whole * _PER_SECOND[column.format]
    moment = datetime.fromtimestamp(whole, UTC)
    if column.timezone is not None:
        moment = moment.astimezone(ZoneInfo(column.timezone)).replace(tzinfo=None)
    if column.format == "native":
        return moment
    return moment.strftime(column.format.partition("%S")[0] + "%S")


def slack(column: TimeColumn) -> int:
    """Seconds by which bounds must be widened, because local time runs twice through an hour when clocks go back."""
    return 0 if column.timezone in (None, "UTC") else 3600


def to_micros(column: TimeColumn, values: Sequence[object]) -> tuple[Ints, Bools, Bools]:
    """(microseconds since 1970 UTC, is unreadable, is ambiguous) of a column's values, shape (n,) each.

    Unreadable ones are 0; a local time that stands twice is taken as the earlier, one that never was as UTC of that
    clock reading, and both are flagged.

    Raises:
        SourceError: the values are of another kind than the configuration says; the message has the remedy.
    """
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool)
    if column.format in _PER_SECOND:
        return _from_epoch(values, _PER_SECOND[column.format])
    sample = next((v for v in values if v is not None), None)
    if column.format == "native":
        _check_native(column, sample)
        parsed = pd.to_datetime(_series(values), errors="coerce", utc=column.timezone is None)
    else:
        parsed = _from_text(column, values, sample)
    return _to_utc(column, parsed)


def _series(values: Sequence[object]) -> pd.Series[Any]:
    return pd.Series(np.array(values, dtype=object))


def _from_epoch(values: Sequence[object], per_second: int) -> tuple[Ints, Bools, Bools]:
    if any(isinstance(v, str) for v in values[:1]):
        raise SourceError("the time column holds text, not epoch numbers; declare its format", "data")
    number = pd.to_numeric(_series(values), errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = ~np.isfinite(number) | (np.abs(number) > 2**62 / (1_000_000 / per_second))
    # Whole numbers stay whole: floats above 2^53 microseconds would not.
    scale = 1_000_000 // per_second
    micros = np.floor(np.where(bad, 0, number) * scale).astype(np.int64)
    return micros, bad, np.zeros(len(bad), bool)


def _check_native(column: TimeColumn, sample: object) -> None:
    where = f"time column {column.column!r}"
    if isinstance(sample, str):
        raise SourceError(f"{where} comes back as text ({sample!r}); declare e.g. format: '%Y-%m-%d %H:%M:%S'", "data")
    if isinstance(sample, int | float):
        raise SourceError(f"{where} comes back as a number ({sample!r}); declare format: epoch_s, _ms or _us", "data")
    aware = getattr(sample, "tzinfo", None) is not None
    if isinstance(sample, datetime) and not aware and column.timezone is None:
        raise SourceError(f"{where} holds times without a zone; declare e.g. timezone: UTC", "data")
    if aware and column.timezone is not None:
        raise SourceError(f"{where} holds times with a zone; take timezone: {column.timezone} away", "data")


def _from_text(column: TimeColumn, values: Sequence[object], sample: object) -> pd.Series[pd.Timestamp]:
    if sample is not None and not isinstance(sample, str):
        raise SourceError(f"time column {column.column!r} is no text ({sample!r}); take its format away", "data")
    style = "ISO8601" if column.format.startswith("%Y-%m-%d") else column.format
    zoneless = column.timezone is not None
    parsed = pd.to_datetime(_series(values), format=style, errors="coerce", utc=not zoneless)
    if zoneless and getattr(parsed.dt, "tz", None) is not None:
        raise SourceError(f"time column {column.column!r} names a zone in its text; take timezone: away", "data")
    return parsed


def _to_utc(column: TimeColumn, parsed: pd.Series[pd.Timestamp]) -> tuple[Ints, Bools, Bools]:
    bad = parsed.isna().to_numpy()
    ambiguous = np.zeros(len(bad), bool)
    if column.timezone is not None and column.timezone != "UTC":
        strict = parsed.dt.tz_localize(column.timezone, ambiguous="NaT", nonexistent="NaT")
        ambiguous = strict.isna().to_numpy() & ~bad
        early = parsed.dt.tz_localize(column.timezone, ambiguous=np.ones(len(bad), bool), nonexistent="shift_forward")
        parsed = early.dt.tz_convert("UTC")
    naive = parsed.dt.tz_localize(None) if parsed.dt.tz is not None else parsed
    micros = naive.to_numpy().astype("datetime64[us]").astype(np.int64)
    return np.where(bad, 0, micros), bad, ambiguous
