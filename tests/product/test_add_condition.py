"""A condition takes one file: it opens, appears in message, page, metrics and explanation, and resolves."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.cli.commands.incidents import steps_of
from monitor.cli.incident_report import lines
from monitor.conditions.arrivals import Arrived
from monitor.conditions.evidence import REGISTRY, condition_names, evidence_of, kinds
from monitor.conditions.rules import Severity
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

TOY_ON_DATA = '''"""Far more requests than usual: a figure that each verdict has, whatever it found."""

from __future__ import annotations

from typing import ClassVar

from monitor.conditions.evidence import register
from monitor.conditions.verdicts import MASKED, DataEvidence


@register
class TrafficHigh(DataEvidence):
    """Its requests are `value`, the usual ones `before`."""

    kind: ClassVar[str] = "traffic_high"
    title: ClassVar[str] = "traffic high"
    headline: ClassVar[str] = "traffic high, {{ it.value|count }} requests (usually {{ it.before|count }})"
    text: ClassVar[str] = "There are {{ it.value|count }} requests {{ it|span }}, usually {{ it.before|count }}."
    advice: ClassVar[str] = "find out who sends so many."
    recovered: ClassVar[str] = "traffic as usual for 6 h"

    @classmethod
    def holds(cls, verdict, drift):
        usual = verdict.requests_expected
        far = 2 if drift.data_severity == "critical" else 4
        return usual is not None and verdict.kind not in MASKED and verdict.requests > far * usual
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    toys = {"clock_ahead": TOY, "traffic_high": TOY_ON_DATA}
    monkeypatch.syspath_prepend(tmp_path)
    kinds()
    for name, text in toys.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        importlib.import_module(name)
    yield
    for name in toys:
        del REGISTRY[name], sys.modules[name]


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.put(Ranking.of(20).draw())
    bench.judge(END, arrived=CAME)
    assert bench.said == []
    return bench


def fires(snapshot: MonitorSnapshot) -> bool:
    """Whether `rankmon_alert_firing` is 1 for the toy condition."""
    family = next(f for f in of_monitors([snapshot]) if f.name == "rankmon_alert_firing")
    return bool(next(s.value for s in family.samples if s.labels["rule"] == "clock_ahead"))


@pytest.mark.usefixtures("toy")
def test_a_new_condition_opens_appears_everywhere_and_resolves(bench: Bench) -> None:
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
    assert bench.said[1:] == [("data", "resolved", "search: resolved (clock ahead)")]
    assert [s.incident.state for s in bench.incidents] == ["resolved"]
    last = bench.store.alerts.transitions("search")[-1]
    assert (last.rule, last.became, last.reason) == ("clock_ahead", "ok", "clock right again")
    assert not fires(take_snapshot(bench.monitor, bench.store, END + 2 * HOUR))


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(("severity", "does_open"), [("critical", True), ("warning", False)])
def test_a_new_verdict_condition_follows_drift_settings_opens_and_resolves(
    bench: Bench, severity: Severity, does_open: bool
) -> None:
    bench.monitor = replace(bench.monitor, drift=replace(bench.drift, data_severity=severity))
    past = Ranking.of(22).since(20, 20.5, rate=3.0).draw()
    bench.live(past, 20 * 24)
    if not does_open:
        assert bench.said == []
        return
    (opened, resolved) = bench.said
    assert opened[:2] == ("data", "firing")
    assert re.fullmatch(r"search: traffic high, [\d,]+ requests \(usually [\d,]+\)", opened[2])
    assert resolved == ("data", "resolved", "search: resolved (traffic high)")
    notice = bench.notices[0][1]
    assert "What to do: find out who sends so many." in notice.text
    (found,) = bench.incidents[0].findings
    assert (found.kind, found.severity) == ("traffic_high", severity)
    assert evidence_of(json.loads(json.dumps(found.plain()))) == found
    last = bench.store.alerts.transitions("search")[-1]
    assert (last.rule, last.became, last.reason) == ("traffic_high", "ok", "traffic as usual for 6 h")


def test_each_condition_kind_has_a_file_of_its_name() -> None:
    """Names are read from file names alone; a kind is imported when it is needed."""
    assert {kind.kind: kind.__module__.rpartition(".")[2] for kind in kinds().values()} == {
        name: name for name in (*condition_names(), "threshold")
    }
