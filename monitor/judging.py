"""Judging what is stored: windows -> conditions -> incidents -> notifications, all of it stored at once.

It walks over the final buckets that no judgement has seen yet, so it makes no difference whether they came one by one
from a daemon or all at once from a backfill. What is decided there depends on nothing but what is stored. Whether
somebody is told depends on `now` as well: only of what is open now, and only by a daemon that is up to date.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monitor.core.findings import Finding, find, reason
from monitor.core.incidents import MATTERS, Incident, Matter, Placed, gather, matter_of
from monitor.core.intervals import REACH
from monitor.core.messages import About, Kind, Notification, key, notification
from monitor.core.rules import Drop, Rule, Severity
from monitor.core.thresholds import Change, Condition, ConditionName, View, evaluate, follow
from monitor.core.types import Definition, Judgments, Monitor
from monitor.core.verdict_findings import COLLAPSED, VERDICTS
from monitor.core.verdict_words import reason as verdict_reason
from monitor.core.windows import History, SliceKey
from monitor.drifting import baseline_from, follow_drift
from monitor.store import Lease, Store
from monitor.store.alerts import AlertState, Judgement, Kept, Retrain, StoredIncident, Transition
from monitor.store.verdicts import Judged

GONE = "its rule, its slice, or the series that the rule judges is there no more"
RESTATED = "the data that it rested on were read again and say otherwise"
REMOVED = "the monitor is configured no more"


@dataclass(frozen=True)
class Telling:
    """Whom to tell.

    Attributes:
        targets: channel -> its receivers.
        page: address of rankmon's page, ending in a slash.
        real_now: real seconds since 1970.
        is_current: whether the monitor has nothing left to read, so that what is open is open now.
    """

    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    page: str = ""
    real_now: float = 0.0
    is_current: bool = False


def judge(monitor: Monitor, now: float, store: Store, lease: Lease, telling: Telling) -> Judgement | None:
    """Judge the windows that have become final since the last time; None if nothing came of it.

    1. Follow each rule over those windows; gather what fires into the monitor's incident.
    2. See who is to be told of what has changed.
    3. Store all of it at once.

    Args:
        now: seconds of the data's clock.

    Raises:
        StoreError, LeaseLost: nothing was stored.
    """
    state = store.alerts.state(monitor.name)
    if not (monitor.alerts or monitor.drift or state.conditions or state.open):
        return None
    is_anew = state.until is None or state.anew
    settled = store.settled_end(monitor.traffic, monitor.bucket, 0 if is_anew else state.until or 0)
    if settled is None and state.until is None:
        return None
    work = _Work(monitor, state, max(settled or 0, state.until or 0), Views(monitor, store))
    result = _anew(work, store) if is_anew else _onward(work, store)
    judgement = _tell(work, result, now, store, telling)
    if judgement is not None:
        store.alerts.save(lease, judgement, telling.real_now)
    return judgement


def withdraw(monitor: str, store: Store, lease: Lease, telling: Telling) -> None:
    """Close the incidents of a monitor that is configured no more, and say so to those who were told of them."""
    state = store.alerts.state(monitor)
    if not state.open or state.until is None:
        return
    closed, notices = [_closed(stored, state.until) for stored in state.open.values()], []
    for stored in closed:
        number, last = store.alerts.notices(stored.incident.id)
        if stored.told and last is not None:
            about = _as_told(About(monitor), last)
            notice = notification("withdrawn", about, stored.incident, (), number, reason=REMOVED)
            notices += [(target, notice) for target in _told(stored.incident.id, store, telling)]
    store.alerts.save(lease, Judgement(monitor, state.until, {}, closed, notices=notices), telling.real_now)


# ---- what there is to judge --------------------------------------------------------------------------------------


class Views:
    """What a monitor's rules are judged on, read from the store as far back as they look."""

    def __init__(self, monitor: Monitor, store: Store) -> None:
        self._monitor = monitor
        self._store = store
        self._read: dict[tuple[Definition, int, int], History] = {}

    def of(self, rule: Rule, since: int, until: int) -> View:
        """What is needed to judge the windows that end in (since, until], and to describe them."""
        monitor, definition = self._monitor, self._monitor.judged_definition(rule)
        begin = since - max(r.reach + r.window for r in monitor.alerts) - REACH
        history = self._history(definition, begin, until)
        if isinstance(rule.limit, Drop) and (pinned := rule.limit.baseline.pinned) is not None and pinned[0] < begin:
            history = history.after(self._history(definition, pinned[0], min(pinned[1], begin)))
        traffic = self._history(monitor.traffic, begin, until)
        by_judgments = isinstance(monitor.recipe, Judgments)
        personal = frozenset(s.dimension for s in monitor.slices if s.column == monitor.rankings.query)
        return View(history, traffic, monitor.bucket, monitor.min_completeness, by_judgments, personal)

    def first(self) -> int | None:
        """Start of the oldest bucket that is stored."""
        return self._store.oldest_bucket(self._monitor.traffic)

    def _history(self, definition: Definition, since: int, until: int) -> History:
        asked = (definition, since, until)
        if asked not in self._read:
            self._read[asked] = self._store.history(definition, since, until)
        return self._read[asked]


