"""The kinds of values in the configuration, and what can be wrong with a single one."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from monitor.measures.measure import HIGHEST_GAIN
from monitor.units import DAY, HOUR, WEEK

T = TypeVar("T")

LONGEST_DURATION = 3650 * DAY
"""Seconds of the longest duration taken, ten years: far beyond any use, and within what every database can hold."""

FARTHEST = 32_503_680_000
"""The year 3000, in seconds since 1970: later than anything that is read or stored."""

RESERVED_LABELS = frozenset(
    {"monitor", "measure", "window", "definition", "dimension", "value", "severity", "verdict", "state", "reason"}
    | {"stage", "channel", "source", "version", "revision", "le", "quantile", "job", "instance"}
    | {"rule", "paging", "matter", "incident", "runbook_url", "alertname", "python", "result", "metric"}
)
"""Label names that rankmon's own metrics or Prometheus itself use."""

TIME_FORMATS = ("native", "epoch_s", "epoch_ms", "epoch_us")
_BIG_ENDIAN = ["Y", "m", "d", "H", "M", "S"]
_ZONE = re.compile(r"(Z|[ ]?UTC|[+-]00:?00)\Z")
_OTHER_ZONE = re.compile(r"[+-]\d\d(:?\d\d)?\Z")
_UNITS = {"s": 1, "m": 60, "h": HOUR, "d": DAY, "w": WEEK}


def parse_duration(text: str) -> int:
    """Seconds in a duration such as `90s`, `15m`, `24h`, `7d`, `1h30m`.

    Raises:
        ValueError: the text is not a duration of a whole number of seconds.

    >>> parse_duration("1h30m")
    5400
    """
    if not re.fullmatch(r"(\d+[smhdw])+", text.strip()):
        raise ValueError(f"{text!r} is not a duration; write e.g. 90s, 15m, 24h or 7d")
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([smhdw])", text))


