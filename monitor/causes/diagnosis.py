"""Where a fall comes from, by stored partials: the fallen window against the same hours of earlier weeks or days. If a
verdict found the fall, its split against the baseline is used. For single requests from the source, see `losses`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from monitor.arrays import Floats
from monitor.conditions.evidence import Evidence, evidence_of
from monitor.conditions.rules import COVERAGE, SEVERITIES
from monitor.conditions.verdict_hours import judged
from monitor.drift.verdicts import Split, Verdict, split
from monitor.measures.measure import Measure
from monitor.series import partials as b
from monitor.series.windows import History, SliceKey, points
from monitor.types import OVERALL, Judgments, Monitor, Slice, lasting_dimensions
from monitor.units import DAY, WEEK, Span

VERSION = 4
"""Version of the document; raise it when a field changes its meaning."""

MOST_REQUESTS = 20_000
"""Requests per period that are examined one by one."""

MOST_WEEKS = 4
LONGEST_WINDOW = WEEK
"""Seconds of a fallen window that are examined: its last ones."""

MOST_SLICES = 20

BASELINE, BEFORE = "baseline", "before"
"""What a slice is compared with: the verdict's baseline, or the same hours of earlier weeks."""

SURELY = -2.0
"""A slice fell significantly if it changed by at most this many standard errors."""

SAME = 1e-9
"""Figures that differ by less are equal."""


# ---- what is compared with what ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """The subject of a diagnosis.

    Attributes:
        finding: what opened the incident; None if unknown.
        key: the slice that fell; overall is `OVERALL`.
        window, before: the fallen window, and the spans to compare with, latest first.
        left_out: spans not compared with because something was wrong then.
    """

    measure: Measure
    finding: Evidence | None
    key: SliceKey
    window: Span
    before: tuple[Span, ...]
    left_out: tuple[Span, ...] = ()

    def without(self, unsound: Collection[int], step: int) -> Subject:
        """The subject compared only with sound spans; if there are none, with the soundest.

        `unsound` are the ends (seconds) of steps with bad data or an open alarm.
        """
        spoilt = {span: sum(span[0] < end < span[1] + step for end in unsound) for span in self.before}
        least = min(spoilt.values(), default=0)
        kept = [span for span in self.before if spoilt[span] == least][: len(self.before) if least == 0 else 1]
        return replace(self, before=tuple(kept), left_out=tuple(span for span in self.before if span not in kept))


def subject(monitor: Monitor, findings: Iterable[Evidence], opened_at: int, first: int = 0) -> Subject:
    """The subject of an incident, from its opening findings: the most severe, all traffic before slices.

    If only label coverage fell, the measure is the monitor's first. `first` is when storage begins, seconds.
    """
    ordered = sorted(findings, key=lambda f: (f.judged == COVERAGE, *_weight(f)))
    finding = ordered[0] if ordered else None
    measure = _measure(monitor, finding)
    length = max(monitor.windows[0] if finding is None else finding.window, monitor.bucket)
    length = min(-(-length // monitor.bucket) * monitor.bucket, max(LONGEST_WINDOW, monitor.bucket))
    end = opened_at if finding is None else min(finding.end, opened_at)
    window = (end - length, end)
    fell_at = window[0] if finding is None else min(window[0], finding.since - monitor.bucket)
    key = OVERALL if finding is None else (finding.dimension, finding.slice)
    return Subject(measure, finding, key, window, same_hours(window, fell_at, first))


def _weight(finding: Evidence) -> tuple[object, ...]:
    return -SEVERITIES.index(finding.severity), finding.dimension, -finding.loss, finding.rule, finding.slice


def _measure(monitor: Monitor, finding: Evidence | None) -> Measure:
    """The measure of a finding; verdicts have their own, whatever its name."""
    if finding is not None and finding.verdict and monitor.drift is not None:
        return judged(monitor.drift.measure)
    readings = [*monitor.measures, *(r.measure for r in monitor.alerts if r.measure is not None)]
    by_text = {str(m): m for m in readings}
    return monitor.measures[0] if finding is None else by_text.get(finding.judged, monitor.measures[0])


@dataclass(frozen=True)
class VerdictSplit:
    """A verdict's split, over at most the last day of the fall."""

    split: Split
    window: Span

    @classmethod
    def of(cls, verdict: Verdict, step: int) -> VerdictSplit | None:
        """The split of a verdict at which alarms opened, None without one by several slices. `step` in seconds."""
        if verdict.split is None or len(verdict.split.parts) < 2:
            return None
        since = min((a.fell_at for a in verdict.alarms if a.opened_at == verdict.end), default=verdict.end - step)
        length = min(max(verdict.end - since, step), max(DAY, step))
        return cls(verdict.split, (verdict.end - length, verdict.end))


