"""Converts between instants and the values of a time column."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Bools, Ints, floats
from monitor.errors import SourceError
from monitor.series.readings import MICROS
from monitor.source.prepared import rounded_down, rounded_up
from monitor.types import Events, Monitor, TimeColumn
from monitor.units import DAY

Moments = NDArray[np.datetime64]

PER_SECOND = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}
"""Format of a number -> its units per second."""

_NANOSECONDS = "ns"

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  of any zone
_MICRO, _DAY = timedelta(microseconds=1), 86_400_000_000
_NOT_A_TIME = np.iinfo(np.int64).min  # NumPy's NaT
_ZONE = r"(?:Z| ?UTC|[+-]00(?::?00)?)"
_WRITTEN = re.compile(r"\d{4}([-/]?)\d\d\1\d\d([T ])\d\d:\d\d:\d\d([.,]\d+)?(.*)", re.ASCII)
_LAST_SECOND = 2**33  # limit of the search for where an unreadable text sorts

_STEP = 1800
_LONGEST_CHANGE = DAY
"""Seconds by which clocks change at most: Samoa left out a whole day when it crossed the date line."""

CREDIBLE = (946_684_800, 4_102_444_800)
"""2000 to 2100 in seconds; a sample entirely outside was written in another unit."""


class Instants(NamedTuple):
    """Instants of a time column's values, shape (n,) each.

    Attributes:
        micros: microseconds since 1970 UTC.
        unreadable: not a time as declared. For text, `micros` is then the end of the last second that sorts before it,
            so its place does not depend on the range read; otherwise 0.
        later: microseconds from `micros`, the earlier reading, to the other one of a local time that occurs twice or
            never at a clock change; else 0.
    """

    micros: Ints
    unreadable: Bools
    later: Ints

    @property
    def doubtful(self) -> Bools:
        """Which have two readings."""
        return self.later > 0


def bound(column: TimeColumn, instant: float) -> object:
    """`instant` (seconds) to compare with the column, truncated to seconds: as text it sorts before any fraction."""
    whole = int(instant // 1)
    if column.format in PER_SECOND:
        return whole * PER_SECOND[column.format]
    moment = datetime.fromtimestamp(whole, UTC)
    if column.timezone is not None:
        moment = moment.astimezone(ZoneInfo(column.timezone)).replace(tzinfo=None)
    return moment if column.format == "native" else moment.strftime(_to_seconds(column.format))


def slack(column: TimeColumn, instant: float) -> int:
    """Seconds by which to widen a bound at `instant`: what clocks change by, if they do within so long of it."""
    if column.timezone in (None, "UTC"):
        return 0
    zone = ZoneInfo(str(column.timezone))
    change = _change(zone, instant, _LONGEST_CHANGE)
    return change if _change(zone, instant, change) else 0


def _change(zone: ZoneInfo, instant: float, around: int) -> int:
    """Seconds between the offsets from UTC `around` seconds before and after `instant`."""
    before, after = (datetime.fromtimestamp(instant + s, zone).utcoffset() for s in (-around, around))
    return int(abs((after or timedelta()) - (before or timedelta())).total_seconds())


def to_micros(column: TimeColumn, values: Sequence[object]) -> Instants:
    """The instants of a column's values.

    Raises:
        SourceError: the values are not of the configured kind; the message has the fix.
    """
    if not len(values):
        return Instants(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, np.int64))
    _check_kind(column, next((v for v in values if v is not None), None))
    if column.format in PER_SECOND:
        return _from_epoch(values, PER_SECOND[column.format])
    if column.format == "native":
        return _to_utc(column, _from_native(column, values))
    return _from_text(column, values)


def check(column: TimeColumn, values: Sequence[object]) -> None:
    """Checks that at least one of a column's sampled values is written as declared.

    Raises:
        SourceError: none is; the message has the fix.
    """
    if not len(values):
        return
    instants, sample = to_micros(column, values), values[0]
    where = f"time column {column.column!r}"
    if column.format in PER_SECOND:
        units = _units(values)
        if units and column.format not in units:
            told = f"which is not a date in {column.format}; {_declare_unit(units)}"
            raise SourceError(f"{where} holds {str(sample)!r}, {told}", "data", True)
    elif instants.unreadable.all() and column.format != "native":
        raise SourceError(f"{where} holds {str(sample)!r}; {_text_remedy(column, str(sample))}", "data", True)


def _check_kind(column: TimeColumn, sample: object) -> None:
    is_time, is_number = isinstance(sample, date), isinstance(sample, int | float) or hasattr(sample, "as_tuple")
    if sample is None:
        return
    wrong = ""
    if column.format == "native":
        wrong = _native_remedy(column, sample, is_number)
    elif column.format in PER_SECOND and not is_number:
        wrong = _undeclare(column, sample) if is_time else _declare_text(str(sample))
    elif column.format not in PER_SECOND and not isinstance(sample, str):
        wrong = _undeclare(column, sample) if is_time else _declare_unit(_units([sample]))
    if wrong:
        raise SourceError(f"time column {column.column!r} holds {str(sample)!r}; {wrong}", "data", True)


def _undeclare(column: TimeColumn, sample: object) -> str:
    """How to declare a native time instead: by its zone, if it names none."""
    more = _native_remedy(replace(column, format="native"), sample, False)
    return f"remove its format; {more}" if more else "remove its format"


def _native_remedy(column: TimeColumn, sample: object, is_number: bool) -> str:
    if is_number:
        return _declare_unit(_units([sample]))
    if not isinstance(sample, date):
        return _declare_text(str(sample))
    if not isinstance(sample, datetime):
        return "name a column that includes the time of day"
    if sample.tzinfo is None and column.timezone is None:
        return "it has no zone, so declare e.g. timezone: UTC"
    if sample.tzinfo is not None and column.timezone is not None:
        return f"it names its zone, so remove timezone: {column.timezone}"
    return ""


def _declare_text(sample: str) -> str:
    """How to declare a text time, judged by its format."""
    found = _WRITTEN.fullmatch(sample.strip())
    if found is None:
        return _convert_text(sample) or "declare e.g. format: '%Y-%m-%d %H:%M:%S'"
    parts, between, fraction, zone = found[1], found[2], found[3], found[4]
    form = f"%Y{parts}%m{parts}%d{between}%H:%M:%S{'.%f' if fraction else ''}"
    if not zone:
        return f"declare e.g. format: '{form}', and its timezone, e.g. timezone: UTC"
    if re.fullmatch(_ZONE, zone, re.ASCII):
        return f"declare e.g. format: '{form}{zone}'"
    return "text with offsets other than UTC does not sort by time; convert it to UTC in a `select:`"


def _convert_text(sample: str) -> str:
    """What to do with text that no format can read; empty if one may."""
    if re.fullmatch(r"\d{4}([-/.]?)\d\d\1\d\d", sample.strip(), re.ASCII):
        return "name a column that has the time of day too"
    if re.fullmatch(r"-?\d+(?:\.\d+)?", sample.strip(), re.ASCII):
        return f"it is a number written as text; convert it in a `select:` and {_declare_unit(_units([sample]))}"
    return ""


def _from_native(column: TimeColumn, values: Sequence[Any]) -> Moments:
    """Times in the column's zone, or in UTC if they name their own; NaT for anything else."""
    epoch = _EPOCH if column.timezone is not None else _EPOCH.replace(tzinfo=UTC)
    try:
        micros = [_NOT_A_TIME if value is None else (value - epoch) // _MICRO for value in values]
    except TypeError:
        micros = [(value - epoch) // _MICRO if _is_like(value, epoch) else _NOT_A_TIME for value in values]
    return np.array(micros, np.int64).view("datetime64[us]")


def _is_like(value: object, epoch: datetime) -> bool:
    return isinstance(value, datetime) and (value.tzinfo is None) == (epoch.tzinfo is None)


def _from_epoch(values: Sequence[object], per_second: int) -> Instants:
    number = floats(values)
    scale = 1_000_000 // per_second
    bad = ~(np.abs(number) < 2**62 / scale)
    return Instants(np.floor(np.where(bad, 0, number) * scale).astype(np.int64), bad, np.zeros(len(bad), np.int64))


def _units(values: Sequence[object]) -> list[str]:
    """The epoch formats, and `_NANOSECONDS`, in which some values are credible."""
    numbers, units = floats(values), PER_SECOND | {_NANOSECONDS: 1_000_000_000}
    return [f for f, n in units.items() if ((numbers >= CREDIBLE[0] * n) & (numbers < CREDIBLE[1] * n)).any()]


def _declare_unit(units: Sequence[str]) -> str:
    if not units:
        return "declare format: epoch_s, _ms or _us"
    if units[0] == _NANOSECONDS:
        return "divide the nanoseconds by 1000 in a `select:` and declare format: epoch_us"
    return f"declare format: {units[0]}"


def _to_seconds(form: str) -> str:
    return form.partition("%S")[0] + "%S"


def _from_text(column: TimeColumn, values: Sequence[object]) -> Instants:
    template = re.sub("%(.)", lambda found: "\0" * (4 if found[1] == "Y" else 2), _to_seconds(column.format))
    texts: Any = values if {*map(type, values)} == {str} else [v if isinstance(v, str) else "" for v in values]
    fraction = _fractions(texts, len(template), column.timezone is None)
    moments = _to_the_second(texts, template)
    moments[fraction < 0] = np.datetime64("NaT")
    micros, unreadable, later = _to_utc(column, moments)
    for i in np.flatnonzero(unreadable).tolist():
        micros[i] = _place(column, values[i])
    return Instants(micros + np.where(unreadable, 0, fraction), unreadable, later)


def _to_the_second(texts: Sequence[str], template: str) -> Moments:
    """Times truncated to seconds; NaT for text not written like `template`, whose digits are NUL."""
    codes = np.array(texts, f"U{len(template)}").view(np.uint32).reshape(-1, len(template))
    good = np.ones(len(texts), bool)
    numbers: list[Ints] = []
    places = [place for place, character in enumerate(template) if character == "\0"]
    for place in set(range(len(template))) - set(places):
        good &= codes[:, place] == ord(template[place])
    for field in (places[:4], *(places[i : i + 2] for i in range(4, 14, 2))):
        number = np.zeros(len(texts), np.int64)
        for place in field:
            digit = codes[:, place] - np.uint32(ord("0"))  # characters below "0" wrap to large numbers
            good &= digit <= 9
            number = number * 10 + digit
        numbers.append(number)
    year, month, day, hour, minute, second = numbers
    good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
    months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + np.where(good, day - 1, 0)
    good &= days.astype("datetime64[M]") == months  # the month has that day
    moments: Moments = days.astype("datetime64[us]") + np.where(good, (hour * 60 + minute) * 60 + second, 0) * 1_000_000
    moments[~good] = np.datetime64("NaT")
    return moments


def _fractions(texts: Sequence[str], width: int, has_zone: bool) -> Ints:
    """Microseconds after the first `width` characters of each text; -1 if malformed."""
    tails = [text[width:] for text in texts]
    known = {tail: _fraction(tail, has_zone) for tail in set(tails)}
    if len(known) == 1:
        return np.full(len(tails), known[tails[0]])
    return np.fromiter((known[tail] for tail in tails), np.int64, len(tails))


def _fraction(tail: str, has_zone: bool) -> int:
    """Microseconds from an optional fraction and UTC suffix; -1 if malformed."""
    match = re.fullmatch(rf"(?:[.,](\d+))?{_ZONE if has_zone else ''}", tail, re.ASCII)
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
        return "it has no zone, so declare e.g. timezone: UTC"
    if column.timezone is not None and not _from_text(replace(column, timezone=None), [sample]).unreadable[0]:
        return f"it names its zone, so remove timezone: {column.timezone}"
    if convert := _convert_text(sample):
        return convert
    return f"it is not in the format {column.format!r}; declare its format, and convert other zones in a `select:`"


def _to_utc(column: TimeColumn, moments: Moments) -> Instants:
    unreadable = np.isnat(moments)
    micros = np.where(unreadable, 0, moments.astype(np.int64))
    later = np.zeros(len(micros), np.int64)
    if column.timezone is not None and column.timezone != "UTC":
        before, after = _offsets(ZoneInfo(column.timezone), micros)
        later = np.where(unreadable, 0, abs(after - before))
        micros = np.where(unreadable, 0, micros - np.maximum(before, after))
    return Instants(micros, unreadable, later)


def _offsets(zone: ZoneInfo, local: Ints) -> tuple[Ints, Ints]:
    """Offsets from UTC in microseconds, (n,) each, before and after a nearby clock change; equal away from one."""
    days = local // _DAY
    first = int(days.min(initial=0))
    seen = np.zeros(int(days.max(initial=0)) - first + 1, bool)
    seen[days - first] = True
    of_day = np.zeros((2, len(seen)), np.int64)
    changing = np.zeros(len(seen), bool)
    for day in np.flatnonzero(seen).tolist():
        begin = (day + first) * _DAY
        of_day[:, day] = at_begin = _offset(zone, begin)
        changing[day] = len({*at_begin, *_offset(zone, begin + _DAY - 1)}) > 1
    found = of_day[:, days - first]
    for i in np.flatnonzero(changing[days - first]).tolist():
        found[:, i] = _offset(zone, int(local[i]))
    return found[0], found[1]


def _offset(zone: ZoneInfo, local: int) -> tuple[int, int]:
    moment = (_EPOCH + timedelta(microseconds=local)).replace(tzinfo=zone)
    before, after = ((one.utcoffset() or timedelta()) // _MICRO for one in (moment, moment.replace(fold=1)))
    return before, after


def changes_clocks(column: TimeColumn, since: int, until: int) -> bool:
    """Whether clocks change in the column's zone in [since, until) seconds, or close to it."""
    if column.timezone in (None, "UTC"):
        return False
    return any(slack(column, at) for at in (*range(since, until, _STEP), until))


@dataclass(frozen=True)
class Blocks:
    """Blocks of time on a fixed grid, so that results do not depend on the range read.

    Attributes:
        width: of a block, seconds.
        before, after: seconds around an event's block in which its row is looked for.
    """

    width: int
    before: int
    after: int

    @classmethod
    def of(cls, monitor: Monitor, recipe: Events) -> Blocks:
        """The grid of a monitor."""
        span = monitor.max_request_span
        return cls(max(monitor.bucket, recipe.attribution), recipe.attribution + span, span)

    def cut(self, since: int, until: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Parts [since, until) of the range within one block each, and the reach of each."""
        for block in range(since - since % self.width, until, self.width):
            part = max(block, since), min(block + self.width, until)
            yield *part, self.reach(*part)

    def reach(self, since: int, until: int) -> tuple[int, int]:
        """[since, until) seconds of the rows that events in that range can fall on."""
        return rounded_down(since, self.width) - self.before, rounded_up(until, self.width) + self.after

    @property
    def around(self) -> int:
        """Seconds read before and after the range, for the rows of its events and their events."""
        return self.before + self.after

    def is_near(self, event: Ints, row: Ints) -> Bools:
        """(n,) whether each event can fall on its row, from the microseconds of both."""
        block = event - event % (self.width * MICROS)
        near: Bools = (row >= block - self.before * MICROS) & (row < block + (self.width + self.after) * MICROS)
        return near
