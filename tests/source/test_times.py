"""Times as columns write them: bounds that miss nothing, values read back, and wrong declarations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.errors import SourceError
from monitor.source.times import bound, changes_clocks, check, slack, to_micros
from monitor.types import TimeColumn

MICROS = 1_000_000
ISO = TimeColumn("at", "%Y-%m-%dT%H:%M:%SZ")
PLAIN = TimeColumn("at", "%Y-%m-%d %H:%M:%S", "UTC")
COMPACT = TimeColumn("at", "%Y%m%d%H%M%S", "UTC")
BERLIN = TimeColumn("at", "%Y-%m-%d %H:%M:%S", "Europe/Berlin")
NATIVE = TimeColumn("at")
NAIVE = TimeColumn("at", "native", "Europe/Berlin")
EPOCHS = {f: TimeColumn("at", f) for f in ("epoch_s", "epoch_ms", "epoch_us")}
ZONES = ("Europe/Berlin", "America/New_York", "America/Havana", "Australia/Lord_Howe", "Antarctica/Troll", "UTC")

SPRING = int(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp())  # Berlin: 02:00 becomes 03:00
AUTUMN = int(datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp())  # Berlin: 03:00 becomes 02:00
CHANGES = {  # of 2026; UTC has none
    "Europe/Berlin": (SPRING, AUTUMN),
    "America/New_York": (1772953200, 1793512800),
    "America/Havana": (1772946000, 1793509200),  # at midnight
    "Australia/Lord_Howe": (1775314800, 1791041400),  # by half an hour
    "Antarctica/Troll": (SPRING, AUTUMN),  # by two hours
    "UTC": (SPRING, AUTUMN),
}


def micros(text: str) -> int:
    """Microseconds of an instant in UTC."""
    return round(datetime.fromisoformat(text + "+00:00").timestamp() * MICROS)


def naive(text: str) -> datetime:
    """A clock's reading without a zone."""
    return datetime.fromisoformat(text)


def local(zone: str, instant: float) -> datetime:
    """What a clock in the zone showed."""
    return datetime.fromtimestamp(instant, ZoneInfo(zone)).replace(tzinfo=None)


def read(column: TimeColumn, *values: object) -> list[int]:
    """Microseconds of values that are all readable and unambiguous."""
    instants = to_micros(column, values)
    assert not instants.unreadable.any()
    assert not instants.doubtful.any()
    return instants.micros.tolist()


# ---- values ------------------------------------------------------------------------------------------------------


def test_text_may_have_a_fraction_and_any_spelling_of_utc() -> None:
    tails = ["Z", ".5Z", ".123456789Z", ",25Z", "+00:00", ".5+00:00", "-00:00", "+0000", "+00", " UTC", "UTC"]
    fractions = [0, 500_000, 123_456, 250_000, 0, 500_000, 0, 0, 0, 0, 0]
    noon = micros("2026-01-01T12:00:00")
    assert read(ISO, *(f"2026-01-01T12:00:00{tail}" for tail in tails)) == [noon + f for f in fractions]
    assert read(PLAIN, "2026-01-01 12:00:00", "2026-01-01 12:00:00.000001") == [noon, noon + 1]
    assert read(COMPACT, "20260101120000", "20260101120000.25") == [noon, noon + 250_000]


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01 12:00:00Z",
        "2026-01-01T12:00Z",
        "2026-01-01",
        "2026-1-1T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T12:00:60Z",
        "2026-01-01T12:00:00",
        "2026-01-01T12:00:00+02:00",
        "2026-01-01T12:00:00.Z",
        "2026-01-01T12:00:00.5",
        "2026-01-01T12:00:00Z ",
        " 2026-01-01T12:00:00Z",
        "2026-01-01T12:00:00٣Z",
        "2026-01-01Tab:00:00Z",
        "2026-01-01T 2:00:00Z",
        "2026-01-01T12:60:00Z",
        "0000-01-01T12:00:00Z",
        "-026-01-01T12:00:00Z",
        "soon",
        "",
    ],
)
def test_only_text_unlike_the_declared_format_is_unreadable(text: str) -> None:
    good = "2026-01-01T12:00:00Z"
    instants = to_micros(ISO, [good, text, None, good])
    assert instants.unreadable.tolist() == [False, True, True, False]
    assert instants.micros[[0, 3]].tolist() == [micros("2026-01-01T12:00:00")] * 2


