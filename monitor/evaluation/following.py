"""Following rules and verdicts over the windows that have become final: conditions, and how they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from monitor.conditions.arrivals import ARRIVALS
from monitor.conditions.findings import Unjudged, find
from monitor.conditions.rules import Rule
from monitor.conditions.thresholds import Change, Condition, ConditionName, View, evaluate, follow
from monitor.conditions.verdict_conditions import FOLDED, VERDICTS
from monitor.evaluation.arrivals import IDENTITY, follow_arrivals
from monitor.evaluation.checkpoint import identity_of
from monitor.evaluation.verdicts import Drifted, begun_anew, begun_because, follow_drift, live_through
from monitor.evaluation.work import CHANGED, GOES_ON, GONE, Followed, Work
from monitor.series.windows import SliceKey
from monitor.store import Store
from monitor.store.alerts import Kept
from monitor.store.verdicts import BaselineReset
from monitor.types import OVERALL, Monitor

SOME = 500
"""Windows that are followed between two looks whether the process is to end."""


def follow_onward(work: Work, store: Store) -> Followed:
    """From where the last judgement left off."""
    state, followed = work.state, Followed()
    followed.reasons |= _orphaned(work, store)
    followed.changes += followed.reasons
    succeeded = {change.name[0] for change in followed.changes}
    left = _left_over(work)
    followed.reasons |= left
    followed.changes += left
    for rule in work.monitor.alerts:
        before = _conditions_of(work, rule)
        if before is None and work.end == state.until and rule.name not in succeeded:
            continue  # it comes in with the next window
        if before is None:
            # What fires under a rule that was changed goes on at once: nobody is told of an end and a beginning.
            begin = state.until or 0
            before = _warm(work, rule, begin if rule.name in succeeded else begin + work.monitor.bucket, followed)
        _follow(work, rule, state.until or 0, before, followed)
    if work.monitor.drift is not None:
        _note(follow_drift(work.monitor, work.monitor.drift, work.state, work.end, store, work.go_on), followed)
    _join_what_goes_on(followed)
    follow_arrivals(work, followed, store, is_anew=False)
    return followed


def _join_what_goes_on(followed: Followed) -> None:
    """Of what was changed and fires as it is now at once: one change in place of an end and a beginning."""
    begun = {(c.name, c.at): c for c in followed.changes if c.became == "firing"}
    for ended in [change for change, why in followed.reasons.items() if why == CHANGED]:
        if (anew := begun.get((ended.name, ended.at))) is not None:
            joined = replace(anew, was="firing")
            followed.changes = [c for c in followed.changes if c not in (ended, anew)] + [joined]
            del followed.reasons[ended]
            followed.reasons[joined] = GOES_ON
            if anew in followed.findings:
                followed.findings[joined] = followed.findings.pop(anew)


def follow_from_the_first(work: Work, store: Store) -> Followed:
    """From the oldest bucket on, whatever was recorded before.

    Verdicts as they were at the time: what somebody says of the level later does not undo what was found until then.
    """
    followed, first = Followed(), work.views.first()
    for rule in work.monitor.alerts if first is not None else ():
        _follow(work, rule, first or 0, {}, followed)
    if work.monitor.drift is not None:
        _note(live_through(work.monitor, work.monitor.drift, work.end, store, work.is_past, work.go_on), followed)
    follow_arrivals(work, followed, store, is_anew=True)
    return followed


def _note(drifted: Drifted, followed: Followed) -> None:
    """Take in what judging without thresholds came to."""
    followed.drift = drifted.judged
    followed.conditions |= drifted.conditions
    followed.changes += drifted.changes
    followed.findings |= drifted.findings
    followed.newest |= drifted.newest
    followed.reasons |= drifted.reasons


def _conditions_of(work: Work, rule: Rule) -> dict[SliceKey, Condition] | None:
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
    work: Work, rule: Rule, since: int, before: Mapping[SliceKey, Condition], followed: Followed
) -> dict[SliceKey, Condition]:
    """Judge a rule on the windows that end in (since, work.end], and note what came of it."""
    identity, ends = work.monitor.identity(rule), range(since + work.monitor.bucket, work.end + 1, work.monitor.bucket)
    after, changes = dict(before), list[Change]()
    if ends:
        view = _with_what_fires(work.views.of(rule, since, work.end), before)
        for at in range(0, len(ends), SOME):
            work.go_on()
            after, some = follow(rule, view, ends[at : at + SOME], after)
            changes += some
        _describe(rule, view, since, after, changes, followed)
        followed.unjudged |= _unjudged(rule, view, after, ends[-1])
    followed.changes += changes
    # A rule whose slices have had no traffic yet is known too: else it would be taken for a new one each time.
    kept = after or {OVERALL: Condition()}
    followed.conditions |= {(rule.name, *slice_): Kept(identity, condition) for slice_, condition in kept.items()}
    return after


def _with_what_fires(view: View, before: Mapping[SliceKey, Condition]) -> View:
    """With the slices that fire: one without traffic for longer than rules look back has its end still to come."""
    firing = [slice_ for slice_, condition in before.items() if condition.state == "firing"]
    return replace(view, history=view.history.including(firing))


def _describe(
    rule: Rule, view: View, since: int, after: Mapping[SliceKey, Condition], changes: list[Change], followed: Followed
) -> None:
    """Say what there is to say of the changes, and of what fires at the end: by the last window that says something.

    Of what fires whose last such window ended by `since`, seconds, the same holds as before.
    """
    for change in changes:
        if change.evaluation is not None and change.became != "withdrawn":
            found = find(rule, view, change.key, change.evaluation, change.since)
            is_over = change.was == "firing"
            followed.findings[change] = replace(found, well_for=rule.resolve_lasting) if is_over else found
    firing = {slice_: c.known for slice_, c in after.items() if c.state == "firing" and (c.known or 0) > since}
    for end in sorted({known for known in firing.values() if known is not None}):
        some = [slice_ for slice_, known in firing.items() if known == end]
        for slice_, seen in zip(some, evaluate(rule, view, some, end), strict=True):
            found = find(rule, view, slice_, seen, after[slice_].since or end)
            followed.newest[rule.name, *slice_] = replace(found, well_for=after[slice_].streak * view.width)


def _unjudged(
    rule: Rule, view: View, after: Mapping[SliceKey, Condition], end: int
) -> dict[ConditionName, Unjudged | None]:
    """Of what fires, why nothing can be said of the window that ends at `end`; None where something can."""
    firing = {slice_: c for slice_, c in after.items() if c.state == "firing"}
    found: dict[ConditionName, Unjudged | None] = {(rule.name, *slice_): None for slice_ in firing}
    some = [slice_ for slice_, condition in firing.items() if condition.known != end]
    for slice_, seen in zip(some, evaluate(rule, view, some, end) if some else (), strict=True):
        found[rule.name, *slice_] = Unjudged(seen.unknown, seen.requests, rule.min_requests) if seen.unknown else None
    return found


def _warm(work: Work, rule: Rule, at: int, followed: Followed) -> dict[SliceKey, Condition]:
    """Where a rule stands that is new to this monitor. If it fires already, it does so from the window `at` on."""
    until, first, width = work.state.until, work.views.first(), work.monitor.bucket
    if until is None or first is None or first + width > until:
        return {}
    view = work.views.of(rule, first, until)
    reached, _ = follow(rule, view, range(first + width, until + 1, width), {})
    for slice_, condition in reached.items():
        if condition.state == "firing":
            seen = evaluate(rule, view, [slice_], condition.known or until)[0]
            name, since = (rule.name, *slice_), condition.since or until
            change = Change(name, rule.severity, rule.retrain, "ok", "firing", since, at, seen)
            _describe(rule, view, first, {slice_: condition}, [change], followed)
            followed.changes.append(change)
    return reached


def _orphaned(work: Work, store: Store) -> dict[Change, str]:
    """Of conditions that fire, but whose rule or slice is judged no more: the change by which they go, and why."""
    monitor, rules = work.monitor, {(r.name, work.monitor.identity(r)): r for r in work.monitor.alerts}
    names = {r.name for r in monitor.alerts} | (VERDICTS if monitor.drift is not None else set())
    begun = [] if monitor.drift is None else begun_anew(monitor, monitor.drift, store)
    verdicts = None if monitor.drift is None else identity_of(monitor, monitor.drift, begun)
    gone, at = dict[Change, str](), work.end if work.state.until is None else work.state.until
    for name, kept in work.state.conditions.items():
        rule, condition = rules.get((name[0], kept.identity)), kept.condition
        if name[0] in ARRIVALS:
            is_judged = monitor.drift is not None and kept.identity == IDENTITY
        else:
            is_judged = kept.identity == verdicts if name[0] in VERDICTS else rule is not None and _judges(rule, name)
        if condition.state == "firing" and not is_judged:
            change = Change(name, "info", False, "firing", "withdrawn", condition.since or at, at)
            is_changed = rule is None and name[0] in names
            gone[change] = (_begun_since(monitor, begun, name, kept.identity) or CHANGED) if is_changed else GONE
    return gone


def _left_over(work: Work) -> dict[Change, str]:
    """Of what fires in an open incident though no condition stands for it any more: the change by which it goes.

    Former versions left such incidents, which nothing else would ever end.
    """
    stands = {name for name, kept in work.state.conditions.items() if kept.condition.state == "firing"}
    fires = [item for stored in work.state.open.values() for item in (stored.incident.firing or {}).items()]
    at = work.end if work.state.until is None else work.state.until
    left = ((name, firing) for name, firing in fires if name not in stands)
    return {Change(n, f.severity, f.retrain, "firing", "withdrawn", f.since, at): GONE for n, f in left}


def _begun_since(monitor: Monitor, begun: Sequence[BaselineReset], name: ConditionName, identity: str) -> str:
    """That a verdict of this identity was judged by a baseline that was begun anew since; empty if that is not all."""
    if monitor.drift is None or name[0] not in FOLDED:
        return ""
    for said in begun:
        if identity == identity_of(monitor, monitor.drift, [other for other in begun if other is not said]):
            return begun_because(said)
    return ""


def _judges(rule: Rule, name: ConditionName) -> bool:
    _, dimension, value = name
    return rule.overall if not dimension else ((dimension, None) in rule.slices or (dimension, value) in rule.slices)