def moved(then: Mapping[str, Any], now: Evidence | None) -> dict[str, Any] | None:
    """How a condition's figures have changed since its diagnosis, as JSON data; None if they are the same.

    `now` is None if the condition did not fire when the data were read again.
    """
    was, fields = evidence_of(dict(then)), ("value", "before", "requests", "window", "end")
    pairs = [(getattr(was, name), None if now is None else getattr(now, name)) for name in fields]
    if now is not None and all(a == b or (None not in (a, b) and abs(a - b) < SAME) for a, b in pairs):
        return None
    return {name: a for name, (a, _) in zip(fields, pairs, strict=True)} | {
        f"{name}_now": b for name, (_, b) in zip(fields, pairs, strict=True)
    }


def same_hours(window: Span, fell_at: int, first: int = 0) -> tuple[Span, ...]:
    """A window's hours in the weeks before, latest first; in the days before if no week is known.

    Args:
        fell_at: seconds; spans that reach into the fall are left out.
        first: when storage begins, seconds.

    >>> week = same_hours((10 * WEEK, 10 * WEEK + 3600), 10 * WEEK)[0]
    >>> day = same_hours((10 * WEEK, 10 * WEEK + 3600), 10 * WEEK, 9 * WEEK + DAY)[0]
    >>> [(10 * WEEK - since) // DAY for since, _ in (week, day)]
    [7, 1]
    """
    since, until = window
    for period, most in ((WEEK, MOST_WEEKS * WEEK), (DAY, WEEK)):
        step = max(1, -(-(until - since) // period)) * period
        shifts = [s for s in range(step, most + 1, step) if until - s <= fell_at and since - s >= first]
        if shifts:
            return tuple((since - shift, until - shift) for shift in shifts)
    return ()


# ---- from stored partials ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredPartials:
    """Partials of the measure and traffic; `unlabelled` slices lost their labels and are not part of the fall."""

    subject: Subject
    history: History
    traffic: History
    width: int
    unlabelled: tuple[SliceKey, ...] = ()

    def window(self) -> History:
        """The part in the fallen window."""
        return self.history.between(*self.subject.window)

    def before(self) -> list[History]:
        """The parts in the spans before, if anything is stored."""
        found = [self.history.between(*span) for span in self.subject.before]
        return [part for part in found if len(part.starts)]


def dimensions(monitor: Monitor) -> list[Slice]:
    """The dimensions to split a drop by: not the query (personal), nor the model version (its values are new)."""
    mix_by = None if monitor.drift is None else monitor.drift.mix_by
    return sorted(lasting_dimensions(monitor.rankings, monitor.slices), key=lambda s: s.dimension != mix_by)


def when_served(first: Mapping[str, int], traffic: History, monitor: Monitor) -> dict[str, Span]:
    """Version -> [start of its first stored bucket, from `first`; end of its last one in `traffic`), seconds."""
    dimension, found = monitor.version_slice, {}
    for version, since in first.items():
        key = ("" if dimension is None else dimension.dimension, version)
        busy = traffic.starts[traffic.slice(key)[:, 0] > 0]
        if len(busy):
            found[version] = since, int(busy[-1]) + monitor.bucket
    return found


def split_by(stored: StoredPartials, dimension: str) -> Split | None:
    """The drop split by a dimension; None without data before or now, or without such slices.

    A slice without requests on one side takes its mean from the other.
    """
    keys = [key for key in stored.history.slices if key[0] == dimension]
    past = stored.before()
    if not keys or not past:
        return None
    measure = stored.subject.measure
    parts = [_summed([stored.window()], keys), _summed(past, keys)]
    (over, under), (over0, under0) = (b.parts(p, measure.aggregate, measure.empty) for p in parts)
    some = (under > 0) | (under0 > 0)
    if not under.sum() > 0 or not under0.sum() > 0:
        return None
    keys = [key for key, kept in zip(keys, some, strict=True) if kept]
    over, under, over0, under0 = over[some], under[some], over0[some], under0[some]
    mean, mean0 = _ratio(over, under), _ratio(over0, under0)
    mean, mean0 = np.where(under > 0, mean, mean0), np.where(under0 > 0, mean0, mean)
    shares = under0 / under0.sum(), under / under.sum()
    error = np.array([_error(stored, key) for key in keys])
    return split([value for _, value in keys], shares, (mean0, mean), error)


def _summed(parts: Sequence[History], keys: Sequence[SliceKey]) -> Floats:
    return np.stack([sum((p.slice(k).sum(axis=0) for p in parts), np.zeros(len(b.FIELDS))) for k in keys])


def _ratio(over: Floats, under: Floats) -> Floats:
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _error(stored: StoredPartials, key: SliceKey) -> float:
    """Standard error of the change of a slice's mean, by sampling or from hour to hour; 0 if unknown."""
    measure = stored.subject.measure
    window = [(stored.window(), stored.subject.window[0])]
    weeks = [(stored.history.between(*span), span[0]) for span in stored.subject.before]
    residuals: dict[int, float] = {}
    sampling = 0.0
    for parts, sign in ((window, 1.0), (weeks, -1.0)):
        merged = sum((p.slice(key).sum(axis=0) for p, _ in parts), np.zeros(len(b.FIELDS)))
        over, under = b.parts(merged, measure.aggregate, measure.empty)
        if not under > 0 or not b.parts(merged, "mean", measure.empty)[1] > 1:
            return 0.0
        level = over / under
        sampling += float(b.sampling_variance(merged, measure.aggregate, measure.empty, level)) / float(under) ** 2
        for part, since in parts:
            o, u = b.parts(part.slice(key), measure.aggregate, measure.empty)
            for start, one in zip((part.starts - since).tolist(), ((o - level * u) / under).tolist(), strict=True):
                residuals[start] = residuals.get(start, 0.0) + sign * one
    number = len(residuals)
    apart = sum(r * r for r in residuals.values()) * number / (number - 1) if number > 1 else 0.0
    return math.sqrt(max(sampling, apart))


def slices(splits: Mapping[str, Split], by_verdict: str | None = None) -> list[dict[str, Any]]:
    """All slices of all splits as JSON data, largest loss first; the split by `by_verdict` is the verdict's."""
    found = [
        {"dimension": dimension, "against": BASELINE if dimension == by_verdict else BEFORE, **asdict(part)}
        for dimension, one in splits.items()
        for part in one.parts
    ]
    return sorted(found, key=lambda part: (part["within"], part["dimension"], part["slice"]))


def _with_new(found: Iterable[Mapping[str, Any]], stored: StoredPartials) -> list[dict[str, Any]]:
    """Adds `new_since` (start of a new slice's first bucket) and the value of all `others`; None for known slices."""
    return [
        {**part, **(_as_new(part, stored) if _is_new(part) else {"new_since": None, "others": None})} for part in found
    ]


def _is_new(part: Mapping[str, Any]) -> bool:
    return bool(part["against"] == BEFORE and not part["share_before"] and part["share"])


def _as_new(part: Mapping[str, Any], stored: StoredPartials) -> dict[str, Any]:
    key, history = (part["dimension"], part["slice"]), stored.history
    busy = stored.traffic.starts[stored.traffic.slice(key)[:, 0] > 0]
    rest = [other for other in history.slices if other[0] == key[0] and other != key]
    others = _summed([stored.window()], rest).sum(axis=0) if rest else np.zeros(len(b.FIELDS))
    since = int(busy[0]) if len(busy) else None
    return {"before": None, "new_since": since, "others": _known(float(b.read_as(stored.subject.measure, others)))}


def by_z(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The slices, surest fall first."""
    return sorted(found, key=lambda part: (part["z"], part["dimension"], part["slice"]))


def fallen(found: Iterable[Mapping[str, Any]], dimension: str) -> frozenset[str]:
    """The slices of a dimension that fell significantly, with at least half the z of the first."""
    here = [p for p in found if p["dimension"] == dimension and p["within"] < 0 and p["z"] <= SURELY]
    lead = min((p["z"] for p in here), default=0.0)
    return frozenset(p["slice"] for p in here if p["z"] <= lead / 2)


def coverage(stored: StoredPartials) -> dict[str, float | None]:
    """Shares of labels and of empty requests, and events per request, in the window and before.

    For a slice, and if slices are left out, only events that match an impression count.
    """
    now = [stored.traffic.between(*stored.subject.window)]
    before = [stored.traffic.between(*span) for span in stored.subject.before]
    figures: dict[str, float | None] = {}
    for suffix, parts in (("", now), ("_before", before)):
        sums = sum((_labelled(stored, p) for p in parts), np.zeros(len(b.TRAFFIC_FIELDS)))
        whole = sum((p.slice(OVERALL).sum(axis=0) for p in parts), np.zeros(len(b.TRAFFIC_FIELDS)))
        requests, labelled, impressions, judged, *_ = sums.tolist()
        if stored.unlabelled:  # unmatched events of the left-out slices are among them
            sums[b.UNMATCHED] = 0.0
        figures[f"labelled{suffix}"] = _share(labelled, float(b.with_results(sums)))
        figures[f"judged{suffix}"] = _share(judged, impressions)
        figures[f"events{suffix}"] = b.events_per_request(sums)
        figures[f"unmatched{suffix}"] = b.unmatched_share(whole)
        figures[f"requests{suffix}"] = requests
    for suffix, own in (("", [stored.window()]), ("_before", stored.before())):
        scored = sum((_labelled(stored, p) for p in own), np.zeros(len(b.FIELDS)))
        is_known = stored.subject.measure.tells_irrelevant
        figures[f"empty{suffix}"] = _share(float(scored[b.EMPTY]), float(scored[b.REQUESTS])) if is_known else None
    return figures


def _labelled(stored: StoredPartials, part: History) -> Floats:
    found: Floats = part.slice(stored.subject.key).sum(axis=0)
    return found - sum((part.slice(key).sum(axis=0) for key in stored.unlabelled), np.zeros(len(found)))


def _share(some: float, every: float) -> float | None:
    return some / every if every else None


def versions(stored: StoredPartials, dimension: str) -> list[dict[str, Any]]:
    """The model versions by their slices' partials as JSON data, busiest in the window first."""
    since, until = stored.subject.window
    keys = [key for key in stored.history.slices if key[0] == dimension]
    measure, before = stored.subject.measure, stored.before()
    shown = points(measure, stored.history, stored.traffic, stored.width, until - since, until, keys)
    by_version = {point.slice: point for point in shown}
    rows: list[dict[str, Any]] = []
    for key in keys:
        point = by_version.get(key[1])
        past = _summed(before, [key])[0] if before else np.zeros(len(b.FIELDS))
        if point is None and not past[b.REQUESTS]:
            continue
        rows.append(
            {
                "version": key[1],
                "requests": 0 if point is None else point.requests,
                "value": None if point is None else point.value,
                "lower": None if point is None else point.lower,
                "upper": None if point is None else point.upper,
                "interval": "none" if point is None else point.method,
                "requests_before": int(past[b.REQUESTS]),
                "before": _known(float(b.read_as(measure, past))),
                "coverage": None if point is None else point.label_coverage,
                "empty": None if point is None else point.empty_ratio,
            }
        )
    return sorted(rows, key=lambda one: (-one["requests"], one["version"]))[:MOST_SLICES]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def from_stored(monitor: Monitor, stored: StoredPartials, of_verdict: VerdictSplit | None) -> dict[str, Any]:
    """What the store knows of a fall, as JSON data; `of_verdict` is the split of the verdict that found it."""
    fell, finding = stored.subject, stored.subject.finding
    splits = {s.dimension: found for s in dimensions(monitor) if (found := split_by(stored, s.dimension)) is not None}
    mix_by = None if monitor.drift is None or of_verdict is None else monitor.drift.mix_by
    if mix_by is not None and of_verdict is not None:
        splits = {mix_by: of_verdict.split} | {name: one for name, one in splits.items() if name != mix_by}
    every, version, whole = _with_new(slices(splits, mix_by), stored), monitor.version_slice, None
    if splits:
        first = next(iter(splits))
        origin = ("partials", fell.window) if of_verdict is None else ("verdict", of_verdict.window)
        whole = {"by": first, "from": origin[0], "window": list(origin[1]), **_plain(splits[first])}
        if of_verdict is None:
            whole["parts"] = [part | ({"before": None} if not part["share_before"] else {}) for part in whole["parts"]]
    return {
        "version": VERSION,
        "measure": str(fell.measure),
        "definition": monitor.definition(fell.measure).id,
        "dimension": fell.key[0],
        "slice": fell.key[1],
        "window": list(fell.window),
        "compared": [list(span) for span in fell.before],
        "left_out": [list(span) for span in fell.left_out],
        "fell": None if finding is None else finding.plain(),
        "split": whole,
        "slices": every[:MOST_SLICES],
        "slices_by_z": by_z(every)[:MOST_SLICES],
        # A version's partials cover all slices.
        "versions": [] if version is None or stored.unlabelled else versions(stored, version.dimension),
        "unlabelled": [value for _, value in stored.unlabelled],
        "coverage": {**coverage(stored), **dict.fromkeys(_uncounted(monitor))},
        "by_judgments": isinstance(monitor.recipe, Judgments),
    }


def _uncounted(monitor: Monitor) -> list[str]:
    names = ["events"] * (not monitor.has_events) + ["unmatched"] * (not monitor.counts_unmatched)
    return [name + suffix for name in names for suffix in ("", "_before")]


def _plain(one: Split) -> dict[str, Any]:
    return {**asdict(one), "parts": [asdict(part) for part in one.parts[:MOST_SLICES]]}
