"""The end of what is open of a monitor that is configured no more."""

from __future__ import annotations

from dataclasses import replace

from monitor.evaluation.incidents import closed, ended
from monitor.evaluation.telling import Telling, as_told, transition
from monitor.evaluation.work import REMOVED
from monitor.messages.notification import About, notification
from monitor.store import Lease, Store
from monitor.store.alerts import Judgement


def withdraw(monitor: str, store: Store, lease: Lease, telling: Telling) -> None:
    """Close the incidents of a monitor that is configured no more, and say so to those who were told of them."""
    state = store.alerts.state(monitor)
    if not state.open or state.until is None:
        return
    incidents, notices = [closed(stored, state.until) for stored in state.open.values()], []
    placed = [p for stored in state.open.values() for p in ended(stored, state.until)]
    steps = [replace(transition(p, None, telling.real_now), reason=REMOVED) for p in placed]
    for stored in incidents:
        number, last = store.alerts.notices(stored.incident.id)
        if stored.told and last is not None:
            about = as_told(About(monitor), last)
            notice = notification("withdrawn", about, stored.incident, (), number, reason=REMOVED)
            # Another daemon may have the receivers, and not this one: what nobody has is given up in the outbox.
            notices += [(target, notice) for target in store.alerts.told(stored.incident.id)]
    judgement = Judgement(monitor, state.until, {}, incidents, transitions=steps, notices=notices)
    store.alerts.save(lease, judgement, telling.real_now)
