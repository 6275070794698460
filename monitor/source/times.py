"""Between instants and what a time column holds."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from monitor.core.relevance import CLOCK_CHANGE
from monitor.core.types import TimeColumn
from monitor.errors import SourceError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_PER_SECOND = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}
_ISO = {"%Y-%m-%dT%H:%M:%S": "T", "%Y-%m-%d %H:%M:%S": " "}  # format up to the seconds -> what parts date and time
_DIGITS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
_ZONE = r"(?:Z| ?UTC|[+-]00(?::?00)?)"
_WRITTEN = re.compile(r"\d{4}([-/]?)\d\d\1\d\d([T ])\d\d:\d\d:\d\d([.,]\d+)?(.*)", re.ASCII)
_LAST_SECOND = 2**33  # of the years in which a text that is no time is looked for

CREDIBLE = (946_684_800, 4_102_444_800)
"""2000 to 2100, in seconds: a sample wholly outside was written in another unit."""


class Instants(NamedTuple):
    """What a time column's values mean, shape (n,) each.

    Attributes:
        micros: microseconds since 1970 UTC.
        unreadable: the value is no time as declared. A text's `micros` are then the end of the last second that sorts
            before it, so that it belongs to one place however much is read at once; another value's are 0.
        doubtful: a local time that stands twice or never, where clocks are changed. Its `micros` are the earlier of
            the two readings, the other comes `CLOCK_CHANGE` later.
    """

    micros: Ints
    unreadable: Bools
    doubtful: Bools


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
    return moment if column.format == "native" else moment.strftime(_to_seconds(column.format))


def slack(column: TimeColumn, instant: float) -> int:
    """Seconds by which a bound at `instant` must be widened, because clocks are changed within the hour around it."""
    if column.timezone in (None, "UTC"):
        return 0
    zone = ZoneInfo(str(column.timezone))
    before, after = (datetime.fromtimestamp(instant + s, zone).utcoffset() for s in (-CLOCK_CHANGE, CLOCK_CHANGE))
    return 0 if before == after else CLOCK_CHANGE


def to_micros(column: TimeColumn, values: Sequence[object]) -> Instants:
    """The instants of a column's values.

    Raises:
        SourceError: the values are of another kind than the configuration says; the message has the remedy.
    """
    if not len(values):
        return Instants(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool))
    _check_kind(column, next((v for v in values if v is not None), None))
    if column.format in _PER_SECOND:
        return _from_epoch(values, _PER_SECOND[column.format])
    if column.format == "native":
        return _to_utc(column, pd.to_datetime(_series(values), errors="coerce", utc=column.timezone is None))
    return _from_text(column, values)


def check(column: TimeColumn, values: Sequence[object]) -> None:
    """See whether a sample of a column's values is written as declared; it is if one of them is.

    Raises:
        SourceError: it is not; the message has the remedy.
    """
    if not len(values):
        return
    instants, sample = to_micros(column, values), values[0]
    where = f"time column {column.column!r}"
    if column.format in _PER_SECOND:
        other = _other_unit(column, values)
        if other:
            raise SourceError(
                f"{where} holds {str(sample)!r}, which is no date in {column.format}; declare {other}", "data"
            )
    elif instants.unreadable.all() and column.format != "native":
        raise SourceError(f"{where} holds {str(sample)!r}; {_text_remedy(column, str(sample))}", "data")


def _series(values: Sequence[object]) -> pd.Series[Any]:
    return pd.Series(np.array(values, dtype=object))


def _check_kind(column: TimeColumn, sample: object) -> None:
    """Raise SourceError if a value is of a type that its column's declaration has no place for."""
    is_time, is_number = isinstance(sample, date), isinstance(sample, int | float) or hasattr(sample, "as_tuple")
    if sample is None:
        return
    wrong = ""
    if column.format == "native":
        wrong = _native_remedy(column, sample, is_number)
    elif column.format in _PER_SECOND and not is_number:
        wrong = _undeclare(column, sample) if is_time else _declare_text(str(sample))
    elif column.format not in _PER_SECOND and not isinstance(sample, str):
        wrong = _undeclare(column, sample) if is_time else "declare format: epoch_s, _ms or _us"
    if wrong:
        raise SourceError(f"time column {column.column!r} holds {str(sample)!r}; {wrong}", "data")


def _undeclare(column: TimeColumn, sample: object) -> str:
    """How a time of its own type is declared instead: by its zone, where it names none."""
    more = _native_remedy(replace(column, format="native"), sample, False)
    return f"take its format away; {more}" if more else "take its format away"


def _native_remedy(column: TimeColumn, sample: object, is_number: bool) -> str:
    if is_number:
        return "declare format: epoch_s, _ms or _us"
    if not isinstance(sample, date):
        return _declare_text(str(sample))
    if not isinstance(sample, datetime):
        return "name a column that has the time of day too"
    if sample.tzinfo is None and column.timezone is None:
        return "it names no zone, so declare e.g. timezone: UTC"
    if sample.tzinfo is not None and column.timezone is not None:
        return f"it names its zone, so take timezone: {column.timezone} away"
    return ""


def _declare_text(sample: str) -> str:
    """How a time that is text is declared, by how it is written."""
    found = _WRITTEN.fullmatch(sample.strip())
    if found is None:
        return "declare e.g. format: '%Y-%m-%d %H:%M:%S', as it is written"
    parts, between, fraction, zone = found[1], found[2], found[3], found[4]
    form = f"%Y{parts}%m{parts}%d{between}%H:%M:%S{'.%f' if fraction else ''}"
    if not zone:
        return f"declare e.g. format: '{form}', and the timezone that it is written in, e.g. timezone: UTC"
    if re.fullmatch(_ZONE, zone, re.ASCII):
        return f"declare e.g. format: '{form}{zone}'"
    return "text with other offsets than UTC's does not sort as time does; convert it to UTC in a `select:`"


