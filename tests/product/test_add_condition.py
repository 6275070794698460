"""A condition costs one file: it opens, is in message, page, metrics and explanation, and resolves."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli.commands.incidents import steps_of
from monitor.cli.incident_report import lines
from monitor.conditions.arrivals import Arrived
from monitor.conditions.evidence import REGISTRY, condition_names, evidence_of, kinds
from monitor.messages.diagnosis import Told
from monitor.messages.notification import Notification
from monitor.page import render
from monitor.service.snapshot import MonitorSnapshot, take_snapshot
from monitor.web.gauges import of_monitors
from tests.support.bench import Bench
from tests.support.drift import START, Ranking
from tests.support.pages import PageSource

HOUR = 3600
END = START + 20 * 24 * HOUR
CAME = Arrived(END - 10.0, END - 20.0)

TOY = '''"""The newest request is dated later than now."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from monitor.conditions.arrivals import ArrivalEvidence
from monitor.conditions.evidence import register


@register
class ClockAhead(ArrivalEvidence):
    """`ahead`: seconds; `zones`: of the clocks."""

    kind: ClassVar[str] = "clock_ahead"
    title: ClassVar[str] = "clock ahead"
    headline: ClassVar[str] = "clock ahead by {{ it.ahead|lasting }}"
    text: ClassVar[str] = "Requests are dated {{ it.ahead|lasting }} later than now, by {{ it.zones|join(' and ') }}."
    advice: ClassVar[str] = "set the clock of the logging service."
    recovered: ClassVar[str] = "clock right again"

    ahead: int = 0
    zones: tuple[str, ...] = ()

    @classmethod
    def detect(cls, seen, drift):
        ahead = int((seen.arrived.request or 0) - seen.now)
        return replace(cls.at(drift, int(seen.now), int(seen.now)), ahead=ahead, zones=("UTC",)) if ahead > 0 else None
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "clock_ahead.py").write_text(TOY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    kinds()
    importlib.import_module("clock_ahead")
    yield
    del REGISTRY["clock_ahead"], sys.modules["clock_ahead"]


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.put(Ranking.of(20).draw())
    bench.judge(END, arrived=CAME)
    assert bench.said == []
    return bench


def fires(snapshot: MonitorSnapshot) -> bool:
    """By `rankmon_alert_firing`."""
    family = next(f for f in of_monitors([snapshot]) if f.name == "rankmon_alert_firing")
    return bool(next(s.value for s in family.samples if s.labels["rule"] == "clock_ahead"))


@pytest.mark.usefixtures("toy")
def test_a_condition_of_one_file_opens_is_everywhere_and_resolves(bench: Bench) -> None:
    bench.judge(END + HOUR, arrived=Arrived(END + 3.0 * HOUR, END - 20.0))
    assert bench.said == [("data", "firing", "search: clock ahead by 2 h")]
    (_, notice) = bench.notices[0]
    text = notice.text.splitlines()
    assert text[0] == "Requests are dated 2 h later than now, by UTC."
    assert text[3] == "What to do: set the clock of the logging service."
    assert Notification.of(json.loads(json.dumps(notice.plain()))) == notice
    (found,) = bench.incidents[0].findings
    assert found.kind == "clock_ahead"
    assert evidence_of(json.loads(json.dumps(found.plain()))) == found

    snapshot = take_snapshot(bench.monitor, bench.store, END + HOUR)
    shown = render(PageSource.of(END + HOUR, snapshot))
    assert "clock ahead by 2 h" in shown
    assert "set the clock of the logging service" in shown
    assert "clock_ahead" in condition_names()
    assert fires(snapshot)
    (stored,) = bench.incidents
    told = [Told(found.name, END + HOUR)]
    explained = "\n".join(lines(stored, told, steps_of(stored, bench.store)))
    assert "by verdict clock ahead: Requests are dated 2 h later than now, by UTC." in explained
    assert "To do:  set the clock of the logging service." in explained

    bench.judge(END + 2 * HOUR, arrived=CAME)
    assert bench.said[1:] == [("data", "resolved", "search: resolved, clock ahead: normal again")]
    assert [s.incident.state for s in bench.incidents] == ["resolved"]
    last = bench.store.alerts.transitions("search")[-1]
    assert (last.rule, last.became, last.reason) == ("clock_ahead", "ok", "clock right again")
    assert not fires(take_snapshot(bench.monitor, bench.store, END + 2 * HOUR))
