"""Alert rules: the evaluation of each window, and the state of a condition (a rule on one slice) after it.

    ok --fallen--> pending --fallen for `lasting`--> firing --well for `resolve_lasting`--> ok
                   pending --well or between--> ok          firing --slice without traffic--> ok (withdrawn)

Each final bucket ends a window. What cannot be evaluated neither fires nor resolves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Floats
from monitor.conditions.rules import Floor, Rule, Severity, is_beyond
from monitor.series import partials as b
from monitor.series.intervals import Interval, interval
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL
from monitor.units import DAY

LEAST_BASELINE = 0.5
"""Share of a baseline's days that must have had requests."""

Unknown = Literal["", "window incomplete", "too few requests", "no value", "baseline too short", "no traffic"]
ConditionName = tuple[str, str, str]
"""Rule, dimension, value."""
State = Literal["ok", "pending", "firing", "withdrawn"]


@dataclass(frozen=True)
class View:
    """Input of a rule: partials of its measure's kernel, or of the traffic, in buckets of `width` seconds.

    Attributes:
        least: share of a window's buckets that must have been read.
        by_judgments: label coverage is the share of judged impressions, not of requests with a label.
        personal: dimensions whose values are query texts and never shown.
    """

    history: History
    traffic: History
    width: int
    least: float
    by_judgments: bool = False
    personal: frozenset[str] = frozenset()

    def coverage(self, traffic: Floats) -> tuple[Floats, Floats]:
        """(numerator, denominator) of the label coverage, of traffic sums (..., 7), shape (...,)."""
        return b.label_coverage(traffic, self.by_judgments)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One window of one slice under one rule; `end` in seconds.

    Attributes:
        unknown: why it cannot be judged; empty if it can.
        fires_at, back_from: where the rule fires, and where it resolves; mirrored for a rule that `rises`.
    """

    end: int
    unknown: Unknown
    requests: int
    value: float | None
    baseline: float | None = None
    fires_at: float | None = None
    back_from: float | None = None
    rises: bool = False

    @property
    def has_fallen(self) -> bool:
        """Whether the rule's condition holds."""
        return not self.unknown and self.value is not None and is_beyond(self.value, self.fires_at or 0.0, self.rises)

    @property
    def is_well(self) -> bool:
        """Whether it counts towards the end of an incident."""
        if self.unknown or self.value is None:
            return False
        return not is_beyond(self.value, self.back_from or 0.0, self.rises)


