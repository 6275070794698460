"""The shape of alert rules, and of the channels by which people are told."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from monitor.config.fields import (
    Count,
    Duration,
    Fall,
    HttpAddress,
    Instant,
    Maybe,
    Name,
    Number,
    PositiveDuration,
    Rise,
    Text,
)
from monitor.config.mapping import Shape, just_one, not_both, one_required


class Pinned(Shape):
    """A period that stays the baseline whatever comes."""

    since: Instant = Field(alias="from", description="Start of the period, UTC.", examples=["2026-01-01"])
    until: Instant = Field(alias="to", description="End of the period, UTC.", examples=["2026-01-15"])


class Baseline(Shape):
    """What a window is compared with."""

    model_config = ConfigDict(json_schema_extra=one_required("trailing", "weeks", "pinned"))

    trailing: Maybe[PositiveDuration] = Field(default=None, description="The time right before the window, e.g. 21d.")
    weeks: Maybe[Count] = Field(
        default=None, ge=1, le=26, description="The same hours of so many weeks before, for a series with a rhythm."
    )
    pinned: Maybe[Pinned] = Field(default=None, description="A fixed period that was good.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        just_one(self, "trailing", "weeks", "pinned")
        return self


class Resolve(Shape):
    """When an incident is over."""

    floor: Maybe[Number] = Field(default=None, description="Value at which it resolves. Default: the floor.")
    drop: Maybe[Fall] = Field(default=None, description="Drop at which it resolves, e.g. 4%. Default: the drop.")
    ceiling: Maybe[Number] = Field(
        default=None, description="Value down from which it is well again. Default: the ceiling."
    )
    rise: Maybe[Rise] = Field(
        default=None, description="Rise over the baseline that is well again, e.g. 20%. Default: the rise."
    )
    lasting: Maybe[Duration] = Field(
        default=None, alias="for", description="How long it must stay resolved. Default: the rule's `for`."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        not_both(self, *LIMITS)
        return self


LIMITS = ("floor", "drop", "ceiling", "rise")
"""Keys that say where a rule fires, and where it is well again."""


class Alert(Shape):
    """One alert rule. Every bucket that becomes final is one evaluation, over the window that it ends."""

    model_config = ConfigDict(json_schema_extra=one_required(*LIMITS))

    name: Name = Field(description="Name of the rule, unique in its monitor.", examples=["quality-drop"])
    measure: Text = Field(
        description="What is judged: one of the measures, or `label_coverage`. Where labels are events or a column, "
        "requests with nothing relevant count 0 unless it says `empty=skip`.",
        examples=["ndcg@10"],
    )
    window: Maybe[PositiveDuration] = Field(
        default=None, description="Over which window: one of `windows`. Default: the first of them."
    )
    floor: Maybe[Number] = Field(default=None, description="Fires below this value.")
    drop: Maybe[Fall] = Field(
        default=None,
        description="Fires if the value is this far below the baseline: `7%` of it, or `0.05` as a difference.",
    )
    ceiling: Maybe[Number] = Field(
        default=None, description="Of a measure that is better when it is lower (no_results): fires above this value."
    )
    rise: Maybe[Rise] = Field(
        default=None, description="Of such a measure: fires at a larger rise over the baseline: `50%` of it, or `0.05`."
    )
    baseline: Maybe[Baseline] = Field(default=None, description="What the drop or rise is measured against.")
    lasting: Duration = Field(
        default="0s",
        alias="for",
        validate_default=True,
        description=(
            "How long the condition must last before it fires, in evaluations: 24h are 24 buckets of 1h. "
            "Default: 0s, once."
        ),
    )
    resolve: Resolve = Field(default_factory=Resolve, description="When it resolves. Default: when it no longer fires.")
    min_requests: Count = Field(
        default=100, ge=1, description="Windows with fewer requests are not judged. Default: 100."
    )
    severity: Literal["info", "warning", "critical"] = Field(
        default="critical", description="Severity. Default: critical."
    )
    retrain: bool = Field(default=False, description="Recommend to retrain the model while it fires. Default: false.")
    overall: bool = Field(default=True, description="Judge all traffic together. Default: true.")
    slices: list[Text] = Field(
        default=[],
        description="Slices to judge as well: `device` for each of its values, or `device=mobile`. Default: none.",
    )

    @property
    def keys(self) -> tuple[str, str]:
        """The keys of its kind of limit: a fixed one, and one against a baseline."""
        return ("ceiling", "rise") if self.given("ceiling", "rise") else ("floor", "drop")

    @model_validator(mode="after")
    def _check(self) -> Self:
        just_one(self, *LIMITS)
        fixed, change = self.keys
        if getattr(self, change) is not None and self.baseline is None:
            said = f"has a `{change}:` but no `baseline:`; say what it is measured against, e.g. {{trailing: 21d}}"
            raise ValueError(said)
        if getattr(self, fixed) is not None and self.baseline is not None:
            said = f"has a `baseline:`, which a {fixed} is not compared with; take it away, or give a `{change}:`"
            raise ValueError(said)
        return self


class Drift(Shape):
    """Verdicts on one measure that need no threshold: degraded, data broken, mix shifted, or healthy."""

    measure: Maybe[Text] = Field(
        default=None, description="What is judged: one of the measures. Default: the first that is a ratio."
    )
    mix_by: Maybe[Text] = Field(
        default=None,
        description="Dimension whose values are judged one by one, and whose mix may shift without an alarm. Default: "
        "the first of `slices` that is neither the model's version nor the query by `rankings`.",
    )
    false_alarm_budget: Number = Field(
        default=1.0,
        gt=0,
        le=90,
        description="Maximum number of false alarms in 90 days, over all traffic and all slices. Default: 1.0.",
    )
    baseline_from: Maybe[Instant] = Field(
        default=None,
        description="Since when the past is known to be good, UTC; older data are ignored. Default: the oldest stored.",
    )
    severity: Literal["info", "warning", "critical"] = Field(
        default="critical", description="Severity of a degradation. Default: critical."
    )
    data_severity: Literal["info", "warning", "critical"] = Field(
        default="warning", description="Severity of broken labels or traffic. Default: warning."
    )
    data_channels: Maybe[list[Name]] = Field(
        default=None, min_length=1, description="Channels of the owners of the data. Default: those of `notify`."
    )
    retrain: bool = Field(
        default=True, description="Recommend to retrain the model while it is degraded. Default: true."
    )
    show_queries: bool = Field(
        default=False,
        description="Keep the texts of the queries that lost most, for `explain-incident`. Default: false, their ids.",
    )


class RetrainRequests(Shape):
    """Who is asked to retrain when a rule marked so, or a degradation, lasts."""

    notify: list[Name] = Field(min_length=1, description="Channels that are asked.", examples=["[pipeline]"])
    cooldown: Duration = Field(
        default="7d", validate_default=True, description="Minimum time between two requests. Default: 7d."
    )
    after: Duration = Field(
        default="24h",
        validate_default=True,
        description="How long an incident must have been open before retraining is recommended. Default: 24h.",
    )


class _Receiving(Shape):
    """What all channels over HTTP have."""

    ca_file: Maybe[Text] = Field(
        default=None,
        description="CA certificates to trust instead of the system's, relative to this file. Default: the system's.",
    )
    timeout: PositiveDuration = Field(
        default="10s", validate_default=True, description="Time limit of one attempt. Default: 10s."
    )
    give_up_after: PositiveDuration = Field(
        default="24h",
        validate_default=True,
        description=(
            "How long to retry intermediate notifications of an incident. The newest one of an open incident, "
            "and its end, are retried for as long as a daemon has the channel. Default: 24h."
        ),
    )


class Webhook(_Receiving):
    """A URL that gets notifications as JSON."""

    model_config = ConfigDict(json_schema_extra=one_required("url", "url_file"))

    url: Maybe[HttpAddress] = Field(default=None, repr=False, description="Address to post to.")
    url_file: Maybe[Text] = Field(default=None, description="File that holds the address, relative to this file.")
    secret: Maybe[Text] = Field(
        default=None,
        repr=False,
        description="Key to sign the body with; best written as ${NAME}. Default: none.",
    )
    secret_file: Maybe[Text] = Field(default=None, description="File that holds the key, relative to this file.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        just_one(self, "url", "url_file")
        not_both(self, "secret", "secret_file")
        return self


class Alertmanager(_Receiving):
    """Alertmanagers, by their API v2. All of them get every alert."""

    urls: list[HttpAddress] = Field(
        min_length=1, repr=False, description="Their addresses.", examples=["[http://alertmanager:9093]"]
    )
    username: Maybe[Text] = Field(default=None, description="For basic authentication. Default: none.")
    password: Maybe[str] = Field(default=None, repr=False, description="Password; best written as ${NAME}.")
    password_file: Maybe[Text] = Field(default=None, description="File that holds the password.")
    bearer_token: Maybe[Text] = Field(default=None, repr=False, description="Token; best written as ${NAME}.")
    bearer_token_file: Maybe[Text] = Field(default=None, description="File that holds the token.")
    hold: PositiveDuration = Field(
        default="7d",
        validate_default=True,
        description="How long Alertmanager keeps an alert that rankmon stopped repeating. Default: 7d.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        not_both(self, "password", "password_file")
        not_both(self, "bearer_token", "bearer_token_file")
        if self.given("username") and self.given("bearer_token", "bearer_token_file"):
            raise ValueError("has a username and a bearer token; keep just one of them")
        if self.given("password", "password_file") and not self.given("username"):
            raise ValueError("has a password but no `username:`; name it")
        if self.given("username") and not self.given("password", "password_file"):
            raise ValueError("has a username but no `password:` or `password_file:`; give one")
        return self


class Channel(Shape):
    """Where notifications go: just one of two ways."""

    model_config = ConfigDict(json_schema_extra=one_required("webhook", "alertmanager"))

    webhook: Maybe[Webhook] = Field(default=None, description="POST as JSON to a URL.")
    alertmanager: Maybe[Alertmanager] = Field(default=None, description="To Alertmanager.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        just_one(self, "webhook", "alertmanager")
        return self