@dataclass(frozen=True)
class _Work:
    """What there is to judge: up to `end`, seconds, from where `state` left off."""

    monitor: Monitor
    state: AlertState
    end: int
    views: Views


@dataclass
class _Followed:
    """What following the rules and the verdicts came to."""

    conditions: dict[ConditionName, Kept] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    findings: dict[Change, Finding] = field(default_factory=dict)
    newest: dict[ConditionName, Finding] = field(default_factory=dict)
    drift: Judged | None = None


@dataclass(frozen=True)
class _Result:
    """What judging came to, before anybody is told.

    Attributes:
        incidents: those that were open, as they are now, and new ones.
        placed: every change of a condition, with its incident.
        removed: ids of incidents that were undone and of which nobody knows.
        undone: ids of open incidents that others know of, but that better data have undone.
    """

    followed: _Followed
    incidents: Sequence[StoredIncident]
    placed: Sequence[Placed] = ()
    removed: Sequence[str] = ()
    undone: Collection[str] = ()
    anew: bool = False


# ---- following the rules -----------------------------------------------------------------------------------------


def _onward(work: _Work, store: Store) -> _Result:
    """From where the last judgement left off."""
    state, followed = work.state, _Followed()
    followed.changes += _orphaned(work, store)
    for rule in work.monitor.alerts:
        before = _conditions_of(work, rule)
        if before is None and work.end == state.until:
            continue  # it comes in with the next window
        if before is None:
            before = _warm(work, rule, followed)
        _follow(work, rule, state.until or 0, before, followed)
    _follow_drift(work, followed, store)
    incidents, placed = list[StoredIncident](), list[Placed]()
    for matter, changes in _by_matter(followed.changes):
        current = state.open[matter].incident if matter in state.open else None
        found, some = gather(work.monitor.name, current, changes, matter)
        incidents += [_described(work, i, some, followed) for i in found]
        placed += some
    return _Result(followed, incidents, placed)


def _by_matter(changes: Sequence[Change]) -> Iterator[tuple[Matter, list[Change]]]:
    return ((matter, [c for c in changes if matter_of(c.name) == matter]) for matter in MATTERS)


def _follow_drift(work: _Work, followed: _Followed, store: Store) -> None:
    """Judge without thresholds, and note what came of it."""
    if work.monitor.drift is None:
        return
    drifted = follow_drift(work.monitor, work.monitor.drift, work.state, work.end, store)
    followed.drift = drifted.judged
    followed.conditions |= drifted.conditions
    followed.changes += drifted.changes
    followed.findings |= drifted.findings
    followed.newest |= drifted.newest


def _conditions_of(work: _Work, rule: Rule) -> dict[SliceKey, Condition] | None:
    """What the rule came to so far; None if it is new here."""
    identity = work.monitor.identity(rule)
    stored = work.state.conditions.items()
    found = {
        (name[1], name[2]): kept.condition
        for name, kept in stored
        if name[0] == rule.name and kept.identity == identity
    }
    return found or None


