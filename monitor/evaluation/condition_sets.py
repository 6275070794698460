"""The sets of conditions that the fold evaluates: an alert rule's, and those made by verdicts on final hours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cached_property
from itertools import chain
from zoneinfo import ZoneInfo

from monitor.causes.diagnosis import dimensions
from monitor.conditions.checkpoint import (
    Announcement,
    BaselineReset,
    VerdictCheckpoint,
    VerdictUpdate,
    announced_before,
)
from monitor.conditions.evidence import kind_of
from monitor.conditions.examined import CONTRADICTED, as_examined, contradicts, sound_spans
from monitor.conditions.kinds.degraded import Degraded, evidence_at
from monitor.conditions.kinds.rows_refused import RowsRefused
from monitor.conditions.kinds.threshold import Unjudged, find
from monitor.conditions.observations import Observations
from monitor.conditions.rules import Rule
from monitor.conditions.thresholds import Change, Condition, ConditionName, View, evaluate_rule, track_rule
from monitor.conditions.verdict_hours import step_of
from monitor.conditions.verdicts import (
    LABELS_EXPLAIN,
    MASKED,
    ConditionEvent,
    DataEvidence,
    Span,
    close_former_alarms,
    do_labels_explain,
    name_of,
    track_verdicts,
    verdict_names,
)
from monitor.drift.judge import judge_steps
from monitor.drift.settings import DriftSettings
from monitor.drift.verdicts import Verdict
from monitor.evaluation.fold import CHANGED, Beginning, Checkpoint, ConditionSet, EventBatch, FinalHours
from monitor.messages.words import utc
from monitor.series.intervals import REACH
from monitor.series.windows import SliceKey
from monitor.types import OVERALL, Drift, Monitor

Conditions = dict[ConditionName, Condition]


@dataclass(frozen=True)
class RuleConditions(ConditionSet):
    """The conditions of an alert rule, one per judged slice."""

    monitor: Monitor
    rule: Rule

    @cached_property
    def identity(self) -> str:
        return self.monitor.identity(self.rule)

    def has(self, name: ConditionName) -> bool:
        return name[0] == self.rule.name

    def judges(self, name: ConditionName) -> bool:
        _, dimension, value = name
        wanted = self.rule.slices
        return self.rule.overall if not dimension else (dimension, None) in wanted or (dimension, value) in wanted

    def advance(self, past: FinalHours, begin: Beginning, until: int) -> tuple[Conditions, EventBatch]:
        rule, events = self.rule, EventBatch()
        after, changes, last = {name[1:]: c for name, c in begin.conditions.items()}, list[Change](), begin.since
        if until >= begin.since + self.monitor.bucket:
            view = past.view(rule, begin.since, until)
            # A slice without traffic for longer than rules look back still has to close.
            firing = [slice_ for slice_, condition in after.items() if condition.state == "firing"]
            view = replace(view, history=view.history.including(firing))
            lived_until = begin.since if begin.lived_until is None else begin.lived_until
            as_of = after
            for ends in chain(past.windows(begin.since, lived_until), past.windows(lived_until, until)):
                after, some = track_rule(rule, view, ends, after)
                changes, last = changes + some, ends[-1]
                as_of = after if last <= lived_until else as_of
            lived = begin.events(changes, lived_until + self.monitor.bucket)
            events.changes = [c if c is t else _as_of(rule, view, t, as_of[c.key]) for c, t in lived.items()]
            self._describe(view, begin.since, after, events)
            events.unjudged = self._unjudged(view, after, last)
        # Keep a rule whose slices had no traffic yet: else it would count as new each time.
        return {(rule.name, *slice_): c for slice_, c in (after or {OVERALL: Condition()}).items()}, events

    def _describe(self, view: View, since: int, after: Mapping[SliceKey, Condition], events: EventBatch) -> None:
        """Evidence of events, and of what fires at the end by the last conclusive window after `since`."""
        rule = self.rule
        for change in events.changes:
            if change.evaluation is not None and change.became != "withdrawn":
                finding = find(rule, view, change.key, change.evaluation, change.since)
                is_over = change.was == "firing"
                events.evidence[change] = replace(finding, well_for=rule.resolve_lasting) if is_over else finding
        firing = {slice_: c.known for slice_, c in after.items() if c.state == "firing" and (c.known or 0) > since}
        for end in sorted({end for end in firing.values() if end is not None}):
            some = [slice_ for slice_, last_known in firing.items() if last_known == end]
            for slice_, seen in zip(some, evaluate_rule(rule, view, some, end), strict=True):
                finding = find(rule, view, slice_, seen, after[slice_].since or end)
                events.newest[rule.name, *slice_] = replace(finding, well_for=after[slice_].streak * view.width)

    def _unjudged(
        self, view: View, after: Mapping[SliceKey, Condition], end: int
    ) -> dict[ConditionName, Unjudged | None]:
        """Why each firing condition could not be judged for the window ending at `end`; None where it could."""
        rule, firing = self.rule, {slice_: c for slice_, c in after.items() if c.state == "firing"}
        why: dict[ConditionName, Unjudged | None] = {(rule.name, *slice_): None for slice_ in firing}
        some = [slice_ for slice_, condition in firing.items() if condition.known != end]
        for slice_, seen in zip(some, evaluate_rule(rule, view, some, end) if some else (), strict=True):
            if seen.unknown:
                why[rule.name, *slice_] = Unjudged(seen.unknown, seen.requests, rule.min_requests)
        return why


def _as_of(rule: Rule, view: View, change: Change, condition: Condition) -> Change:
    """An event as of the last conclusive window instead of the one in which it would have fired."""
    return replace(change, evaluation=evaluate_rule(rule, view, [change.key], condition.known or change.at)[0])


@dataclass(frozen=True)
class VerdictConditions(ConditionSet):
    """The conditions made by verdicts: `degraded` for all traffic and slices, and each kind of broken data."""

    monitor: Monitor
    drift: Drift
    resets: Sequence[BaselineReset]
    announced: Sequence[Announcement] = ()

    @cached_property
    def identity(self) -> str:
        return self._identity_with(self.resets, self.announced)

    def _identity_with(self, resets: Iterable[BaselineReset], announced: Iterable[Announcement]) -> str:
        spans = [(one.since, one.until, one.is_new_level) for one in announced]
        return self.monitor.drift_identity(self.drift, [reset.since for reset in resets], spans)

    def under_this_identity(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint as one of these conditions, if it is: what was announced for later does not change it."""
        update = checkpoint.verdicts
        if update is None:
            return checkpoint
        was = update.checkpoint.identity
        if was != self._identity_with(self.resets, announced_before(self.announced, update.checkpoint.until)):
            return checkpoint
        conditions = {
            name: replace(one, identity=self.identity) if one.identity == was else one
            for name, one in checkpoint.conditions.items()
        }
        verdicts = replace(update, checkpoint=replace(update.checkpoint, identity=self.identity))
        return replace(checkpoint, conditions=conditions, verdicts=verdicts)

    @property
    def settings(self) -> DriftSettings:
        return DriftSettings(
            self.step,
            self.drift.false_alarm_budget,
            self.drift.baseline_from or 0,
            tuple(sorted([r.since for r in self.resets] + [a.until for a in self.announced if a.is_new_level])),
            announced=tuple((one.since, one.until) for one in self.announced),
            counts_unlabelled=self.monitor.has_events,
            zone=UTC if self.drift.timezone is None else ZoneInfo(self.drift.timezone),
        )

    @property
    def step(self) -> int:
        """Seconds of a step."""
        return step_of(self.monitor.bucket)

    @property
    def series(self) -> tuple[str, ...]:
        """Ids of the series that the verdicts rest on."""
        return self.monitor.definition(self.drift.measure).id, self.monitor.traffic.id

    def has(self, name: ConditionName) -> bool:
        return name[0] in verdict_names()

    def newest(self, checkpoint: Checkpoint) -> Beginning | None:
        update = checkpoint.verdicts
        if update is None or checkpoint.until is None or update.checkpoint.identity != self.identity:
            return None
        return Beginning(checkpoint.until, checkpoint.of(self.identity), VerdictUpdate(update.checkpoint))

    def oldest(self, past: FinalHours, until: int) -> Beginning:
        """The verdict checkpoint where finer buckets begin; empty if it was by other settings."""
        border, rolled_up = past.rolled_up
        if border is not None and border.identity == self.identity_until(border.until):
            border = replace(border, identity=self.identity)
            return Beginning(border.until, border.conditions, VerdictUpdate(border, (), True, border.until))
        is_same = border is not None and border.series == self.series
        start = max(rolled_up, border.until if border is not None and is_same else 0)
        oldest = VerdictCheckpoint(self.identity, -(-start // self.step) * self.step, None, self.series)
        kept = max(start, 0 if border is None else border.until)
        return Beginning(oldest.until, {}, VerdictUpdate(oldest, (), True, kept))

    def identity_until(self, until: int) -> str:
        """Identity of everything that affects steps ending by then; what is said of later ones does not."""
        resets = (r for r in self.resets if min(r.since, *r.ahead or ()) < until)
        return self._identity_with(resets, announced_before(self.announced, until))

    def why_changed(self, identity: str) -> str:
        """Says whether the baseline was reset or something announced since, or also something else changed."""
        for reset in self.resets:
            if identity == self._identity_with((r for r in self.resets if r is not reset), self.announced):
                return f"its baseline was reset at {utc(reset.since)} by {reset.author}{_noted(reset.note)}"
        for one in self.announced:
            if identity == self._identity_with(self.resets, (a for a in self.announced if a is not one)):
                return f"{one.author} announced something unusual from {utc(one.since)}{_noted(one.note)}"
        return CHANGED

    def advance(self, past: FinalHours, begin: Beginning, until: int) -> tuple[Conditions, EventBatch]:
        after, causes, update = self.judge(past, begin, until)
        events = EventBatch(verdicts=update)
        if update.verdicts:
            end = update.checkpoint.until
            after, gone = close_former_alarms(self.drift, update.verdicts, after, end, self._ahead)
            causes |= {one.change: one for one in gone}
            lived_until = begin.lived_until or 0
            following = next((v.end for v in update.verdicts if v.end > lived_until), until)
            lived = begin.events(list(causes), following)
            events.changes = list(lived.values())
            events.reasons = {
                lived[change]: why
                for change, one in causes.items()
                if change in lived and change.became == "withdrawn" and (why := _why_withdrawn(past, one.verdict))
            }
            events.lived = [v for v in update.verdicts if v.end > lived_until]
            self._describe(past, {lived[change]: causes[change] for change in lived}, after, events)
        return after, events

    def judge(
        self, past: FinalHours, begin: Beginning, until: int
    ) -> tuple[Conditions, dict[Change, ConditionEvent], VerdictUpdate]:
        """The conditions at the last step that ended by `until`, their changes, and the verdicts."""
        assert begin.verdicts is not None
        before, new_verdicts = begin.verdicts.checkpoint, list[Verdict]()
        if (until := until - until % self.step) <= before.until:
            return dict(begin.conditions), {}, replace(begin.verdicts, verdicts=())
        sound, rollouts = sound_spans(past.examined), past.rollouts(before.until, until)
        state, settings = before.state, replace(self.settings, sound=sound, rollouts=rollouts)
        for some in past.steps(before.until, until):
            verdicts, state = judge_steps(settings, state, some)
            new_verdicts += [as_examined(one, past.examined) for one in verdicts]
        after, changes = track_verdicts(self.drift, self.step, new_verdicts, begin.conditions, self._ahead)
        checkpoint = VerdictCheckpoint(self.identity, until, state, self.series, after)
        update = VerdictUpdate(checkpoint, new_verdicts, begin.verdicts.restated, begin.verdicts.kept)
        return after, {seen.change: seen for seen in changes}, update

    @property
    def _ahead(self) -> list[Span]:
        """The times before resets that were not evaluated yet when the resets were made."""
        spans = [reset.ahead for reset in self.resets]
        return [span for span in spans if span is not None and span[0] < span[1]]

    def _describe(
        self, past: FinalHours, changes: Mapping[Change, ConditionEvent], after: Conditions, events: EventBatch
    ) -> None:
        assert events.verdicts is not None
        verdicts, firing = events.verdicts.verdicts, [name for name, c in after.items() if c.state == "firing"]
        if not (changes or firing):
            return
        last, starts = verdicts[-1], [c.since for c in after.values() if c.since is not None]
        begin = min([last.end, *starts, *(change.since for change in changes)]) - REACH
        observed = self._observations(past, events.verdicts, begin)
        for change, event in changes.items():
            fires = change.became == "firing"
            verdict = (
                event.verdict if fires else _last_of(change.name, self.drift, past, events.verdicts, event.verdict)
            )
            evidence = evidence_at(observed, change.name, verdict, event.alarm if fires else None, change.since)
            evidence = _with_rows(evidence, observed, past)
            events.evidence[change] = evidence if fires else evidence.resolved(observed, event)
        alarms = {name_of(self.drift, alarm.unit): alarm for alarm in last.alarms}
        for name in firing:
            verdict = _last_of(name, self.drift, past, events.verdicts, last)
            evidence = evidence_at(observed, name, verdict, alarms.get(name), after[name].since or last.end)
            events.newest[name] = _with_rows(evidence, observed, past).calming(after[name], self.step)

    def _observations(self, past: FinalHours, update: VerdictUpdate, since: int) -> Observations:
        monitor, until, first = self.monitor, update.verdicts[-1].end, update.verdicts[0].end
        kinds = [(verdict.end, str(verdict.kind)) for verdict in update.verdicts]
        kinds += [] if update.restated else [(one.end, one.kind) for one in past.drawn(since, first - 1)]
        version = monitor.version_slice
        return Observations(
            self.drift,
            monitor.bucket,
            past.history(monitor.definition(self.drift.measure), since, until),
            past.history(monitor.traffic, since, until),
            frozenset(end for end, kind in kinds if kind in MASKED),
            has_events=monitor.has_events,
            counts_unmatched=monitor.counts_unmatched,
            versions="" if version is None else version.dimension,
            dimensions=tuple(one.dimension for one in dimensions(monitor)),
        )


def _with_rows(evidence: Degraded | DataEvidence, seen: Observations, past: FinalHours) -> Degraded | DataEvidence:
    return evidence.with_rows(seen, past.refused) if isinstance(evidence, RowsRefused) else evidence


def _why_withdrawn(past: FinalHours, verdict: Verdict) -> str:
    if do_labels_explain(verdict):
        return LABELS_EXPLAIN
    return CONTRADICTED if contradicts(past.examined, verdict.end) else ""


def _noted(note: str) -> str:
    return f": {note}" if note else ""


def _last_of(name: ConditionName, drift: Drift, past: FinalHours, update: VerdictUpdate, until: Verdict) -> Verdict:
    """The verdict that a condition's figures come from; for broken data the last that found it."""
    kind = kind_of(name[0])
    if kind is None or not issubclass(kind, DataEvidence):
        return until
    so_far = (verdict for verdict in reversed(update.verdicts) if verdict.end <= until.end)
    finding = next((verdict for verdict in so_far if kind.holds(verdict, drift)), None)
    return finding or (None if update.restated else past.newest(name[0])) or until
