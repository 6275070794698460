"""What the parts of the configuration must have to do with each other; what is wrong is reported with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import monitor.config.shape as shape
from monitor.config.report import Report, Where, nearest
from monitor.config.scope import Scope
from monitor.measures.measure import Measure
from monitor.measures.summable import obstacle
from monitor.series.finality import final_age
from monitor.types import EventRule, Events, Judgments, Monitor, Recipe, format_duration

HOUR, DAY = 3600, 86400
MOST_DIMENSIONS = 10
MOST_BUCKETS = 100_000


def check_names(monitors: Sequence[tuple[Where, shape.Monitor]], report: Report) -> None:
    """Every monitor has a name of its own."""
    seen: dict[str, int] = {}
    for where, monitor in monitors:
        line = report.line((*where, "name"))
        if monitor.name in seen:
            text = f"{monitor.name!r} is the name of the monitor in line {seen[monitor.name]} already; take another"
            report.add((*where, "name"), text)
        seen.setdefault(monitor.name, line)


def check_source(scope: Scope, names: Sequence[str]) -> None:
    """The monitor reads one of the sources."""
    source = scope.setting("source")
    if source is None:
        scope.refuse(f"is missing; name one of the sources: {', '.join(names)}", "source")
    elif source not in names:
        scope.refuse_setting("source", f"there is no source {source!r}; {nearest(source, names)}")


def check_engine(scope: Scope, monitor: Monitor) -> None:
    """A database that is to sum up by itself can do that for this monitor, as far as the file tells."""
    if monitor.engine == "pushdown" and monitor.measures and (reason := obstacle(monitor)):
        scope.refuse_setting("engine", f"pushdown cannot serve this monitor: {reason}; take auto or pull")


def check_selects(scope: Scope, dialect: str) -> None:
    """Each `select:` is one query, as the database reads it."""
    relevance = scope.shape.relevance
    selects: dict[Where, str | None] = {("rankings", "select"): scope.shape.rankings.select}
    if relevance.events is not None:
        selects["relevance", "events", "select"] = relevance.events.select
    if relevance.judgments is not None:
        selects["relevance", "judgments", "select"] = relevance.judgments.select
    from monitor.source.dialects import dialect_of

    for where, text in selects.items():
        try:
            dialect_of(dialect).quoting.enclosed(text or "")
        except ValueError as error:
            scope.refuse(f"is not one query: {error}", *where)


def check_monitor(scope: Scope, monitor: Monitor) -> None:
    """The monitor's parts fit together."""
    if _check_bucket(scope, monitor):
        _check_windows(scope, monitor)
    _check_lookback(scope, monitor)
    _check_slices(scope, monitor)
    if isinstance(monitor.recipe, Judgments) and monitor.rankings.query is None:
        scope.refuse("is missing; judgments go by it: name the column with the query", "rankings", "query")
    if isinstance(monitor.recipe, Events):
        _check_rules(scope, monitor.recipe)


def _check_bucket(scope: Scope, monitor: Monitor) -> bool:
    # Buckets are aligned to 1970 in UTC; so that days are made of whole ones, one must divide a day, or be whole days.
    if DAY % monitor.bucket and monitor.bucket % DAY:
        text = f"{format_duration(monitor.bucket)} does not divide a day evenly; use e.g. 5m, 15m, 1h, 6h, 24h or 7d"
        scope.refuse_setting("bucket", text)
        return False
    return True


def _check_windows(scope: Scope, monitor: Monitor) -> None:
    bucket = format_duration(monitor.bucket)
    for index, window in enumerate(monitor.windows):
        shown = format_duration(window)
        if window % monitor.bucket:
            text = f"{shown} is no multiple of the bucket ({bucket}); a window is made of whole buckets"
            scope.refuse_setting("windows", text, index)
        elif window in monitor.windows[:index]:
            scope.refuse_setting("windows", f"{shown} is there twice; keep one", index)


