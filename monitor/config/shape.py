"""The shape of the configuration file: which keys there are, of what kind, and what they mean.

The descriptions end up in the JSON Schema, where editors show them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from monitor.config.alert_shape import Alert, Channel, Drift, RetrainRequests
from monitor.config.fields import (
    Count,
    Duration,
    HighestGrade,
    LabelName,
    Listen,
    Maybe,
    Name,
    Number,
    PageAddress,
    PositiveDuration,
    RuleGrade,
    Select,
    Table,
    Text,
    WebAddress,
    check_time,
    no_truth_value,
)
from monitor.config.mapping import Shape, just_one, not_both, one_required


class Database(Shape):
    """How to reach a database."""

    model_config = ConfigDict(json_schema_extra=one_required("url", "url_file"))

    url: Maybe[Text] = Field(
        default=None,
        repr=False,
        description="SQLAlchemy URL of the database; a relative path of SQLite or DuckDB is relative to this file.",
    )
    url_file: Maybe[Text] = Field(default=None, description="File that holds the URL, relative to this file.")
    password: Maybe[str] = Field(default=None, repr=False, description="Password; best written as ${NAME}.")
    password_file: Maybe[Text] = Field(default=None, description="File that holds the password, relative to this file.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        just_one(self, "url", "url_file")
        not_both(self, "password", "password_file")
        return self


class Store(Database):
    """Where rankmon keeps its own tables: SQLite (a relative path starts at this file's folder) or PostgreSQL."""

    retain: PositiveDuration = Field(
        default="730d",
        validate_default=True,
        description=(
            "How long closed incidents, their transitions, verdicts, and the buckets of removed monitors are "
            "kept. Other buckets follow their monitor's `retention`. Default: 730d."
        ),
    )


class Source(Database):
    """A database of yours, read only."""

    statement_timeout: PositiveDuration = Field(
        default="60s", validate_default=True, description="Time limit of one query. Default: 60s."
    )
    max_concurrent: Count = Field(
        default=4,
        ge=1,
        le=64,
        description=(
            "Maximum number of concurrent queries; monitors take turns. Above 1, a long push-down read may run "
            "as two queries at a time. Default: 4."
        ),
    )


class Web(Shape):
    """The metrics and pages that are served."""

    listen: Listen = Field(
        default="127.0.0.1:9184", description="Address and port. Default: 127.0.0.1:9184, this host only."
    )
    external_url: Maybe[PageAddress] = Field(
        default=None,
        description="Address by which people reach the page, for links in notifications. Default: the listen address.",
    )
    config_file: Maybe[Text] = Field(
        default=None,
        description=(
            "File with TLS and passwords in the format of Prometheus exporters, relative to this file. Default: "
            "none, plain HTTP without passwords."
        ),
    )


class Log(Shape):
    """What is logged to the standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level. Default: info."
    )
    format: Literal["text", "json"] = Field(
        default="text", description="Text for people or JSON for machines. Default: text."
    )


class Scheduler(Shape):
    """How the monitors are run."""

    workers: Count = Field(
        default=4, ge=1, le=64, description="Monitors of one source that run at the same time. Default: 4."
    )
    lease: PositiveDuration = Field(
        default="30s",
        validate_default=True,
        description="How long a dead process can keep others from writing its monitors. Default: 30s.",
    )


class Relation(Shape):
    """Where rows come from."""

    model_config = ConfigDict(json_schema_extra=one_required("table", "select"))

    table: Maybe[Table] = Field(
        default=None, description="Name of the table or view, with its schema where it has one."
    )
    select: Maybe[Select] = Field(default=None, description="A SELECT instead of a table.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        just_one(self, "table", "select")
        return self


def _as_column(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


def _base(value: Any) -> Any:
    value = no_truth_value(value)
    return int(value) if value in ("0", "1") else value  # text where it comes from a variable


Base = Annotated[Literal[0, 1], BeforeValidator(_base)]


class PositionColumn(Shape):
    """A column of positions."""

    column: Text = Field(description="Name of the column.", examples=["position"])
    base: Base = Field(default=1, description="Position of the first item: 1 (default) or 0.")


class TimeColumn(Shape):
    """A column of instants."""

    column: Text = Field(description="Name of the column.", examples=["served_at"])
    format: Text = Field(
        default="native",
        description="native (default; a timestamp type), epoch_s, epoch_ms, epoch_us, or a pattern for text, as "
        "it is written: '%Y-%m-%d %H:%M:%S', with a T between, with .%f for a fraction, with a Z at the end.",
    )
    timezone: Maybe[Text] = Field(default=None, description="Zone of values that carry none, e.g. Europe/Berlin.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_time(self.format, self.timezone)
        return self


class SliceColumn(Shape):
    """A dimension to slice by."""

    column: Text = Field(description="Column of the rankings.", examples=["device"])
    name: Maybe[Text] = Field(default=None, alias="as", description="Name of the dimension. Default: the column's.")
    max_values: Count = Field(
        default=20,
        ge=1,
        le=1000,
        description="Number of values with a series of their own; others share `other`. Default: 20.",
    )


Position = Annotated[PositionColumn, BeforeValidator(_as_column, json_schema_input_type=str | PositionColumn)]
Time = Annotated[TimeColumn, BeforeValidator(_as_column, json_schema_input_type=str | TimeColumn)]
Slice = Annotated[SliceColumn, BeforeValidator(_as_column, json_schema_input_type=str | SliceColumn)]


class Rankings(Relation):
    """The logged lists: one row per item shown."""

    request: Text = Field(description="Column with the id of the request.", examples=["request_id"])
    item: Text = Field(description="Column with the id of the item.", examples=["item_id"])
    position: Position = Field(description="Column with the item's position.", examples=["position"])
    time: Time = Field(description="Column with the time of serving.", examples=["served_at"])
    query: Maybe[Text] = Field(default=None, description="Column with the query; judgments need it.")
    model_version: Maybe[Text] = Field(
        default=None,
        description="Column with the model's version; becomes a slice by itself (its first 200 versions).",
    )
    results: Maybe[Text] = Field(
        default=None,
        description="Column with the number of results: a row without an item, and 0 in it, says that the list was "
        "empty. Default: a row without an item and a position says so.",
    )


class Rule(Shape):
    """What one kind of event is worth."""

    type: Maybe[str] = Field(
        default=None, min_length=1, description="Type of event, as in the type column. Default: any."
    )
    minimum: Maybe[Number] = Field(default=None, description="Minimum value of the event. Default: any.")
    grade: RuleGrade = Field(description="A number from 0, or `value` for the event's own.", examples=[1])


class Events(Relation):
    """Grades from what people did: one row per event."""

    request: Text = Field(description="Column with the id of the request.", examples=["request_id"])
    item: Text = Field(description="Column with the id of the item.", examples=["item_id"])
    time: Time = Field(description="Column with the time of the event.", examples=["occurred_at"])
    type: Maybe[Text] = Field(default=None, description="Column with the type of the event.")
    value: Maybe[Text] = Field(default=None, description="Column with a number, such as seconds of dwell time.")
    rules: list[Rule] = Field(
        min_length=1,
        description="Grades of events. If several rules match, the highest grade counts.",
        examples=["[{type: click, grade: 1}]"],
    )
    combine: Literal["max", "sum"] = Field(
        default="max",
        description="How several events on one item combine: the highest grade (max, default) or their sum.",
    )
    attribution: PositiveDuration = Field(
        description="An event counts from its serving until this much later; just then it no longer does.",
        examples=["24h"],
    )
    max_grade: Maybe[HighestGrade] = Field(
        default=None,
        description="Highest possible grade. Default: the highest of the rules, if they set a limit.",
    )
    count_unmatched: bool = Field(
        default=True,
        description="Count events that match no ranking, to find broken logging. Costs a query. Default: true.",
    )


class Judgments(Relation):
    """Grades given to (query, item) beforehand: one row per judgment."""

    query: Text = Field(description="Column with the query.", examples=["query"])
    item: Text = Field(description="Column with the id of the item.", examples=["item_id"])
    grade: Text = Field(description="Column with the grade.", examples=["grade"])
    max_grade: Maybe[HighestGrade] = Field(default=None, description="Highest possible grade. Default: unknown.")


class LabelColumn(Shape):
    """Grades that stand in the rankings themselves."""

    grade: Text = Field(description="Column of the rankings with the grade; a boolean is 0 or 1.", examples=["label"])
    max_grade: Maybe[HighestGrade] = Field(default=None, description="Highest possible grade. Default: unknown.")
    attribution: Duration = Field(
        default="0s",
        validate_default=True,
        description="How late the grade may arrive after serving. Default: 0s.",
    )


class Relevance(Shape):
    """How grades come about."""

    model_config = ConfigDict(json_schema_extra=one_required("events", "judgments", "column"))

    events: Maybe[Events] = Field(default=None, description="From clicks, purchases and other events.")
    judgments: Maybe[Judgments] = Field(default=None, description="From a table of judged queries.")
    column: Maybe[LabelColumn] = Field(default=None, description="From a column of the rankings.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        just_one(self, "events", "judgments", "column")
        return self


def _setting(default: Any, description: str, **limits: Any) -> Any:
    return Field(
        default=None, description=f"{description} Default: {default}.", json_schema_extra={"default": default}, **limits
    )


class RollUp(Shape):
    """When buckets become coarser."""

    after: PositiveDuration = Field(description="Age at which buckets are merged.", examples=["180d"])
    to: PositiveDuration = Field(
        default="24h",
        validate_default=True,
        description="Width of a merged bucket, in whole buckets; divides a day or is whole days. Default: 24h.",
    )


class Retention(Shape):
    """How long the buckets of a monitor are kept."""

    retain: Maybe[PositiveDuration] = Field(
        default=None, description="Age from which on buckets are forgotten. Default: none, they stay for good."
    )
    roll_up: Maybe[RollUp] = Field(default=None, description="Merge older buckets into coarser ones. Default: never.")


class Settings(Shape):
    """What a monitor may leave to `defaults`, and that to what is built in."""

    source: Maybe[Text] = Field(default=None, description="Source to read. A monitor names it, or `defaults` does.")
    bucket: Maybe[PositiveDuration] = _setting(
        "1h", "Bucket width, the grain of storage. Must divide a day evenly or be whole days."
    )
    windows: Maybe[list[PositiveDuration]] = Field(
        default=None,
        min_length=1,
        description="Window lengths, in whole buckets. Default: 24h, or a longer bucket.",
        examples=["[24h, 7d]"],
    )
    refresh: Maybe[PositiveDuration] = _setting("5m", "Time between two runs.")
    deadline: Maybe[PositiveDuration] = _setting("10m", "Time limit of one run.")
    ingest_delay: Maybe[Duration] = _setting("5m", "How late rankings may arrive after their bucket's end.")
    lateness: Maybe[Duration] = _setting("0s", "How late labels may arrive after the attribution.")
    final_timeout: Maybe[Duration] = _setting(
        "24h", "How long after its labels' time a bucket becomes final even if the source shows nothing newer."
    )
    stale_after: Maybe[PositiveDuration] = _setting(
        "3h",
        "Longest normal time without a request, such as a quiet night. After this and "
        "`ingest_delay` the source is stale: for the verdict, the page and the Prometheus rule.",
    )
    max_request_span: Maybe[Duration] = _setting("1m", "Longest time between the first and last row of one request.")
    lookback: Maybe[PositiveDuration] = Field(
        default=None,
        description="How far back rankmon reads on its own. Default: the longest window, at least 24h and at least "
        "attribution + lateness, or ingest_delay where that is more, + one bucket + refresh.",
    )
    min_completeness: Maybe[Number] = _setting(
        0.9, "Minimum share of a window's buckets for its value to be shown.", gt=0, le=1
    )
    labels: Maybe[dict[LabelName, str]] = Field(
        default=None,
        description="Labels of the monitor, such as its team; merged with those in `defaults`. Default: none.",
    )
    runbook_url: Maybe[WebAddress] = Field(default=None, description="Runbook for on-call. Default: none.")
    notify: Maybe[list[Name]] = Field(
        default=None, min_length=1, description="Channels to notify of incidents. Default: [log]."
    )
    paging: Maybe[Literal["push", "prometheus"]] = _setting(
        "push", "Who pages: rankmon by its channels, or Prometheus rules over its gauges."
    )
    engine: Maybe[Literal["auto", "pull", "pushdown"]] = _setting(
        "auto",
        "How the source is read: row by row (pull) or as sums made by the database (pushdown). auto takes "
        "the faster one that fits; `rankmon explain` says which.",
    )
    retrain: Maybe[RetrainRequests] = Field(
        default=None, description="Who is asked to retrain, and how often. Default: nobody."
    )
    retention: Maybe[Retention] = Field(
        default=None,
        description="How long buckets are kept. Default: for good; those older than 400 days (or than cycles look "
        "back, if that is more) as days. `{}` keeps all of them as they are.",
    )


class Monitor(Settings):
    """One ranking to watch."""

    name: Name = Field(description="Name of the monitor, unique, in every metric and message.", examples=["search"])
    rankings: Rankings = Field(
        description="The logged lists.",
        examples=["{table: search_log, request: request_id, item: item_id, position: position, time: served_at}"],
    )
    slices: list[Slice] = Field(default=[], max_length=10, description="Dimensions to slice by. Default: none.")
    relevance: Relevance = Field(
        description="Where grades come from: exactly one of three.",
        examples=["{column: {grade: label, max_grade: 1}}"],
    )
    measures: list[Text] = Field(min_length=1, description="Measures to compute.", examples=["[ndcg@10]"])
    alerts: list[Alert] = Field(default=[], max_length=50, description="Alert rules. Default: none.")
    drift: Maybe[Drift] = Field(
        default=None,
        description="Verdicts without thresholds, in addition to rules. Default: none; `drift: {}` has all defaults.",
    )


class Root(Shape):
    """Configuration of rankmon."""

    store: Store = Field(description="Where rankmon keeps its own tables.", examples=["{url: sqlite:///rankmon.db}"])
    web: Web = Field(default_factory=Web, description="Where metrics and pages are served.")
    log: Log = Field(default_factory=Log, description="Logging.")
    scheduler: Scheduler = Field(default_factory=Scheduler, description="How many monitors run at once, and the lease.")
    sources: dict[Name, Source] = Field(
        min_length=1,
        description="Your databases, by name.",
        examples=["{shop: {url: postgresql+psycopg://reader@host/name}}"],
    )
    channels: dict[Name, Channel] = Field(
        default={}, description="Where notifications go, by name; `log` always exists. Default: only `log`."
    )
    defaults: Settings = Field(default_factory=Settings, description="Defaults for all monitors.")
    monitors: list[Monitor] = Field(
        min_length=1,
        description="The monitors.",
        examples=["[{name: search, ...}]"],
    )


_EXTRAS = ((name, field.json_schema_extra) for name, field in Settings.model_fields.items())
BUILT_IN = Settings.model_validate({n: extra["default"] for n, extra in _EXTRAS if isinstance(extra, dict)})
"""What a setting is that stands neither in the monitor nor in `defaults`."""
