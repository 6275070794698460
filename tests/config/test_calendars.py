"""Known days, in the configuration and in an iCalendar file."""

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


def test_days_are_taken_as_they_are_written(tmp_path: Path) -> None:
    drift = loaded(tmp_path, "calendar: [{from: 2026-11-27, until: 2026-12-01T06:00Z, note: Black Friday}]").drift
    assert drift is not None
    begin, end = parse_instant("2026-11-27"), parse_instant("2026-12-01T06:00Z")
    assert drift.calendar == (KnownDays(begin, end, "Black Friday"),)


def test_two_daemons_with_other_days_judge_otherwise(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("lines", "zone", "span"),
    [
        (["DTSTART;VALUE=DATE:20260704"], "", ("2026-07-04T00:00", "2026-07-05T00:00")),
        (["DTSTART;VALUE=DATE:20260704"], "America/New_York", ("2026-07-04T04:00", "2026-07-05T04:00")),
        (["DTSTART:20260704T100000", "DURATION:PT2H"], "Europe/Berlin", ("2026-07-04T08:00", "2026-07-04T10:00")),
        (["DTSTART:20260704T100000Z", "DURATION:PT1H"], "Asia/Tokyo", ("2026-07-04T10:00", "2026-07-04T11:00")),
        (["DTSTART;TZID=Asia/Tokyo:20260704T090000", "DURATION:PT1H"], "", ("2026-07-04T00:00", "2026-07-04T01:00")),
    ],
)  # fmt: skip
def test_an_event_lies_in_its_own_zone_or_in_the_calendars(lines: list[str], zone: str, span: tuple[str, str]) -> None:
    (found,) = known_days(file(event(*lines), zone=zone))
    assert (found["from"], found["until"]) == tuple(f"{at}:00Z" for at in span)
    assert "note" not in found


def test_what_comes_each_year_comes_each_year_but_for_its_exceptions_and_what_was_cancelled() -> None:
    yearly = event("DTSTART;VALUE=DATE:20201224", "RRULE:FREQ=YEARLY", "EXDATE;VALUE=DATE:20221224", "SUMMARY:Eve")
    gone = event("DTSTART;VALUE=DATE:20260101", "STATUS:CANCELLED", uid="2")
    found = known_days(file(yearly, gone))
    years = [one["from"][:4] for one in found]
    assert years[:3] == ["2020", "2021", "2023"]
    assert years[-1] == "2099"


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
    ],
)  # fmt: skip
def test_bad_days_are_named_with_their_place(tmp_path: Path, drift: str, text: str, said: str) -> None:
    assert said in refused(tmp_path, drift, "days.ics" if text else "", text)
