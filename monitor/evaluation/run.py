"""Runs the fold: loads the checkpoint and the hours, and stores the results.

Decisions depend only on what is stored: buckets from a daemon, one by one, give the same result as a backfill. Only
whether somebody is notified depends on `now` as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from monitor.conditions.arrivals import Arrived
from monitor.conditions.checkpoint import Announcement, BaselineReset, StoredCondition, VerdictCheckpoint, VerdictUpdate
from monitor.conditions.evidence import Evidence, Matter
from monitor.conditions.incident import Incident, Placed
from monitor.conditions.thresholds import Change, Condition, ConditionName
from monitor.conditions.verdict_hours import step_of
from monitor.conditions.verdict_units import Unit, units_of
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.drift.verdicts import Verdict
from monitor.evaluation.arrival_conditions import ArrivalConditions
from monitor.evaluation.condition_sets import RuleConditions, VerdictConditions
from monitor.evaluation.fold import Checkpoint, ConditionSet, fold_hours
from monitor.evaluation.hours import StoredHours, announced_of, drift_of, resets_of
from monitor.evaluation.incidents import IncidentUpdate, closed, derived, ended, opened_by, rederived
from monitor.evaluation.notices import Recipients, as_told, transition, with_notices
from monitor.evaluation.version_conditions import VersionConditions
from monitor.messages.notification import About, notification
from monitor.messages.words import utc
from monitor.series.intervals import REACH
from monitor.series.partials import bucket_of
from monitor.store import Lease, Store
from monitor.store.alerts import AlertState, Judgement, StoredIncident
from monitor.types import FARTHEST, Drift, Monitor

log = logging.getLogger(__name__)

REMOVED = "the monitor is no longer configured"

MAX_WINDOWS = 1000
"""Windows evaluated and stored at once: six weeks of 1h windows, a second or two."""


def verdict_conditions(monitor: Monitor, store: Store, until: int) -> VerdictConditions:
    """A monitor's verdict conditions on steps that end by `until`, seconds. Raises InputError if it has no `drift`."""
    announced = announced_of(monitor, store, until)
    return VerdictConditions(monitor, drift_of(monitor), resets_of(monitor, store), announced)


def conditions_of(
    monitor: Monitor,
    arrivals: Sequence[ArrivalConditions],
    announced: Sequence[Announcement],
    resets: Sequence[BaselineReset],
) -> list[ConditionSet]:
    rules: list[ConditionSet] = [RuleConditions(monitor, rule) for rule in monitor.alerts]
    if monitor.drift is None:
        return rules
    verdicts = VerdictConditions(monitor, monitor.drift, resets, announced)
    version = monitor.version_slice
    versions = [] if version is None else [VersionConditions(monitor, monitor.drift, version.dimension, announced)]
    return [*rules, verdicts, *versions, *arrivals]


def judge_monitor(
    monitor: Monitor,
    now: float,
    store: Store,
    lease: Lease,
    recipients: Recipients,
    arrived: Arrived | None = None,
    is_over: Callable[[], bool] = bool,
    leaves_off: Callable[[], bool] = bool,
) -> Judgement | None:
    """Evaluate what became final since the last run, MAX_WINDOWS at a time; None if nothing changed.

    Args:
        now: seconds of the data's clock.
        arrived: the newest the source has; None if it was not checked.
        is_over: whether the process must stop; then nothing more is stored.
        leaves_off: asked before each further part; the rest is evaluated next time.

    Returns:
        The last part's judgement, with the incidents and notices of all parts.

    Raises:
        StoreError, LeaseLost, Stopped: nothing of the current part was stored.
    """
    judgement = None
    while True:
        with store.at_once():
            part, is_whole = _judged(monitor, now, store, recipients, arrived, is_over)
        if part is not None:
            store.alerts.save(lease, part, recipients.real_now)
        judgement = _both(judgement, part) if judgement is not None and part is not None else part or judgement
        if is_whole or leaves_off():
            return judgement


def _both(first: Judgement, then: Judgement) -> Judgement:
    by_id = {s.incident.id: s for s in (*first.incidents, *then.incidents)}
    notices, is_restated = [*first.notices, *then.notices], first.restated or then.restated
    return replace(then, incidents=list(by_id.values()), notices=notices, restated=is_restated)