def _follow(
    work: _Work, rule: Rule, since: int, before: Mapping[SliceKey, Condition], followed: _Followed
) -> dict[SliceKey, Condition]:
    """Judge a rule on the windows that end in (since, work.end], and note what came of it."""
    identity, ends = work.monitor.identity(rule), range(since + work.monitor.bucket, work.end + 1, work.monitor.bucket)
    after, changes = dict(before), list[Change]()
    if ends:
        view = work.views.of(rule, since, work.end)
        after, changes = follow(rule, view, ends, before)
        _describe(rule, view, work.end, after, changes, followed)
    followed.changes += changes
    followed.conditions |= {(rule.name, *slice_): Kept(identity, condition) for slice_, condition in after.items()}
    return after


def _describe(
    rule: Rule, view: View, end: int, after: Mapping[SliceKey, Condition], changes: list[Change], followed: _Followed
) -> None:
    """Say what there is to say of the changes, and of what fires at the end."""
    for change in changes:
        if change.evaluation is not None and change.became != "withdrawn":
            followed.findings[change] = find(rule, view, change.key, change.evaluation, change.since)
    firing = [slice_ for slice_, condition in after.items() if condition.state == "firing"]
    for slice_, seen in zip(firing, evaluate(rule, view, firing, end), strict=True):
        if not seen.unknown:
            followed.newest[(rule.name, *slice_)] = find(rule, view, slice_, seen, after[slice_].since or end)


def _warm(work: _Work, rule: Rule, followed: _Followed) -> dict[SliceKey, Condition]:
    """Where a rule stands that is new to this monitor. If it fires already, it does so from the next window on."""
    until, first, width = work.state.until, work.views.first(), work.monitor.bucket
    if until is None or first is None or first + width > until:
        return {}
    view = work.views.of(rule, first, until)
    reached, _ = follow(rule, view, range(first + width, until + 1, width), {})
    for slice_, condition in reached.items():
        if condition.state == "firing":
            seen = evaluate(rule, view, [slice_], until)[0]
            name, since = (rule.name, *slice_), condition.since or until
            change = Change(name, rule.severity, rule.retrain, "ok", "firing", since, until + width, seen)
            _describe(rule, view, until, {slice_: condition}, [change], followed)
            followed.changes.append(change)
    return reached


def _orphaned(work: _Work, store: Store) -> list[Change]:
    """Of conditions that fire, but whose rule or slice is judged no more: the change by which they go."""
    monitor, rules = work.monitor, {(r.name, work.monitor.identity(r)): r for r in work.monitor.alerts}
    verdicts = (
        None
        if monitor.drift is None
        else monitor.drift_identity(monitor.drift, baseline_from(monitor, monitor.drift, store))
    )
    gone = []
    for name, kept in work.state.conditions.items():
        rule, condition = rules.get((name[0], kept.identity)), kept.condition
        is_judged = kept.identity == verdicts if name[0] in VERDICTS else rule is not None and _judges(rule, name)
        if condition.state == "firing" and not is_judged:
            since = condition.since or work.end
            gone.append(Change(name, "info", False, "firing", "withdrawn", since, work.end))
    return gone


def _judges(rule: Rule, name: ConditionName) -> bool:
    _, dimension, value = name
    return rule.overall if not dimension else ((dimension, None) in rule.slices or (dimension, value) in rule.slices)


def _described(work: _Work, incident: Incident, placed: Iterable[Placed], followed: _Followed) -> StoredIncident:
    """An incident with the newest there is to say of it."""
    was = _as_open(work, incident.id)
    former = {(f.rule, f.dimension, f.slice): f for f in (was.findings if was is not None else ())}
    last = {p.change.name: p.change for p in placed if p.incident == incident.id}
    changed = {name: followed.findings[change] for name, change in last.items() if change in followed.findings}
    if incident.is_open:
        known = _with_origin(former, _with_origin(changed, followed.newest))
        findings = [known[name] for name in incident.firing or {} if name in known]
    else:
        findings = [f for name, f in changed.items() if last[name].was == "firing"] or list(former.values())
    return replace(was or StoredIncident(incident), incident=incident, findings=tuple(findings))


