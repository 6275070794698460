"""The nouns of rankmon as frozen values. Instants are whole seconds since 1970 in UTC unless a name says otherwise."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from monitor.conditions.rules import Rule, Severity
from monitor.drift import VERSION
from monitor.measures.measure import Measure

ALGORITHM = 3
"""Version of how partials are computed. A change that moves any stored number raises it and starts new series."""

OVERALL = ("", "")
NONE, EMPTY, OTHER, MIXED = "(none)", "(empty)", "other", "(mixed)"

FARTHEST = 32_503_680_000
"""The year 3000, in seconds since 1970."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration(text: str) -> int:
    """Seconds in a duration such as `90s`, `15m`, `24h`, `7d`, `1h30m`.

    Raises:
        ValueError: the text is no duration of a whole number of seconds.

    >>> parse_duration("1h30m")
    5400
    """
    if not re.fullmatch(r"(\d+[smhdw])+", text.strip()):
        raise ValueError(f"{text!r} is no duration; write e.g. 90s, 15m, 24h or 7d")
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)([smhdw])", text))


def format_duration(seconds: int) -> str:
    """The one text of a duration, used as a label: days from two days on, else the largest unit that fits.

    >>> [format_duration(s) for s in (604800, 86400, 5400, 90)]
    ['7d', '24h', '90m', '90s']
    """
    for unit in ("d", "h", "m"):
        size = _UNITS[unit]
        if seconds and seconds % size == 0 and (unit != "d" or seconds >= 2 * size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def parse_instant(text: str) -> int:
    """Seconds since 1970 of a moment: `2022-02-24`, `2022-02-24 05:00 UTC`, any zone or none (UTC then).

    Raises:
        ValueError: the text is no moment, or one that no log is of, and that what is reckoned from it could not hold.

    >>> parse_instant("1970-01-02 01:00+01:00")
    86400
    """
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        raise ValueError(f"{text!r} is no time; write e.g. 2022-02-24 or 2022-02-24T05:00Z") from None
    seconds = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    if not 0 <= seconds < FARTHEST:
        raise ValueError(f"{text!r} is not of the years 1970 to 2999; see whether that is the year you mean")
    return seconds


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """A column of instants and how it writes them.

    `format` is `native` (the database's own type), `epoch_s`, `epoch_ms`, `epoch_us`, or a strftime pattern of a
    text column that sorts as time does. `timezone` names the zone of values that carry none; None: they carry one.
    """

    column: str
    format: str = "native"
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """Where rows come from: a table, as its name's parts, or the user's own SELECT. Just one of them is set."""

    table: tuple[str, ...] = ()
    select: str = ""


@dataclass(frozen=True, slots=True)
class Rankings:
    """The logged lists: one row per item shown, and which column is what."""

    relation: Relation
    request: str
    item: str
    position: str
    time: TimeColumn
    position_base: int = 1
    query: str | None = None
    model_version: str | None = None
    results: str | None = None


@dataclass(frozen=True, slots=True)
class EventRule:
    """What one kind of event is worth. `grade` None: the event's own value. `minimum`: only values from there on."""

    grade: float | None
    type: str | None = None
    minimum: float | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """Label recipe: grades from what people did within `attribution` seconds after the request was served."""

    relation: Relation
    request: str
    item: str
    time: TimeColumn
    rules: tuple[EventRule, ...]
    attribution: int
    type: str | None = None
    value: str | None = None
    combine: Literal["max", "sum"] = "max"
    max_grade: float | None = None
    count_unmatched: bool = True

    @property
    def bound(self) -> float | None:
        """The highest grade there can be: as configured, or what the rules allow; None where they set no limit."""
        grades = [r.grade for r in self.rules]
        if self.max_grade is not None or self.combine == "sum" or None in grades:
            return self.max_grade
        return max(g for g in grades if g is not None)


@dataclass(frozen=True, slots=True)
class Judgments:
    """Label recipe: grades given to (query, item) beforehand."""

    relation: Relation
    query: str
    item: str
    grade: str
    max_grade: float | None = None
    attribution: int = 0

    @property
    def bound(self) -> float | None:
        """The highest grade there can be, as configured."""
        return self.max_grade


@dataclass(frozen=True, slots=True)
class Column:
    """Label recipe: the grade stands in the rankings themselves, and may arrive up to `attribution` seconds late."""

    grade: str
    max_grade: float | None = None
    attribution: int = 0

    @property
    def bound(self) -> float | None:
        """The highest grade there can be, as configured."""
        return self.max_grade


Recipe = Events | Judgments | Column


@dataclass(frozen=True, slots=True)
class Slice:
    """A dimension to slice by: a column of the rankings, and how many of its values get a series."""

    dimension: str
    column: str
    max_values: int = 20


@dataclass(frozen=True, slots=True)
class Drift:
    """How verdicts on a monitor are found, and who is told of them; see `core.drift`.

    Attributes:
        measure: whose `zero` reading is judged.
        mix_by: dimension whose values are judged one by one; None if there is none.
        false_alarm_budget: at most so many in 90 days.
        baseline_from: seconds; nothing older is looked at.
        data_channels: channels of the owners of the data; empty if they are the monitor's.
        show_queries: keep texts of queries with a diagnosis.
    """

    measure: Measure
    mix_by: str | None = None
    false_alarm_budget: float = 1.0
    baseline_from: int | None = None
    severity: Severity = "critical"
    data_severity: Severity = "warning"
    data_channels: tuple[str, ...] = ()
    retrain: bool = True
    show_queries: bool = False


FINE_FOR = 400 * 86_400
"""Seconds for which buckets stay as they are where nothing is said: the same month of the year before is among them."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long buckets are kept as they are; None: for good. Seconds.

    Attributes:
        retain: after this they are forgotten.
        roll_up_after: after this those of `roll_up_to` become one.
    """

    retain: int | None = None
    roll_up_after: int | None = None
    roll_up_to: int = 86_400


@dataclass(frozen=True)
class Monitor:
    """One watched ranking: what to read, what to compute, when. All durations in seconds.

    Attributes:
        max_request_span: most seconds between the first and the last row of one request.
        ingest_delay: how long after its end a bucket's rankings may still be on their way.
        lateness: how long after the attribution labels may still be on their way.
        final_timeout: a bucket becomes final this long after its labels' time even if the source shows nothing newer.
        refresh: time between cycles.
        stale_after: longest time without a request that is no fault of the source.
        lookback: how far back the daemon reads by itself.
        min_completeness: least share of a window's buckets that must have been read for a gauge, or an alert.
        drift: how verdicts are found; None if none are wanted.
        notify: channels that are told of its incidents.
        paging: who pages: rankmon itself (`push`), or Prometheus rules over its gauges.
        retrain_notify: channels that are asked to retrain, at most once an incident and every `retrain_cooldown`.
        retrain_after: how long an incident must have been open before that.
        engine: how it is read: row by row (`pull`), or by sums that the database makes (`pushdown`).
        retention: how long its buckets are kept.
    """

    name: str
    source: str
    rankings: Rankings
    recipe: Recipe
    measures: tuple[Measure, ...]
    slices: tuple[Slice, ...] = ()
    bucket: int = 3600
    windows: tuple[int, ...] = (86400,)
    max_request_span: int = 60
    ingest_delay: int = 300
    lateness: int = 0
    final_timeout: int = 86400
    refresh: int = 300
    deadline: int = 600
    stale_after: int = 10800
    lookback: int = 604800
    min_completeness: float = 0.9
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = ""
    alerts: tuple[Rule, ...] = ()
    drift: Drift | None = None
    notify: tuple[str, ...] = ("log",)
    paging: Literal["push", "prometheus"] = "push"
    retrain_notify: tuple[str, ...] = ()
    retrain_cooldown: int = 604800
    retrain_after: int = 86400
    engine: Literal["auto", "pull", "pushdown"] = "auto"
    retention: Retention = Retention(roll_up_after=FINE_FOR)

    @property
    def label_delay(self) -> int:
        """Seconds after a bucket's end until all its labels have had their time."""
        return self.recipe.attribution + self.lateness

    @property
    def has_events(self) -> bool:
        """Whether labels are made of events."""
        return isinstance(self.recipe, Events)

    @property
    def counts_unmatched(self) -> bool:
        """Whether events that match no impression are counted."""
        return isinstance(self.recipe, Events) and self.recipe.count_unmatched

    @property
    def depth(self) -> int | None:
        """The rank down to which traffic counts impressions: the largest cut-off, None (all) where one has none."""
        cutoffs = [m.k for m in self.measures if not m.is_of_lists]
        return None if None in cutoffs or not cutoffs else max(k for k in cutoffs if k is not None)

    def definition(self, measure: Measure) -> Definition:
        """Identity of the series of `measure`."""
        if measure not in self._defined:
            kernel = measure.kernel
            parts = {"measure": str(kernel), "max_grade": kernel.max_grade}
            self._defined[measure] = _define(self, str(kernel), parts)
        return self._defined[measure]

    @cached_property
    def _defined(self) -> dict[Measure, Definition]:
        """Measure -> identity of its series, so that it is worked out once."""
        return {}

    @property
    def shown(self) -> tuple[tuple[Measure, int], ...]:
        """(measure, window) of every series that is shown: those configured, and what alert rules judge besides."""
        own = [(measure, window) for measure in self.measures for window in self.windows]
        judged = [(rule.measure, rule.window) for rule in self.alerts if rule.measure is not None]
        return tuple(dict.fromkeys([*own, *judged]))

    @cached_property
    def traffic(self) -> Definition:
        """Identity of the traffic partials."""
        return _define(self, TRAFFIC, {"depth": self.depth})

    def judged_definition(self, rule: Rule) -> Definition:
        """Identity of the series that an alert rule judges."""
        return self.traffic if rule.measure is None else self.definition(rule.measure)

    def identity(self, rule: Rule) -> str:
        """Ten digits over a rule and what it judges: while they stay, so does the state that it has come to.

        The name stays out of it, and what only matters to those who are told.
        """
        plain = _plain(rule)
        parts = {n: v for n, v in plain.items() if n not in ("name", "severity", "retrain", "measure")}
        return _digest([parts, rule.judged, self.judged_definition(rule).id])

    def drift_identity(self, drift: Drift, begun_anew: Sequence[int]) -> str:
        """Ten digits over all that decides the verdicts: while they stay, so does the state that these have come to.

        Args:
            begun_anew: seconds at which somebody had the baseline begin anew.
        """
        judged = (self.definition(drift.measure).id, self.traffic.id, drift.mix_by, drift.false_alarm_budget)
        return _digest([VERSION, judged, drift.baseline_from, list(begun_anew)])

    @cached_property
    def judged_as(self) -> str:
        """Ten digits over all that alert rules and verdicts come to something by: who differs in it says otherwise."""
        rules = sorted((rule.name, rule.severity, self.identity(rule)) for rule in self.alerts)
        return _digest([rules, None if self.drift is None else self.drift_identity(self.drift, [])])

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """What one read of this monitor computes: the traffic first, then each kernel once."""
        kernels = dict.fromkeys(self.definition(m) for m in self.measures)
        return (self.traffic, *kernels)


TRAFFIC = "traffic"
"""Name under which traffic partials are stored beside the measures."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a stored series is of. Two series with different ids are never mixed or compared.

    Attributes:
        monitor: name of the monitor.
        kernel: canonical text of the measure's stored half, or `traffic`.
        id: ten hexadecimal digits over all that decides the numbers, and nothing else.
        text: the same in full, as JSON, for people.
    """

    monitor: str
    kernel: str
    id: str
    text: str = field(compare=False, repr=False, default="")


def _define(monitor: Monitor, kernel: str, more: dict[str, Any]) -> Definition:
    # Only what decides the numbers: renaming the source or raising a limit on slices keeps a series going.
    parts = {
        "algorithm": ALGORITHM,
        "rankings": _plain(_read_rankings(monitor)),
        "recipe": {"kind": type(monitor.recipe).__name__.lower(), **_plain(monitor.recipe)},
        "bucket": monitor.bucket,
        **more,
    }
    parts["recipe"].pop("count_unmatched", None)
    return Definition(monitor.name, kernel, _digest(parts), json.dumps(parts, sort_keys=True))


def _read_rankings(monitor: Monitor) -> Rankings:
    """The mapping without what moves no number: the version, and the query where judgments do not go by it."""
    query = monitor.rankings.query if isinstance(monitor.recipe, Judgments) else None
    return replace(monitor.rankings, model_version=None, query=query)


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _plain(value: Any) -> Any:
    """Frozen values as plain JSON data, without what is at its default, so that a new option changes no identity."""
    if hasattr(value, "__dataclass_fields__"):
        items = ((n, f, getattr(value, n)) for n, f in value.__dataclass_fields__.items())
        return {n: _plain(v) for n, f, v in items if v != f.default}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value
