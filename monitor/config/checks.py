"""Checks how the parts of the configuration fit together; mistakes are reported with their fix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from monitor.config.report import Report, Scope, nearest
from monitor.errors import Where
from monitor.measures.measure import Measure, parse
from monitor.measures.summable import obstacle
from monitor.routing import MailedReport, Route
from monitor.series.finality import final_age
from monitor.series.retention import least_age, least_kept, needed
from monitor.types import (
    MODEL_VERSION,
    Column,
    EventRule,
    Events,
    Judgments,
    Monitor,
    Recipe,
    format_duration,
    is_ratio,
    lasting_dimensions,
)
from monitor.units import DAY, HOUR

LOG = "log"
"""The channel that is always there."""
MOST_DIMENSIONS = 10
MOST_BUCKETS = 100_000


def check_names(scopes: Sequence[Scope], report: Report) -> None:
    """Monitor names are unique."""
    seen: dict[object, int] = {}
    for scope in scopes:
        name, where = scope.own.get("name"), (*scope.where, "name")
        if not isinstance(name, str):
            continue
        if name in seen:
            report.add(where, f"{name!r} is the name of the monitor in line {seen[name]} already; take another")
        seen.setdefault(name, report.line(where))
    for scope in scopes:
        if (former := scope.own.get("renamed_from")) in seen and isinstance(former, str):
            there = f"is the name of the monitor in line {seen[former]} already"
            scope.refuse(f"{former!r} {there}, so it was not renamed; take this out", "renamed_from")


def check_source(scope: Scope, source: str, names: Sequence[str]) -> None:
    """The monitor reads one of the sources."""
    if not source:
        scope.refuse(f"is missing; name one of the sources: {', '.join(names)}", "source")
    elif source not in names:
        scope.refuse(f"there is no source {source!r}; {nearest(source, names)}", "source")


def _check_engine(scope: Scope, monitor: Monitor) -> None:
    """A database configured for push-down can serve this monitor, as far as the file tells."""
    if monitor.engine == "pushdown" and monitor.measures and (reason := obstacle(monitor)):
        scope.refuse(f"pushdown cannot serve this monitor: {reason}; use auto or pull", "engine")


def check_relations(scope: Scope, monitor: Monitor, dialect: str) -> None:
    """Each `select:` is one query, as the database reads it, and it can read lists in a column."""
    from monitor.source.dialects import dialect_of

    if monitor.rankings.items is not None and not dialect_of(dialect).unrolls:
        text = f"rankmon cannot unroll lists on {dialect}; do so in a `select:`"
        scope.refuse(f"{text}, and name the columns as `item` and `position`", "rankings", "items")
    selects: dict[Where, str] = {("rankings", "select"): monitor.rankings.relation.select}
    if isinstance(monitor.recipe, Events | Judgments):
        selects["relevance", type(monitor.recipe).__name__.lower(), "select"] = monitor.recipe.relation.select
    for where, text in selects.items():
        try:
            dialect_of(dialect).quoting.enclosed(text)
        except ValueError as error:
            scope.refuse(f"is not one query: {error}", *where)


def check_monitor(scope: Scope, monitor: Monitor, unknown: frozenset[str]) -> None:
    """The known parts of the monitor fit together; the `unknown` keys cannot be read."""
    for needed_, check in _CHECKS:
        if not unknown & {*needed_} and not (unknown and not needed_):
            check(scope, monitor)


def _check_bucket(scope: Scope, monitor: Monitor) -> None:
    if not _divides_days(monitor.bucket):
        text = f"{format_duration(monitor.bucket)} does not divide a day evenly; use e.g. 5m, 15m, 1h, 6h, 24h or 7d"
        scope.refuse(text, "bucket")


def _divides_days(bucket: int) -> bool:
    """Buckets are aligned to 1970 in UTC; so that days are made of whole ones, one must divide a day, or be days."""
    return not (DAY % bucket and bucket % DAY)


def _check_windows(scope: Scope, monitor: Monitor) -> None:
    if not _divides_days(monitor.bucket):
        return
    bucket = format_duration(monitor.bucket)
    for index, window in enumerate(monitor.windows):
        shown = format_duration(window)
        if window % monitor.bucket:
            text = f"{shown} is not a multiple of the bucket ({bucket}); a window is made of whole buckets"
            scope.refuse(text, "windows", index)
        elif window in monitor.windows[:index]:
            scope.refuse(f"{shown} is listed twice; keep one", "windows", index)


def _check_lookback(scope: Scope, monitor: Monitor) -> None:
    lookback, longest = monitor.lookback, max(monitor.windows)
    if (number := lookback // monitor.bucket) > MOST_BUCKETS:
        text = f"{format_duration(lookback)} in buckets of {format_duration(monitor.bucket)} are {number:,} of them"
        scope.refuse(f"{text}, more than {MOST_BUCKETS:,}; use longer buckets, or shorten it", "lookback")
    elif lookback < longest:
        text = f"{format_duration(lookback)} is shorter than the longest window ({format_duration(longest)})"
        scope.refuse(f"{text}, which could never be filled; raise it", "lookback")
    elif lookback < (least := final_age(monitor) + monitor.bucket + monitor.refresh):
        delays = "ingest_delay" if monitor.ingest_delay > monitor.label_delay else "attribution, lateness"
        text = f"{format_duration(lookback)} is shorter than {delays}, one bucket and one refresh together"
        scope.refuse(f"{text}; raise it to {format_duration(-(-least // HOUR) * HOUR)} or more", "lookback")
    elif lookback < (needed := max((rule.reach for rule in monitor.alerts), default=0)):
        text = f"{format_duration(lookback)} is less than the alert rules look back"
        scope.refuse(f"{text}; raise it to {format_duration(needed)} or more, or leave it out", "lookback")


def _check_slices(scope: Scope, monitor: Monitor) -> None:
    dimensions, version = [s.dimension for s in monitor.slices], monitor.rankings.model_version
    listed: Any = scope.own.get("slices", ())
    is_added = len(dimensions) > len(listed)  # the model's version is put in front of those that are listed
    for place, one in enumerate(monitor.slices):
        index = place - is_added
        if one.dimension in dimensions[:place]:
            text = f"the dimension {one.dimension!r} is listed twice; rename one with `as:`"
            scope.refuse(text, "slices", index)
        if version is not None and one.dimension == MODEL_VERSION and one.column != version:
            text = f"the dimension model_version is already the column {version!r}; rename this one with `as:`"
            scope.refuse(text, "slices", index)
    if len(dimensions) > MOST_DIMENSIONS:
        scope.refuse(
            f"{len(dimensions)} dimensions including model_version; the maximum is {MOST_DIMENSIONS}", "slices"
        )


def _check_measures(scope: Scope, monitor: Monitor) -> None:
    written: Any = scope.own.get("measures")
    seen: dict[Measure, int] = {}
    for index, text in enumerate(written):
        try:
            measure = parse(text, monitor.recipe.bound)
        except (ValueError, TypeError):
            continue  # reported already
        if measure in seen:
            scope.refuse(f"{text!r} is the same as measures[{seen[measure]}]; keep one", "measures", index)
            continue
        seen[measure] = index
        try:
            check_measure(measure, text, monitor.recipe)
        except ValueError as error:
            scope.refuse(str(error), "measures", index)
        if measure.by_slice and measure.dimension not in (known := [s.dimension for s in monitor.slices]):
            remedy = nearest(measure.dimension, known) if known else "this monitor has no `slices:` for it; add them"
            scope.refuse(f"there is no dimension {measure.dimension!r}; {remedy}", "measures", index)


def _check_retention(scope: Scope, monitor: Monitor) -> None:
    said, coarse = monitor.retention, monitor.retention.roll_up
    if not scope.has("retention"):
        return
    if said.retain is not None and (text := _too_young(monitor, said.retain)):
        scope.refuse(text, "retention", "retain")
    if coarse is None:
        return
    if text := _too_young(monitor, coarse.after):
        scope.refuse(text, "retention", "roll_up", "after")
    elif said.retain is not None and coarse.after + coarse.to > said.retain:
        text = f"{format_duration(coarse.after)} and one coarser bucket are more than retain"
        text = f"{text} ({format_duration(said.retain)}), so nothing would be merged; raise retain"
        scope.refuse(text, "retention", "roll_up", "after")
    if DAY % coarse.to and coarse.to % DAY:
        text = f"{format_duration(coarse.to)} does not divide a day evenly; use e.g. 6h, 24h or 7d"
        scope.refuse(text, "retention", "roll_up", "to")
    elif coarse.to % monitor.bucket or coarse.to == monitor.bucket:
        text = f"{format_duration(coarse.to)} is not several whole buckets of {format_duration(monitor.bucket)}"
        scope.refuse(f"{text}; use a multiple of that", "retention", "roll_up", "to")


def _too_young(monitor: Monitor, age: int) -> str:
    """Why buckets of an age must stay as they are; empty if they need not."""
    least = least_age(monitor)
    if age >= least:
        return ""
    return (
        f"{format_duration(age)} is too short: it must cover {needed(monitor)}; the minimum is {format_duration(least)}"
    )


def check_store_retention(retain: int, monitors: Sequence[Monitor], report: Report) -> None:
    """What was judged stays for as long as it is shown and gone on from; `retain` in seconds."""
    least = max((least_kept(monitor) for monitor in monitors), default=0)
    if retain < least:
        text = f"{format_duration(retain)} is too short: verdicts that the page draws would be deleted"
        report.add(("store", "retain"), f"{text}; the minimum is {format_duration(least)}")


def _check_judgments(scope: Scope, monitor: Monitor) -> None:
    if isinstance(monitor.recipe, Judgments) and monitor.rankings.query is None:
        scope.refuse("is missing, but judgments need it; name the column with the query", "rankings", "query")


def _check_items(scope: Scope, monitor: Monitor) -> None:
    if isinstance(monitor.recipe, Column) and monitor.rankings.items is not None:
        text = "a row has one grade for its whole list; unroll items and grades in a `select:` of `rankings`"
        scope.refuse(f"{text}, and name the columns as `item` and `position`", "relevance", "column")


def _check_drift_measure(scope: Scope, monitor: Monitor) -> None:
    if (drift := monitor.drift) is None:
        return
    known = ", ".join(str(m) for m in monitor.measures if is_ratio(m))
    if not is_ratio(drift.measure):
        text = f"{str(drift.measure)!r} is not a mean of values from 0 to 1; judge one of {known or 'e.g. ndcg@10'}"
        scope.refuse(text, "drift", "measure")
    elif drift.measure.kernel not in {m.kernel for m in monitor.measures}:
        text = f"{str(drift.measure)!r} is not computed; add it to `measures`, or judge one of {known}"
        scope.refuse(text, "drift", "measure")


def _check_drift_bucket(scope: Scope, monitor: Monitor) -> None:
    if monitor.drift is None:
        return
    bucket = format_duration(monitor.bucket)
    if monitor.bucket % HOUR and HOUR % monitor.bucket:
        text = f"verdicts cover whole hours, which a bucket of {bucket} does not divide; use e.g. 15m or 1h"
        scope.refuse(text, "drift", "measure")
    if monitor.bucket > DAY:
        scope.refuse(f"a bucket of {bucket} is too long for verdicts; use at most 1d", "drift", "measure")


def _check_drift_mix(scope: Scope, monitor: Monitor) -> None:
    if (drift := monitor.drift) is None:
        return
    found = [one.dimension for one in lasting_dimensions(monitor.rankings, monitor.slices)]
    if drift.mix_by is not None and drift.mix_by not in found:
        if drift.mix_by in [s.dimension for s in monitor.slices]:
            text = "has values that come and go, and new ones have no past to compare with; use another dimension"
            scope.refuse(f"{drift.mix_by!r} {text}", "drift", "mix_by")
        else:
            remedy = nearest(drift.mix_by, found) if found else "this monitor has no `slices:` for it; add them"
            scope.refuse(f"there is no dimension {drift.mix_by!r}; {remedy}", "drift", "mix_by")


def check_channels(scope: Scope, monitor: Monitor, channels: Collection[str]) -> None:
    """A monitor's channels exist, and it pages by one path only."""
    owners = () if monitor.drift is None else monitor.drift.data_channels
    told: dict[Where, tuple[str, ...]] = {
        ("notify",): monitor.notify,
        ("retrain", "notify"): monitor.retrain.notify,
        ("drift", "data_channels"): owners,
    }
    for where, names in told.items():
        for index, text in _channel_faults(names, channels):
            scope.refuse(text, *where, index)
    if monitor.paging == "prometheus":
        text = "Prometheus pages, so rankmon must not, or pages would be sent twice; keep [log]"
        if any(name != LOG for name in monitor.notify):
            scope.refuse(f"{text}, or `paging: push`", "notify")
        if any(name != LOG for name in owners):
            scope.refuse(text, "drift", "data_channels")


