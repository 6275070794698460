"""What there is to say of a condition: from what to what, with interval and requests, since when, which slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from monitor.conditions.rules import SEVERITIES, Drop, Rule, Severity, is_beyond
from monitor.conditions.thresholds import Evaluation, View, bounds, merged, read
from monitor.measures.measure import parse
from monitor.series import partials as b
from monitor.series.intervals import interval
from monitor.series.windows import SliceKey
from monitor.types import OVERALL, format_duration

Floats = NDArray[np.float64]

_EACH = parse("dcg")
"""Reads partials as a mean over all requests that knows no upper bound."""

AS_MUCH = 0.75
"""Share of a fall, of its logarithm, that fewer labels or results make up from which on they may be all there is to it,
as it is to verdicts. Worse lists cost labels too, but what is left of these is worth less as well."""

MOST_SLICES = 3
FEWEST_REQUESTS = 20
"""Slices with fewer requests in the window are not named."""

NEW = 0.1
"""A slice that had less than this part of its present share of the requests counts as new: a model's new version has
been served for some hours when its fall is found."""


@dataclass(frozen=True, slots=True)
class SliceFall:
    """How one slice fell; `share` of the window's requests, `z` how many standard errors of its noise, if known.

    `before` is None for a slice that is new, or as good as: it is held against all requests. Of a slice that is missing
    `before` and `value` are requests from `since` on, seconds: as many as usual, and those that came.
    """

    dimension: str
    slice: str
    before: float | None
    value: float
    share: float
    z: float | None = None
    since: int | None = None


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version of the model that began to serve about when a fall began; instants in seconds.

    Attributes:
        former: the one that served most requests of the day before.
        since: start of its first bucket, or of the first in which it had clearly more requests than before.
        fell_at: start of the step in which the fall began, as far as that can be told; of `step` seconds.
        until: end of its last bucket, where it serves no more.
        share, share_before: of the requests of the last day that it served, since it began, and of the day before.
        fell_within: the same as `fell_at` of the first and of the last step in which the fall may have begun.
    """

    version: str
    former: str
    since: int
    fell_at: int
    step: int
    until: int | None
    share: float
    share_before: float
    fell_within: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class WeakVersion:
    """A version of the model that began to serve of late and is clearly worse than what serves beside it.

    Attributes:
        since: start of its first bucket, seconds.
        value, others: means of its requests, and of what it is held against, since the fall began; a week at most.
        lower, upper: 95 % interval of the difference.
        share: of the requests.
        until: end of its last bucket, where it serves no more.
        dimension: `others` are in the same slices of this; empty where all others are meant.
        is_before: it alone serves its slices, so `others` are these in the same hours of the weeks before.
    """

    version: str
    since: int
    value: float
    others: float
    lower: float
    upper: float
    share: float
    until: int | None = None
    dimension: str = ""
    is_before: bool = False

    @property
    def part(self) -> float:
        """What it takes from the mean of all."""
        return self.share * (self.value - self.others)