def _judged(
    monitor: Monitor,
    now: float,
    store: Store,
    recipients: Recipients,
    arrived: Arrived | None,
    is_over: Callable[[], bool],
) -> tuple[Judgement | None, bool]:
    """(judgement on the next windows, whether none are left)."""
    stored = store.alerts.state(monitor.name)
    went_back = stored.until is not None and stored.until > now
    if went_back and (newest := store.retention.behind(now, monitor.name)) is not None:
        text = "monitor %s: nothing is judged by this clock: it is %s by it, but requests up to %s are stored"
        log.warning(text, monitor.name, utc(int(now)), utc(newest))
        return None, True
    # Windows that have not ended were evaluated by a clock that ran ahead.
    since = None if stored.until is None or went_back else bucket_of(stored.until, monitor.bucket)
    state = replace(stored, until=since, restated=stored.restated or since is None)
    if not (monitor.alerts or monitor.drift or state.conditions or state.open):
        return None, True
    settled = store.settled_end(monitor.traffic, monitor.bucket, 0 if state.restated else since or 0, now)
    if settled is None and since is None:
        return None, True
    end = max(settled or 0, since or 0)
    until = end if state.restated else min(end, (since or 0) + MAX_WINDOWS * monitor.bucket)
    if until < end:  # arrivals of today say nothing about the past
        arrived, recipients = None, replace(recipients, is_current=False)
    past = StoredHours(monitor, store, is_over)
    update = _evaluated(monitor, state, past, until, store, (now, arrived))
    return with_notices(update, resets_of(monitor, store), now, store, recipients), until == end


def _evaluated(
    monitor: Monitor,
    state: AlertState,
    past: StoredHours,
    until: int,
    store: Store,
    look: tuple[float, Arrived | None],
) -> IncidentUpdate:
    """Fold to `until` from the newest checkpoint or, if the past changed, from the oldest."""
    resets, announced = resets_of(monitor, store), announced_of(monitor, store, until)
    arrivals = _arrivals(monitor, state, until, *look)
    if not state.restated:
        checkpoint, known_from = _newest(monitor, state, store), [(0, reset) for reset in resets]
        if monitor.drift is not None:
            checkpoint = VerdictConditions(monitor, monitor.drift, resets, announced).under_this_identity(checkpoint)
    else:
        of_arrivals = {name: kept for name, kept in state.conditions.items() if any(one.has(name) for one in arrivals)}
        checkpoint = Checkpoint(None, of_arrivals)
        known_from = _known_from(monitor, resets, until - step_of(monitor.bucket), past)
    sets = partial(conditions_of, monitor, arrivals, announced)
    after, events = fold_hours(checkpoint, past, sets, known_from, until)
    if not state.restated:
        return derived(monitor, state, after, events, _resolved(monitor, store) if after.firing() else ())
    recorded = {s.incident.id: s for s in store.alerts.incidents(monitor.name, most=None)}
    rolled_up = store.retention.rolled_up(monitor.traffic, 0, until)
    gone = max(0 if rolled_up is None else rolled_up[1], 0 if events.verdicts is None else events.verdicts.kept)
    reach = max([REACH, *(rule.reach for rule in monitor.alerts)]) if gone else 0
    kept_until = gone, max(past.first or 0, gone) + reach
    opened = _open_at_the_oldest(monitor, past, store)
    return rederived(monitor, state, after, events, opened, recorded, kept_until)


def _arrivals(
    monitor: Monitor, state: AlertState, until: int, now: float, arrived: Arrived | None
) -> list[ArrivalConditions]:
    if monitor.drift is None:
        return []
    opened = {matter: (stored.incident, stored.findings) for matter, stored in state.open.items()}
    return [ArrivalConditions(monitor, monitor.drift, now, arrived, until, opened, state.restated)]


def _resolved(monitor: Monitor, store: Store) -> list[Evidence]:
    """What was found of the newest resolved incidents on the data, newest first."""
    closed = store.alerts.incidents(monitor.name, "resolved")
    return [found for stored in closed if stored.incident.matter == "data" for found in stored.findings]


def _newest(monitor: Monitor, state: AlertState, store: Store) -> Checkpoint:
    """The last run's checkpoint; what fires in an incident but has no condition gets one without identity, to end."""
    verdicts = None if monitor.drift is None else store.verdicts.newest_checkpoint(monitor.name)
    firing = Checkpoint(state.until, state.conditions).firing()
    fires = [item for stored in state.open.values() for item in (stored.incident.firing or {}).items()]
    lost = {n: StoredCondition("", Condition("firing", f.since)) for n, f in fires if n not in firing}
    return Checkpoint(state.until, {**state.conditions, **lost}, None if verdicts is None else VerdictUpdate(verdicts))


def _open_at_the_oldest(monitor: Monitor, past: StoredHours, store: Store) -> dict[Matter, Incident]:
    if monitor.drift is None:
        return {}
    oldest = verdict_conditions(monitor, store, FARTHEST).oldest(past, 0)
    if not oldest.conditions:
        return {}
    recorded = (s.incident for s in store.alerts.incidents(monitor.name, most=None))
    return opened_by(monitor.name, monitor.drift, oldest.conditions, oldest.since, recorded)


def _known_from(
    monitor: Monitor, resets: Sequence[BaselineReset], latest: int, past: StoredHours
) -> list[tuple[int, BaselineReset]]:
    """(end of the last window evaluated before a reset was made, reset): earlier results stay."""
    oldest = past.rolled_up[0] if resets else None
    least, known_from = 0 if oldest is None else oldest.until, []
    for reset in resets:
        said = reset.judged_until
        at = min(said, latest) if said is not None and said > least and reset.since >= least else 0
        known_from.append((bucket_of(at, monitor.bucket), reset))
    return known_from