def _with_origin(
    before: Mapping[ConditionName, Finding], after: Mapping[ConditionName, Finding]
) -> dict[ConditionName, Finding]:
    """The later findings; those of verdicts with where the fall came from, which is known from when it was found."""
    found = {**before, **after}
    for name in before.keys() & after.keys():
        was, now = before[name], after[name]
        if now.verdict and not now.figures:
            found[name] = replace(now, slices=was.slices, figures=was.figures)
    return found


def _as_open(work: _Work, id_: str) -> StoredIncident | None:
    """What was stored of an incident that was open; None if it was not."""
    return next((s for s in work.state.open.values() if s.incident.id == id_), None)


def _closed(stored: StoredIncident, end: int) -> StoredIncident:
    return replace(stored, incident=replace(stored.incident, state="withdrawn", closed_at=end, firing={}))


# ---- judging the past again --------------------------------------------------------------------------------------


def _anew(work: _Work, store: Store) -> _Result:
    """From the oldest bucket on. Incidents that somebody was told of stay in the records, whatever is known now."""
    followed, first = _Followed(), work.views.first()
    for rule in work.monitor.alerts if first is not None else ():
        _follow(work, rule, first or 0, {}, followed)
    _follow_drift(work, followed, store)
    found, placed = list[Incident](), list[Placed]()
    for matter, changes in _by_matter(followed.changes):
        incidents, some = gather(work.monitor.name, None, changes, matter)
        incidents, some = _renamed(work.state.open.get(matter), incidents, some)
        found, placed = [*found, *incidents], [*placed, *some]
    stored, ids = (
        {s.incident.id: s for s in store.alerts.incidents(work.monitor.name, most=100_000)},
        {i.id for i in found},
    )
    kept = {id_ for id_, s in stored.items() if s.told or s.acknowledged_at is not None}
    described = [_with_history(_described(work, i, placed, followed), stored.get(i.id)) for i in found]
    undone = [s for s in work.state.open.values() if s.incident.id in kept - ids]
    described += [_closed(s, work.end) for s in undone]
    removed = [id_ for id_ in stored if id_ not in kept | ids]
    return _Result(followed, described, placed, removed, {s.incident.id for s in undone}, True)


def _renamed(
    current: StoredIncident | None, found: list[Incident], placed: list[Placed]
) -> tuple[list[Incident], list[Placed]]:
    """With the name of the open incident for the same trouble, if only it is now seen to have begun at another time."""
    if current is None or not found or not found[-1].is_open or current.incident.id in {i.id for i in found}:
        return found, placed
    last, was = found[-1], current.incident
    goes_on = replace(last, began_at=was.began_at, opened_at=was.opened_at)
    renamed = [replace(p, incident=goes_on.id if p.incident == last.id else p.incident) for p in placed]
    return [*found[:-1], goes_on], renamed


def _with_history(incident: StoredIncident, stored: StoredIncident | None) -> StoredIncident:
    return incident if stored is None else replace(stored, incident=incident.incident, findings=incident.findings)


# ---- telling -----------------------------------------------------------------------------------------------------


def _tell(work: _Work, result: _Result, now: float, store: Store, telling: Telling) -> Judgement | None:
    """The judgement with its notifications; None if there is nothing new at all."""
    monitor = work.monitor
    is_now = telling.is_current and now - work.end <= monitor.history
    incidents, notices = [], []
    for stored in result.incidents:
        was = _as_open(work, stored.incident.id)
        kind = _kind(stored, was, is_now and not _is_silenced(monitor.name, store, telling))
        incidents.append(replace(stored, told=stored.told or kind == "firing"))
        if kind is not None:
            notices += _notices(kind, stored, result, store, monitor, telling)
    current = next((s for s in incidents if s.incident.is_open and s.incident.matter == "quality"), None)
    retrain = _retrain(work, current) if current is not None and is_now else None
    if retrain is not None and current is not None:
        number, last = store.alerts.notices(current.incident.id)
        asked = notification("retrain", _about(monitor, telling, last), current.incident, current.findings, number)
        asked = replace(asked, key=key(retrain.key))
        notices += [(target, asked) for target in _targets(monitor.retrain_notify, telling)]
    nothing_new = work.end == work.state.until and not (result.placed or notices or retrain or result.anew)
    if nothing_new and set(result.followed.conditions) == set(work.state.conditions):
        return None
    return Judgement(
        monitor.name,
        work.end,
        result.followed.conditions,
        incidents,
        result.removed,
        result.anew,
        [_transition(p, result.followed.findings.get(p.change), now) for p in result.placed],
        notices,
        retrain,
        result.followed.drift,
    )