def check_route(route: Route, where: Where, channels: Collection[str], report: Report) -> None:
    """A route's channels exist, and an escalation goes to somebody who does not know yet."""
    for index, text in _channel_faults(route.channels, channels):
        report.add((*where, "channels", index), text)
    told = set(route.channels)
    for number, step in sorted(enumerate(route.escalate), key=lambda one: one[1].after):
        place = (*where, "escalate", number, "channels")
        for index, text in _channel_faults(step.channels, channels):
            report.add((*place, index), text)
        for index, name in enumerate(step.channels):
            if name in told:
                report.add(
                    (*place, index), f"{name!r} is already notified earlier; name other channels, or use `repeat`"
                )
        told.update(step.channels)


def check_mailed(
    mailed: MailedReport,
    where: Where,
    channels: Collection[str],
    unmailed: Collection[str],
    monitors: Sequence[str],
    report: Report,
) -> None:
    """A report goes to mail channels that exist, is of monitors that exist, and covers whole days."""
    for index, text in _channel_faults(mailed.channels, channels):
        report.add((*where, "channels", index), text)
    for index, name in enumerate(mailed.channels):
        if name in unmailed:
            report.add((*where, "channels", index), f"{name!r} is not a mail channel; name a channel of kind `email`")
    for index, name in enumerate(mailed.monitors):
        if name not in monitors:
            report.add((*where, "monitors", index), f"there is no monitor {name!r}; {nearest(name, monitors)}")
    if mailed.last % DAY:
        report.add((*where, "last"), f"{format_duration(mailed.last)} is not whole days; give e.g. 7d")


