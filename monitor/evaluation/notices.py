"""Who is notified of a change, and what is stored about it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monitor.conditions.checkpoint import BaselineReset
from monitor.conditions.evidence import Evidence, Matter, QualityEvidence, is_grave_on_data
from monitor.conditions.incident import Incident, Placed
from monitor.conditions.rules import SEVERITIES, Severity
from monitor.conditions.thresholds import ConditionName
from monitor.evaluation.fold import GONE, EventBatch
from monitor.evaluation.incidents import IncidentUpdate, as_open
from monitor.evaluation.retraining import due, evidence
from monitor.evaluation.stored_fall import UnsavedEvaluation
from monitor.messages.explanation import reason
from monitor.messages.notification import NOTHING_SINCE, About, Kind, Notification, Since, key, notification
from monitor.messages.templates import AS_BUILT_IN, OwnTemplates, written
from monitor.messages.words import CALLED
from monitor.routing import Route, Routing, reached
from monitor.series.finality import final_age
from monitor.store import Store
from monitor.store.alerts import Judgement, StoredIncident, Transition
from monitor.types import Monitor


@dataclass(frozen=True)
class Recipients:
    """Whom to notify, and what messages need to be written.

    Attributes:
        targets: channel -> its receivers.
        routes: the routes that all monitors have in common.
        templates: a user's templates of notifications.
        page: address of rankmon's page, ending in a slash.
        real_now: real seconds since 1970.
        is_current: the monitor has nothing left to read, so open incidents are open now.
        called: how to call rankmon, see `words.command`.
    """

    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    page: str = ""
    real_now: float = 0.0
    is_current: bool = False
    called: str = CALLED
    routes: Sequence[Route] = ()
    templates: OwnTemplates = AS_BUILT_IN

    def decide(self, monitor: Monitor, incident: Incident) -> tuple[Route, ...]:
        """The routes of an incident now. Those of data that stay broken are those of the model's quality too."""
        is_both = incident.matter == "data" and _has_collapsed(incident)
        matters: tuple[Matter, ...] = ("data", "quality") if is_both else (incident.matter,)
        return Routing(monitor, self.routes).decide(incident.severity, matters, self.real_now)

    def receivers(self, channels: Iterable[str]) -> list[str]:
        """The targets of some channels, each once."""
        return list(dict.fromkeys(target for channel in channels for target in self.targets.get(channel, ())))


def with_notices(
    update: IncidentUpdate, resets: Sequence[BaselineReset], now: float, store: Store, recipients: Recipients
) -> Judgement | None:
    """The judgement with its notifications; None if nothing changed."""
    monitor, state, end, events = update.monitor, update.state, update.end, update.events
    is_now = recipients.is_current and now - end <= _longest_wait(monitor)
    may_page = is_now and not _is_silenced(monitor.name, store, recipients)
    incidents, notices = [], []
    for stored in update.incidents:
        was = as_open(state, stored.incident.id)
        kind = _kind(stored, was, may_page, is_now, store)
        incidents.append(replace(stored, told=stored.told or kind == "firing"))
        if kind is not None:
            notices += _notices(kind, stored, update, now, store, recipients)
    opened = {s.incident.matter: s for s in incidents if s.incident.is_open}
    # Whoever is asked to retrain must know why: the open incidents have been notified by now, where allowed.
    retrain = due(monitor, state.retrain, end, opened, resets) if may_page else None
    steps = [_recorded(p, events, now) for p in update.placed]
    if retrain is not None:
        asked = replace(_asking(update, steps, opened["quality"], store, recipients), key=key(retrain.key))
        notices += [(target, asked) for target in recipients.receivers(monitor.retrain.notify)]
    nothing_new = end == state.until and not (update.placed or notices or retrain or state.restated)
    if nothing_new and set(update.checkpoint.conditions) == set(state.conditions):
        return None
    return Judgement(
        monitor.name,
        end,
        update.checkpoint.conditions,
        incidents,
        update.removed,
        state.restated,
        steps,
        notices,
        retrain,
        events.verdicts,
        monitor.drift is not None,
        update.undone,
        update.since,
    )