@dataclass(frozen=True)
class Hindsight:
    """The result of evaluating a past.

    Attributes:
        until: end of the last evaluated window, seconds.
        incidents: oldest first, each with the newest evidence.
        verdicts: as they were at their time, oldest first.
    """

    until: int
    incidents: Sequence[StoredIncident]
    placed: Sequence[Placed]
    evidence: Mapping[Change, Evidence]
    conditions: Mapping[ConditionName, Condition]
    verdicts: Sequence[Verdict]


def judge_past(monitor: Monitor, store: Store, until: int) -> Hindsight | None:
    """What `judge_monitor` would have found, bucket by bucket; nothing is stored. None if there is nothing to evaluate.

    Each window is evaluated by the final buckets that had ended by then, and the baseline resets known then.

    Args:
        until: windows that end later are left out, seconds.

    Raises:
        StoreError: the store is out of reach.
    """
    settled = store.settled_end(monitor.traffic, monitor.bucket)
    if settled is None:
        return None
    end, past = min(settled, until - until % monitor.bucket), StoredHours(monitor, store)
    resets = _known_from(monitor, resets_of(monitor, store), FARTHEST, past)
    sets = partial(conditions_of, monitor, (), announced_of(monitor, store, end))
    after, events = fold_hours(Checkpoint(), past, sets, resets, end)
    state, opened = AlertState(), _open_at_the_oldest(monitor, past, store)
    update = rederived(monitor, state, after, events, opened, {}, (0, 0))
    conditions = {name: kept.condition for name, kept in after.conditions.items()}
    return Hindsight(end, update.incidents, update.placed, events.evidence, conditions, events.lived)


def moved_checkpoint(monitor: Monitor, until: int, store: Store) -> VerdictCheckpoint | None:
    """The oldest checkpoint after the buckets before `until` are gone; None if it need not move. Raises StoreError."""
    if monitor.drift is None:
        return None
    conditions, past = verdict_conditions(monitor, store, FARTHEST), StoredHours(monitor, store)
    until, oldest = -(-until // conditions.step) * conditions.step, conditions.oldest(past, until)
    if until <= oldest.since:
        return None
    _, _, update = conditions.judge(past, oldest, until)
    return replace(update.checkpoint, identity=conditions.identity_until(until))


@dataclass(frozen=True)
class BaselineStatus:
    """The state of a monitor's verdicts.

    Attributes:
        resets: of the baseline, oldest first.
        state, verdict: the newest; None if nothing is final yet.
    """

    monitor: str
    drift: Drift
    settings: DriftSettings
    resets: Sequence[BaselineReset]
    state: DriftState | None
    verdict: Verdict | None

    @property
    def units(self) -> list[Unit]:
        """Overall first, then the slices."""
        return units_of(self.settings, self.state)


def baseline_status(monitor: Monitor, store: Store) -> BaselineStatus:
    """A monitor's verdict status: as stored, or evaluated now if that is of another configuration.

    Raises:
        InputError: the monitor has no `drift`.
        StoreError: the store is out of reach.
    """
    stored, every = store.verdicts.newest_checkpoint(monitor.name), store.verdicts.baselines(monitor.name)
    conditions = verdict_conditions(monitor, store, FARTHEST if stored is None else stored.until)
    status = partial(BaselineStatus, monitor.name, conditions.drift, conditions.settings, every)
    if stored is not None and stored.identity == conditions.identity:
        return status(stored.state, store.verdicts.newest(monitor.name))
    end, past = store.settled_end(monitor.traffic, monitor.bucket), StoredHours(monitor, store)
    if end is None:
        return status(None, None)
    conditions = verdict_conditions(monitor, store, end)
    _, _, update = conditions.judge(past, conditions.oldest(past, end), end)
    return status(update.checkpoint.state, update.verdicts[-1] if update.verdicts else None)


def withdraw(monitor: str, store: Store, lease: Lease, recipients: Recipients) -> None:
    """Close the incidents of a monitor that is no longer configured, and notify those who knew of them."""
    state = store.alerts.state(monitor)
    if not state.open or state.until is None:
        return
    incidents, notices = [closed(stored, state.until) for stored in state.open.values()], []
    placed = [p for stored in state.open.values() for p in ended(stored, state.until)]
    steps = [replace(transition(p, None, recipients.real_now), reason=REMOVED) for p in placed]
    for stored in incidents:
        number, last = store.alerts.notices(stored.incident.id)
        if stored.told and last is not None:
            about = as_told(About(monitor, templates=recipients.templates), last)
            notice = notification("withdrawn", about, stored.incident, (), number, reason=REMOVED)
            # Another daemon may serve the receivers; the outbox gives up what none serves.
            notices += [(target, notice) for target in store.alerts.told(stored.incident.id)]
    judgement = Judgement(monitor, state.until, {}, incidents, transitions=steps, notices=notices)
    store.alerts.save(lease, judgement, recipients.real_now)