@dataclass(frozen=True, slots=True)
class Condition:
    """State of a rule on one slice; instants in seconds.

    Attributes:
        since: end of the first fallen evaluation; None while ok.
        streak: consecutive evaluations towards the next state.
        known: end of the last evaluation that is not unknown.
    """

    state: State = "ok"
    since: int | None = None
    streak: int = 0
    known: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A condition's step from one state to another at the end of a window, seconds.

    Attributes:
        since: end of the first fallen window, seconds.
        evaluation: of the window `at`; None if the rule or slice is gone.
    """

    name: ConditionName
    severity: Severity
    retrain: bool
    was: State
    became: State
    since: int
    at: int
    evaluation: Evaluation | None = None

    @property
    def key(self) -> SliceKey:
        """Dimension and value."""
        return self.name[1], self.name[2]


def keys_of(rule: Rule, view: View) -> list[SliceKey]:
    """The slices that a rule judges, overall first."""
    wanted = [key for key in view.history.slices if (key[0], None) in rule.slices or key in rule.slices]
    return ([OVERALL] if rule.overall else []) + wanted


def evaluate_rule(rule: Rule, view: View, keys: Sequence[SliceKey], end: int) -> list[Evaluation]:
    """The window of a rule that ends at `end`, for each slice."""
    at = [view.history.slices.index(key) for key in keys]
    sums, _ = merged(view.history, view.width, end - rule.window, end)
    shares = view.history.shares(view.width, end - rule.window, end)[at]
    values, requests = read(rule, view, sums[at])
    everybody = read(rule, view, sums[:1])[1][0]
    baseline, enough = _baseline(rule, view, end, at)
    fires, back = _limits(rule, baseline)
    found = []
    for i in range(len(keys)):
        is_left = bool(everybody) and not requests[i]
        unknown = _unknown(rule, is_left, bool(shares[i] >= view.least), requests[i], values[i], bool(enough[i]))
        fires_at, back_at = (None, None) if unknown == "baseline too short" else (float(fires[i]), float(back[i]))
        base = None if np.isnan(baseline[i]) or not enough[i] else float(baseline[i])
        value = None if np.isnan(values[i]) else float(values[i])
        found.append(Evaluation(end, unknown, int(requests[i]), value, base, fires_at, back_at, rule.rises))
    return found


def merged(history: History, width: int, since: int, until: int) -> tuple[Floats, float]:
    """((S, F) sums of the buckets in [since, until), share of them that were read)."""
    inside = history.between(since, until)
    sums: Floats = inside.sums.sum(axis=0)
    return sums, len(inside.starts) * width / (until - since)


def read(rule: Rule, view: View, sums: Floats) -> tuple[Floats, Floats]:
    """(value, requests) of (K, F) merged partials, (K,) each; nan without a value."""
    if rule.measure is not None:
        return b.read_as(rule.measure, sums), sums[:, b.REQUESTS]
    some, every = view.coverage(sums)
    share: Floats = np.divide(some, every, out=np.full(some.shape, np.nan), where=every > 0)
    return share, sums[:, b.REQUESTS]


def _baseline(rule: Rule, view: View, end: int, at: Sequence[int]) -> tuple[Floats, NDArray[np.bool_]]:
    """((K,) values of the baseline, nan without one; (K,) whether they rest on enough)."""
    if isinstance(rule.limit, Floor):
        return np.full(len(at), np.nan), np.ones(len(at), bool)
    spans = rule.limit.baseline.spans(end, rule.window)
    share: Floats = np.mean([_shares_of_days(view.history, *span)[at] for span in spans], axis=0)
    sums = [merged(view.history, view.width, *span)[0][at] for span in spans]
    values, requests = read(rule, view, np.sum(sums, axis=0))
    enough = (requests >= rule.min_requests) & ~np.isnan(values) & (share >= LEAST_BASELINE)
    return values, enough


def _shares_of_days(history: History, since: int, until: int) -> Floats:
    """(S,) share of days with any request in which the slice's dimension was read. Days need only one busy hour."""
    inside = history.rows(since, until)
    counts = history.kept[inside] & (history.sums[inside, :1, b.REQUESTS] > 0)
    days, first = np.unique((history.starts[inside] - since) // DAY, return_index=True)
    if not len(days):
        return np.zeros(len(history.slices))
    found: NDArray[np.int64] = np.logical_or.reduceat(counts, first, axis=0).sum(axis=0)
    return found / -(-(until - since) // DAY)


def _limits(rule: Rule, baseline: Floats) -> tuple[Floats, Floats]:
    """(where it fires, where it resolves), (K,) each."""
    limit, sign = rule.limit, -1 if rule.rises else 1
    if isinstance(limit, Floor):
        return np.full(baseline.shape, limit.at), np.full(baseline.shape, limit.back_at)
    if limit.relative:
        return baseline * (1 - sign * limit.by), baseline * (1 - sign * limit.back_at)
    return baseline - sign * limit.by, baseline - sign * limit.back_at


def fires_at(rule: Rule, baseline: float) -> float:
    """Where a rule fires for a value of its baseline."""
    return float(_limits(rule, np.array([baseline]))[0][0])


def _unknown(
    rule: Rule, is_left: bool, is_complete: bool, requests: float, value: float, has_baseline: bool
) -> Unknown:
    """`is_left`: the slice had no traffic while others did; if none had any, that says nothing."""
    if not is_complete:
        return "window incomplete"
    if is_left:
        return "no traffic"
    if requests < rule.min_requests:
        return "too few requests"
    if np.isnan(value):
        return "no value"
    return "" if has_baseline else "baseline too short"


def bounds(rule: Rule, view: View, key: SliceKey, end: int) -> Interval:
    """95 % interval of the window that ends at `end`, and its method; (None, None, "none") without one."""
    if rule.measure is None:
        return None, None, "none"
    return interval(rule.measure, view.history.starts, view.history.slice(key), view.width, rule.window, end)


def track_rule(
    rule: Rule, view: View, ends: Sequence[int], before: Mapping[SliceKey, Condition]
) -> tuple[dict[SliceKey, Condition], list[Change]]:
    """Each slice's condition after some windows in order, and its changes.

    Args:
        ends: rising, seconds.
        before: conditions before the first of them; others are ok.
    """
    keys = keys_of(rule, view)
    conditions = {key: before.get(key, Condition()) for key in keys}
    changes: list[Change] = []
    until = np.asarray(ends, np.int64)
    is_empty = ~view.history.has_any(until - rule.window, until)
    for end, says_nothing in zip(ends, is_empty.tolist(), strict=True):
        if says_nothing and all(condition.state != "pending" for condition in conditions.values()):
            continue  # only a pending state expires here: years without a bucket take no time
        for key, evaluation in zip(keys, evaluate_rule(rule, view, keys, end), strict=True):
            was, now = conditions[key], step(rule, view.width, conditions[key], evaluation)
            changes += _change(rule, key, was, now, evaluation)
            conditions[key] = Condition(known=now.known) if now.state == "withdrawn" else now
    return conditions, changes


def _change(rule: Rule, key: SliceKey, was: Condition, now: Condition, evaluation: Evaluation) -> Iterator[Change]:
    if was.state != now.state:
        since = next(s for s in (was.since, now.since, evaluation.end) if s is not None)
        name, end = (rule.name, *key), evaluation.end
        yield Change(name, rule.severity, rule.retrain, was.state, now.state, since, end, evaluation)


def step(rule: Rule, width: int, was: Condition, seen: Evaluation) -> Condition:
    """The condition after one more evaluation; see the diagram at the top of this file."""
    if seen.unknown:
        return _held(rule, was, seen)
    if was.state == "firing":
        streak = was.streak + 1 if seen.is_well else 0
        if seen.is_well and streak * width >= rule.resolve_lasting:
            return Condition(known=seen.end)
        return replace(was, streak=streak, known=seen.end)
    if not seen.has_fallen:
        return Condition(known=seen.end)
    streak = was.streak + 1
    state: State = "firing" if streak * width >= rule.lasting else "pending"
    return Condition(state, was.since or seen.end, 0 if state == "firing" else streak, seen.end)


def _held(rule: Rule, was: Condition, seen: Evaluation) -> Condition:
    """Unknown: the state stays, but pending expires after a window's length, as does a slice without traffic."""
    silent = seen.end - (was.known or seen.end)
    if was.state == "pending" and silent > rule.window:
        return Condition(known=was.known)
    if was.state == "firing" and seen.unknown == "no traffic" and silent >= rule.window + rule.resolve_lasting:
        return Condition("withdrawn", known=was.known)
    return was
