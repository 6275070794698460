"""Checks that labels reach the rankings: event types, ids, times, and reused request ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.arrays import Floats, Ints
from monitor.messages.words import lasting
from monitor.series.readings import MICROS
from monitor.source.checks.rankings import FEWEST_GRADES, OF_GRADES
from monitor.source.checks.remarks import FEWEST, NOTABLE, Remark, percent, shown
from monitor.source.checks.sample import MOST_TYPES, Sample, and_more
from monitor.source.engine import Reader
from monitor.source.queries import Queries, event_types
from monitor.source.recurring import OFTEN, OWN_ID, harm, servings
from monitor.source.requests import ids_in
from monitor.source.times import Blocks, to_micros
from monitor.types import Events, Judgments, format_duration
from monitor.units import DAY

MOST_TRACED = 1_000
"""Unmatched events to trace."""

FEWEST_LOST = 5
"""Fewer unmatched events than this prove nothing. Late clicks, bots and other pages make up a few per cent of a sound
log; a share above NOTABLE is worth a remark."""

MOST_IDS = 1_000
MOST_TIMES = 100_000
"""Row times to read for these ids."""


def check_labels(sample: Sample) -> Iterator[Remark]:
    """Remarks when no request has a label; refused grades have their own remark."""
    counts = sample.reading.refusals.counts
    refused = sum(int(rows.sum()) for reason, rows in counts.items() if reason in OF_GRADES)
    if sample.size < FEWEST or sample.labelled or refused >= FEWEST_GRADES:
        return
    none = f"none of the {sample.size:,} sampled requests has a label"
    if isinstance(sample.recipe, Events):
        yield Remark(("relevance", "events"), f"{none}; do request, item and the rules fit the events?")
    elif isinstance(sample.recipe, Judgments):
        yield Remark(("relevance", "judgments"), f"{none}; are query and item spelled there as in the rankings?")
    else:
        yield Remark(("relevance", "column", "grade"), f"{none}; the column is NULL in all their rows")


def check_types(sample: Sample) -> Iterator[Remark]:
    """Remarks on types that rules name but that have no events."""
    recipe, events = sample.recipe, sample.events
    if not isinstance(recipe, Events) or events is None or recipe.type is None or not events.types:
        return
    every = sum(count for _, _, count in events.types)
    kinds, seen = event_types(recipe), {kind for _, kind, _ in events.types}
    there = ", ".join(f"{shown(type_)} ({percent(count, every)})" for type_, _, count in events.types[:MOST_TYPES])
    for index, rule in enumerate(recipe.rules):
        if rule.type is not None and kinds.index(rule.type) not in seen:
            text = f"no event of the type {rule.type!r} among the {every:,} sampled; types found: {there}"
            yield Remark(("relevance", "events", "rules", index), text + and_more(events.types))


def check_matches(sample: Sample) -> Iterator[Remark]:
    """Remarks on events that match nothing shown."""
    events, recipe = sample.events, sample.recipe
    if events is None or not isinstance(recipe, Events):
        return
    lost, happened = events.lost, events.happened
    if happened < FEWEST or lost < FEWEST_LOST or lost <= NOTABLE * happened:
        return
    text = (
        f"{lost:,} of {happened:,} events ({percent(lost, happened)}) match no impression within the attribution window"
    )
    span = sample.reading.since, sample.reading.until
    traces = sample.at_leisure(lambda reader, queries: _traced(queries, reader, recipe, *span))
    remedy = "do request and item use the same ids as the rankings, and are both times in the same zone?"
    if lost <= happened / 2 or (traces is not None and traces.is_of_time):
        remedy = _why_unmatched(traces)
    yield Remark(("relevance", "events", "request"), f"{text}; {remedy}")


@dataclass(frozen=True)
class _Traces:
    """Unmatched events: request never logged, logged without their item, or seconds from serving (`lags`, sorted)."""

    strangers: int
    unlisted: int
    lags: Floats

    @property
    def is_of_time(self) -> bool:
        return 2 * self.lags.size > self.strangers + self.unlisted + self.lags.size


def _traced(queries: Queries, reader: Reader, recipe: Events, since: int, until: int) -> _Traces:
    found: list[list[Any]] = [[], [], []]
    for part in Blocks.of(queries.monitor, recipe).cut(since, until):
        if (most := MOST_TRACED - len(found[0])) > 0:
            traced = reader.columns(queries.traces(recipe, *part, most))
            found = [one + other for one, other in zip(found, traced or [[], [], []], strict=True)]
    happened, of_request, of_item = found
    known = [i for i, at in enumerate(of_item) if at is not None]
    at = to_micros(recipe.time, [happened[i] for i in known]).micros
    served = to_micros(queries.monitor.rankings.time, [of_item[i] for i in known]).micros
    strangers = sum(at is None for at in of_request)
    return _Traces(strangers, len(happened) - strangers - len(known), np.sort((at - served) / MICROS))


def _why_unmatched(traces: _Traces | None) -> str:
    usual = "a few % are normal (late clicks, bots); more make values wrong"
    items = "is every shown item logged, on every page of a list, under the same id?"
    requests = (
        "are all requests logged, and still there? To leave out events of other lists, tests or bots, use a "
        "`select:` instead of the event table"
    )
    if traces is None:
        looked = "their rankings were searched only within the attribution window, because all rankings take too long"
        return f"{usual}; {looked}: do they come later, and is the `attribution` long enough? Or {items}"
    late, early = traces.lags[traces.lags >= 0], -traces.lags[traces.lags < 0]
    parts = [
        (traces.unlisted, f"name a logged request, but an item that was not logged: {items}"),
        (traces.strangers, f"name a request that was never logged: {requests}"),
        (late.size, f"come long after their impression, {_half(late)}: is the `attribution` long enough?"),
        (early.size, f"come before their impression, {_half(early)}: are both times in the same zone?"),
    ]
    return "; ".join([usual, *(f"{number:,} {text}" for number, text in parts if number)])


def _half(seconds: Floats) -> str:
    return f"half of them by {lasting(round(float(np.median(seconds))))} or more" if seconds.size else ""


# ---- ids that are served again -------------------------------------------------------------------------------------


def check_ids(sample: Sample) -> Iterator[Remark]:
    """Remarks on reused ids, whose servings share each other's events; nothing if the query takes too long."""
    recipe, monitor = sample.recipe, sample.monitor
    if not isinstance(recipe, Events):
        return
    reach = min(recipe.attribution, DAY)
    span = sample.reading.since, sample.reading.until
    found = sample.at_leisure(lambda reader, queries: _served_again(queries, reader, *span, reach))
    every, repeated, again = found or (0, 0, 0)
    if again < FEWEST or repeated <= OFTEN * every:
        return
    column, longest = monitor.rankings.request, format_duration(monitor.max_request_span)
    text = f"{repeated:,} of {every:,} ids in {column!r} ({percent(repeated, every)}) are reused"
    text += f" after max_request_span, {longest}, and within {format_duration(reach)}, like session ids"
    yield Remark(("rankings", "request"), f"{text}: {harm(recipe)}; {OWN_ID}")


