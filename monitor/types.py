"""The nouns of rankmon as frozen values. Instants are whole seconds since 1970 in UTC unless a name says otherwise.

Those in the configuration are declared here once, with what the file accepts for each key and what it means.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ValidationInfo, model_validator
from pydantic_core import PydanticOmit

from monitor.conditions.rules import Rule, Severity
from monitor.drift import VERSION
from monitor.fields import FARTHEST as FARTHEST
from monitor.fields import (
    Count,
    Duration,
    HighestGrade,
    Instant,
    LabelName,
    Maybe,
    Name,
    Number,
    PositiveDuration,
    RuleGrade,
    Select,
    Table,
    Text,
    WebAddress,
    Zone,
    check_time,
    no_truth_value,
    placed,
)
from monitor.fields import format_duration as format_duration
from monitor.fields import parse_duration as parse_duration
from monitor.fields import parse_instant as parse_instant
from monitor.measures.measure import SPECS, Measure, parse
from monitor.section import Converted, Derived, Flat, FromFile, OneOf, Section, fault, key, refuse
from monitor.units import DAY, HOUR, WEEK

ALGORITHM = 3
"""Version of how partials are computed. A change that moves any stored number raises it and starts new series."""

ITEM, PLACE = "rankmon_item", "rankmon_position"
"""Columns of the items of a list and of their positions, once each has a row of its own."""

Labels = Annotated[
    tuple[tuple[str, str], ...], Converted(dict[LabelName, str], lambda labels: tuple(sorted(labels.items())))
]
"""Names and values, by name; a mapping in the file."""

OVERALL = ("", "")
NONE, EMPTY, OTHER, MIXED = "(none)", "(empty)", "other", "(mixed)"

MODEL_VERSION = "model_version"
"""Dimension of the model's versions."""