def test_unreadable_text_is_placed_where_it_sorts_among_times() -> None:
    texts = ["2026-01-01T12:00:0?", "2026-01-01T12:3", "2026-01-01T12:00:00+02:00", "0", "zzz"]
    places = to_micros(ISO, texts).micros.tolist()
    ends = ["2026-01-01T12:00:09", "2026-01-01T12:29:59", "2026-01-01T12:00:00"]
    assert places[:3] == [micros(end) + 999_999 for end in ends]
    assert places[3] == 0
    assert places[4] > micros("2200-01-01T00:00:00")


def test_epochs_are_read_exactly_to_the_microsecond() -> None:
    assert read(EPOCHS["epoch_s"], 1_700_000_000, 1_700_000_000.25, Decimal("1700000000.5")) == [
        1_700_000_000_000_000,
        1_700_000_000_250_000,
        1_700_000_000_500_000,
    ]
    assert read(EPOCHS["epoch_ms"], 1_700_000_000_123, -1) == [1_700_000_000_123_000, -1000]
    assert read(EPOCHS["epoch_us"], 1_700_000_000_123_457) == [1_700_000_000_123_457]
    instants = to_micros(EPOCHS["epoch_s"], [1, None, float("nan"), float("inf"), 1e300, "x"])
    assert instants.unreadable.tolist() == [False, True, True, True, True, True]


def test_native_times_are_read_in_any_zone() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert read(NATIVE, noon, east, noon + timedelta(microseconds=1)) == [
        micros("2026-01-01T12:00:00"),
        micros("2026-01-01T12:00:00"),
        micros("2026-01-01T12:00:00.000001"),
    ]
    assert read(NAIVE, naive("2026-01-01T13:00"), naive("2026-07-01T14:00")) == [
        micros("2026-01-01T12:00:00"),
        micros("2026-07-01T12:00:00"),
    ]
    assert to_micros(NATIVE, [None, noon]).unreadable.tolist() == [True, False]


def test_only_values_that_are_not_native_times_are_unreadable() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    others = ["0000-00-00 00:00:00", noon.replace(tzinfo=None), noon.date(), 5]
    assert to_micros(NATIVE, [noon, *others, noon]).unreadable.tolist() == [False, *[True] * 4, False]
    assert to_micros(NAIVE, [noon.replace(tzinfo=None), noon]).unreadable.tolist() == [False, True]


@pytest.mark.parametrize("column", [ISO, PLAIN, NATIVE, NAIVE, *EPOCHS.values()], ids=str)
def test_empty_and_missing_values_are_not_errors(column: TimeColumn) -> None:
    assert [len(a) for a in to_micros(column, [])] == [0, 0, 0]
    assert to_micros(column, [None, None]).unreadable.tolist() == [True, True]


# ---- clock changes -----------------------------------------------------------------------------------------------


def test_a_repeated_hour_is_read_as_the_earlier_and_doubtful() -> None:
    instants = to_micros(BERLIN, ["2026-10-25 01:59:59", "2026-10-25 02:00:00", "2026-10-25 02:59:59.5"])
    assert instants.doubtful.tolist() == [False, True, True]
    assert instants.micros.tolist() == [(AUTUMN - 3601) * MICROS, (AUTUMN - 3600) * MICROS, AUTUMN * MICROS - 500_000]
    assert read(BERLIN, "2026-10-25 03:00:00") == [(AUTUMN + 3600) * MICROS]


def test_a_skipped_hour_is_read_as_the_earlier_and_doubtful() -> None:
    instants = to_micros(NAIVE, [local("Europe/Berlin", SPRING - 1), naive("2026-03-29T02:30")])
    assert instants.doubtful.tolist() == [False, True]
    assert instants.micros.tolist() == [(SPRING - 1) * MICROS, (SPRING - 1800) * MICROS]
    assert read(NAIVE, naive("2026-03-29T03:00")) == [SPRING * MICROS]