Changed = Literal["requests", "items", "events", "no_results", "relevant", "gain"]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Beside:
    """What changed when a fall began, and may be all there is to it.

    Attributes:
        what: far more requests came; or for each request with results other numbers of items shown, or more events that
            count; or a larger share of the requests has no results. Of a rule: that too, or a larger share of the
            requests has something relevant, or each brings more gain.
        value, usual: in the last day of the fall, and in the same hours of the last week before it; of a rule in its
            window, and where `before` was taken.
    """

    what: Changed
    value: float
    usual: float


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Why a rule that fires says nothing of the newest window: it stays as it was until it can be judged again.

    Attributes:
        why: as `thresholds.Unknown` has it.
        requests: in that window, with data.
        least: how many there must be, the rule's `min_requests`.
    """

    why: str
    requests: int
    least: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition at one evaluation, as data for messages, pages and records. Instants and lengths in seconds.

    Attributes:
        judged: text of the measure, or `label_coverage`.
        end, window: the window is [end - window, end).
        since: end of the first window that had fallen.
        lower, upper: 95 % interval of the value.
        before: what the value is compared with: the rule's baseline, or for a floor the window before the fall began.
        compared_with: the same in words.
        threshold: where the rule fires.
        coverage, coverage_before: label coverage, in the window and where `before` was taken.
        slices: those that lost most requests' worth, for a condition on overall.
        interval: how the interval came about, as in `intervals`; by `sampling` alone it is too narrow.
        verdict: what is the matter, where it is a verdict and no rule; see `drift.verdicts`.
        figures: what else a verdict rests on, by name.
        back_from: value from which on it counts as well again.
        well_for, well_needed: for how long it has been well now, and for how long it must be until it is over.
        before_when_fired: `before` at the evaluation by which it fired; a trailing baseline moves on from there.
        still_below: where it fired, of a condition that is over only because its baseline has moved below that.
        lacks: what is missing to a baseline, of broken data that are sound again while there is none.
        new_version: of a verdict on the model, the version that began to serve about when the fall began.
        weak_version: of a verdict on all traffic, a version that takes a good part of what it fell by.
        is_paused: of a verdict, that the data are bad now, and hours in which they were are left out.
        began_within: of a verdict on the model, the time in which the fall began as surely as that can be told; `since`
            is where it most probably did.
        beside: what changed with a fall of the quality and may be all there is to it.
        counts_unlabelled: whether a request without a label counts 0, so that lost labels lower the measure.
        unjudged: of a rule, why it could not be judged since `end`; None if it was.
        rises: of a rule, that it fires above its threshold: a rise is for the worse.
        by_items: of a rule, that its label coverage counts items with a judgment, and not requests with a label.
    """

    rule: str
    severity: Severity
    judged: str
    dimension: str
    slice: str
    end: int
    window: int
    since: int
    requests: int
    value: float | None
    lower: float | None
    upper: float | None
    before: float | None
    compared_with: str
    threshold: float | None
    coverage: float | None
    coverage_before: float | None
    slices: tuple[SliceFall, ...] = ()
    interval: str = "none"
    verdict: str = ""
    figures: tuple[tuple[str, float], ...] = ()
    back_from: float | None = None
    well_for: int = 0
    well_needed: int = 0
    before_when_fired: float | None = None
    still_below: float | None = None
    is_paused: bool = False
    lacks: str = ""
    new_version: NewVersion | None = None
    weak_version: WeakVersion | None = None
    began_within: tuple[int, int] | None = None
    beside: tuple[Beside, ...] = ()
    counts_unlabelled: bool = True
    unjudged: Unjudged | None = None
    by_items: bool = False
    rises: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Finding:
        """From what `plain` gave; what a newer release says beside is left out, for it may have been gone back from."""
        new, weak, unjudged = plain.get("new_version"), plain.get("weak_version"), plain.get("unjudged")
        return _made(
            cls,
            plain,
            slices=tuple(_made(SliceFall, one) for one in plain["slices"]),
            figures=tuple((name, value) for name, value in plain.get("figures", ())),
            new_version=None if new is None else _made(NewVersion, new, fell_within=_pair(new.get("fell_within"))),
            weak_version=None if weak is None else _made(WeakVersion, weak),
            began_within=_pair(plain.get("began_within")),
            beside=tuple(_made(Beside, one) for one in plain.get("beside", ())),
            unjudged=None if unjudged is None else _made(Unjudged, unjudged),
        )

    @property
    def change(self) -> float | None:
        """Relative change from `before` to the value; None where there is no such thing."""
        return self.value / self.before - 1 if self.value is not None and self.before else None

    @property
    def is_recovering(self) -> bool:
        """Whether it stands above where it fires, though it is not over yet."""
        if self.value is None or self.threshold is None:
            return False
        return not is_beyond(self.value, self.threshold, self.rises)

    @property
    def loss(self) -> float:
        """Relative change for the worse, above 0; 0 where nothing is known."""
        change = self.change or 0.0
        return change if self.rises else -change

    @property
    def where(self) -> str:
        """`device=mobile`, or empty for overall."""
        return f"{self.dimension}={self.slice}" if self.dimension else ""