@dataclass(frozen=True, slots=True)
class TimeColumn(Section):
    """A column of instants, and their format."""

    column: Annotated[Text, key("Name of the column.", examples=["served_at"])]
    format: Annotated[
        Text,
        key(
            "native (default; a timestamp type), epoch_s, epoch_ms, epoch_us, or a pattern for text, as it is "
            "written: '%Y-%m-%d %H:%M:%S', with a T between, with .%f for a fraction, with a Z at the end."
        ),
    ] = "native"
    timezone: Annotated[
        Maybe[Text], key("Zone of values that have none, e.g. Europe/Berlin. Default: values have one.")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_time(self.format, self.timezone)
        return self


@dataclass(frozen=True, slots=True)
class Relation(Section):
    """Where rows come from: a table, by the parts of its name, or the user's own SELECT."""

    JUST_ONE = ("table", "select")

    table: Annotated[Table, key("Name of the table or view, with its schema if it has one.", examples=["t"])] = ()
    select: Annotated[Select, key("A SELECT instead of a table.")] = ""


def _base(value: Any) -> Any:
    value = no_truth_value(value)
    return int(value) if value in ("0", "1") else value  # text where it comes from a variable


@dataclass(frozen=True, slots=True)
class Position(Section):
    """A column of positions."""

    column: Annotated[Text, key("Name of the column.", examples=["position"])]
    base: Annotated[Literal[0, 1], BeforeValidator(_base), key("Position of the first item: 1 or 0.")] = 1


def _as_column(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


_Position = Annotated[Position, BeforeValidator(_as_column, json_schema_input_type=str | Position)]
_Time = Annotated[TimeColumn, BeforeValidator(_as_column, json_schema_input_type=str | TimeColumn)]


@dataclass(frozen=True, slots=True)
class Rankings(Section):
    """The logged lists: one row per item shown, or one per request with its list in the column `items`."""

    STANDS_FOR: ClassVar[Mapping[str, Mapping[str, Any]]] = {"items": {"item": ITEM, "position": PLACE}}

    relation: Annotated[Relation, Flat]
    request: Annotated[Text, key("Column with the request id.", examples=["request_id"])]
    item: Annotated[Text, key("Column with the item id, if each item has a row.", examples=["item_id"])]
    position: Annotated[_Position, key("Column with the item's position, if each has a row.", examples=["position"])]
    time: Annotated[_Time, key("Column with the serving time.", examples=["served_at"])]
    query: Annotated[Maybe[Text], key("Column with the query; judgments need it.")] = None
    model_version: Annotated[
        Maybe[Text],
        key("Column with the model version; automatically becomes a slice (its first 200 versions)."),
    ] = None
    results: Annotated[
        Maybe[Text],
        key(
            "Column with the number of results: a row without an item and with 0 here means that the list was empty. "
            "Default: a row without item and position means that."
        ),
    ] = None
    items: Annotated[
        Maybe[Text],
        key(
            "Column with the whole list of item ids in order, an array or JSON, instead of `item` and `position`. "
            "Ids in JSON are read as the type of those of the labels. NULL and [] are empty lists.",
            examples=["hits"],
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class EventRule(Section):
    """What one kind of event is worth. `grade` None: the event's own value."""

    grade: Annotated[RuleGrade, key("A number, 0 or more, or `value` for the event's value.", examples=[1])]
    type: Annotated[Maybe[str], key("Type of event, as in the type column. Default: any.", min_length=1)] = None
    minimum: Annotated[Maybe[Number], key("Minimum value of the event. Default: any.")] = None


_Bound = Annotated[Maybe[HighestGrade], key("Highest possible grade. Default: unknown.")]


@dataclass(frozen=True, slots=True)
class Events(Section):
    """Grades from what people did, such as clicks and purchases: one row per event."""

    relation: Annotated[Relation, Flat]
    request: Annotated[Text, key("Column with the request id.", examples=["request_id"])]
    item: Annotated[Text, key("Column with the item id.", examples=["item_id"])]
    time: Annotated[_Time, key("Column with the event time.", examples=["occurred_at"])]
    rules: Annotated[
        tuple[EventRule, ...],
        key(
            "Grades for events. If several rules match, the highest grade counts.",
            min_length=1,
            examples=["[{type: click, grade: 1}]"],
        ),
    ]
    attribution: Annotated[
        PositiveDuration,
        key("How long after serving an event counts; at exactly this time it no longer does.", examples=["24h"]),
    ]
    type: Annotated[Maybe[Text], key("Column with the event type.")] = None
    value: Annotated[Maybe[Text], key("Column with a number, such as seconds of dwell time.")] = None
    combine: Annotated[
        Literal["max", "sum"],
        key("How several events on one item combine: the highest grade (max) or their sum."),
    ] = "max"
    max_grade: Annotated[
        Maybe[HighestGrade],
        key("Highest possible grade. Default: the highest of the rules, if they set a limit."),
    ] = None
    count_unmatched: Annotated[
        bool,
        key("Count events that match no ranking, to find broken logging. Costs a query."),
    ] = True

    @property
    def bound(self) -> float | None:
        """The highest possible grade: as configured, or what the rules allow; None if they set no limit."""
        grades = [r.grade for r in self.rules]
        if self.max_grade is not None or self.combine == "sum" or None in grades:
            return self.max_grade
        return max(g for g in grades if g is not None)


@dataclass(frozen=True, slots=True)
class Judgments(Section):
    """Grades for (query, item) given in advance: one row per judgment."""

    relation: Annotated[Relation, Flat]
    query: Annotated[Text, key("Column with the query.", examples=["query"])]
    item: Annotated[Text, key("Column with the item id.", examples=["item_id"])]
    grade: Annotated[Text, key("Column with the grade. Of several for a pair, the highest counts.", examples=["grade"])]
    max_grade: _Bound = None

    @property
    def attribution(self) -> int:
        """Judgments are there from the beginning."""
        return 0

    @property
    def bound(self) -> float | None:
        """The highest grade there can be, as configured."""
        return self.max_grade


@dataclass(frozen=True, slots=True)
class Column(Section):
    """Grades in a column of the rankings."""

    grade: Annotated[
        Text,
        key("Column of the rankings with the grade; a boolean is 0 or 1.", examples=["label"]),
    ]
    max_grade: _Bound = None
    attribution: Annotated[Duration, key("How late the grade may arrive after serving.")] = 0

    @property
    def bound(self) -> float | None:
        """The highest grade there can be, as configured."""
        return self.max_grade


Recipe = Events | Judgments | Column
RECIPES = {"events": Events, "judgments": Judgments, "column": Column}
"""Kinds of label recipes by their key."""

_Recipe = Annotated[Recipe, OneOf(lambda: RECIPES)]


@dataclass(frozen=True, slots=True)
class Slice(Section):
    """A dimension to slice by: a column of the rankings, and how many of its values get a series."""

    dimension: Annotated[Text, Derived, key("Name of the dimension. Default: the column name.", alias="as")]
    column: Annotated[Text, key("Column of the rankings.", examples=["device"])]
    max_values: Annotated[
        Count,
        key("Number of values with their own series; all others share `other`.", ge=1, le=1000),
    ] = 20


def _as_slice(value: Any) -> Any:
    value = _as_column(value)
    if not isinstance(value, dict):
        return value
    column = value.get("column")
    return {"as": column if isinstance(column, str) and column.strip() else "?", **value}


_Slice = Annotated[Slice, BeforeValidator(_as_slice, json_schema_input_type=str | Slice)]


def _measure(value: Any, info: ValidationInfo) -> Any:
    """The measure of a text, by the grades of the monitor's recipe."""
    if not isinstance(value, str):
        return value
    if (recipe := info.data.get("recipe")) is None or value.count("(") < value.count(")"):
        raise PydanticOmit  # the recipe is wrong, or the part before the comma, which is reported
    if value.count("(") > value.count(")"):
        raise ValueError(f"{value!r} is missing a parenthesis, or was cut at a comma; put all of it in quotes")
    try:
        return parse(value, recipe.bound)
    except ValueError as error:
        if "needs the highest possible grade" not in str(error):
            raise
        raise ValueError(f"{error}, or set relevance.{type(recipe).__name__.lower()}.max_grade") from None


_Measure = Annotated[Measure, BeforeValidator(_measure, json_schema_input_type=Text)]


@dataclass(frozen=True, slots=True)
class KnownDays(Section):
    """A period with something unusual: verdicts neither judge it nor learn from it."""

    since: Annotated[Instant, key("When it begins.", alias="from")]
    until: Annotated[Instant, key("When it ends.")]
    note: Annotated[Maybe[Text], key("What happens. Default: none.")] = None

    def __post_init__(self) -> None:
        if self.until <= self.since:
            raise ValueError("ends before it begins")


ZONE = "(zone)"
"""Key of the time zone of a calendar's file in each of its days; no key of the configuration."""


def _placed_days(days: Any, info: ValidationInfo) -> Any:
    """Days as moments: those without a zone are of `timezone`, or else of the file's zone."""
    if not isinstance(days, list):
        return days
    given = info.data.get("timezone")
    return [_placed_span(one, given or one.get(ZONE, "UTC")) if isinstance(one, dict) else one for one in days]


def _placed_span(days: dict[str, Any], zone: str) -> dict[str, Any]:
    ends = {n: placed(text, zone) for n in ("from", "until") if isinstance(text := days.get(n), str)}
    return {n: value for n, value in days.items() if n != ZONE} | ends


@dataclass(frozen=True, slots=True)
class Drift(Section):
    """Verdicts on one measure, without thresholds: degraded, data broken, mix shifted, or healthy; see `drift`."""

    measure: Annotated[
        _Measure,
        Derived,
        key("Measure to judge: one of the measures. Default: the first that is a ratio."),
    ]
    mix_by: Annotated[
        Maybe[Text],
        key(
            "Dimension whose values are judged separately, and whose mix may shift without an alarm; of the slices, "
            "only these are checked for lost labels and missing requests. Default: the first of `slices` that is "
            "neither the model version nor the query of `rankings`."
        ),
    ] = None
    false_alarm_budget: Annotated[
        Number,
        key("Maximum number of false alarms in 90 days, for all traffic and all slices together.", gt=0, le=90),
    ] = 1.0
    baseline_from: Annotated[
        Maybe[Instant],
        key("From when on the past is known to be good, UTC; older data are ignored. Default: the oldest stored."),
    ] = None
    timezone: Annotated[
        Maybe[Zone],
        key(
            "Time zone of the users. Daily and weekly cycles follow its clock, so a clock change does not look like a "
            "worse ranking. Calendar days that name no zone are in it. Default: UTC; for an iCalendar file, its own."
        ),
    ] = None
    calendar: Annotated[
        tuple[KnownDays, ...],
        BeforeValidator(_placed_days, json_schema_input_type=list[KnownDays]),
        FromFile,
        key("Periods when something unusual is known to happen; as a file, an iCalendar (.ics)."),
    ] = ()
    severity: Annotated[Severity, key("Severity of a degradation.")] = "critical"
    data_severity: Annotated[Severity, key("Severity of broken labels or traffic.")] = "warning"
    data_channels: Annotated[
        tuple[Name, ...],
        key("Channels of the data owners. Default: those of `notify`.", min_length=1),
    ] = ()
    retrain: Annotated[bool, key("Recommend retraining while the model is degraded.")] = True
    show_queries: Annotated[
        bool,
        key("Keep the texts of the queries that lost most, for `explain-incident`. Default: false, only their ids."),
    ] = False


def is_ratio(measure: Measure) -> bool:
    """Whether it is a mean of values from 0 to 1, which verdicts can be found on."""
    return SPECS[measure.name].unit == "ratio" and measure.aggregate == "mean"


def lasting_dimensions(rankings: Rankings, slices: Sequence[Slice]) -> list[Slice]:
    """Those that can be mixed by. A new version or query has no past to be compared with, so it would not be judged."""
    passing = (rankings.query, rankings.model_version)
    return [s for s in slices if s.dimension != MODEL_VERSION and s.column not in passing]


def _drift(value: Any, info: ValidationInfo) -> Any:
    """What `drift:` says, completed by what the monitor is."""
    if not isinstance(value, dict):
        return value
    value, known, recipe = dict(value), info.data.get("measures"), info.data.get("recipe")
    if isinstance(text := value.get("measure"), str) and recipe is not None:
        try:
            value["measure"] = parse(text, recipe.bound)
        except ValueError as error:
            refuse(fault(str(error), "measure"))
    if "measure" not in value or recipe is None:
        value["measure"] = next(filter(is_ratio, known or ()), None) or parse("ndcg@10")
        if known and not any(map(is_ratio, known)):
            text = "no measure of this monitor is a mean of values between 0 and 1; add e.g. ndcg@10"
            refuse(fault(text, "measure"))
    if "mix_by" not in value and {"rankings", "slices"} <= info.data.keys():
        found = lasting_dimensions(info.data["rankings"], info.data["slices"])
        value |= {"mix_by": found[0].dimension} if found else {}
    return value


@dataclass(frozen=True, slots=True)
class RetrainRequests(Section):
    """Who is asked to retrain when a degradation, or a rule marked `retrain`, lasts."""

    notify: Annotated[tuple[Name, ...], key("Channels to ask.", min_length=1, examples=["[pipeline]"])]
    cooldown: Annotated[Duration, key("Minimum time between two requests.")] = WEEK
    after: Annotated[
        Duration,
        key("How long an incident must have been open before retraining is recommended."),
    ] = DAY


FINE_FOR = 400 * DAY
"""Seconds for which buckets stay as they are by default: this includes the same month of the year before."""


@dataclass(frozen=True, slots=True)
class RollUp(Section):
    """When buckets become coarser."""

    after: Annotated[PositiveDuration, key("Age at which buckets are merged.", examples=["180d"])]
    to: Annotated[
        PositiveDuration,
        key("Width of a merged bucket, in whole buckets; divides a day or is whole days."),
    ] = DAY


@dataclass(frozen=True, slots=True)
class Retention(Section):
    """How long the buckets of a monitor are kept."""

    retain: Annotated[
        Maybe[PositiveDuration],
        key("Age at which buckets are deleted. Default: none, they are kept forever."),
    ] = None
    roll_up: Annotated[Maybe[RollUp], key("Merge older buckets into coarser ones. Default: never.")] = None


@dataclass(frozen=True)
class Monitor(Section):
    """One ranking to watch: what to read, what to compute, when."""

    name: Annotated[Name, key("Unique name of the monitor, used in every metric and message.", examples=["search"])]
    renamed_from: Annotated[
        Maybe[Name], key("Former name of the monitor, whose history it takes over. Default: none.")
    ] = field(default=None, kw_only=True)
    source: Annotated[str, Derived, key("Source to read. Default: none; set it here or in `defaults`.")]
    rankings: Annotated[
        Rankings,
        key(
            "The logged rankings.",
            examples=["{table: search_log, request: request_id, item: item_id, position: position, time: served_at}"],
        ),
    ]
    recipe: Annotated[
        _Recipe,
        key(
            "Where grades come from: exactly one of the three.",
            alias="relevance",
            examples=["{column: {grade: label, max_grade: 1}}"],
        ),
    ]
    measures: Annotated[tuple[_Measure, ...], key("Measures to compute.", min_length=1, examples=["[ndcg@10]"])]
    slices: Annotated[tuple[_Slice, ...], key("Dimensions to slice by. Default: none.", max_length=10)] = ()
    bucket: Annotated[
        PositiveDuration,
        key("Bucket width, the resolution of the store. Must divide a day evenly or be whole days."),
    ] = HOUR
    windows: Annotated[
        tuple[PositiveDuration, ...],
        key(
            "Window lengths, in whole buckets. Default: 24h, or a longer bucket.", min_length=1, examples=["[24h, 7d]"]
        ),
    ] = (DAY,)
    max_request_span: Annotated[Duration, key("Longest time between the first and last row of one request.")] = 60
    ingest_delay: Annotated[Duration, key("How late rankings may arrive after their bucket's end.")] = 300
    lateness: Annotated[Duration, key("How late labels may arrive after the attribution.")] = 0
    final_timeout: Annotated[
        Duration,
        key("How long after its labels are due a bucket becomes final even if the source has nothing newer."),
    ] = DAY
    refresh: Annotated[PositiveDuration, key("Time between two runs.")] = 300
    deadline: Annotated[PositiveDuration, key("Time limit of one run.")] = 600
    stale_after: Annotated[
        PositiveDuration,
        key(
            "Longest normal time without a request, such as a quiet night. After this and `ingest_delay` the "
            "source is stale for the verdict, the page and the Prometheus rule."
        ),
    ] = 10_800
    lookback: Annotated[
        PositiveDuration,
        key(
            "How far back rankmon reads automatically. Default: the longest of 24h, the windows, how far rules and "
            "verdicts look back, and how long a bucket takes to become final: attribution + lateness (or "
            "`ingest_delay` if that is longer), one bucket and one `refresh`."
        ),
    ] = WEEK
    min_completeness: Annotated[
        Number,
        key("Minimum share of a window's buckets that must be read to show its value.", gt=0, le=1),
    ] = 0.9
    labels: Annotated[
        Labels,
        key("Labels of the monitor, such as its team; merged with those in `defaults`. Default: none."),
    ] = ()
    runbook_url: Annotated[WebAddress, key("Runbook for on-call. Default: none.")] = ""
    alerts: Annotated[tuple[Rule, ...], key("Alert rules. Default: none.", max_length=50)] = ()
    drift: Annotated[
        Maybe[Drift],
        BeforeValidator(_drift),
        key("Verdicts without thresholds, in addition to rules. Default: none; `drift: {}` uses all defaults."),
    ] = None
    notify: Annotated[tuple[Name, ...], key("Channels for incidents. Default: [log].", min_length=1)] = ("log",)
    paging: Annotated[
        Literal["push", "prometheus"],
        key("Who pages: rankmon through its channels, or Prometheus rules on its gauges."),
    ] = "push"
    retrain: Annotated[
        RetrainRequests,
        key(
            "Who is asked to retrain, and how often. Default: nobody; status, page and gauge recommend it all the same."
        ),
    ] = RetrainRequests(())
    engine: Annotated[
        Literal["auto", "pull", "pushdown"],
        key(
            "How the source is read: row by row (pull) or as sums computed by the database (pushdown). auto uses the "
            "faster one that fits; `rankmon explain` says which."
        ),
    ] = "auto"
    retention: Annotated[
        Retention,
        key(
            "How long buckets are kept. Default: forever; those older than 400 days (or than cycles look back, "
            "if that is more) as days. `{}` keeps all buckets as they are."
        ),
    ] = Retention(roll_up=RollUp(FINE_FOR))

    @property
    def label_delay(self) -> int:
        """Seconds after a bucket's end until all its labels have had their time."""
        return self.recipe.attribution + self.lateness

    @property
    def by_judgments(self) -> bool:
        """Whether labels are judgments, so that label coverage counts items, not requests."""
        return isinstance(self.recipe, Judgments)

    @property
    def version_slice(self) -> Slice | None:
        """The dimension of the model version; None without one."""
        column = self.rankings.model_version
        return next((one for one in self.slices if one.column == column or one.dimension == MODEL_VERSION), None)

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
            parts: dict[str, Any] = {"measure": str(kernel), "max_grade": kernel.max_grade}
            if kernel.by_slice:
                parts["by"] = next(s.column for s in self.slices if s.dimension == kernel.dimension)
            self._defined[measure] = _define(self, str(kernel), parts)
        return self._defined[measure]

    @cached_property
    def _defined(self) -> dict[Measure, Definition]:
        """Measure -> identity of its series, computed once."""
        return {}

    @property
    def shown(self) -> tuple[tuple[Measure, int], ...]:
        """(measure, window) of every series that is shown: those configured, and what else alert rules judge."""
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
        """Ten digits over a rule and what it judges: while they stay the same, so does its state.

        The name is excluded, and so is what only matters for notifications.
        """
        plain = _plain(rule)
        parts = {n: v for n, v in plain.items() if n not in ("name", "severity", "retrain", "measure")}
        return _digest([parts, rule.judged, self.judged_definition(rule).id])

    def drift_identity(self, drift: Drift, resets: Sequence[int], announced: Sequence[Sequence[int]]) -> str:
        """Ten digits over everything that decides the verdicts: while they stay the same, so does their state.

        Args:
            resets: seconds at which somebody reset the baseline.
            announced: spans in seconds that are not judged, each with whether a new level begins at its end.
        """
        judged = (self.definition(drift.measure).id, self.traffic.id, drift.mix_by, drift.false_alarm_budget)
        sometimes = [said for said in (list(announced), drift.timezone) if said]
        return _digest([VERSION, judged, drift.baseline_from, list(resets), *sometimes])

    @cached_property
    def judged_as(self) -> str:
        """Ten digits over everything that decides alert rules and verdicts: processes that differ in it disagree."""
        rules = sorted((rule.name, rule.severity, self.identity(rule)) for rule in self.alerts)
        if self.drift is None:
            return _digest([rules, None])
        return _digest([rules, self.drift_identity(self.drift, [], [(a.since, a.until) for a in self.drift.calendar])])

    @cached_property
    def corrected(self) -> Measure | None:
        """The first measure corrected below rank 1, if there are verdicts and clicks can be counted by query."""
        if self.drift is None or self.rankings.query is None or isinstance(self.recipe, Judgments):
            return None
        return next((m for m in self.measures if m.is_corrected and m.k != 1), None)

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """What one read of this monitor computes: the traffic first, then each kernel once."""
        kernels = dict.fromkeys(self.definition(m) for m in self.measures)
        return (self.traffic, *kernels)


TRAFFIC = "traffic"
"""Name under which traffic partials are stored."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a stored series contains. Series with different ids are never mixed or compared.

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
        "rankings": _read_rankings(monitor),
        "recipe": {"kind": type(monitor.recipe).__name__.lower(), **_plain(monitor.recipe)},
        "bucket": monitor.bucket,
        **more,
    }
    parts["recipe"].pop("count_unmatched", None)
    return Definition(monitor.name, kernel, _digest(parts), json.dumps(parts, sort_keys=True))


def _read_rankings(monitor: Monitor) -> dict[str, Any]:
    """The mapping without what changes no number: the version, and the query unless judgments use it."""
    query = monitor.rankings.query if isinstance(monitor.recipe, Judgments) else None
    parts: dict[str, Any] = _plain(replace(monitor.rankings, model_version=None, query=query))
    position = monitor.rankings.position
    return parts | {"position": position.column} | ({"position_base": position.base} if position.base != 1 else {})


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _plain(value: Any) -> Any:
    """Frozen values as plain JSON data without defaults, so a new option changes no identity."""
    if hasattr(value, "__dataclass_fields__"):
        items = ((n, f, getattr(value, n)) for n, f in value.__dataclass_fields__.items())
        return {n: _plain(v) for n, f, v in items if v != f.default}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value