def test_an_unreadable_local_time_is_not_also_doubtful() -> None:
    instants = to_micros(BERLIN, ["2026-10-25 02:30:0x", "2026-10-25 02:30:00"])
    assert instants.unreadable.tolist() == [True, False]
    assert instants.doubtful.tolist() == [False, True]


def test_utc_has_no_doubtful_times_and_needs_no_slack() -> None:
    assert read(PLAIN, "2026-10-25 02:30:00") == [micros("2026-10-25T02:30:00")]
    assert slack(PLAIN, AUTUMN) == slack(ISO, AUTUMN) == 0


@pytest.mark.parametrize(
    ("zone", "by"), [("Europe/Berlin", 3600), ("Australia/Lord_Howe", 1800), ("Antarctica/Troll", 7200)]
)
def test_bounds_are_widened_by_a_clock_change_and_only_near_it(zone: str, by: int) -> None:
    column = TimeColumn("at", timezone=zone)
    for change in CHANGES[zone]:
        assert [slack(column, change + s) for s in (-by - 1, -by + 1, 0, by - 1, by + 1)] == [0, by, by, by, 0]
        assert changes_clocks(column, change - 1, change + 1)
        assert changes_clocks(column, change - 20 * by, change - by + 1)
        assert not changes_clocks(column, change - 20 * by, change - by - 1)


def test_a_skipped_day_widens_bounds_by_a_day() -> None:
    column, left_out = TimeColumn("at", timezone="Pacific/Apia"), datetime(2011, 12, 30, 10, tzinfo=UTC).timestamp()
    assert slack(column, left_out) == 24 * 3600
    assert read(column, naive("2011-12-29T23:59"), naive("2011-12-31T00:00")) == [
        int(left_out - 60) * MICROS,
        int(left_out) * MICROS,
    ]


instants = st.builds(
    lambda zone, change, after: (zone, CHANGES[zone][change] + after),
    st.sampled_from(ZONES),
    st.integers(0, 1),
    st.integers(-9000, 9000) | st.integers(-10_000_000, 10_000_000),
)