def _check_lookback(scope: Scope, monitor: Monitor) -> None:
    lookback, longest = monitor.lookback, max(monitor.windows)
    if (number := lookback // monitor.bucket) > MOST_BUCKETS:
        text = f"{format_duration(lookback)} in buckets of {format_duration(monitor.bucket)} are {number:,} of them"
        scope.refuse_setting("lookback", f"{text}, more than {MOST_BUCKETS:,}; take longer buckets, or shorten it")
    elif lookback < longest:
        text = f"{format_duration(lookback)} is shorter than the longest window ({format_duration(longest)})"
        scope.refuse_setting("lookback", f"{text}, which could never be filled; raise it")
    elif lookback < (least := final_age(monitor) + monitor.bucket + monitor.refresh):
        delays = "ingest_delay" if monitor.ingest_delay > monitor.label_delay else "attribution, lateness"
        text = f"{format_duration(lookback)} is shorter than {delays}, a bucket and refresh together"
        scope.refuse_setting("lookback", f"{text}; raise it to {format_duration(-(-least // HOUR) * HOUR)} or more")
    elif lookback < (needed := max((rule.reach for rule in monitor.alerts), default=0)):
        text = f"{format_duration(lookback)} is less than the alert rules look back on"
        scope.refuse_setting("lookback", f"{text}; raise it to {format_duration(needed)} or more, or leave it out")


def _check_slices(scope: Scope, monitor: Monitor) -> None:
    dimensions = [s.dimension for s in monitor.slices]
    own = len(scope.shape.slices)
    offset = len(dimensions) - own  # the model's version is put in front of those that are listed
    for index in range(own):
        if dimensions[offset + index] in dimensions[: offset + index]:
            text = f"the dimension {dimensions[offset + index]!r} is there twice; name one otherwise with `as:`"
            scope.refuse(text, "slices", index)
    if len(dimensions) > MOST_DIMENSIONS:
        scope.refuse(f"{len(dimensions)} dimensions, with model_version; at most {MOST_DIMENSIONS} go", "slices")
    _check_model_version(scope, monitor)


def _check_model_version(scope: Scope, monitor: Monitor) -> None:
    version = monitor.rankings.model_version
    for index, listed in enumerate(scope.shape.slices):
        if version is not None and (listed.name or listed.column) == "model_version" and listed.column != version:
            text = f"the dimension model_version is the column {version!r} already; name this one otherwise with `as:`"
            scope.refuse(text, "slices", index)


def _check_rules(scope: Scope, recipe: Events) -> None:
    for index, rule in enumerate(recipe.rules):
        for wrong in _RULE_FAULTS:
            if text := wrong(recipe, rule):
                scope.refuse(text, "relevance", "events", "rules", index)
        if (rule.type, rule.minimum) in [(r.type, r.minimum) for r in recipe.rules[:index]]:
            scope.refuse("fits the same events as a rule above; keep one", "relevance", "events", "rules", index)
    if all(rule.grade == 0 for rule in recipe.rules):
        scope.refuse("no rule gives a grade above 0, so nothing would be relevant", "relevance", "events", "rules")


def _needs_type_column(recipe: Events, rule: EventRule) -> str | None:
    if rule.type is not None and recipe.type is None:
        return "names a type, but events.type is missing; name the column with the type of the event"
    if rule.type is None and recipe.type is not None:
        return "names no type; name it in every rule, or take events.type away"
    return None


def _needs_value_column(recipe: Events, rule: EventRule) -> str | None:
    if recipe.value is None and (rule.minimum is not None or rule.grade is None):
        what = "a minimum" if rule.minimum is not None else "grade: value"
        return f"has {what}, but events.value is missing; name the column with the event's value"
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
        limit = "its max_grade" if measure.max_grade is not None else "the highest that its gain can take"
        raise ValueError(f"{text!r}: {limit} ({measure.highest_grade:g}) is below the highest grade ({bound:g})")
    if bound is not None and measure.rel is not None and measure.rel > bound:
        raise ValueError(f"{text!r}: no grade reaches rel={measure.rel:g}; the highest is {bound:g}")
    if isinstance(recipe, Events) and recipe.combine == "max" and isinstance(measure.gain, tuple):
        _check_table({grade for grade, _ in measure.gain}, text, recipe)


def _check_table(held: set[float], text: str, recipe: Events) -> None:
    given = {rule.grade for rule in recipe.rules if rule.grade}
    if missing := sorted(grade for grade in given - held if grade is not None):
        shown = ", ".join(f"{grade:g}" for grade in missing)
        raise ValueError(f"{text!r}: the gain table lacks {shown}, which events can give; add grade:gain")