def _served_again(queries: Queries, reader: Reader, since: int, until: int, reach: int) -> tuple[int, int, int]:
    """(sampled ids served in [since, until) seconds, how many are served again, servings beyond the first)."""
    monitor = queries.monitor
    ids, times = reader.columns(_times(queries, since, until, reach))
    read = to_micros(monitor.rankings.time, times)
    known = ~(read.unreadable | read.doubtful)
    numbers: dict[object, int] = {}
    with ids_in(monitor.rankings.request):
        which = np.array([numbers.setdefault(name, len(numbers)) for name in ids], np.int64)[known]
    order = np.lexsort((read.micros[known], which))
    of_one = np.split(read.micros[known][order], np.flatnonzero(np.diff(which[order])) + 1)
    counts = np.array([_again(times, monitor.max_request_span, reach) for times in of_one], np.int64)
    return len(numbers), int((counts > 0).sum()), int(counts.sum())


def _times(queries: Queries, since: int, until: int, reach: int) -> sa.Select[Any]:
    """Id and time of the rows within `reach` seconds of [since, until), for some ids served in it."""
    named = queries.served(since, until), queries.request.isnot(None)
    some = sa.select(queries.request.label("request")).where(*named).distinct().limit(MOST_IDS).subquery("some_ids")
    return (
        sa.select(queries.request, queries.time)
        .select_from(queries.rankings.join(some, some.c.request == queries.request))
        .where(queries.served(since - reach, until + reach))
        .distinct()
        .limit(MOST_TIMES)
    )


def _again(times: Ints, span: int, reach: int) -> int:
    """Servings of one id within `reach` seconds of the previous one, from its sorted row times."""
    firsts = servings(times, span)
    return int((np.diff(firsts) <= reach * MICROS).sum())
