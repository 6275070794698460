"""An alert rule fires: a measure or the label coverage is beyond its threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Floats
from monitor.conditions.evidence import (
    MOST_SLICES,
    Changed,
    ConcurrentChange,
    Evidence,
    QualityEvidence,
    SliceFall,
    accounts_for,
    kind_of,
    register,
)
from monitor.conditions.rules import Drop, Rule
from monitor.conditions.thresholds import Evaluation, View, bounds, merged, read
from monitor.conditions.versions import NEW, version_until
from monitor.measures.measure import parse
from monitor.series import partials as b
from monitor.series.intervals import interval
from monitor.series.windows import SliceKey
from monitor.types import OVERALL, format_duration

_EACH = parse("dcg")
"""Reads partials as a mean over all requests without an upper bound."""

FEWEST_REQUESTS = 20
"""Slices with fewer requests in the window are not named."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Why a firing rule could not judge the newest window: `why` as `thresholds.Unknown`.

    Attributes:
        requests, least: requests with data in that window, and the rule's `min_requests`.
    """

    why: str
    requests: int
    least: int


@register
class Threshold(QualityEvidence):
    """Why an alert rule fires.

    Attributes:
        back_from: value from which it counts as normal again.
        still_below: where it fired, if it resolved only because its baseline has moved below that.
        unjudged: why it could not be judged since `end`; None if it was.
        by_items: its label coverage counts items with a judgment, not requests with a label.
        doubted_by, doubted_until: the fault of the data that a verdict found in this window, and its end, seconds;
            empty if none.
    """

    kind: ClassVar[str] = "threshold"
    title: ClassVar[str] = "rule"
    text: ClassVar[str] = """
{% include "measure.txt" %}. Rule {{ it.rule }} fires {{ it|side }} {{ it.threshold|written(it) }}.
{%- if it.may_be_chance and not is_over %}
 The 95 % interval contains {{ it.before|written(it) }}, so this may be chance.
{%- endif %}
{%- if it.doubt and not is_over %} The data are in doubt: verdict {{ it.doubt }}.{% endif %}
{%- set is_held = it.end < until or (it.unjudged is not none and not is_over) %}
{%- if it.is_recovering and not is_over %} It {{ "was" if is_held else "is" }} {{ it|recovery }}.{% endif %}
{%- if is_held %} It has not been judged since{% include "unjudged.txt" %}.{% endif %}"""

    back_from: float | None = None
    still_below: float | None = None
    unjudged: Unjudged | None = None
    by_items: bool = False
    doubted_by: str = ""
    doubted_until: int = 0

    def doubted(self, by: Evidence | None, was: Evidence | None) -> Self:
        """With the fault of the data `by` which it is doubted now, or that of `was` while its window has it."""
        if by is not None:
            return replace(self, doubted_by=by.verdict, doubted_until=by.end)
        if isinstance(was, Threshold) and was.doubted_until > self.end - self.window:
            return replace(self, doubted_by=was.doubted_by, doubted_until=was.doubted_until)
        return self

    @property
    def doubt(self) -> str:
        """`doubted_by` for people."""
        kind = kind_of(self.doubted_by)
        return "" if kind is None else kind.title

    @property
    def verdict(self) -> str:
        return ""


def find(rule: Rule, view: View, key: SliceKey, evaluation: Evaluation, since: int) -> Threshold:
    """The evidence of an evaluation. `view` reaches a window further back than the rule."""
    spans = _reference(rule, evaluation.end, since)
    place, sums = view.history.slices.index(key), _sums(view, spans)
    before = float(read(rule, view, sums[[place]])[0][0]) if evaluation.baseline is None else evaluation.baseline
    lower, upper, method = bounds(rule, view, key, evaluation.end)
    concurrent: tuple[ConcurrentChange, ...] = ()
    if rule.measure is not None and not rule.rises and evaluation.value is not None and evaluation.value < before:
        concurrent = _without_results(view, key, evaluation.end, rule.window, spans, evaluation.value / before)
        concurrent = concurrent or _rose(rule, view, place, since, evaluation.end, sums[place])
    return Threshold(
        rule=rule.name,
        severity=rule.severity,
        judged=rule.judged,
        dimension=key[0],
        slice=key[1],
        end=evaluation.end,
        window=rule.window,
        since=since,
        requests=evaluation.requests,
        value=evaluation.value,
        lower=lower,
        upper=upper,
        interval=method,
        before=None if np.isnan(before) else before,
        compared_with=compared_with(rule),
        threshold=evaluation.fires_at,
        coverage=_coverage(view, key, [(evaluation.end - rule.window, evaluation.end)]),
        coverage_before=_coverage(view, key, spans),
        slices=_falls(rule, view, evaluation.end, sums) if key == OVERALL else (),
        back_from=evaluation.back_from,
        well_needed=rule.resolve_lasting,
        concurrent=concurrent,
        by_items=view.by_judgments,
        rises=rule.rises,
    )


def _without_results(
    view: View, key: SliceKey, end: int, window: int, spans: Sequence[tuple[int, int]], left: float
) -> tuple[ConcurrentChange, ...]:
    now, before = (
        b.without_results(np.sum([view.traffic.between(*span).slice(key).sum(axis=0) for span in asked], axis=0))
        for asked in ([(end - window, end)], spans)
    )
    return (ConcurrentChange("no_results", now, before),) if accounts_for(now, before, left) else ()


def _rose(rule: Rule, view: View, place: int, since: int, end: int, before: Floats) -> tuple[ConcurrentChange, ...]:
    """Says that people find more since the measure fell; empty if they found significantly less in the newest window.

    `before` are the sums that the newest window is compared with. What the first wholly fallen window said stands: the
    newest one may have too few requests to say it again.
    """
    newest = _rises(view, place, end, rule.window, before)
    first = min(end, since + rule.window)
    if newest or newest is None or first < end - rule.reach:
        return newest or ()
    return _rises(view, place, first, rule.window, _sums(view, _reference(rule, first, since))[place]) or ()


def _rises(view: View, place: int, end: int, window: int, before: Floats) -> tuple[ConcurrentChange, ...] | None:
    """The count per request that rose significantly in the window that ends at `end`; None if either fell so."""
    rises, history = list[ConcurrentChange](), view.history
    for what in ("relevant", "gain"):
        sums = _per_request(history.sums[:, place], what)
        usual = float(b.read_as(_EACH, _per_request(before, what)))
        lower, upper, method = interval(_EACH, history.starts, sums, view.width, window, end)
        if lower is None or upper is None or method == "sampling":
            continue
        if upper < usual:
            return None
        inside = (history.starts >= end - window) & (history.starts < end)
        rises += [ConcurrentChange(what, float(b.read_as(_EACH, sums[inside].sum(axis=0))), usual)] * (lower > usual)
    return tuple(rises[:1])


def _per_request(partials: Floats, what: Changed) -> Floats:
    has_some = partials[..., b.REQUESTS] - partials[..., b.EMPTY]
    total, squares = (has_some, has_some) if what == "relevant" else (b.gain(partials), partials[..., b.NUM2])
    columns = [np.zeros_like(total)] * len(b.FIELDS)
    columns[b.REQUESTS], columns[b.TOTAL], columns[b.SQUARES] = partials[..., b.REQUESTS], total, squares
    return np.stack(columns, axis=-1)


def compared_with(rule: Rule) -> str:
    """The rule's baseline in words that follow a number: `... the previous 21d`."""
    if not isinstance(rule.limit, Drop):
        return f"the {format_duration(rule.window)} before the fall"
    baseline = rule.limit.baseline
    if baseline.pinned is not None:
        return "the pinned baseline"
    if baseline.weeks:
        return f"the same hours of the {baseline.weeks} weeks before" if baseline.weeks > 1 else "a week before"
    return f"the previous {format_duration(baseline.trailing)}"