def _made(kind: type[Made], plain: Mapping[str, Any], **more: Any) -> Made:
    """From JSON data, and `more` in place of some of them."""
    names = [f.name for f in fields(kind) if f.name in plain]  # type: ignore[arg-type]
    return kind(**{**{name: plain[name] for name in names}, **more})


def _pair(plain: Sequence[int] | None) -> tuple[int, int] | None:
    """From JSON data."""
    return None if plain is None else (plain[0], plain[1])


def weight(finding: Finding) -> tuple[object, ...]:
    """What comes first in a message: what is still down, the gravest, overall before its slices, the largest fall."""
    grave, place = -SEVERITIES.index(finding.severity), (finding.dimension, finding.slice)
    return finding.is_recovering, grave, bool(finding.dimension), -finding.loss, finding.rule, place


def find(rule: Rule, view: View, key: SliceKey, evaluation: Evaluation, since: int) -> Finding:
    """All that there is to say of an evaluation. `view` reaches as far back as the rule, and a window more."""
    spans = _reference(rule, evaluation.end, since)
    place, sums = view.history.slices.index(key), _sums(view, spans)
    before = float(read(rule, view, sums[[place]])[0][0]) if evaluation.baseline is None else evaluation.baseline
    lower, upper, method = bounds(rule, view, key, evaluation.end)
    beside: tuple[Beside, ...] = ()
    if rule.measure is not None and not rule.rises and evaluation.value is not None and evaluation.value < before:
        beside = _without_results(view, key, evaluation.end, rule.window, spans, evaluation.value / before)
        beside = beside or _rose(view, place, evaluation.end, rule.window, sums[place])
    return Finding(
        rule.name,
        rule.severity,
        rule.judged,
        *key,
        evaluation.end,
        rule.window,
        since,
        evaluation.requests,
        evaluation.value,
        lower,
        upper,
        None if np.isnan(before) else before,
        compared_with(rule),
        evaluation.fires_below,
        _coverage(view, key, [(evaluation.end - rule.window, evaluation.end)]),
        _coverage(view, key, spans),
        _falls(rule, view, evaluation.end, sums) if key == OVERALL else (),
        method,
        back_from=evaluation.back_from,
        well_needed=rule.resolve_lasting,
        beside=beside,
        by_items=view.by_judgments,
        rises=rule.rises,
    )


def accounts_for(now: float, before: float, left: float) -> bool:
    """Whether a larger share of requests without results may be all there is to a fall.

    Args:
        now, before: that share.
        left: what the value is of the value before.
    """
    return before < now < 1 and left > 0 and (1 - now) / (1 - before) <= left**AS_MUCH


def _without_results(
    view: View, key: SliceKey, end: int, window: int, spans: Sequence[tuple[int, int]], left: float
) -> tuple[Beside, ...]:
    now, before = (
        b.without_results(np.sum([view.traffic.between(*span).slice(key).sum(axis=0) for span in asked], axis=0))
        for asked in ([(end - window, end)], spans)
    )
    return (Beside("no_results", now, before),) if accounts_for(now, before, left) else ()


def _rose(view: View, place: int, end: int, window: int, before: Floats) -> tuple[Beside, ...]:
    """That people found more in a window whose measure fell; empty where they surely found less by either count.

    Sure is what the interval of the window does not hold: the share of requests with something relevant, and the gain
    of each, which a ratio divides by what could have been had.

    Args:
        before: (9,) sums of what the window is compared with.
    """
    found, history = list[Beside](), view.history
    for what in ("relevant", "gain"):
        sums = _per_request(history.sums[:, place], what)
        usual = float(b.read_as(_EACH, _per_request(before, what)))
        lower, upper, method = interval(_EACH, history.starts, sums, view.width, window, end)
        if lower is None or upper is None or method == "sampling":
            continue
        if upper < usual:
            return ()
        inside = (history.starts >= end - window) & (history.starts < end)
        found += [Beside(what, float(b.read_as(_EACH, sums[inside].sum(axis=0))), usual)] * (lower > usual)
    return tuple(found[:1])


