"""Who is notified: the decision as a table, weekly hours, and check-config's remarks on routes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.cli import run
from monitor.conditions.evidence import MATTERS
from monitor.conditions.rules import SEVERITIES
from monitor.config import load
from monitor.config.remarks import remarks
from monitor.routing import DAYS, Escalation, Route, Routing, WeeklyHours, instants, reached, repeated
from monitor.types import Drift
from tests.config.test_config import MINIMAL
from tests.support.receiver import Receiver
from tests.support.tallies import watched

OFFICE = WeeklyHours("Europe/Berlin", DAYS[:5], 9 * 60, 17 * 60)
NIGHT = WeeklyHours("Europe/Berlin", DAYS, 22 * 60, 7 * 60)
CHAT, PAGER = Route(("chat",)), Route(("pager",), severity=("critical",))
GOES_ON = replace(PAGER, goes_on=True)
SEARCH = Route(("search",), labels=(("team", "search"),))
MONITOR = replace(watched(), labels=(("team", "search"), ("tier", "1")), notify=("own",))
DATA = replace(MONITOR, drift=Drift(MONITOR.measures[0], data_channels=("owners",)))


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


NOON, MIDNIGHT = at("2026-11-25T12:00+01:00"), at("2026-11-26T00:00+01:00")

CASES: list[tuple[str, list[Any], Any]] = [
    ("nothing configured: the monitor's own", [(), MONITOR, "critical", "quality"], ["own"]),
    ("broken data go to their owners", [(), DATA, "warning", "data"], ["owners"]),
    ("quality does not", [(), DATA, "warning", "quality"], ["own"]),
    ("the first match decides", [(PAGER, CHAT), MONITOR, "critical", "quality"], ["pager"]),
    ("what does not match is passed over", [(PAGER, CHAT), MONITOR, "warning", "quality"], ["chat"]),
    ("continue: the next ones too", [(GOES_ON, CHAT), MONITOR, "critical", "data"], ["pager", "chat"]),
    ("continue to the monitor's own", [(GOES_ON,), DATA, "critical", "data"], ["pager", "owners"]),
    ("one label of two is enough", [(SEARCH,), MONITOR, "info", "data"], ["search"]),
    ("another team's", [(replace(SEARCH, labels=(("team", "ads"),)),), MONITOR, "info", "data"], ["own"]),
    ("by matter", [(replace(CHAT, matter=("data",)),), MONITOR, "info", "quality"], ["own"]),
    ("within hours", [(replace(CHAT, hours=OFFICE),), MONITOR, "info", "quality", NOON], ["chat"]),
    ("outside of them", [(replace(CHAT, hours=OFFICE),), MONITOR, "info", "quality", MIDNIGHT], ["own"]),
    ("Prometheus pages: its own alone", [(CHAT,), replace(MONITOR, paging="prometheus"), "info", "quality"], ["own"]),
]  # fmt: skip


@pytest.mark.parametrize(("given_", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_routes_choose_the_channels(given_: list[Any], wanted: list[str]) -> None:
    routes, monitor, severity, matter, now = (*given_, NOON)[:5]
    assert list(reached(Routing(monitor, routes).decide(severity, (matter,), now))) == wanted


def test_an_incident_of_both_matters_reaches_each_channel_once() -> None:
    assert reached(Routing(DATA).decide("critical", ("data", "quality"), NOON)) == ("owners", "own")
    assert reached(Routing(DATA, (CHAT,)).decide("critical", ("data", "quality"), NOON)) == ("chat",)


def test_escalations_add_channels_with_age_and_the_shortest_repeat_counts() -> None:
    steps = Escalation(1800, ("lead",)), Escalation(7200, ("boss",))
    routes = replace(PAGER, escalate=steps, repeat=600, goes_on=True), replace(PAGER, repeat=900)
    assert [reached(routes, age) for age in (0, 1799, 1800, 7200)] == [
        ("pager",), ("pager",), ("pager", "lead"), ("pager", "lead", "boss"),
    ]  # fmt: skip
    assert repeated(routes) == {"pager": 600}


@pytest.mark.parametrize(
    ("hours", "time", "holds"),
    [
        (OFFICE, "2026-11-25T08:59+01:00", False),
        (OFFICE, "2026-11-25T09:00+01:00", True),
        (OFFICE, "2026-11-25T16:59+01:00", True),
        (OFFICE, "2026-11-25T17:00+01:00", False),
        (OFFICE, "2026-11-28T12:00+01:00", False),  # a Saturday
        (OFFICE, "2026-07-01T07:30+00:00", True),  # summer time
        (OFFICE, "2026-12-01T07:30+00:00", False),
        (NIGHT, "2026-11-25T21:59+01:00", False),
        (NIGHT, "2026-11-25T22:00+01:00", True),
        (NIGHT, "2026-11-26T06:59+01:00", True),
        (NIGHT, "2026-11-26T07:00+01:00", False),
        (replace(NIGHT, days=("fri",)), "2026-11-28T06:00+01:00", True),  # the night that starts on Friday
        (replace(NIGHT, days=("fri",)), "2026-11-27T06:00+01:00", False),
        (WeeklyHours("UTC"), "2026-11-27T23:59+00:00", True),
        (WeeklyHours("UTC", ("sun",), 540, 540), "2026-11-30T08:59+00:00", True),  # a shift of 24 h
    ],
)
def test_weekly_hours_contain_an_instant(hours: WeeklyHours, time: str, holds: bool) -> None:
    assert hours.hold(at(time)) == holds


MINUTES, ZONES = st.integers(0, 95).map(lambda quarter: 15 * quarter), ("UTC", "Europe/Berlin", "America/New_York")
HOURS = st.builds(
    WeeklyHours, st.sampled_from(ZONES), st.sets(st.sampled_from(DAYS), min_size=1).map(tuple), MINUTES, MINUTES
)


@settings(max_examples=30)
@given(st.lists(HOURS, min_size=1, max_size=3))
def test_the_sampled_instants_cover_every_quarter_of_an_hour(hours: list[WeeklyHours]) -> None:
    routing = Routing(MONITOR, [Route((f"c{n}",), hours=h, goes_on=True) for n, h in enumerate(hours)])

    def found(times: Iterator[float]) -> set[tuple[str, ...]]:
        return {reached(routing.decide("info", ("data",), time)) for time in times}

    weeks = (at(f"2026-{day}T00:00+00:00") + 900 * q for day in ("01-06", "07-07") for q in range(96 * 5))
    assert found(weeks) <= found(iter(instants(routing.common)))


# ---- remarks and commands --------------------------------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Path]:
    def write(*routes: dict[str, Any], address: str = "http://127.0.0.1:9", **more: Any) -> Path:
        data = yaml.safe_load(MINIMAL)
        data["channels"] = {name: {"webhook": {"url": f"{address}/{name}"}} for name in ("chat", "pager", "lead")}
        data["web"], data["routes"] = {"external_url": "https://mon.test"}, list(routes)
        data["monitors"][0] |= {"labels": {"team": "search"}, "drift": {}, **more}
        (tmp_path / "rankmon.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
        return tmp_path / "rankmon.yaml"

    return write


def test_routes_that_reach_people_get_no_remark(configured: Callable[..., Path]) -> None:
    quiet = {"zone": "Europe/Berlin", "from": "22:00", "to": "07:00"}
    path = configured({"severity": ["warning"], "hours": quiet, "channels": ["log"]}, {"channels": ["chat"]})
    assert list(remarks(load(path, {}), NOON)) == []


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        ([{"channels": ["chat"]}, {"severity": ["critical"], "channels": ["pager"]}], "routes[1]: never matches"),
        ([{"labels": {"team": "ads"}, "channels": ["pager"]}, {"channels": ["chat"]}], "routes[0]: never matches"),
        (
            [{"severity": ["critical"], "channels": ["pager"]}],
            "notifies only the log, and at some times no route takes",
        ),
        ([{"hours": {"zone": "UTC", "to": "12:00"}, "channels": ["pager"]}], "incidents of severity critical"),
        ([{"channels": ["log"]}], "routes[0]: takes critical quality incidents of search, and 1 more, to the log"),
        (
            [{"severity": ["critical"], "channels": ["log"]}, {"channels": ["chat"]}],
            "routes[0]: takes critical quality incidents of search to the log alone",
        ),
    ],
)
def test_useless_routes_and_monitors_without_people_get_a_remark(
    configured: Callable[..., Path], routes: list[dict[str, Any]], said: str
) -> None:
    assert said in "\n".join(remarks(load(configured(*routes), {}), NOON))


def test_route_show_lists_every_severity_and_matter(
    configured: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    step = {"after": "30m", "channels": ["lead"]}
    hours = {"zone": "UTC", "from": "22:00", "to": "06:00"}
    path = configured(
        {"severity": ["warning"], "hours": hours, "channels": ["log"]},
        {"severity": ["critical"], "matter": ["quality"], "channels": ["pager"], "repeat": "4h", "escalate": [step]},
        notify=["chat"],
    )
    call = ["route", "show", "search", "--config", str(path), "--at"]
    assert run([*call, "2026-11-25T12:00Z"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        *("critical", "quality", "pager", "pager", "every", "4h", "lead", "after", "30m", "routes[1]")
    ]
    assert run([*call, "2026-11-25T23:00Z", "--format", "json"]) == 0
    found = {(one["severity"], one["matter"]): one["channels"] for one in json.loads(capsys.readouterr().out)}
    assert found.keys() == {(severity, matter) for severity in SEVERITIES for matter in MATTERS}
    assert (found["warning", "data"], found["critical", "data"]) == (["log"], ["chat"])


def test_a_test_alert_follows_the_routes(configured: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    with Receiver() as receiver:
        path = configured({"severity": ["critical"], "channels": ["pager"]}, notify=["chat"], address=receiver.url)
        call = ["test-alert", "search", "--config", str(path), "--matter", "quality", "--severity"]
        assert [run([*call, severity]) for severity in ("critical", "warning")] == [0, 0]
        assert [got.path for got in receiver.taken] == ["/pager", "/chat"]
    assert capsys.readouterr().out.splitlines()[0] == "search: critical, quality: pager"
