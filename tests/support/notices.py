"""Findings, incidents and notifications made by hand, and an outbox to put them into."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from monitor.conditions.evidence import Evidence, SliceFall, kinds
from monitor.conditions.incident import Firing, Incident
from monitor.conditions.kinds.threshold import Threshold
from monitor.messages.notification import About, Kind, Notification, notification
from monitor.store import Store
from monitor.store.alerts import enqueue
from monitor.store.schema import incidents

HOUR, DAY = 3600, 86_400
FELL = 1_700_000_000 // HOUR * HOUR
"""2023-11-14 22:00 UTC."""

ABOUT = About(
    "search", (("environment", "production"), ("team", "ranking")), "https://runbooks.test/search", "https://mon.test/"
)
DROP = Threshold(
    rule="quality-drop",
    severity="critical",
    judged="ndcg@10",
    dimension="",
    slice="",
    end=FELL + 3 * HOUR,
    window=DAY,
    since=FELL,
    requests=18_230,
    value=0.6123,
    lower=0.6012,
    upper=0.6234,
    before=0.7016,
    compared_with="the previous 21d",
    threshold=0.6525,
    coverage=0.414,
    coverage_before=0.422,
    slices=(
        SliceFall("device", "mobile", 0.7011, 0.5512, 0.62),
        SliceFall("country", "de", 0.7102, 0.6020, 0.31),
    ),
    interval="history",
)
FLOOR = replace(
    DROP, rule="floor", value=0.4421, lower=0.431, upper=0.4532, threshold=0.5, before=0.5502, requests=950,
    compared_with="the 1d before it fell", slices=(), severity="warning",
)  # fmt: skip
SLICE = replace(
    DROP,
    dimension="device",
    slice="mobile",
    slices=(),
    requests=11_300,
    value=0.5512,
    lower=None,
    upper=None,
    interval="none",
)
COVERAGE = replace(
    DROP, rule="labels", judged="label_coverage", value=0.052, lower=None, upper=None, interval="none", before=0.422,
    threshold=0.2, coverage=0.052, slices=(),
)  # fmt: skip
INCIDENT = Incident(
    "search",
    FELL,
    FELL + 3 * HOUR,
    severity="critical",
    firing={("quality-drop", "", ""): Firing("critical", False, FELL)},
)


def of_kind(kind: str, known: Evidence, **changes: Any) -> Any:
    """Evidence of a kind of condition, with the figures of another one."""
    made = kinds()[kind]
    names = {f.name for f in fields(made)} & {f.name for f in fields(known)} - {"rule"}
    return made(**{name: getattr(known, name) for name in names} | {"rule": kind} | changes)


def notice(kind: Kind = "firing", incident: str = "a", number: int = 0, **changes: Any) -> Notification:
    """A notification of an incident that is just called `a`."""
    made = notification(kind, ABOUT, INCIDENT, [DROP], number)
    return replace(made, incident=incident, key=f"{incident} {number} {kind}", **changes)


def put(store: Store, target: str, notices: Sequence[Notification], now: float = 0.0) -> None:
    """Into the outbox, in this order."""
    with store.writing() as connection:
        enqueue(connection, store.dialect, [(target, n) for n in notices], now)


def incident(store: Store, id_: str, state: str = "firing") -> None:
    """An incident as it is stored; one that is there takes another state."""
    row = {
        "id": id_, "monitor": "search", "state": state, "severity": "critical", "retrain": False, "began_at": FELL,
        "opened_at": FELL + 3 * HOUR, "closed_at": None, "told": True, "summary": '{"firing": [], "findings": []}',
    }  # fmt: skip
    with store.writing() as connection:
        connection.execute(incidents.delete().where(incidents.c.id == id_))
        connection.execute(incidents.insert().values(row))
