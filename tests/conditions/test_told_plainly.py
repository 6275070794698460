"""Small points of wording: names on one line, an end as an end, and when retraining would be requested."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from monitor.cli.commands.power import series_name
from monitor.cli.commands.series import _readable
from monitor.cli.commands.status import _alert
from monitor.cli.incident_report import _fell
from monitor.conditions.evidence import ConcurrentChange
from monitor.conditions.incident import Incident, Placed
from monitor.conditions.thresholds import Change, State
from monitor.evaluation.replay import _asked
from monitor.measures.measure import parse
from monitor.messages.diagnosis import _before
from monitor.store.alerts import StoredIncident
from monitor.types import Drift, RetrainRequests
from tests.support.notices import DROP, of_kind
from tests.support.tallies import HOUR, watched

DAY = 24 * HOUR
HOSTILE = "x\r\nshop: last success forged\x1b[31m\x07\u202e"


def test_a_slice_name_can_neither_forge_a_line_nor_control_a_terminal() -> None:
    alert = {"rule": "low", "dimension": "device", "value": HOSTILE, "since": None, "state": "firing"}
    table = pd.DataFrame(
        {
            "monitor": ["shop"], "measure": ["ndcg@10"], "window": ["1h"],
            "end": [pd.Timestamp("2026-01-01", tz="UTC")],
            "dimension": ["device"], "slice": [HOSTILE], "value": [0.5], "lower": [0.4], "upper": [0.6],
            "requests": [5],
            "empty_ratio": [0.1], "label_coverage": [0.9], "completeness": [1.0], "final": [True],
            "method": ["history"], "basis": [9],
        }
    )  # fmt: skip
    stand = SimpleNamespace(drift=Drift(parse("ndcg@10"), mix_by="device"))
    assert series_name(stand, SimpleNamespace(slice=HOSTILE)).isprintable()  # type: ignore[arg-type]
    assert _alert({**alert, "not_judged_because": ""}).isprintable()
    text = _readable(table, {})
    assert len(text.strip().splitlines()) == 2
    assert all(line.isprintable() for line in text.strip().splitlines())


@pytest.mark.parametrize(("state", "closed_at", "told"), [("resolved", DAY, "is 0."), ("firing", None, "fell ")])
def test_a_closed_incident_is_not_described_as_falling(state: str, closed_at: int | None, told: str) -> None:
    ended = of_kind("degraded", DROP, end=DROP.end + HOUR)
    incident = replace(Incident("shop", 0, HOUR), state=state, closed_at=closed_at)
    found = StoredIncident(incident, True, (ended,))
    said = [line for line in _fell(found, replace(ended, end=DROP.end)) if line.startswith("At ")]
    assert told in said[0]
    assert ("Statistically significant" in said[0]) is (state == "firing")


@pytest.mark.parametrize(("days", "when"), [(1, "a day"), (2, "2 days"), (7, "7 days")])
def test_the_compared_window_is_described_in_days(days: int, when: str) -> None:
    document = {"window": [9 * DAY, 10 * DAY], "compared": [[(9 - days) * DAY, (10 - days) * DAY]]}
    assert _before(document) == f"the same hours {when} before"


@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        ([(HOUR, "firing", False), (3 * DAY, "firing", True)], 4 * DAY),
        ([(HOUR, "firing", True)], HOUR + DAY),
        ([(HOUR, "firing", True), (HOUR + DAY // 2, "ok", True)], None),
        ([(HOUR, "firing", True), (2 * HOUR, "ok", True), (DAY, "firing", True)], 2 * DAY),
    ],
)
def test_retraining_is_requested_once_the_asking_rule_has_lasted(
    steps: list[tuple[int, State, bool]], asked: int | None
) -> None:
    incident = Incident("shop", HOUR, HOUR, retrain=True)
    placed = [
        Placed(Change(("r" if asks else "other", "", ""), "critical", asks, "ok", became, at, at), incident.id)
        for at, became, asks in steps
    ]
    stored = [StoredIncident(incident, True, ())]
    found = SimpleNamespace(incidents=stored, placed=placed, evidence={}, until=30 * DAY)
    monitor = replace(watched(), retrain=RetrainRequests(notify=("team",), after=DAY))
    assert _asked(monitor, found) == ({} if asked is None else {incident.id: asked})  # type: ignore[arg-type]
    found.evidence = {p.change: replace(DROP, concurrent=(ConcurrentChange("requests", 2000, 1000),)) for p in placed}
    assert _asked(monitor, found) == {}, "it may be robots"  # type: ignore[arg-type]