def _reference(rule: Rule, end: int, since: int) -> Sequence[tuple[int, int]]:
    if isinstance(rule.limit, Drop):
        return rule.limit.baseline.spans(end, rule.window)
    fell_from = since - rule.window  # the fall may have begun at the very start of the first low window
    return ((fell_from - rule.window, fell_from),)


def _sums(view: View, spans: Sequence[tuple[int, int]]) -> Floats:
    found: Floats = np.sum([merged(view.history, view.width, *span)[0] for span in spans], axis=0)
    return found


def _coverage(view: View, key: SliceKey, spans: Sequence[tuple[int, int]]) -> float | None:
    some, every = view.coverage(np.sum([view.traffic.between(*span).slice(key).sum(axis=0) for span in spans], axis=0))
    return float(some / every) if every else None


def _falls(rule: Rule, view: View, end: int, before: Floats) -> tuple[SliceFall, ...]:
    names = view.history.slices
    now, _ = merged(view.history, view.width, end - rule.window, end)
    values, requests = read(rule, view, now)
    former, past = read(rule, view, before)
    are_new = _are_new(names, requests, past)
    former = np.where(are_new, former[0], former)
    lost = (values - former if rule.rises else former - values) * requests
    enough = (requests >= max(rule.min_requests, FEWEST_REQUESTS)) & (lost > 0)
    enough &= [bool(dimension) and dimension not in view.personal for dimension, _ in names]
    order = [i for i in np.argsort(np.where(enough, -lost, np.inf), kind="stable") if enough[i]]
    known = [None if new else float(value) for new, value in zip(are_new, former, strict=True)]
    shares = requests / max(requests[0], 1)
    span = (end - rule.window, end, view.width)
    falls = (
        SliceFall(d, v, known[i], float(values[i]), float(shares[i]), until=version_until(view.traffic, (d, v), *span))
        for i, (d, v) in ((i, names[i]) for i in order)
    )
    return tuple(fall for fall in falls if not fall.is_everywhere)[:MOST_SLICES]


def _are_new(names: Sequence[SliceKey], now: Floats, past: Floats) -> NDArray[np.bool_]:
    """(S,) whether slices are new, by (S,) requests now and before. A dimension not read before tells nothing."""
    of_dimension: dict[str, float] = {}
    for (dimension, _), requests in zip(names, past.tolist(), strict=True):
        of_dimension[dimension] = of_dimension.get(dimension, 0.0) + requests
    was_read = np.array([of_dimension[dimension] > past[0] / 2 for dimension, _ in names])
    found: NDArray[np.bool_] = was_read & (past * now[0] < NEW * now * past[0])
    return found