def _channel_faults(names: Sequence[str], channels: Collection[str]) -> Iterator[tuple[int, str]]:
    for index, name in enumerate(names):
        if name not in channels:
            yield index, f"there is no channel {name!r}; {nearest(name, channels)}"
        elif name in names[:index]:
            yield index, f"{name!r} is listed twice; keep one"


def _check_rules(scope: Scope, monitor: Monitor) -> None:
    if not isinstance(recipe := monitor.recipe, Events):
        return
    for index, rule in enumerate(recipe.rules):
        for wrong in _RULE_FAULTS:
            if text := wrong(recipe, rule):
                scope.refuse(text, "relevance", "events", "rules", index)
        if (rule.type, rule.minimum) in [(r.type, r.minimum) for r in recipe.rules[:index]]:
            scope.refuse("matches the same events as a rule above; keep one", "relevance", "events", "rules", index)
    if all(rule.grade == 0 for rule in recipe.rules):
        scope.refuse("no rule gives a grade above 0, so nothing would be relevant", "relevance", "events", "rules")


def _needs_type_column(recipe: Events, rule: EventRule) -> str | None:
    if rule.type is not None and recipe.type is None:
        return "names a type, but events.type is missing; name the event type column"
    if rule.type is None and recipe.type is not None:
        return "names no type; add a type to every rule, or remove events.type"
    return None