def _kind(stored: StoredIncident, was: StoredIncident | None, may_page: bool) -> Kind | None:
    """What is to be told of an incident, if anything."""
    incident = stored.incident
    if not stored.told:
        return "firing" if incident.is_open and may_page else None
    if not incident.is_open:
        return None if was is None else "withdrawn" if incident.state == "withdrawn" else "resolved"
    return None if was is not None and _told_of(was.incident) == _told_of(incident) else "updated"


def _told_of(incident: Incident) -> dict[ConditionName, Severity]:
    return {name: firing.severity for name, firing in (incident.firing or {}).items()}


def _notices(
    kind: Kind, stored: StoredIncident, result: _Result, store: Store, monitor: Monitor, telling: Telling
) -> list[tuple[str, Notification]]:
    """A notification for each receiver: of what opens those of the monitor, of the rest those who were told of that."""
    id_ = stored.incident.id
    number, last = store.alerts.notices(id_)
    former = last.severity if last is not None and last.severity != stored.incident.severity else None
    why = RESTATED if id_ in result.undone else GONE
    about = _about(monitor, telling, last)
    notice = notification(kind, about, stored.incident, stored.findings, number, former, why)
    here, told = _targets(_channels(monitor, stored.incident), telling), _told(id_, store, telling)
    if kind != "firing" and told:
        here = list(dict.fromkeys([*told, *(here if _has_collapsed(stored.incident) else ())]))
    return [(target, notice) for target in here]


def _channels(monitor: Monitor, incident: Incident) -> tuple[str, ...]:
    """Who is told of an incident: of broken data their owners, and where those stay broken the model's as well."""
    owners = () if monitor.drift is None else monitor.drift.notify_data
    if incident.matter == "quality" or not owners:
        return monitor.notify
    return (*owners, *monitor.notify) if _has_collapsed(incident) else owners


def _has_collapsed(incident: Incident) -> bool:
    return any(name[0] == COLLAPSED for name in incident.firing or {})


def _about(monitor: Monitor, telling: Telling, last: Notification | None) -> About:
    return _as_told(About(monitor.name, monitor.labels, monitor.runbook_url, telling.page), last)


def _as_told(about: About, last: Notification | None) -> About:
    """With the labels by which the receivers know the incident, whatever the configuration says now."""
    return about if last is None else replace(about, labels=last.labels)


def _targets(channels: Iterable[str], telling: Telling) -> list[str]:
    return list(dict.fromkeys(target for channel in channels for target in telling.targets.get(channel, ())))


def _told(incident: str, store: Store, telling: Telling) -> list[str]:
    """Who was told of an incident and is still there to be told more."""
    known = {target for targets in telling.targets.values() for target in targets}
    return [target for target in store.alerts.told(incident) if target in known]


def _is_silenced(monitor: str, store: Store, telling: Telling) -> bool:
    return any(s.monitor == monitor for s in store.alerts.silences(telling.real_now))


def _retrain(work: _Work, current: StoredIncident) -> Retrain | None:
    """A request to retrain, if a rule asks for it, this incident did not yet, and the last one was long enough ago."""
    incident, last = current.incident, work.state.retrain
    if not any(f.retrain for f in (incident.firing or {}).values()):
        return None
    if last is not None and last.incident == incident.id:
        return None
    if last is not None and work.end - last.asked_at < work.monitor.retrain_cooldown:
        return None
    return Retrain(key("retrain", work.monitor.name, incident.id)[:16], incident.id, work.end)


def _transition(placed: Placed, finding: Finding | None, now: float) -> Transition:
    change = placed.change
    of_verdict = finding is not None and finding.verdict and change.became != "withdrawn"
    said = (verdict_reason if of_verdict else reason)(change.was, change.became, finding)
    return Transition(placed.incident, *change.name, change.was, change.became, change.at, now, said, finding)
