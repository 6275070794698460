"""Conditions gathered into one incident a monitor."""

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


def test_what_joins_later_and_had_fallen_before_moves_its_beginning_and_not_its_name() -> None:
    earlier = replace(change(20, OVERALL, "pending", "firing"), since=2)
    (first,), _ = gather("shop", None, [change(10, MOBILE, "pending", "firing")])
    (incident,), _ = gather("shop", first, [earlier])
    assert (first.began_at, incident.began_at, incident.opened_at) == (5, 2, 10)
    assert incident.id == first.id


def test_what_comes_after_the_end_is_another_incident() -> None:
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


def test_what_fires_and_is_withdrawn_at_one_instant_is_an_incident_whether_judged_at_once_or_not() -> None:
    fires, ends = change(10, OVERALL, "pending", "firing"), change(10, OVERALL, "firing", "withdrawn")
    (at_once,), _ = gather("shop", None, [fires, ends])
    (first,), _ = gather("shop", None, [fires])
    (then,), _ = gather("shop", first, [ends])
    assert at_once == then
    assert (at_once.state, at_once.severity, at_once.opened_at, at_once.closed_at) == ("withdrawn", "critical", 10, 10)


def test_a_suspicion_is_no_incident() -> None:
    found, placed = gather("shop", None, [change(10, OVERALL, "ok", "pending"), change(15, OVERALL, "pending", "ok")])
    assert found == []
    assert [p.incident for p in placed] == [None, None]


def test_it_goes_on_from_an_open_one() -> None:
    first, _ = gather("shop", None, [change(10, OVERALL, "pending", "firing", "warning")])
    found, _ = gather("shop", first[0], [change(20, LABELS, "pending", "firing", "critical")])
    assert [i.id for i in found] == [first[0].id]
    assert set(found[0].firing or {}) == {OVERALL, LABELS}
    assert found[0].severity == "critical"


def test_severity_never_falls_while_it_is_open() -> None:
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


def test_withdrawn_only_if_nothing_was_seen_well() -> None:
    opened = [change(10, OVERALL, "pending", "firing"), change(10, MOBILE, "pending", "firing")]
    gone, _ = gather(
        "shop", None, [*opened, change(20, OVERALL, "firing", "withdrawn"), change(20, MOBILE, "firing", "withdrawn")]
    )
    assert gone[0].state == "withdrawn"
    well, _ = gather(
        "shop", None, [*opened, change(20, OVERALL, "firing", "ok"), change(20, MOBILE, "firing", "withdrawn")]
    )
    assert well[0].state == "resolved"


def test_its_name_is_that_of_monitor_and_moment() -> None:
    one, same, other = Incident("shop", 5, 10), Incident("shop", 7, 10, severity="critical"), Incident("news", 5, 10)
    assert one.id == same.id != other.id
    assert len(one.id) == 10