def _longest_wait(monitor: Monitor) -> int:
    """Longest delay in seconds between a window's end and its evaluation in a daemon that runs all the time."""
    return monitor.lookback + final_age(monitor) + monitor.final_timeout + monitor.bucket


def _kind(
    stored: StoredIncident, was: StoredIncident | None, may_page: bool, is_now: bool, store: Store
) -> Kind | None:
    """What to notify of an incident, if anything. A worsening is only notified if it is current, like an opening."""
    incident = stored.incident
    if not stored.told:
        return "firing" if incident.is_open and may_page else None
    if not incident.is_open:
        return None if was is None else "withdrawn" if incident.state == "withdrawn" else "resolved"
    is_worse, is_less = _against_what_was_told(stored, was, store)
    is_as_it_was = was is not None and _told_of(was.incident) == _told_of(incident)
    if is_now:
        is_changed = not is_as_it_was or is_worse or (was is not None and _joined(was.findings, stored.findings))
        return "updated" if is_changed else None
    return "updated" if is_less and not (is_as_it_was or is_worse) else None


def _against_what_was_told(stored: StoredIncident, was: StoredIncident | None, store: Store) -> tuple[bool, bool]:
    """(whether an incident is worse than last notified, whether something has ended since)."""
    _, last = store.alerts.notices(stored.incident.id)
    last_findings, severity = _told_last(last, was)
    before, after = ({f.name for f in some} for some in (last_findings, stored.findings))
    is_graver = severity is not None and SEVERITIES.index(stored.incident.severity) > SEVERITIES.index(severity)
    return is_graver or not after <= before or _joined(last_findings, stored.findings), not before <= after


def _told_last(last: Notification | None, was: StoredIncident | None) -> tuple[Sequence[Evidence], Severity | None]:
    """Evidence and severity as last notified, or as stored if that is unknown."""
    if last is not None:
        return () if last.is_over else last.findings, last.severity
    return ((), None) if was is None else (was.findings, was.incident.severity)


def _joined(was: Sequence[Evidence], now: Sequence[Evidence]) -> bool:
    """Whether the data of further slices broke."""
    before, after = ({(f.rule, s.slice) for f in some if f.is_of_slices for s in f.slices} for some in (was, now))
    return not after <= before


def _told_of(incident: Incident) -> dict[ConditionName, Severity]:
    return {name: firing.severity for name, firing in (incident.firing or {}).items()}


def _notices(
    kind: Kind, stored: StoredIncident, update: IncidentUpdate, now: float, store: Store, recipients: Recipients
) -> list[tuple[str, Notification]]:
    """A notification per receiver: an opening goes by the routes, all else to those who were notified of it.

    Incidents that became more severe also take the routes of their new severity.
    """
    id_, monitor = stored.incident.id, update.monitor
    number, last = store.alerts.notices(id_)
    former = last.severity if last is not None and last.severity != stored.incident.severity else None
    reasons = update.events.reasons
    ends = [p.change for p in update.placed if p.incident == id_ and p.change.became != "firing"]
    why = {one.name: reasons.get(one) or reason(one.was, one.became, update.events.evidence.get(one)) for one in ends}
    begun = {p.change.name for p in update.placed if p.change.became == "firing"}
    since = Since(now=int(now)) if kind == "firing" else _since(kind, stored, last, why, begun, store)
    about, reason_ = _about(monitor, recipients, last), next((reasons[one] for one in ends if one in reasons), GONE)
    notice = notification(kind, about, stored.incident, stored.findings, number, former, reason_, since)
    targets, notified = (
        recipients.receivers(reached(recipients.decide(monitor, stored.incident))),
        told_targets(id_, store, recipients),
    )
    if kind != "firing" and notified:
        is_graver = former is not None and SEVERITIES.index(former) < SEVERITIES.index(stored.incident.severity)
        is_for_more = (kind == "updated" and is_graver) or _has_collapsed(stored.incident)
        targets = list(dict.fromkeys([*notified, *(targets if is_for_more else ())]))
    return [(target, notice) for target in targets]


