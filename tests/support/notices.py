"""Findings, incidents and notifications made by hand, and an outbox to put them into."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from monitor.messages.notification import About, Kind, Notification, notification
from monitor.messages.samples import COVERAGE as COVERAGE
from monitor.messages.samples import DROP as DROP
from monitor.messages.samples import FELL as FELL
from monitor.messages.samples import FLOOR as FLOOR
from monitor.messages.samples import INCIDENT as INCIDENT
from monitor.messages.samples import SLICE as SLICE
from monitor.messages.samples import of_kind as of_kind
from monitor.store import Store
from monitor.store.alerts import enqueue
from monitor.store.schema import incidents
from monitor.units import DAY as DAY
from monitor.units import HOUR as HOUR

ABOUT = About(
    "search", (("environment", "production"), ("team", "ranking")), "https://runbooks.test/search", "https://mon.test/"
)


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
