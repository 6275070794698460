"""Known days, from the configuration and from an iCalendar file."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.config import load
from monitor.config.calendars import known_days
from monitor.errors import ConfigError
from monitor.fields import parse_instant
from monitor.types import KnownDays, Monitor

CONFIG = """\
store: {{url: sqlite:///store.db}}
sources: {{shop: {{url: sqlite:///shop.db}}}}
monitors:
  - name: shop
    source: shop
    rankings: {{table: rankings, request: request_id, item: item_id, position: position, time: served_at}}
    relevance: {{column: {{grade: label, max_grade: 1}}}}
    measures: [ndcg@10]
    drift: {{{drift}}}
"""
FILE = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//example//holidays//EN
{zone}{events}END:VCALENDAR
"""


def event(*lines: str, uid: str = "1") -> str:
    return "\n".join(["BEGIN:VEVENT", f"UID:{uid}", "DTSTAMP:20250101T000000Z", *lines, "END:VEVENT", ""])


def file(*events: str, zone: str = "") -> str:
    return FILE.format(zone=f"X-WR-TIMEZONE:{zone}\n" if zone else "", events="".join(events)).replace("\n", "\r\n")


def loaded(folder: Path, drift: str, name: str = "", text: str = "") -> Monitor:
    (folder / "rankmon.yaml").write_text(CONFIG.format(drift=drift), encoding="utf-8")
    if name:
        (folder / name).write_text(text, encoding="utf-8")
    return load(folder / "rankmon.yaml", {}).monitors[0]


def refused(folder: Path, drift: str, name: str = "", text: str = "") -> str:
    with pytest.raises(ConfigError) as error:
        loaded(folder, drift, name, text)
    return str(error.value)


def test_calendar_days_keep_their_dates_and_note(tmp_path: Path) -> None:
    drift = loaded(tmp_path, "calendar: [{from: 2026-11-27, until: 2026-12-01T06:00Z, note: Black Friday}]").drift
    assert drift is not None
    begin, end = parse_instant("2026-11-27"), parse_instant("2026-12-01T06:00Z")
    assert drift.calendar == (KnownDays(begin, end, "Black Friday"),)


def test_different_calendar_days_change_how_a_monitor_is_judged(tmp_path: Path) -> None:
    drifts = (
        "calendar: [{from: 2026-11-27, until: 2026-11-28}]",
        "calendar: [{from: 2026-11-27, until: 2026-11-29}]",
        "",
    )
    assert len({loaded(tmp_path, drift).judged_as for drift in drifts}) == 3


def test_an_icalendar_file_gives_its_events(tmp_path: Path) -> None:
    text = file(event("DTSTART;VALUE=DATE:20261225", "DTEND;VALUE=DATE:20261227", "SUMMARY:Christmas"))
    drift = loaded(tmp_path, "calendar_file: holidays.ics", "holidays.ics", text).drift
    assert drift is not None
    assert drift.calendar == (KnownDays(parse_instant("2026-12-25"), parse_instant("2026-12-27"), "Christmas"),)


def spans(folder: Path, drift: str, text: str = "") -> list[tuple[int, int]]:
    found = loaded(folder, drift, "days.ics" if text else "", text).drift
    assert found is not None
    return [(one.since, one.until) for one in found.calendar]


IN_TOKYO = "DTSTART;TZID=Asia/Tokyo:20260704T090000"
ALL_DAY = ["DTSTART;VALUE=DATE:20260704"]


@pytest.mark.parametrize(
    ("lines", "zone", "given", "span"),
    [
        (ALL_DAY, "", "", ("2026-07-04T00:00", "2026-07-05T00:00")),
        (ALL_DAY, "America/New_York", "", ("2026-07-04T04:00", "2026-07-05T04:00")),
        (ALL_DAY, "UTC", "Europe/Berlin", ("2026-07-03T22:00", "2026-07-04T22:00")),
        (["DTSTART;VALUE=DATE:20260329"], "", "Europe/Berlin", ("2026-03-28T23:00", "2026-03-29T22:00")),
        (["DTSTART:20260704T100000", "DURATION:PT2H"], "Europe/Berlin", "", ("2026-07-04T08:00", "2026-07-04T10:00")),
        (["DTSTART:20260704T100000", "DURATION:PT2H"], "", "Asia/Tokyo", ("2026-07-04T01:00", "2026-07-04T03:00")),
        (["DTSTART:20260704T100000Z", "DURATION:PT1H"], "Asia/Tokyo", "UTC", ("2026-07-04T10:00", "2026-07-04T11:00")),
        ([IN_TOKYO, "DURATION:PT1H"], "", "UTC", ("2026-07-04T00:00", "2026-07-04T01:00")),
    ],
)  # fmt: skip
def test_an_event_uses_its_own_zone_or_the_calendars(
    tmp_path: Path, lines: list[str], zone: str, given: str, span: tuple[str, str]
) -> None:
    drift = "calendar_file: days.ics" + (f", timezone: {given}" if given else "")
    begin, end = (parse_instant(f"{at}Z") for at in span)
    assert spans(tmp_path, drift, file(event(*lines), zone=zone)) == [(begin, end)]


@pytest.mark.parametrize(
    ("names", "begin"),
    [
        (["Europe/Berlin"], "2026-07-03T22:00Z"),
        (["W. Europe Standard Time"], "2026-07-03T22:00Z"),
        (["Europe/Berlin", "Asia/Tokyo"], "2026-07-04T00:00Z"),
        (["Our own time"], "2026-07-04T00:00Z"),
    ],
)
def test_a_calendar_without_a_zone_uses_its_only_vtimezone(tmp_path: Path, names: list[str], begin: str) -> None:
    standard = "BEGIN:STANDARD\nDTSTART:19701025T030000\nTZOFFSETFROM:+0200\nTZOFFSETTO:+0100\nEND:STANDARD\n"
    zones = [f"BEGIN:VTIMEZONE\nTZID:{name}\n{standard}END:VTIMEZONE\n" for name in names]
    ((since, _),) = spans(tmp_path, "calendar_file: days.ics", file(*zones, event(*ALL_DAY)))
    assert since == parse_instant(begin)


def test_configured_days_use_the_configured_zone_by_default(tmp_path: Path) -> None:
    days = "calendar: [{from: 2026-07-04, until: 2026-07-05T00:00Z}, {from: 2026-07-06 UTC, until: 2026-07-07}]"
    assert spans(tmp_path, f"{days}, timezone: America/New_York") == [
        (parse_instant("2026-07-04T04:00Z"), parse_instant("2026-07-05T00:00Z")),
        (parse_instant("2026-07-06T00:00Z"), parse_instant("2026-07-07T04:00Z")),
    ]


def test_yearly_events_recur_except_on_excluded_dates() -> None:
    yearly = event("DTSTART;VALUE=DATE:20201224", "RRULE:FREQ=YEARLY", "EXDATE;VALUE=DATE:20221224", "SUMMARY:Eve")
    gone = event("DTSTART;VALUE=DATE:20260101", "STATUS:CANCELLED", uid="2")
    found = known_days(file(yearly, gone))
    years = [one["from"][:4] for one in found]
    assert years[:3] == ["2020", "2021", "2023"]
    assert years[-1] == "2099"
    assert {one["from"][5:] for one in found} == {"12-24"}, "the cancelled day is left out"


@pytest.mark.parametrize(
    ("drift", "text", "said"),
    [
        ("calendar: [{from: 2026-11-28, until: 2026-11-27}]", "", "calendar[0]: ends before it begins"),
        ("calendar: [{from: 2026-11-28}]", "", "monitors[0].drift.calendar[0].until"),
        ("calendar: [{from: yesterday, until: 2026-11-27}]", "", "monitors[0].drift.calendar[0].from"),
        ("calendar_file: there.ics", "", "there is no file"),
        ("calendar_file: days.ics", "no calendar", "days.ics is not an iCalendar file: "),
        (
            "calendar_file: days.ics",
            file(event("DTSTART;VALUE=DATE:20260101"), zone="Nowhere/At"),
            "is not an iCalendar file: ",
        ),
        ("{calendar_file: days.ics, calendar: []}"[1:-1], file(), "keep just one of them"),
        ("timezone: Berlin, calendar: []", "", "monitors[0].drift.timezone"),
        ("calendar: [{from: 2026-11-27, until: 2026-11-28, zone: UTC}]", "", "calendar[0].zone: there is no such key"),
    ],
)  # fmt: skip
def test_bad_calendar_days_are_reported_with_their_place(tmp_path: Path, drift: str, text: str, said: str) -> None:
    assert said in refused(tmp_path, drift, "days.ics" if text else "", text)
