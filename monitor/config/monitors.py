"""Builds the frozen value of a monitor from its shape."""

from __future__ import annotations

from dataclasses import replace

import monitor.config.checks as checks
import monitor.config.drift as verdicts
import monitor.config.shape as shape
from monitor.config.fields import table_parts
from monitor.config.retention import build_retention
from monitor.config.rules import LOG, build_rules, reach
from monitor.config.scope import Scope
from monitor.measures.measure import Measure, parse
from monitor.types import (
    Column,
    EventRule,
    Events,
    Judgments,
    Monitor,
    Rankings,
    Recipe,
    Relation,
    Slice,
    TimeColumn,
)

DAY = 86400
MODEL_VERSION = "model_version"

MOST_VERSIONS = 200
"""Versions of a model that get a series. They come one after the other for years, and few serve at the same time."""


def build_monitor(scope: Scope) -> Monitor:
    """The monitor that `scope` describes; what is wrong with it is reported.

    Where measures are wrong they are left out, so the value is to be used only if nothing was reported.
    """
    recipe = _recipe(scope.shape.relevance)
    monitor = _timed(scope, recipe, _measures(scope, recipe))
    monitor = _alerting(scope, monitor)
    checks.check_monitor(scope, monitor)
    checks.check_engine(scope, monitor)
    return build_retention(scope, monitor)


def _alerting(scope: Scope, monitor: Monitor) -> Monitor:
    """With its rules and who is told; unless it says otherwise it reads as far back as the rules look."""
    rules, drift, retrain = build_rules(scope, monitor), verdicts.build_drift(scope, monitor), scope.setting("retrain")
    looks_back = max(monitor.lookback, reach(rules), verdicts.REACH if drift is not None else 0)
    told = replace(monitor, alerts=rules, drift=drift, lookback=scope.setting("lookback") or looks_back)
    told = replace(told, notify=tuple(scope.setting("notify") or (LOG,)), paging=scope.setting("paging"))
    if retrain is None:
        return told
    asked = {"retrain_cooldown": retrain.cooldown, "retrain_after": retrain.after}
    return replace(told, retrain_notify=tuple(retrain.notify), **asked)


def _timed(scope: Scope, recipe: Recipe, measures: tuple[Measure, ...]) -> Monitor:
    bucket = scope.setting("bucket")
    windows = tuple(scope.setting("windows") or [max(DAY, bucket)])
    complete = max(recipe.attribution + scope.setting("lateness"), scope.setting("ingest_delay"))
    least = max(*windows, DAY, complete + bucket + scope.setting("refresh"))
    labels = (scope.defaults.labels or {}) | (scope.shape.labels or {})
    plain = ("ingest_delay", "lateness", "final_timeout", "refresh", "deadline", "engine", "stale_after")
    return Monitor(
        name=scope.shape.name,
        source=scope.setting("source") or "",
        rankings=_rankings(scope.shape.rankings),
        recipe=recipe,
        measures=measures,
        slices=_slices(scope.shape),
        bucket=bucket,
        windows=windows,
        lookback=scope.setting("lookback") or least,
        max_request_span=scope.setting("max_request_span"),
        min_completeness=scope.setting("min_completeness"),
        labels=tuple(sorted(labels.items())),
        runbook_url=scope.setting("runbook_url") or "",
        **{name: scope.setting(name) for name in plain},
    )


def _relation(relation: shape.Relation) -> Relation:
    return Relation(table=table_parts(relation.table or ""), select=relation.select or "")


def _time(time: shape.TimeColumn) -> TimeColumn:
    return TimeColumn(time.column, time.format, time.timezone)


def _rankings(rankings: shape.Rankings) -> Rankings:
    return Rankings(
        relation=_relation(rankings),
        request=rankings.request,
        item=rankings.item,
        position=rankings.position.column,
        time=_time(rankings.time),
        position_base=rankings.position.base,
        query=rankings.query,
        model_version=rankings.model_version,
        results=rankings.results,
    )


def _recipe(relevance: shape.Relevance) -> Recipe:
    if relevance.events is not None:
        return _events(relevance.events)
    if relevance.judgments is not None:
        j = relevance.judgments
        return Judgments(_relation(j), j.query, j.item, j.grade, j.max_grade)
    assert relevance.column is not None  # the shape holds one of the three
    return Column(relevance.column.grade, relevance.column.max_grade, relevance.column.attribution)


def _events(events: shape.Events) -> Events:
    return Events(
        relation=_relation(events),
        request=events.request,
        item=events.item,
        time=_time(events.time),
        rules=tuple(EventRule(r.grade, r.type, r.minimum) for r in events.rules),
        attribution=events.attribution,
        type=events.type,
        value=events.value,
        combine=events.combine,
        max_grade=events.max_grade,
        count_unmatched=events.count_unmatched,
    )


def _slices(monitor: shape.Monitor) -> tuple[Slice, ...]:
    """The dimensions, with the model's version first unless it is listed."""
    listed = tuple(Slice(s.name or s.column, s.column, s.max_values) for s in monitor.slices)
    version = monitor.rankings.model_version
    if version is None or any(s.dimension == MODEL_VERSION for s in listed):
        return listed
    return (Slice(MODEL_VERSION, version, MOST_VERSIONS), *listed)


def _measures(scope: Scope, recipe: Recipe) -> tuple[Measure, ...]:
    found: dict[Measure, int] = {}
    for index, text in enumerate(scope.shape.measures):
        if _is_cut(text):
            if index == 0 or not _is_cut(scope.shape.measures[index - 1]):
                text = f"{text!r} lacks a parenthesis, or was cut at a comma; put all of it in quotes"
                scope.refuse(text, "measures", index)
            continue
        try:
            measure = parse(text, recipe.bound)
            checks.check_measure(measure, text, recipe)
        except ValueError as error:
            scope.refuse(_with_remedy(str(error), recipe), "measures", index)
            continue
        if measure in found:
            scope.refuse(f"{text!r} is the same as measures[{found[measure]}]; keep one", "measures", index)
        found.setdefault(measure, index)
    return tuple(found)


def _is_cut(text: str) -> bool:
    """Whether YAML took the comma within a measure for one between two entries of a [list]."""
    return text.count("(") != text.count(")")


def _with_remedy(wrong: str, recipe: Recipe) -> str:
    if "needs the highest grade there can be" in wrong:
        return f"{wrong}, or set relevance.{type(recipe).__name__.lower()}.max_grade"
    return wrong