def _from_epoch(values: Sequence[object], per_second: int) -> Instants:
    number = pd.to_numeric(_series(values), errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    scale = 1_000_000 // per_second
    bad = ~(np.abs(number) < 2**62 / scale)
    return Instants(np.floor(np.where(bad, 0, number) * scale).astype(np.int64), bad, np.zeros(len(bad), bool))


def _other_unit(column: TimeColumn, values: Sequence[object]) -> str | None:
    """The epoch format in which some of the values are of our time, if in the declared one none is."""
    numbers = pd.to_numeric(_series(values), errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    credible = {f: ((numbers >= CREDIBLE[0] * n) & (numbers < CREDIBLE[1] * n)).any() for f, n in _PER_SECOND.items()}
    return None if credible[column.format] else next((f for f, some in credible.items() if some), None)


def _to_seconds(form: str) -> str:
    return form.partition("%S")[0] + "%S"


def _from_text(column: TimeColumn, values: Sequence[object]) -> Instants:
    alike = _all_alike(column, values)
    if alike is not None:
        return _to_utc(column, pd.Series(alike))
    to_seconds = _to_seconds(column.format)
    width = len(datetime.fromtimestamp(0, UTC).strftime(to_seconds))
    texts = [v if isinstance(v, str) else "" for v in values]
    tails = [t[width - 2 :] for t in texts]
    fractions = {t: _fraction(t, column.timezone is None) for t in set(tails)}
    fraction = np.fromiter((fractions[t] for t in tails), np.int64, len(tails))
    parsed = pd.to_datetime(_series([t[:width] for t in texts]), format=to_seconds, errors="coerce")
    micros, unreadable, doubtful = _to_utc(column, parsed.mask(fraction < 0))
    for i in np.flatnonzero(unreadable).tolist():
        micros[i] = _place(column, values[i])
    return Instants(micros + np.where(unreadable, 0, fraction), unreadable, doubtful)


def _all_alike(column: TimeColumn, values: Sequence[Any]) -> NDArray[np.datetime64] | None:
    """Texts as ISO 8601 has them that differ in their digits alone, up to the seconds; None where they are others.

    Most columns are like this, and many times as fast to read as by a format.
    """
    first, between = values[0], _ISO.get(_to_seconds(column.format))
    if between is None or set(map(type, values)) != {str} or len(set(map(len, values))) > 1:
        return None
    fraction = _fraction(first[17:], column.timezone is None)
    if fraction < 0:
        return None
    texts = np.array(values)
    codes = texts.view(np.uint32).reshape(len(texts), -1)
    alike = codes == [ord(c) for c in f"dddd-dd-dd{between}dd:dd:dd{first[19:]}"]
    digits = codes[:, _DIGITS]
    alike[:, _DIGITS] = (digits >= ord("0")) & (digits <= ord("9"))
    if not alike.all():
        return None
    try:
        micros = texts.astype("U19").astype("datetime64[us]").astype(np.int64)
    except ValueError:
        return None
    return (micros + fraction).astype("datetime64[us]")


def _fraction(tail: str, has_zone: bool) -> int:
    """Microseconds in what stands after the minutes: seconds, a fraction or none, UTC's name or none; else -1.

    A leap second is refused: it sorts before the next minute, and would be read as belonging to it.
    """
    match = re.fullmatch(rf"[0-5]\d(?:[.,](\d+))?{_ZONE if has_zone else ''}", tail, re.ASCII)
    return -1 if match is None else int(f"{match[1] or 0:0<6}"[:6])


@lru_cache(10_000)
def _place(column: TimeColumn, value: object) -> int:
    """The last microsecond of the last second whose text sorts before `value`."""
    if not isinstance(value, str):
        return 0
    after = bisect_right(range(_LAST_SECOND), value, key=lambda second: str(bound(column, second)))
    return max(after * 1_000_000 - 1, 0)


def _text_remedy(column: TimeColumn, sample: str) -> str:
    if column.timezone is None and not _from_text(replace(column, timezone="UTC"), [sample]).unreadable[0]:
        return "it names no zone, so declare e.g. timezone: UTC"
    if column.timezone is not None and not _from_text(replace(column, timezone=None), [sample]).unreadable[0]:
        return f"it names its zone, so take timezone: {column.timezone} away"
    return f"it is not written as {column.format!r}; declare its format, and convert other zones in a `select:`"


def _to_utc(column: TimeColumn, parsed: pd.Series[pd.Timestamp]) -> Instants:
    unreadable = parsed.isna().to_numpy()
    doubtful = np.zeros(len(unreadable), bool)
    if column.timezone is not None and column.timezone != "UTC":
        strict = parsed.dt.tz_localize(column.timezone, ambiguous="NaT", nonexistent="NaT")
        doubtful = strict.isna().to_numpy() & ~unreadable
        earlier = pd.Timedelta(seconds=-CLOCK_CHANGE)
        first = np.ones(len(doubtful), bool)
        parsed = parsed.dt.tz_localize(column.timezone, ambiguous=first, nonexistent=earlier).dt.tz_convert("UTC")
    naive = parsed.dt.tz_localize(None) if parsed.dt.tz is not None else parsed
    micros = naive.to_numpy().astype("datetime64[us]").astype(np.int64)
    return Instants(np.where(unreadable, 0, micros), unreadable, doubtful)