@given(instants, st.integers(0, 9000), st.integers(1, 9000), st.sampled_from([True, False]))
@example(("Europe/Berlin", AUTUMN + 10), 0, 1, True)
@example(("Europe/Berlin", AUTUMN - 3600), 0, 1, True)
def test_a_local_time_is_within_the_bounds_of_the_instant_it_is_read_as(
    case: tuple[str, int], before: int, after: int, as_text: bool
) -> None:
    zone, instant = case
    column = TimeColumn("at", PLAIN.format if as_text else "native", zone)
    value: Any = local(zone, instant).strftime(PLAIN.format) if as_text else local(zone, instant)
    found = to_micros(column, [value])
    at = found.micros[0] // MICROS
    assert instant in (at, at + found.later[0] // MICROS)
    since, until = at - before, at + after
    low: Any = bound(column, since - slack(column, since))
    high: Any = bound(column, until + slack(column, until))
    assert low <= value < high


@given(
    st.sampled_from([ISO, PLAIN, COMPACT, *EPOCHS.values(), NATIVE]),
    st.integers(-(10**8), 2**32),
    st.sampled_from([0, 0.25, 0.5, 0.75]),
)
def test_a_bound_separates_earlier_from_later_times(column: TimeColumn, instant: int, fraction: float) -> None:
    if column.format.startswith("%"):
        instant = abs(instant)
    edge: Any = bound(column, instant)
    assert bound(column, instant + fraction) == edge
    whole: list[Any] = [bound(column, instant + s) for s in (-1, 1)] if instant else [edge, bound(column, 1)]
    assert whole[0] <= edge < whole[1]
    if isinstance(edge, str):
        assert edge <= f"{edge}Z" < whole[1]
        assert edge <= f"{edge}{str(fraction)[1:]}Z" < whole[1]


# ---- declarations that do not fit --------------------------------------------------------------------------------

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WRONG: dict[str, tuple[TimeColumn, Sequence[object], str]] = {
    "seconds that are milliseconds": (EPOCHS["epoch_s"], [1_767_268_800_000], "declare format: epoch_ms"),
    "milliseconds that are seconds": (EPOCHS["epoch_ms"], [1_767_268_800.5], "declare format: epoch_s"),
    "microseconds that are milliseconds": (EPOCHS["epoch_us"], [1_767_268_800_000], "declare format: epoch_ms"),
    "microseconds that are nanoseconds": (
        EPOCHS["epoch_us"],
        [1_767_268_800 * 10**9],
        "divide the nanoseconds by 1000",
    ),
    "native that is milliseconds": (NATIVE, [1_767_268_800_000], "declare format: epoch_ms"),
    "native that is nanoseconds": (NATIVE, [1_767_268_800 * 10**9], "in a `select:` and declare format: epoch_us"),
    "epochs that are numbers in text": (EPOCHS["epoch_ms"], ["1767268800000"], "convert it in a `select:` and declare"),
    "native that is a number in text": (NATIVE, ["1767268800.25"], "number written as text; convert it"),
    "text that is a number in text": (PLAIN, ["1767268800"], "and declare format: epoch_s"),
    "text that is a day": (PLAIN, ["2026-01-01"], "name a column that has the time of day too"),
    "native that is a day in text": (NATIVE, ["20260101"], "name a column that has the time of day too"),
    "epochs that are text": (EPOCHS["epoch_s"], ["1 January 2026"], "declare e.g. format: '%Y-"),
    "epochs that are timestamps": (EPOCHS["epoch_ms"], [NOON], "remove its format"),
    "native that is text": (NATIVE, [None, "2026-01-01 12:00:00"], "declare e.g. format: '%Y-%m-%d %H:%M:%S'"),
    "native that is ISO text": (NATIVE, ["2026-01-01T12:00:00.123456Z"], "format: '%Y-%m-%dT%H:%M:%S.%fZ'"),
    "native that is text without a zone": (
        NATIVE,
        ["2026-01-01T12:00:00"],
        "format: '%Y-%m-%dT%H:%M:%S', and its time",
    ),
    "native that is text with an offset": (NATIVE, ["2026-01-01 12:00:00+02"], "convert it to UTC in a `select:`"),
    "epochs that are ISO text": (EPOCHS["epoch_ms"], ["2026/01/01 12:00:00 UTC"], "format: '%Y/%m/%d %H:%M:%S UTC'"),
    "native that is a number": (NATIVE, [1_767_268_800], "declare format: epoch_s"),
    "native that is a decimal": (NATIVE, [Decimal(1_767_268_800)], "declare format: epoch_s"),
    "native without a zone": (NATIVE, [NOON.replace(tzinfo=None)], "declare e.g. timezone: UTC"),
    "native with a zone twice": (NAIVE, [NOON], "remove timezone: Europe/Berlin"),
    "native that is a day": (NATIVE, [date(2026, 1, 1)], "time of day"),
    "text that is a timestamp": (ISO, [NOON], "remove its format"),
    "text that is a number": (PLAIN, [1_767_268_800], "declare format: epoch_s"),
    "text with another separator": (ISO, ["2026-01-01 12:00:00Z"], "not in the format '%Y-%m-%dT%H:%M:%SZ'"),
    "text with another zone": (ISO, ["2026-01-01T12:00:00+02:00"], "convert other zones"),
    "text without a zone": (ISO, ["2026-01-01T12:00:00"], "declare e.g. timezone: UTC"),
    "text with a zone twice": (BERLIN, ["2026-01-01 12:00:00Z"], "remove timezone: Europe/Berlin"),
}


@pytest.mark.parametrize(("column", "values", "remedy"), WRONG.values(), ids=WRONG)
def test_a_wrong_declaration_is_refused_with_a_remedy(
    column: TimeColumn, values: Sequence[object], remedy: str
) -> None:
    with pytest.raises(SourceError, match="time column 'at' holds") as caught:
        check(column, values)
    assert remedy in str(caught.value)
    assert caught.value.reason == "data"


def test_one_value_that_fits_the_declaration_is_enough() -> None:
    check(ISO, ["soon", "2026-01-01T12:00:00Z"])
    check(EPOCHS["epoch_s"], [0, 1_767_268_800])
    check(EPOCHS["epoch_s"], [7200, 10_800])
    check(NATIVE, [NOON])
    check(ISO, [])