def _per_request(partials: Floats, what: Changed) -> Floats:
    """Partials whose mean over all requests is the share of those with something relevant, or their mean gain."""
    has_some = partials[..., b.REQUESTS] - partials[..., b.EMPTY]
    total, squares = (has_some, has_some) if what == "relevant" else (partials[..., b.NUM], partials[..., b.NUM2])
    columns = [np.zeros_like(total)] * len(b.FIELDS)
    columns[b.REQUESTS], columns[b.TOTAL], columns[b.SQUARES] = partials[..., b.REQUESTS], total, squares
    return np.stack(columns, axis=-1)


def compared_with(rule: Rule) -> str:
    """What a rule compares with, in words that follow a number: `... the 21d before it`."""
    if not isinstance(rule.limit, Drop):
        return f"the {format_duration(rule.window)} before it fell"
    baseline = rule.limit.baseline
    if baseline.pinned is not None:
        return "the pinned baseline"
    if baseline.weeks:
        return f"the same hours of the {baseline.weeks} weeks before" if baseline.weeks > 1 else "a week before"
    return f"the {format_duration(baseline.trailing)} before it"


def _reference(rule: Rule, end: int, since: int) -> Sequence[tuple[int, int]]:
    if isinstance(rule.limit, Drop):
        return rule.limit.baseline.spans(end, rule.window)
    fell_from = since - rule.window  # the first window that was too low may have begun to fall at its very start
    return ((fell_from - rule.window, fell_from),)


def _sums(view: View, spans: Sequence[tuple[int, int]]) -> Floats:
    found: Floats = np.sum([merged(view.history, view.width, *span)[0] for span in spans], axis=0)
    return found


def _coverage(view: View, key: SliceKey, spans: Sequence[tuple[int, int]]) -> float | None:
    some, every = view.coverage(np.sum([view.traffic.between(*span).slice(key).sum(axis=0) for span in spans], axis=0))
    return float(some / every) if every else None


def _falls(rule: Rule, view: View, end: int, before: Floats) -> tuple[SliceFall, ...]:
    """The slices that fell most, each by its share of the requests."""
    names = view.history.slices
    now, _ = merged(view.history, view.width, end - rule.window, end)
    values, requests = read(rule, view, now)
    former, past = read(rule, view, before)
    are_new = _are_new(names, requests, past)
    former = np.where(are_new, former[0], former)
    lost = (values - former if rule.rises else former - values) * requests / max(requests[0], 1)
    enough = (requests >= max(rule.min_requests, FEWEST_REQUESTS)) & (lost > 0)
    enough &= [bool(dimension) and dimension not in view.personal for dimension, _ in names]
    order = [i for i in np.argsort(np.where(enough, -lost, np.inf), kind="stable") if enough[i]]
    known = [None if new else float(value) for new, value in zip(are_new, former, strict=True)]
    return tuple(
        SliceFall(names[i][0], names[i][1], known[i], float(values[i]), float(requests[i] / requests[0]))
        for i in order[:MOST_SLICES]
    )


def _are_new(names: Sequence[SliceKey], now: Floats, past: Floats) -> NDArray[np.bool_]:
    """(S,) whether slices are new, by (S,) requests now and before. Nothing is known of a dimension not read before."""
    of_dimension: dict[str, float] = {}
    for (dimension, _), requests in zip(names, past.tolist(), strict=True):
        of_dimension[dimension] = of_dimension.get(dimension, 0.0) + requests
    was_read = np.array([of_dimension[dimension] > past[0] / 2 for dimension, _ in names])
    found: NDArray[np.bool_] = was_read & (past * now[0] < NEW * now * past[0])
    return found


def reason(was: str, became: str, finding: Finding | None) -> str:
    """Why a condition changed its state, in a few words."""
    if became == "withdrawn":
        return "there is nothing left to judge"
    if finding is None or finding.value is None or finding.threshold is None:
        return "not known long enough"
    value = f"{finding.value:.4g}"
    if became == "ok":
        return f"{value}: well again" if was == "firing" else f"{value}: did not last"
    lasted = "" if became == "pending" else " for as long as the rule says"
    return f"{value} is {'above' if finding.rises else 'below'} {finding.threshold:.4g}{lasted}"
