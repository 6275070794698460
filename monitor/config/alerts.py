"""Alert rules in the file, checked against their monitor, and the rules built from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import model_validator

from monitor.conditions.evidence import condition_names
from monitor.conditions.rules import COVERAGE, Baseline, Drop, Floor, Rule, Severity, is_beyond
from monitor.config.report import Scope, nearest
from monitor.errors import Where
from monitor.fields import Amount, Count, Duration, Fall, Maybe, Name, Number, PositiveDuration, Rise, Text
from monitor.measures.measure import SPECS, Empty, Measure, parse
from monitor.section import Section, key
from monitor.types import Judgments, Monitor, format_duration
from monitor.units import WEEK

LIMITS = ("floor", "drop", "ceiling", "rise")
"""Keys that say where a rule fires, and where it resolves."""


@dataclass(frozen=True, slots=True)
class Resolve(Section):
    """When an incident is over."""

    floor: Annotated[Maybe[Number], key("Value at which it resolves. Default: the floor.")] = None
    drop: Annotated[Maybe[Fall], key("Drop at which it resolves, e.g. 4%. Default: the drop.")] = None
    ceiling: Annotated[Maybe[Number], key("Value at or below which it resolves. Default: the ceiling.")] = None
    rise: Annotated[Maybe[Rise], key("Rise over the baseline at which it resolves, e.g. 20%. Default: the rise.")] = (
        None
    )
    lasting: Annotated[
        Maybe[Duration], key("How long it must stay resolved. Default: the rule's `for`.", alias="for")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(given := _given(self)) > 1:
            raise ValueError(f"has {' and '.join(f'`{n}:`' for n in given)}; keep just one of them")
        return self


@dataclass(frozen=True, slots=True)
class Alert(Section):
    """One alert rule. Every bucket that becomes final is one evaluation, over the window it ends."""

    JUST_ONE = LIMITS

    name: Annotated[Name, key("Name of the rule, unique within its monitor.", examples=["quality-drop"])]
    measure: Annotated[
        Text,
        key(
            "Measure to judge: one of the measures, or `label_coverage`. With labels from events or a column, requests "
            "with nothing relevant count as 0 unless it says `empty=skip`.",
            examples=["ndcg@10"],
        ),
    ]
    window: Annotated[Maybe[PositiveDuration], key("Window to judge: one of `windows`. Default: the first.")] = None
    floor: Annotated[Maybe[Number], key("Fires below this value.")] = None
    drop: Annotated[
        Maybe[Fall],
        key("Fires if the value is this far below the baseline: relative, `7%`, or absolute, `0.05`."),
    ] = None
    ceiling: Annotated[
        Maybe[Number], key("For measures where lower is better (no_results): fires above this value.")
    ] = None
    rise: Annotated[
        Maybe[Rise],
        key("For such measures: fires if the value is this far above the baseline: `50%` or `0.05`."),
    ] = None
    baseline: Annotated[Maybe[Baseline], key("What the drop or rise is compared with.")] = None
    lasting: Annotated[
        Duration,
        key(
            "How long the condition must last before it fires, in evaluations: 24h is 24 buckets of 1h. Default: 0s, "
            "once.",
            alias="for",
        ),
    ] = 0
    resolve: Annotated[Resolve, key("When it resolves. Default: when it no longer fires.")] = Resolve()
    min_requests: Annotated[Count, key("Windows with fewer requests are not judged.", ge=1)] = 100
    severity: Annotated[Severity, key("Severity.")] = "critical"
    retrain: Annotated[bool, key("Recommend retraining while it fires.")] = False
    overall: Annotated[bool, key("Judge all traffic together.")] = True
    slices: Annotated[
        tuple[Text, ...],
        key("Slices to judge as well: `device` for each of its values, or `device=mobile`. Default: none."),
    ] = ()

    @property
    def keys(self) -> tuple[str, str]:
        """The keys of its kind of limit: a fixed one, and one against a baseline."""
        return ("floor", "drop") if self.ceiling is None and self.rise is None else ("ceiling", "rise")


def _given(limits: Any) -> list[str]:
    return [name for name in LIMITS if getattr(limits, name) is not None]


def build_rules(scope: Scope, monitor: Monitor, alerts: Sequence[Alert], unknown: frozenset[str]) -> tuple[Rule, ...]:
    """The alert rules of a monitor; what is wrong with one is reported, and it is left out.

    Args:
        unknown: keys of the monitor that cannot be read, so that nothing is checked against them.
    """
    found: dict[str, Rule] = {}
    for index, alert in enumerate(alerts):
        if alert.name in condition_names():
            scope.refuse(f"{alert.name!r} is the name of a verdict; choose another", "alerts", index, "name")
        elif alert.name in found:
            scope.refuse(f"{alert.name!r} is already the name of a rule above; choose another", "alerts", index, "name")
        elif (rule := _rule(scope, monitor, alert, index, unknown)) is not None:
            found[alert.name] = rule
    return tuple(found.values())


def _rule(scope: Scope, monitor: Monitor, alert: Alert, index: int, unknown: frozenset[str]) -> Rule | None:
    checks = (check for needed, check in _CHECKS if not unknown & {*needed})
    problems = [problem for check in checks for problem in check(monitor, alert)]
    for steps, text in problems:
        scope.refuse(text, "alerts", index, *steps)
    if problems:
        return None
    return Rule(
        name=alert.name,
        measure=_measure(monitor, alert.measure),
        window=alert.window or monitor.windows[0],
        limit=_limit(alert),
        lasting=alert.lasting,
        resolve_lasting=alert.lasting if alert.resolve.lasting is None else alert.resolve.lasting,
        min_requests=alert.min_requests,
        severity=alert.severity,
        retrain=alert.retrain,
        overall=alert.overall,
        slices=tuple(_slice(text) for text in alert.slices),
    )


def _measure(monitor: Monitor, text: str) -> Measure | None:
    """The measure of that text; None for the label coverage. Raises ValueError if there is no such measure.

    Where labels tell what people did, empty requests count as 0 unless the text says otherwise: a better list brings
    clicks where there were none, mostly further down, by which the mean of the clicked lists alone falls.
    """
    empty: Empty | None = None if isinstance(monitor.recipe, Judgments) else "zero"
    return None if text == COVERAGE else parse(text, monitor.recipe.bound, empty)


def _limit(alert: Alert) -> Floor | Drop:
    (fixed, change), (fixed_back, change_back) = _limits_of(alert)
    if fixed is not None:
        return Floor(fixed, fixed if fixed_back is None else fixed_back)
    assert change is not None  # the shape holds one of them
    assert alert.baseline is not None  # by `_about_limit`
    drop, back_at = change, change_back or change
    return Drop(drop.number, back_at.number, drop.relative, alert.baseline)


def _limits_of(alert: Alert) -> list[tuple[float | None, Amount | None]]:
    """The fixed limit and the change against a baseline, where it fires and where it resolves."""
    return [tuple(getattr(one, key) for key in alert.keys) for one in (alert, alert.resolve)]


def _slice(text: str) -> tuple[str, str | None]:
    dimension, equals, value = text.partition("=")
    return dimension, value if equals else None


# ---- checks ------------------------------------------------------------------------------------------------------


def _about_measure(monitor: Monitor, alert: Alert) -> Iterator[tuple[Where, str]]:
    try:
        measure = _measure(monitor, alert.measure)
    except ValueError as error:
        yield ("measure",), str(error)
        return
    if measure is None:
        yield from _about_fall(alert, COVERAGE)
        return
    unit, rises = SPECS[measure.name].unit, alert.keys == ("ceiling", "rise")
    if measure.is_better_lower != rises:
        better, keys = ("higher", "`floor:` or `drop:`") if rises else ("lower", "`ceiling:` or `rise:`")
        yield ("measure",), f"{alert.measure!r} is better when it is {better}; give the rule a {keys}"
    if unit == "ratio":
        yield from _about_fall(alert, measure.name)
    fixed = getattr(alert, alert.keys[0])
    if unit == "ratio" and fixed is not None and (fixed >= 1 if rises else fixed > 1):
        when = "would never" if rises else "would always"
        yield (alert.keys[0],), f"{fixed:g} is above 1, the maximum of {measure.name}; it {when} fire"


def _about_computed(monitor: Monitor, alert: Alert) -> Iterator[tuple[Where, str]]:
    with suppress(ValueError):  # that is no measure has been said
        measure = _measure(monitor, alert.measure)
        if measure is not None and measure.kernel not in {m.kernel for m in monitor.measures}:
            known = ", ".join([*map(str, monitor.measures), COVERAGE])
            yield ("measure",), f"{alert.measure!r} is not computed; add it to `measures`, or judge one of {known}"


def _about_fall(alert: Alert, judged: str) -> Iterator[tuple[Where, str]]:
    """What lies between 0 and 1 falls by less than 1, if that is given as a difference, and does not rise above it."""
    if alert.resolve.floor is not None and alert.resolve.floor > 1:
        text = f"{alert.resolve.floor:g} is above 1, the maximum of {judged}; it would never resolve"
        yield ("resolve", "floor"), text
    (_, change), (_, back) = _limits_of(alert)
    changed = alert.keys[1]
    for steps, fall in (((changed,), change), (("resolve", changed), back)):
        if fall is not None and not fall.relative and fall.number >= 1:
            meant = f"did you mean {fall.number:g}%?" if fall.number < 100 else "give a share such as 7%, or 0.05"
            way = "rise" if changed == "rise" else "fall"
            yield (
                steps,
                f"{fall.number:g} as a difference is more than {judged} can {way}, so it would never fire; {meant}",
            )


def _about_window(monitor: Monitor, alert: Alert) -> Iterator[tuple[Where, str]]:
    if alert.window is not None and alert.window not in monitor.windows:
        known = ", ".join(map(format_duration, monitor.windows))
        yield (
            ("window",),
            f"{format_duration(alert.window)} is not one of this monitor's windows ({known}); add it there",
        )


def _about_times(monitor: Monitor, alert: Alert) -> Iterator[tuple[Where, str]]:
    for steps, lasting in ((("for",), alert.lasting), (("resolve", "for"), alert.resolve.lasting)):
        if lasting is not None and lasting % monitor.bucket:
            bucket = format_duration(monitor.bucket)
            yield (
                steps,
                f"{format_duration(lasting)} is not a whole number of buckets ({bucket}); each is one evaluation",
            )


def _about_limit(_: Monitor, alert: Alert) -> Iterator[tuple[Where, str]]:
    (fixed, change), (fixed_back, change_back) = _limits_of(alert)
    fixed_key, change_key = alert.keys
    under, worse, way = ("over", "above", "lower") if change_key == "rise" else ("under", "below", "raise")
    if change is not None and alert.baseline is None:
        yield (), f"has a `{change_key}:` but no `baseline:`; say what to compare with, e.g. {{trailing: 21d}}"
    if fixed is not None and alert.baseline is not None:
        yield (), f"has a `baseline:`, which a {fixed_key} does not use; remove it, or give a `{change_key}:`"
    limit, where = (fixed_key, "at what value") if fixed is not None else (change_key, f"how far {under} the baseline")
    for other in (k for k in _given(alert.resolve) if k != limit):
        yield ("resolve", other), f"the rule has a {limit}; say with `{limit}:` {where} it resolves"
    if alert.floor is not None and alert.floor <= 0:
        yield ("floor",), f"nothing is below {alert.floor:g}, so it would never fire; use more than 0"
    if alert.measure == COVERAGE and alert.floor is not None and alert.floor > 1:
        yield ("floor",), f"{alert.floor:g} is above 1, the maximum of a share; it would always fire"
    if fixed is not None and fixed_back is not None and is_beyond(fixed_back, fixed, change_key == "rise"):
        said = f"{fixed_back:g} is {worse} the {fixed_key} ({fixed:g}), where it fires; {way} it"
        yield ("resolve", fixed_key), said
    if change is not None and change_back is not None:
        if change.relative != change_back.relative:
            said = f"the rule's {change_key} is of the other kind; give both as a share (%) or as a difference"
            yield ("resolve", change_key), said
        elif change_back.number > change.number:
            yield ("resolve", change_key), f"is larger than the {change_key} at which the rule fires; lower it"


def _about_baseline(monitor: Monitor, alert: Alert) -> Iterator[tuple[Where, str]]:
    baseline, window = alert.baseline, alert.window or monitor.windows[0]
    if baseline is None:
        return
    steps = ("baseline",)
    if 0 < baseline.trailing < window:
        text = f"{format_duration(baseline.trailing)} is shorter than the window ({format_duration(window)})"
        yield (*steps, "trailing"), f"{text}, too little history to compare with; raise it to e.g. 21d"
    if baseline.weeks and window > WEEK:
        yield (*steps, "weeks"), "the window is longer than a week, so the weeks would overlap; use `trailing:`"
    if baseline.pinned is not None:
        length = baseline.pinned[1] - baseline.pinned[0]
        if length <= 0:
            yield (*steps, "pinned"), "ends before it begins; swap `from` and `to`"
        elif length < window:
            text = f"is shorter than the window ({format_duration(window)}), too little history to compare with"
            yield (*steps, "pinned"), f"{text}; widen it"


def _about_slices(monitor: Monitor, alert: Alert) -> Iterator[tuple[Where, str]]:
    dimensions = [s.dimension for s in monitor.slices]
    for place, text in enumerate(alert.slices):
        dimension, value = _slice(text)
        if any(s.dimension == dimension and s.column == monitor.rankings.query for s in monitor.slices):
            yield (
                ("slices", place),
                "is the query column, and its text would appear in notifications; judge other slices",
            )
        if dimension not in dimensions:
            remedy = nearest(dimension, dimensions) if dimensions else "this monitor has no `slices:`; add them"
            yield ("slices", place), f"there is no dimension {dimension!r}; {remedy}"
        elif text in alert.slices[:place]:
            yield ("slices", place), f"{text!r} is listed twice; keep one"
        elif value == "":
            yield ("slices", place), f"names no value after the =; write e.g. {dimension}=mobile, or just {dimension}"
    if not alert.overall and not alert.slices:
        yield ("overall",), "nothing would be judged; name `slices:`, or take `overall: false` away"


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[Monitor, Alert], Iterator[tuple[Where, str]]]], ...] = (
    ((), _about_measure),
    (("relevance", "measures", "measures[]"), _about_computed),
    (("windows",), _about_window),
    (("bucket",), _about_times),
    ((), _about_limit),
    (("windows",), _about_baseline),
    (("slices", "rankings"), _about_slices),
)
"""Each check with the keys of the monitor that it needs."""