def _needs_value_column(recipe: Events, rule: EventRule) -> str | None:
    if recipe.value is None and (rule.minimum is not None or rule.grade is None):
        what = "a minimum" if rule.minimum is not None else "grade: value"
        return f"has {what}, but events.value is missing; name the event value column"
    return None


def _within_max_grade(recipe: Events, rule: EventRule) -> str | None:
    if recipe.max_grade is not None and rule.grade is not None and rule.grade > recipe.max_grade:
        return f"the grade {rule.grade:g} is above events.max_grade ({recipe.max_grade:g}); raise that or lower this"
    return None


_RULE_FAULTS: tuple[Callable[[Events, EventRule], str | None], ...] = (
    _needs_type_column,
    _needs_value_column,
    _within_max_grade,
)


def check_measure(measure: Measure, text: str, recipe: Recipe) -> None:
    """The measure can be computed from the recipe's grades.

    Raises:
        ValueError: with the remedy.
    """
    if measure.ideal == "global" and not isinstance(recipe, Judgments):
        raise ValueError(f"{text!r}: ideal=global needs relevance.judgments; use ideal=recall")
    bound = recipe.bound
    if bound is not None and measure.highest_grade < bound:
        limit = "its max_grade" if measure.max_grade is not None else "the highest its gain accepts"
        raise ValueError(f"{text!r}: {limit} ({measure.highest_grade:g}) is below the highest grade ({bound:g})")
    if bound is not None and measure.rel is not None and measure.rel > bound:
        raise ValueError(f"{text!r}: no grade reaches rel={measure.rel:g}; the highest is {bound:g}")
    if isinstance(recipe, Events) and recipe.combine == "max" and isinstance(measure.gain, tuple):
        _check_table({grade for grade, _ in measure.gain}, text, recipe)


def _check_table(held: set[float], text: str, recipe: Events) -> None:
    given = {rule.grade for rule in recipe.rules if rule.grade}
    if missing := sorted(grade for grade in given - held if grade is not None):
        shown = ", ".join(f"{grade:g}" for grade in missing)
        raise ValueError(f"{text!r}: the gain table has no entry for {shown}, which events can give; add grade:gain")


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[Scope, Monitor], None]], ...] = (
    (("bucket",), _check_bucket),
    (("bucket", "windows"), _check_windows),
    ((), _check_lookback),
    (("slices", "rankings"), _check_slices),
    (("measures", "relevance", "slices"), _check_measures),
    ((), _check_retention),
    (("drift", "measures", "measures[]"), _check_drift_measure),
    (("drift", "bucket"), _check_drift_bucket),
    (("drift", "slices", "rankings"), _check_drift_mix),
    (("relevance", "rankings"), _check_judgments),
    (("relevance", "rankings"), _check_items),
    (("relevance",), _check_rules),
    ((), _check_engine),
)
"""Each check with the keys it needs; empty: all of them."""