def format_duration(seconds: int) -> str:
    """The one text of a duration, used as a label: days from two days on, else the largest unit that fits.

    >>> [format_duration(s) for s in (604800, 86400, 5400, 90)]
    ['7d', '24h', '90m', '90s']
    """
    for unit in ("d", "h", "m"):
        size = _UNITS[unit]
        if seconds and seconds % size == 0 and (unit != "d" or seconds >= 2 * size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def parse_instant(text: str) -> int:
    """Seconds since 1970 of a moment: `2022-02-24`, `2022-02-24 05:00 UTC`, any zone or none (UTC then).

    Raises:
        ValueError: the text is not a moment, or one outside the years that a log can have.

    >>> parse_instant("1970-01-02 01:00+01:00")
    86400
    """
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write e.g. 2022-02-24 or 2022-02-24T05:00Z") from None
    seconds = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    if not 0 <= seconds < FARTHEST:
        raise ValueError(f"{text!r} is not in the years 1970 to 2999; check the year")
    return seconds


def placed(text: str, zone: str) -> str:
    """A moment with the offset of a zone, unless it names one; anything else is left as it is.

    >>> placed("2026-07-04", "Europe/Berlin"), placed("2026-07-04T00:00Z", "Europe/Berlin")
    ('2026-07-04T00:00:00+02:00', '2026-07-04T00:00Z')
    """
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        return text
    is_placed = moment.tzinfo is not None or text.endswith(" UTC")
    return text if is_placed else moment.replace(tzinfo=ZoneInfo(zone)).isoformat()


def _given(value: Any) -> Any:
    if value is None:
        raise PydanticCustomError("empty", "is empty")
    return value


Maybe = Annotated[T | None, BeforeValidator(_given)]
"""May be left out; but where the key stands, it has a value."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("empty", "is empty")
    if "\x00" in text:
        raise ValueError("contains a NUL character, which names and paths cannot; remove it")
    return text.strip()


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9_.-]+", text):
        raise ValueError(f"{text!r} is not a name; use letters, digits, `_`, `.` and `-`")
    if not text.strip("."):  # the address of a monitor's page would lead elsewhere
        raise ValueError(f"{text!r} is not a name; add letters or digits to the dots")
    return text


def _duration(value: Any) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("is a bare number; write the unit, e.g. 90s, 15m, 24h or 7d")
    if not isinstance(_given(value), str):
        raise ValueError("is not a duration; write e.g. 90s, 15m, 24h or 7d")
    seconds = parse_duration(value)
    if seconds > LONGEST_DURATION:
        raise ValueError(f"{value!r} is longer than ten years")
    return seconds


def _positive(seconds: int) -> int:
    if seconds < 1:
        raise ValueError("must be at least 1s")
    return seconds


def no_truth_value(value: Any) -> Any:
    """Refuse true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _grade(value: float) -> float:
    if value < 0:
        raise ValueError(f"a grade is 0 or more, not {value:g}; 0 is not relevant")
    if value > HIGHEST_GAIN:
        raise ValueError(f"a grade is at most {HIGHEST_GAIN:g}")
    return value


def _highest_grade(value: float) -> float:
    if value <= 0:
        raise ValueError(f"must be above 0, not {value:g}")
    return value


def _grade_or_value(given: Any) -> Any:
    """A rule's grade: a number, or None for the event's own value."""
    return None if isinstance(given, str) and given.strip() == "value" else _given(given)


def _label_name(name: str) -> str:
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
        raise ValueError("is not a Prometheus label name; use letters, digits and `_`, and begin with a letter")
    if name in RESERVED_LABELS:
        raise ValueError(f"is a reserved label name; choose another, e.g. my_{name}")
    return name


def _web_address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{text!r} is not a web address; write e.g. https://wiki.example.com/ranking")
    return text


def _page_address(text: str) -> str:
    if "?" in text or "#" in text:
        raise ValueError("has a query string or fragment; give the address without it")
    return _web_address(text)


def _select(text: str) -> str:
    # Blanks around it and the last semicolon mean nothing; without them they do not change a series' identity either.
    text = text.strip().rstrip(";").rstrip()
    if not re.search(r"\bselect\b", text, re.IGNORECASE):
        raise ValueError("is not a SELECT; give a table's name as `table:`")
    return text


def _table(value: Any) -> Any:
    if isinstance(value, str) and not (value := table_parts(text := value)):
        raise ValueError(f"{text!r} is not a table; write e.g. search_log, public.search_log, or `select:` for a query")
    if isinstance(value, tuple):
        return value
    raise PydanticCustomError("string_type", "must be text")


def table_parts(text: str) -> tuple[str, ...]:
    """A table's schema and name; empty if the text names none. A part in double quotes may hold anything.

    >>> table_parts('public."search.log"')
    ('public', 'search.log')
    """
    part = r'(?:"(?:[^"]|"")+"|[^\s".;()]+)'
    if not re.fullmatch(rf"{part}(?:\.{part}){{0,3}}", text):
        return ()
    return tuple(p[1:-1].replace('""', '"') if p.startswith('"') else p for p in re.findall(part, text))


def check_time(form: str, zone: str | None) -> None:
    """Refuse a time format and zone that cannot be read back, or do not sort as time does.

    Raises:
        ValueError: with the remedy.
    """
    if zone is not None:
        _check_zone(zone)
    if form in TIME_FORMATS:
        if form != "native" and zone is not None:
            raise ValueError(f"{form} counts from 1970 in UTC and has no timezone; remove `timezone`")
        return
    _check_pattern(form)
    tail = form.rpartition("%S")[2]
    if _OTHER_ZONE.search(tail) and not _ZONE.search(tail):
        raise ValueError("the format ends in an offset other than +00:00; convert to UTC in a `select:`")
    if _ZONE.search(tail) and zone is not None:
        raise ValueError("the format already names its zone (UTC); remove `timezone`")
    if not _ZONE.search(tail) and zone is None:
        raise ValueError("text without a zone; add the `timezone` it is in, e.g. UTC")


def _check_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (LookupError, ValueError, OSError):
        raise ValueError(f"there is no timezone {zone!r}; write e.g. UTC or Europe/Berlin") from None
    return zone


_TIME_OF_DAY = "([01][0-9]|2[0-3]):([0-5][0-9])|24:00"


def _time_of_day(value: Any) -> int:
    match = re.fullmatch(_TIME_OF_DAY, value) if isinstance(_given(value), str) else None
    if match is None:
        raise ValueError("is not a time of day; write e.g. 09:00, 17:30 or 24:00")
    return 1440 if match[1] is None else int(match[1]) * 60 + int(match[2])


def format_time_of_day(minutes: int) -> str:
    """A time of day as it is written in the configuration, from minutes since midnight.

    >>> format_time_of_day(545), format_time_of_day(1440)
    ('09:05', '24:00')
    """
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _check_pattern(form: str) -> None:
    directives = re.findall(r"%(.?)", form)
    if not directives:
        known = ", ".join(TIME_FORMATS)
        raise ValueError(f"{form!r} is not a time format; use {known}, or a pattern such as '%Y-%m-%dT%H:%M:%SZ'")
    if "z" in directives or "Z" in directives:
        raise ValueError("text with varying offsets does not sort by time; convert to UTC in a `select:`")
    if directives not in (_BIG_ENDIAN, [*_BIG_ENDIAN, "f"]):
        raise ValueError(
            f"{form!r} must contain %Y, %m, %d, %H, %M and %S once each, in this order, so that texts sort by time; "
            "convert others in a `select:`"
        )


@dataclass(frozen=True, slots=True)
class Amount:
    """How much: a share of something else (`7%`), or a number as it is (`0.05`)."""

    number: float
    relative: bool


def _amount(value: Any) -> Amount:
    value = _given(no_truth_value(value))
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return Amount(float(value), False)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a share such as 7%, or a difference such as 0.05; 0 or more")
    if not match[2]:  # a number that is text comes from a variable
        return Amount(float(match[1]), False)
    return Amount(float(match[1]) / 100, True)


def _fall(amount: Amount) -> Amount:
    if amount.relative and amount.number >= 1:
        raise ValueError("a fall of 100% or more is impossible; give less")
    return amount


def _instant(value: Any) -> int:
    if not isinstance(_given(value), str):
        raise ValueError("is not a time; write e.g. 2022-02-24 or 2022-02-24T05:00Z")
    return parse_instant(value)


def http_address(text: str) -> str:
    """The text, if it is a web address. Raises ValueError, without naming it: it may hold a secret."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or any(c.isspace() for c in text):
        raise ValueError("is not a web address; write e.g. https://hooks.example.com/rankmon")
    return text


_DURATION_PATTERN = r"^\s*([0-9]+[smhdw])+\s*$"
_DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": _DURATION_PATTERN, "examples": ["90s", "24h"]})
_TIME_OF_DAY_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^({_TIME_OF_DAY})$"})
WRITTEN = MappingProxyType({_DURATION_PATTERN: format_duration, f"^({_TIME_OF_DAY})$": format_time_of_day})
"""Pattern of a text that stands for a number -> the text of the number."""

Text = Annotated[str, AfterValidator(_not_blank)]
Name = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": "^[a-zA-Z0-9_.-]+$"})]
LabelName = Annotated[str, AfterValidator(_label_name)]
Duration = Annotated[int, BeforeValidator(_duration), _DURATION_SCHEMA]
PositiveDuration = Annotated[int, BeforeValidator(_duration), AfterValidator(_positive), _DURATION_SCHEMA]
TimeOfDay = Annotated[int, BeforeValidator(_time_of_day), _TIME_OF_DAY_SCHEMA]
Zone = Annotated[str, AfterValidator(_check_zone)]
Count = Annotated[int, BeforeValidator(no_truth_value)]
Number = Annotated[float, BeforeValidator(no_truth_value), Field(allow_inf_nan=False)]
Grade = Annotated[Number, AfterValidator(_grade)]
HighestGrade = Annotated[Number, AfterValidator(_grade), AfterValidator(_highest_grade)]
RuleGrade = Annotated[
    Grade | None,
    BeforeValidator(_grade_or_value),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "value"}]}),
]
WebAddress = Annotated[str, AfterValidator(_web_address)]
PageAddress = Annotated[str, AfterValidator(_page_address)]
HttpAddress = Annotated[str, AfterValidator(http_address)]
_AMOUNT_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": "^[0-9.]+\\s*%$"}]}
)
Fall = Annotated[Amount, BeforeValidator(_amount), AfterValidator(_fall), _AMOUNT_SCHEMA]
Rise = Annotated[Amount, BeforeValidator(_amount), _AMOUNT_SCHEMA]
Instant = Annotated[int, BeforeValidator(_instant), WithJsonSchema({"type": "string", "examples": ["2026-01-31"]})]
Table = Annotated[tuple[str, ...], BeforeValidator(_table), WithJsonSchema({"type": "string"})]
Select = Annotated[str, AfterValidator(_select)]
