"""Conditions are gathered into one incident per monitor."""

from __future__ import annotations

from dataclasses import replace

from monitor.conditions.incident import Incident, gather
from monitor.conditions.rules import Severity
from monitor.conditions.thresholds import Change, State

OVERALL = ("drop", "", "")
MOBILE = ("drop", "device", "mobile")
LABELS = ("labels", "", "")


def change(
    at: int,
    name: tuple[str, str, str],
    was: State,
    became: State,
    severity: Severity = "critical",
    retrain: bool = False,
) -> Change:
    return Change(name, severity, retrain, was, became, at - 5, at)


def test_slices_join_the_incident_of_the_monitor() -> None:
    found, placed = gather(
        "shop",
        None,
        [
            change(10, MOBILE, "pending", "firing", "warning"),
            change(20, OVERALL, "pending", "firing", retrain=True),
            change(30, MOBILE, "firing", "ok"),
            change(40, OVERALL, "firing", "ok"),
        ],
    )
    (incident,) = found
    assert (incident.began_at, incident.opened_at, incident.closed_at) == (5, 10, 40)
    assert (incident.state, incident.severity, incident.retrain) == ("resolved", "critical", True)
    assert {p.incident for p in placed} == {incident.id}


def test_a_condition_that_joins_later_may_move_the_start_but_not_the_id() -> None:
    earlier = replace(change(20, OVERALL, "pending", "firing"), since=2)
    (first,), _ = gather("shop", None, [change(10, MOBILE, "pending", "firing")])
    (incident,), _ = gather("shop", first, [earlier])
    assert (first.began_at, incident.began_at, incident.opened_at) == (5, 2, 10)
    assert incident.id == first.id


def test_a_fall_after_the_end_opens_another_incident() -> None:
    found, _ = gather(
        "shop",
        None,
        [
            change(10, OVERALL, "pending", "firing"),
            change(20, OVERALL, "firing", "ok"),
            change(30, OVERALL, "pending", "firing"),
        ],
    )
    assert [(i.opened_at, i.state) for i in found] == [(10, "resolved"), (30, "firing")]
    assert found[0].id != found[1].id


def test_firing_and_withdrawing_in_one_instant_is_one_incident_in_any_split() -> None:
    fires, ends = change(10, OVERALL, "pending", "firing"), change(10, OVERALL, "firing", "withdrawn")
    (at_once,), _ = gather("shop", None, [fires, ends])
    (first,), _ = gather("shop", None, [fires])
    (then,), _ = gather("shop", first, [ends])
    assert at_once == then
    assert (at_once.state, at_once.severity, at_once.opened_at, at_once.closed_at) == ("withdrawn", "critical", 10, 10)


def test_a_pending_condition_opens_no_incident() -> None:
    found, placed = gather("shop", None, [change(10, OVERALL, "ok", "pending"), change(15, OVERALL, "pending", "ok")])
    assert found == []
    assert [p.incident for p in placed] == [None, None]


def test_new_conditions_join_an_already_open_incident() -> None:
    first, _ = gather("shop", None, [change(10, OVERALL, "pending", "firing", "warning")])
    found, _ = gather("shop", first[0], [change(20, LABELS, "pending", "firing", "critical")])
    assert [i.id for i in found] == [first[0].id]
    assert set(found[0].firing or {}) == {OVERALL, LABELS}
    assert found[0].severity == "critical"


def test_severity_never_falls_while_an_incident_is_open() -> None:
    found, _ = gather(
        "shop",
        None,
        [
            change(10, OVERALL, "pending", "firing", "critical"),
            change(10, LABELS, "pending", "firing", "info"),
            change(20, OVERALL, "firing", "ok", "critical"),
        ],
    )
    assert (found[0].state, found[0].severity, set(found[0].firing or {})) == ("firing", "critical", {LABELS})


def test_an_incident_is_withdrawn_only_if_no_condition_recovered() -> None:
    opened = [change(10, OVERALL, "pending", "firing"), change(10, MOBILE, "pending", "firing")]
    gone, _ = gather(
        "shop", None, [*opened, change(20, OVERALL, "firing", "withdrawn"), change(20, MOBILE, "firing", "withdrawn")]
    )
    assert gone[0].state == "withdrawn"
    well, _ = gather(
        "shop", None, [*opened, change(20, OVERALL, "firing", "ok"), change(20, MOBILE, "firing", "withdrawn")]
    )
    assert well[0].state == "resolved"


def test_an_incident_id_depends_only_on_monitor_and_opening_time() -> None:
    one, same, other = Incident("shop", 5, 10), Incident("shop", 7, 10, severity="critical"), Incident("news", 5, 10)
    assert one.id == same.id != other.id
    assert len(one.id) == 10
