"""A monitor's state in words, for the person it woke."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from monitor.conditions.verdicts import DEGRADED
from monitor.messages.explanation import title_of
from monitor.page.words import change, percent, utc
from monitor.series.windows import Point
from monitor.service.history import SeriesHistory
from monitor.service.snapshot import MonitorSnapshot, Series, shown
from monitor.types import OVERALL
from monitor.units import DAY

LABELS_FELL = 0.7
"""Share of the usual label coverage below which labels count as missing, as in notifications."""

LEAST_REAL_SILENCE = 60
"""Real seconds before anything counts as stale: a replay passes many hours in a moment."""

KINDS = ("critical", "warning", "info", "failing", "stale", "empty", "labels", "pending", "note", "unwatched", "ok")
"""Worst to best."""


@dataclass(frozen=True, slots=True)
class MonitorState:
    """One badge of a monitor; `kind` is one of KINDS."""

    kind: str
    words: str

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return KINDS.index(self.kind)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of traffic with labels: in the newest final window, and its median over the history before.

    By judgments it is a share of the items shown, else of the requests.
    """

    now: float | None
    usual: float | None
    by_items: bool = False

    @property
    def has_fallen(self) -> bool:
        """Whether usual labels, or all labels, are missing."""
        return self.now is not None and (self.now == 0 or self.now < LABELS_FELL * (self.usual or 0))


def states_of(snapshot: MonitorSnapshot, now: float, speed: float = 1.0) -> list[MonitorState]:
    """All badges, worst first; never empty. `now` in seconds of the data's clock, which runs at `speed`."""
    found = [
        *_incident(snapshot),
        *_freshness(snapshot, now, speed),
        *_data(snapshot),
        *_mix(snapshot),
        *_suspicion(snapshot),
    ]
    if not found and snapshot.not_judged_as:
        found = [MonitorState("unwatched", f"Not judged yet: {snapshot.not_judged_as}")]
    if not found and not snapshot.monitor.alerts and snapshot.monitor.drift is None:
        found = [MonitorState("unwatched", "Running; no alert rules")]
    return sorted(found or [MonitorState("ok", "OK")], key=lambda s: s.rank)


def _incident(snapshot: MonitorSnapshot) -> Iterator[MonitorState]:
    for stored in (stored for matter, stored in snapshot.opened.items() if matter != "quality"):
        about = stored.incident
        known = (title_of(f.verdict) if f.verdict else "labels missing" for f in stored.findings)
        names = dict.fromkeys(known)
        said = ", ".join(names) or "data"
        yield MonitorState(about.severity, f"{said[:1].upper()}{said[1:]}, since {utc(about.began_at)}")
    if snapshot.incident is not None:
        incident = snapshot.incident.incident
        yield MonitorState(incident.severity, f"Firing since {utc(incident.opened_at)}")


def _freshness(snapshot: MonitorSnapshot, now: float, speed: float) -> Iterator[MonitorState]:
    monitor, progress, least = snapshot.monitor, snapshot.progress, LEAST_REAL_SILENCE * speed
    overdue = max(3 * monitor.refresh + monitor.deadline, least)
    if progress.last_error:
        last = progress.last_success_at
        yield MonitorState(
            "failing", "Failing; never succeeded" if last is None else f"Failing; last success {utc(last)}"
        )
    elif progress.last_success_at is not None and now - progress.last_success_at > overdue:
        yield MonitorState("failing", f"Not evaluated since {utc(progress.last_success_at)}")
    silence = max(monitor.ingest_delay + monitor.stale_after, least)
    if progress.newest_source_at is not None and now - progress.newest_source_at > silence:
        yield MonitorState("stale", f"Source stale: no request since {utc(progress.newest_source_at)}")


def _data(snapshot: MonitorSnapshot) -> Iterator[MonitorState]:
    if all(overall_point(s, snapshot.monitor.min_completeness) is None for s in snapshot.series):
        yield MonitorState("empty", "No data: no final window with enough data")
    coverage = coverage_of(snapshot)
    if coverage.has_fallen:
        usual = "" if coverage.usual is None else f", {percent(coverage.usual)} usually"
        if coverage.by_items:  # whatever people find
            kind, words, have = "labels", "Judgments missing", "of items have one"
        elif snapshot.verdict_kind == DEGRADED:
            kind, words, have = "note", "Fewer labels, as worse lists bring", "have one"
        else:
            kind, words, have = "labels", "Labels missing", "have one"
        yield MonitorState(kind, f"{words}: {percent(coverage.now)} {have}{usual}")


def _mix(snapshot: MonitorSnapshot) -> Iterator[MonitorState]:
    if snapshot.verdict is not None and snapshot.verdict.mix_shifted and snapshot.monitor.drift is not None:
        effect = change(snapshot.verdict.mix_effect)
        yield MonitorState("note", f"Mix shifted: {snapshot.monitor.drift.mix_by} moves the mean by {effect}; no page")


def _suspicion(snapshot: MonitorSnapshot) -> Iterator[MonitorState]:
    since = [r.condition.since for r in snapshot.readings if r.condition.state == "pending" and r.condition.since]
    if since:
        yield MonitorState(
            "pending",
            f"Pending since {utc(min(since))}: below the threshold, but not yet for as long as the rule requires",
        )


def overall_point(series: Series, least: float) -> Point | None:
    """The newest final window of overall, if fit to show."""
    return next((p for p in shown(series, least) if (p.dimension, p.slice) == OVERALL), None)


def main_history(snapshot: MonitorSnapshot) -> SeriesHistory | None:
    """The history to look at first: one that a rule judges, else the first measure over the window nearest to a day."""
    judged = [t for t in snapshot.histories if t.rules and t.measure is not None]
    first = [t for t in snapshot.histories if t.measure == snapshot.monitor.measures[0]]
    return next(iter(judged), None) or _of_a_day(first)


def history_now(snapshot: MonitorSnapshot) -> SeriesHistory | None:
    """What fires on the model's quality, over the window nearest to a day; else the main history."""
    findings = () if snapshot.incident is None else snapshot.incident.findings
    fires = [t for t in snapshot.histories if t.measure is not None and t.judged in {f.judged for f in findings[:1]}]
    return _of_a_day(fires) or main_history(snapshot)


def _of_a_day(histories: Sequence[SeriesHistory]) -> SeriesHistory | None:
    return min(histories, key=lambda t: abs(t.window - DAY), default=None)


def coverage_of(snapshot: MonitorSnapshot) -> Coverage:
    """Label coverage now and before."""
    history = main_history(snapshot)
    if history is None or history.newest is None:
        return Coverage(None, None)
    before = history.newest.end - history.window
    known = [p.coverage for p in history.points if p.end <= before and p.coverage is not None]
    usual = median(known) if known else None
    return Coverage(history.newest.coverage, usual, snapshot.monitor.by_judgments)
