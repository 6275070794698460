"""Verdicts from what is stored: partials -> steps -> verdicts -> conditions, with what there is to say of them.

Like the alert rules they are followed from where they stood, over final buckets only; if what is judged has changed, or
the past was read again, from the oldest bucket on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from monitor.causes.diagnosis import dimensions, version_slice
from monitor.conditions.findings import Finding
from monitor.conditions.thresholds import Change, Condition, ConditionName
from monitor.conditions.verdict_conditions import (
    DEGRADED,
    FOLDED,
    MASKED,
    REFUSED,
    Seen,
    follow,
    name_of,
    withdrawn_ahead,
)
from monitor.conditions.verdict_data import calming, how_it_ended, with_reasons
from monitor.conditions.verdict_evidence import Evidence
from monitor.conditions.verdict_findings import finding
from monitor.conditions.verdict_hours import hours, step_of
from monitor.drift.judge import judge
from monitor.drift.series import DAY
from monitor.drift.state import DriftState
from monitor.drift.verdicts import Verdict
from monitor.evaluation.checkpoint import ahead, beginning, identity_of, settings_of
from monitor.messages.words import utc
from monitor.series.intervals import REACH
from monitor.store import Store
from monitor.store.alerts import AlertState, Kept
from monitor.store.store import HARMLESS
from monitor.store.verdicts import BaselineReset, Standing, VerdictUpdate
from monitor.types import Drift, Monitor

GoOn = Callable[[], None]

AT_ONCE = 500
"""Steps that are judged between two looks whether the process is to end; they take some tenths of a second."""


@dataclass
class Drifted:
    """What following the verdicts came to.

    Attributes:
        judged: to be stored; None if there is nothing new.
        newest: findings of what fires now.
        reasons: of changes that no step made.
    """

    judged: VerdictUpdate | None = None
    conditions: dict[ConditionName, Kept] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    findings: dict[Change, Finding] = field(default_factory=dict)
    newest: dict[ConditionName, Finding] = field(default_factory=dict)
    reasons: dict[Change, str] = field(default_factory=dict)


def begun_anew(monitor: Monitor, drift: Drift, store: Store) -> list[BaselineReset]:
    """Where somebody had the baseline begin anew, oldest first; not what the configuration leaves out."""
    least = drift.baseline_from or 0
    return [said for said in store.verdicts.baselines(monitor.name) if said.since > least]


def follow_drift(
    monitor: Monitor, drift: Drift, state: AlertState, end: int, store: Store, go_on: GoOn = lambda: None
) -> Drifted:
    """Judge the steps that ended by `end`, from where the verdicts stand.

    Args:
        go_on: called now and then; raises Stopped if the process is to end.

    Raises:
        StoreError: the store is out of reach.
        Stopped: as of `go_on`.
    """
    begun = begun_anew(monitor, drift, store)
    standing = None if state.anew or state.until is None else store.verdicts.standing(monitor.name)
    is_known = standing is not None and standing.identity == identity_of(monitor, drift, begun)
    return _follow(monitor, drift, state, end, store, begun, standing if is_known else None, go_on)


def live_through(
    monitor: Monitor, drift: Drift, end: int, store: Store, is_past: bool = False, go_on: GoOn = lambda: None
) -> Drifted:
    """Judge the steps that ended by `end` from the first on, as it was at the time.

    Where the baseline begins anew is known from when it was said: what was judged by then was judged without it.

    Args:
        is_past: `end` is in the past too. Else all that was said is known then, by whatever clock it was said.
        go_on: called now and then; raises Stopped if the process is to end.

    Raises:
        StoreError: the store is out of reach.
        Stopped: as of `go_on`.
    """
    begun, border = begun_anew(monitor, drift, store), store.verdicts.border(monitor.name)
    least = 0 if border is None else border.standing.until
    late = {s.since: s.judged_until for s in begun if s.judged_until is not None and least <= s.since < s.judged_until}
    if not is_past:
        late = {since: min(until, end - step_of(monitor.bucket)) for since, until in late.items()}
    whole, state, heard = Drifted(), AlertState(), 0
    for until in (*sorted({at for at in late.values() if at < end}), end):
        known = [said for said in begun if late.get(said.since, 0) <= heard]
        found, heard = _follow(monitor, drift, state, until, store, known, None, go_on), until
        if until == end or (found.judged is not None and found.judged.verdicts):
            lived, whole = whole, _gone_on(whole, found, state, known[-1] if known else None)
            if is_past:
                whole = _with_verdicts_of(lived, whole, state)
            state = AlertState(until, conditions=found.conditions)
    return whole


def _gone_on(was: Drifted, now: Drifted, state: AlertState, said: BaselineReset | None) -> Drifted:
    """What was lived through, and from `state` on what was found when all was judged anew by what was `said` then."""
    if was.judged is None or now.judged is None or state.until is None:
        return now
    since, firing = state.until, (n for n, kept in state.conditions.items() if kept.condition.state == "firing")
    ended = [Change(n, "info", False, "firing", "withdrawn", _since(state, n), since) for n in firing]
    return replace(
        now,
        changes=[*was.changes, *ended, *now.changes],
        findings=was.findings | {c: was.newest[c.name] for c in ended if c.name in was.newest} | now.findings,
        reasons=was.reasons | {change: begun_because(said) for change in ended if said is not None},
    )


def _with_verdicts_of(was: Drifted, now: Drifted, state: AlertState) -> Drifted:
    """With the verdicts too as they were until `state`; what is stored of them is of the level that is known now."""
    if was.judged is None or now.judged is None or state.until is None:
        return now
    at = state.until
    verdicts = [v for v in was.judged.verdicts if v.end <= at] + [v for v in now.judged.verdicts if v.end > at]
    return replace(now, judged=replace(now.judged, verdicts=verdicts))


def begun_because(said: BaselineReset) -> str:
    """Why a verdict went that was judged by the baseline of before, in words."""
    note = f": {said.note}" if said.note else ""
    return f"its baseline was begun anew at {utc(said.since)} by {said.author}{note}"


def _since(state: AlertState, name: ConditionName) -> int:
    return state.conditions[name].condition.since or state.until or 0


def _follow(
    monitor: Monitor,
    drift: Drift,
    state: AlertState,
    end: int,
    store: Store,
    begun: Sequence[BaselineReset],
    standing: Standing | None,
    go_on: GoOn,
) -> Drifted:
    """Judge the steps that ended by `end`, from `standing` on; without one from the first on."""
    identity, step = identity_of(monitor, drift, begun), step_of(monitor.bucket)
    before, kept, is_new = _before(state, identity), 0, standing is None
    if standing is None:
        border, kept = beginning(monitor, drift, begun, store)
        standing = border.standing
        before = dict(border.conditions) if state.anew or state.until is None else {}
    if is_new and end == state.until and not state.anew and not _fires(state):
        return Drifted()  # it comes in with the next window
    until = end - end % step
    if until <= standing.until:
        return Drifted(VerdictUpdate(standing), {name: Kept(identity, c) for name, c in before.items()})
    found, verdict_state = _verdicts(monitor, drift, begun, standing, until, store, go_on)
    spans = ahead(begun)
    after, changes = follow(drift, step, found, before, spans)
    after, gone = withdrawn_ahead(drift, found, after, until, spans)
    changes += gone
    if is_new and state.until is not None and not state.anew:
        first = next((v.end for v in found if v.end > state.until), end)
        changes = _now_only(changes, state.until, state.until if _fires(state) else first)
    drifted = Drifted(VerdictUpdate(Standing(identity, until, verdict_state), found, is_new, kept))
    drifted.conditions = {name: Kept(identity, condition) for name, condition in after.items()}
    drifted.changes = [seen.change for seen in changes]
    _describe(monitor, drift, drifted, changes, found, store)
    return drifted


def _fires(state: AlertState) -> bool:
    """Whether a verdict stands that is to go on, or to end, under what is judged now."""
    return any(name[0] in FOLDED and kept.condition.state == "firing" for name, kept in state.conditions.items())


def _before(state: AlertState, identity: str) -> dict[ConditionName, Condition]:
    kept = state.conditions.items()
    return {name: k.condition for name, k in kept if name[0] in FOLDED and k.identity == identity}


def _verdicts(
    monitor: Monitor,
    drift: Drift,
    begun: Sequence[BaselineReset],
    standing: Standing,
    until: int,
    store: Store,
    go_on: GoOn,
) -> tuple[list[Verdict], DriftState | None]:
    """The verdicts on the steps in [standing.until, until), and the state that they come to."""
    history = store.history(monitor.definition(drift.measure), standing.until, until)
    traffic = store.history(monitor.traffic, standing.until, until)
    refused = store.refused_by_bucket(monitor.traffic, standing.until, until)
    known = hours(drift, monitor.bucket, history, traffic, refused, monitor.has_events)
    settings, state, found = settings_of(monitor, drift, begun), standing.state, list[Verdict]()
    for at in range(0, len(known.starts), AT_ONCE):
        go_on()
        some, state = judge(settings, state, known.rows(at, at + AT_ONCE))
        found += some
    return found, state


def _now_only(changes: Sequence[Seen], since: int, at: int) -> list[Seen]:
    """Of changes since the beginning, those after `since`; and what fires already then does so from `at` on."""
    last = {seen.change.name: seen for seen in changes if seen.change.at <= since}
    standing = [seen for seen in last.values() if seen.change.became == "firing"]
    fires = [replace(seen, change=replace(seen.change, at=at)) for seen in standing]
    gone = {seen.change.name for seen in changes if seen.change.at > since}
    return [seen for seen in fires if seen.change.name not in gone] + [s for s in changes if s.change.at > since]


def _describe(
    monitor: Monitor, drift: Drift, drifted: Drifted, changes: Sequence[Seen], found: Sequence[Verdict], store: Store
) -> None:
    """Say what there is to say of the changes, and of what fires at the end."""
    firing = [name for name, kept in drifted.conditions.items() if kept.condition.state == "firing"]
    if not found or not (changes or firing):
        return
    last = found[-1]
    starts = [k.condition.since or last.end for k in drifted.conditions.values()]
    begin = min([last.end, *starts, *(seen.change.since for seen in changes)]) - REACH
    version = version_slice(monitor)
    evidence = Evidence(
        drift,
        monitor.bucket,
        store.history(monitor.definition(drift.measure), begin, last.end),
        store.history(monitor.traffic, begin, last.end),
        _masked(monitor, drifted, found, begin, store),
        has_events=monitor.has_events,
        counts_unmatched=monitor.counts_unmatched,
        versions="" if version is None else version.dimension,
        dimensions=tuple(one.dimension for one in dimensions(monitor)),
    )
    for seen in changes:
        name, fires = seen.change.name, seen.change.became == "firing"
        verdict = seen.verdict if fires else _last_of(name, monitor, drifted, found, seen.verdict, store)
        told = finding(evidence, name, verdict, seen.alarm if fires else None, seen.change.since)
        told = _with_reasons(told, monitor, store)
        drifted.findings[seen.change] = told if fires else how_it_ended(evidence, told, seen)
    alarms = {name_of(drift, alarm.unit): alarm for alarm in last.alarms}
    for name in firing:
        condition = drifted.conditions[name].condition
        verdict = _last_of(name, monitor, drifted, found, last, store)
        told = finding(evidence, name, verdict, alarms.get(name), condition.since or last.end)
        told = _with_reasons(told, monitor, store)
        drifted.newest[name] = told if name[0] == DEGRADED else calming(told, condition, step_of(monitor.bucket))


def _with_reasons(found: Finding, monitor: Monitor, store: Store) -> Finding:
    """A finding of refused rows with the reasons of its hours: at most the day before it, and what told it first."""
    if found.verdict != REFUSED:
        return found
    begin = max(found.since, found.end - DAY) - found.window
    rows = store.refused(monitor.traffic, begin, found.end)
    return with_reasons(found, {reason: number for reason, number in rows.items() if reason not in HARMLESS})


def _masked(monitor: Monitor, drifted: Drifted, found: Sequence[Verdict], since: int, store: Store) -> frozenset[int]:
    """Ends of the steps from then on that were left out for the data were bad."""
    known = [(verdict.end, str(verdict.kind)) for verdict in found]
    if drifted.judged is None or not drifted.judged.anew:
        known += [(one.end, one.kind) for one in store.verdicts.drawn(monitor.name, since, found[0].end - 1)]
    return frozenset(end for end, kind in known if kind in MASKED)


def _last_of(
    name: ConditionName, monitor: Monitor, drifted: Drifted, found: Sequence[Verdict], until: Verdict, store: Store
) -> Verdict:
    """The verdict that a condition's figures are of: of broken data, the last that found them so."""
    if name[0] == DEGRADED:
        return until
    known = next((v for v in reversed(found) if v.end <= until.end and v.kind == name[0]), None)
    is_anew = drifted.judged is not None and drifted.judged.anew
    return known or (None if is_anew else store.verdicts.newest(monitor.name, name[0])) or until