def _since(
    kind: Kind,
    stored: StoredIncident,
    last: Notification | None,
    why: Mapping[ConditionName, str],
    begun: Collection[ConditionName],
    store: Store,
) -> Since:
    """What changed since the notifications before. `why`: of what just ended; `begun`: what just began to fire."""
    if kind == "resolved":
        first = store.alerts.opening(stored.incident.id)
        return Since(opened_with=next(iter(first.findings), None) if first is not None else None)
    if kind != "updated" or last is None:
        return NOTHING_SINCE
    last_names, still = {f.name for f in last.findings}, {f.name for f in stored.findings}
    return Since(
        over=[(f, why.get(f.name, "")) for f in last.findings if f.name not in still],
        begun=[f for f in stored.findings if f.name not in last_names],
        is_restated=_is_restated(last.findings, [f for f in stored.findings if f.name not in begun]),
    )


def _is_restated(last_findings: Sequence[Evidence], now: Sequence[Evidence]) -> bool:
    """Whether the previous message named another value than is known now, with which a condition fired."""
    then = {f.name: f for f in last_findings if isinstance(f, QualityEvidence) and f.before_when_fired is not None}
    falls = [(then[f.name], f) for f in now if isinstance(f, QualityEvidence) and f.name in then]
    same = [(was, f) for was, f in falls if f.since <= was.end]
    return any(written(was.before_when_fired, f) != written(f.before_when_fired, f) for was, f in same)


def _has_collapsed(incident: Incident) -> bool:
    return any(is_grave_on_data(name[0]) for name in incident.firing or {})


def _about(monitor: Monitor, recipients: Recipients, last: Notification | None) -> About:
    of_all = (recipients.page, recipients.called, recipients.templates)
    return as_told(About(monitor.name, monitor.labels, monitor.runbook_url, *of_all), last)


def as_told(about: About, last: Notification | None) -> About:
    """With the name and labels by which the receivers know the incident, whatever the current configuration says."""
    return about if last is None else replace(about, name=last.monitor, labels=last.labels)


def told_targets(incident: str, store: Store, recipients: Recipients) -> list[str]:
    """The targets that were notified of an incident and still exist."""
    existing = {target for targets in recipients.targets.values() for target in targets}
    return [target for target in store.alerts.told(incident) if target in existing]


def _is_silenced(monitor: str, store: Store, recipients: Recipients) -> bool:
    return monitor in store.alerts.silenced(recipients.real_now)


def _asking(
    update: IncidentUpdate, steps: Sequence[Transition], current: StoredIncident, store: Store, recipients: Recipients
) -> Notification:
    """A request to retrain, with its evidence; `steps` are not stored yet."""
    number, last = store.alerts.notices(current.incident.id)
    about, new = _about(update.monitor, recipients, last), update.events.verdicts
    asked = notification("retrain", about, current.incident, current.findings, number)
    unsaved = UnsavedEvaluation(
        steps, update.since if update.state.restated else math.inf, () if new is None else new.verdicts
    )
    return replace(asked, evidence=evidence(update.monitor, current, update.end, unsaved, store))


def _recorded(placed: Placed, events: EventBatch, now: float) -> Transition:
    step = transition(placed, events.evidence.get(placed.change), now)
    return replace(step, reason=events.reasons.get(placed.change, step.reason))


def transition(placed: Placed, finding: Evidence | None, now: float) -> Transition:
    change = placed.change
    said = reason(change.was, change.became, finding)
    return Transition(placed.incident, *change.name, change.was, change.became, change.at, now, said, finding)
