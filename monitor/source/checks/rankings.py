"""Checks that rankings are logged completely and once, and that slices, rules and limits fit them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.arrays import Floats
from monitor.measures.relevance import REASONS
from monitor.series.partials import RESERVED, stored_name
from monitor.series.readings import MICROS, Reading
from monitor.source.checks.remarks import (
    FEWEST,
    NOTABLE,
    TIME_OF_EVENTS,
    Key,
    Remark,
    columns_of,
    instead,
    percent,
    shown,
)
from monitor.source.checks.sample import Sample
from monitor.source.engine import Reader
from monitor.source.queries import Queries
from monitor.source.times import PER_SECOND, to_micros
from monitor.types import MIXED, Events, Judgments, Monitor

MOST_POSITIONS = 5_000
MOST_LISTS = 5_000

ONE_BASE = 0.9
"""Share of lists starting at 0 from which 0 is taken as the intended base."""

_POSITION: Key = ("rankings", "position")

NOTABLE_GRADES = 0.02
"""Share of grades refused for one reason from which it is reported. Sound grades are never refused, so a few per cent
mean a wrong limit or another notation."""

FEWEST_GRADES = 5
"""Fewer refused grades than this count as typos."""

_KEYS: dict[str, Key] = {
    "null_request": ("rankings", "request"),
    "null_item": ("rankings", "item"),
    "bad_time": ("rankings", "time"),
    "ambiguous_time": ("rankings", "time"),
    "long_request": ("max_request_span",),
    "early_event": TIME_OF_EVENTS,
    "late_event": ("relevance", "events", "attribution"),
}
_HINTS = {
    "long_request": "; is the id unique, or max_request_span too short?",
    "early_event": "; are both times in the same zone?",
}
OF_GRADES = {
    "bad_grade": "name a numeric column, or convert it in a `select:`",
    "grade_above_max": "is `max_grade` the highest possible grade?",
    "negative_grade": "a grade is 0 or more, and NULL if nobody has rated; convert them in a `select:`",
}
"""Reason for refusing a grade -> the fix."""
_BY_THEMSELVES = ("null_position", "bad_position", "mixed_slice")
"""Reasons that other checks cover: positions and slice columns."""

_UNFOLDS = re.compile(
    r"\b(?:unnest|(?:pos)?explode|flatten|json_each|jsonb?_array_elements) *\(|\bARRAY +JOIN\b", re.IGNORECASE
)
"""Calls that make a row of each element of a list."""
_KEEPS = re.compile(r"\b(?:LEFT|OUTER)\b", re.IGNORECASE)
"""Words of the joins that keep a row for an empty list."""

ALONE = 0.5
"""If this share of requests have a value of their own, slicing by it is pointless."""


def check_lists(sample: Sample) -> Iterator[Remark]:
    """Remarks on odd positions and on lists logged twice, in pages, by two disagreeing writers, or not if empty."""
    select = sample.monitor.rankings.relation.select
    if not sample.reading.no_results.any() and (call := _UNFOLDS.search(select)) and not _KEEPS.search(select):
        text = f"{call[0].rstrip(' (')} drops lists without results, so every request has some"
        yield Remark(("rankings", "select"), f"{text}; if such lists exist, join with LEFT JOIN LATERAL")
    with sample.asking() as (reader, queries):
        yield from _on_lists(queries, reader, queries.served(sample.reading.since, sample.reading.until))


def _on_lists(queries: Queries, reader: Reader, where: Any) -> Iterator[Remark]:
    of_items = sa.select(queries.position).where(where, queries.lists_item)  # no item: the list was empty
    (values,) = reader.columns(of_items.limit(MOST_POSITIONS))
    column = queries.monitor.rankings.position.column
    positions = [v for v in values if v is not None]
    texts = [v for v in positions if _number(v) is None]
    if (missing := len(values) - len(positions)) > NOTABLE * len(values):
        text = f"{_of(missing, values)} in {column!r} are NULL; such rows have no position"
        yield Remark(_POSITION, text)
    if texts:
        text = f"{column!r} is text, such as {shown(texts[0])}"
        yield Remark(_POSITION, f"{text}; name the column with the rank as a whole number")
        return
    if not positions:
        return
    lists = _lists(queries, reader, where)
    of_base = list(_on_base(queries, np.array([_number(v) for v in positions], np.float64), *lists[3:5]))
    yield from of_base or _on_copies(queries, reader, where, lists)


def _lists(queries: Queries, reader: Reader, where: Any) -> Floats:
    """(6, requests) rows, distinct rows, items, lowest and highest position, positions of some requests.

    Without requests that have an infinite position, or NaN.
    """
    named = where, queries.request.isnot(None), queries.lists_item, queries.position.isnot(None)
    key = queries.request.label("request"), queries.item.label("item"), queries.position.label("place")
    rows = sa.select(*key, sa.func.count().label("copies")).where(*named).group_by(*key).subquery("once")
    columns: list[sa.ColumnElement[Any]] = [
        sa.func.sum(rows.c.copies),
        sa.func.count(),
        sa.func.count(sa.distinct(rows.c.item)),
        sa.func.min(rows.c.place),
        sa.func.max(rows.c.place),
        sa.func.count(sa.distinct(rows.c.place)),
    ]
    found = reader.columns(sa.select(*columns).group_by(rows.c.request).limit(MOST_LISTS))
    lists = np.array([[_number(v) or 0.0 for v in column] for column in found], np.float64).reshape(6, -1)
    return lists[:, np.isfinite(lists).all(axis=0)]


def _on_base(queries: Queries, numbers: Floats, first: Floats, last: Floats) -> Iterator[Remark]:
    base, column = queries.monitor.rankings.position.base, queries.monitor.rankings.position.column
    zeros, lowest = int((numbers == 0).sum()), numbers.min()
    from_0 = int((first == 0).sum())
    if base == 1 and zeros and from_0 >= ONE_BASE * first.size:
        text = f"{_of(zeros, numbers)} in {column!r} are 0 and would be refused"
        yield Remark(_POSITION, f"{text}; if they start at 0, write `position: {{column: {column}, base: 0}}`")
    elif base == 1 and zeros and not (from_0 - (last == 0).sum()):
        text = f"{from_0:,} of {first.size:,} lists have only position 0, as LEFT ARRAY JOIN writes empty lists"
        yield Remark(
            _POSITION, f"{text}; if they had no results, name the column with the number of results as `results:`"
        )
    elif base == 1 and zeros:
        text = f"{from_0:,} of {first.size:,} lists start at 0 in {column!r}, which is refused, and the others at 1"
        example = f"CASE WHEN client = 'app' THEN {column} + 1 ELSE {column} END AS {column}"
        yield Remark(
            _POSITION,
            f"{text}; `base: 0` would break the others, so add 1 in a `select:` for those that start at 0, using the "
            f"column that identifies them: `{example}`",
        )
    elif len(numbers) >= FEWEST and lowest > 1:
        text = f"the lowest of {len(numbers):,} in {column!r} is {lowest:g}, where no list starts"
        yield Remark(_POSITION, f"{text}; name the column with the rank within a request, from {base} on")
    elif base == 0 and len(numbers) >= FEWEST and lowest >= 1:
        text = f"no position in {column!r} is 0, the lowest is {lowest:g}, so all would be off by one"
        yield Remark(_POSITION, f"{text}; remove `base: 0`")
    elif (wrong := int((~np.isfinite(numbers) | (numbers < base) | (np.floor(numbers) != numbers)).sum())) > (
        NOTABLE * len(numbers)
    ):
        text = f"{_of(wrong, numbers)} in {column!r} are not whole numbers from {base} on, and are refused"
        yield Remark(_POSITION, text)


def _on_copies(queries: Queries, reader: Reader, where: Any, lists: Floats) -> Iterator[Remark]:
    """Remarks on rows logged twice, at other positions, or as the next page."""
    rows, once, items, first, last, places = lists
    every, base = first.size, queries.monitor.rankings.position.base
    if every < FEWEST:
        return
    twice, moved = int(((rows > once) & (once == items)).sum()), int((once > items).sum())
    collide, later = int(((once == items) & (items > places)).sum()), first > base

    def told(number: int, what: str) -> str:
        return f"{number:,} of {every:,} requests ({percent(number, every)}) {what}"

    if twice > NOTABLE_GRADES * every:
        text = "have rows logged twice; relevant ones are refused as duplicate_row; "
        yield Remark(("rankings",), told(twice, text + _once(queries, reader, where)))
    if moved > NOTABLE_GRADES * every:
        text = (
            "have an item at several positions, e.g. if two servers log a list differently; it counts at the last "
            "one (duplicate_item), so values are too low: keep the rows of the server whose list people see, with "
            "a condition in a `select:`"
        )
        yield Remark(_POSITION, told(moved, text))
    if collide > NOTABLE_GRADES * every:
        text = f"have several items at one position, e.g. if each page of a list starts at {base} again; "
        yield Remark(_POSITION, told(collide, text + _paged(queries, last)))
    if NOTABLE_GRADES * every < later.sum() < every and first.min() == base:
        begin = float(np.min(first[later]))
        text = (
            f"start at position {begin:g} or later, e.g. if the next page of a list is logged as a separate request, "
            "which counts as a list with a bad top; give all pages one id in a `select:`, here and in the events"
        )
        if last[~later].max() < begin:
            names = ", ".join(_quoted(queries, *_names(queries)))
            (position,) = _quoted(queries, queries.monitor.rankings.position.column)
            only = f"SELECT {names} FROM {_from(queries)} WHERE {position} < {begin:g}"
            text += f", or leave later pages out: {_select(only)}"
        yield Remark(_POSITION, told(int(later.sum()), text))


def _once(queries: Queries, reader: Reader, where: Any) -> str:
    """How to read copies once: DISTINCT, if they differ in no other column."""
    if queries.monitor.rankings.items is not None:
        return "read each row once, in a `select:` with DISTINCT or GROUP BY"
    names = _names(queries)
    each = sa.select(*(queries.rankings.c[name] for name in names)).where(where)
    key = [queries.request, queries.item, queries.position]
    once = sa.select(*key).where(where).distinct().subquery("once")
    distinct, wanted = (
        reader.one(sa.select(sa.func.count()).select_from(found)) for found in (each.distinct().subquery("all"), once)
    )
    if distinct == wanted:
        every = f"SELECT DISTINCT {', '.join(_quoted(queries, *names))} FROM {_from(queries)}"
        return f"read each once: {_select(every)}"
    rankings = queries.monitor.rankings
    keys = rankings.request, rankings.item, rankings.position.column
    kept = _quoted(queries, *keys)
    others = [f"MIN({name}) AS {name}" for name in _quoted(queries, *(n for n in names if n not in keys))]
    one = f"SELECT {', '.join([*kept, *others])} FROM {_from(queries)} GROUP BY {', '.join(kept)}"
    return f"the copies differ in other columns, so keep one of each: {_select(one)}"


def _paged(queries: Queries, last: Floats) -> str:
    r = queries.monitor.rankings
    if r.items is not None:
        return "join the pages of a request into one list in a `select:`"
    others = ", ".join(_quoted(queries, *(n for n in _names(queries) if n != r.position.column)))
    request, position, time = _quoted(queries, r.request, r.position.column, r.time.column)
    size = f"{np.median(last) - r.position.base + 1:g}"
    counted = f"SELECT {others}, {position} + {size} * (page - 1) AS {position} FROM {_from(queries)}"
    ranked = f"ROW_NUMBER() OVER (PARTITION BY {request} ORDER BY {time}, {position})"
    shift = " - 1" if r.position.base == 0 else ""
    return (
        f"continue counting on each page: {_select(counted)} if a column has the page; otherwise "
        f"`{ranked}{shift} AS {position}`, which reads the whole table each time"
    )


def _names(queries: Queries) -> list[str]:
    return list(dict.fromkeys(name for side, _, name in columns_of(queries.monitor) if side == "r" and name))


def _select(statement: str) -> str:
    """The key to paste; YAML ends a text at its own kind of quotes."""
    quote = "'" if '"' in statement else '"'
    return f"`select: {quote}{statement}{quote}`"


def _quoted(queries: Queries, *names: str | None) -> list[str]:
    """Names as written in a statement: a reserved word such as `query` needs quotes."""
    return [queries.dialect.identifier_preparer.quote(str(name)) for name in names]


def _from(queries: Queries) -> str:
    relation = queries.monitor.rankings.relation
    return ".".join(_quoted(queries, *relation.table)) if relation.table else "(...) AS log"


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        return None


def _of(some: int, every: Sequence[object] | Floats) -> str:
    return f"{some:,} of {len(every):,} positions"


# ---- refused rows ---------------------------------------------------------------------------------------------------


def check_refusals(sample: Sample) -> Iterator[Remark]:
    """Remarks on reasons that refuse much of the sample."""
    monitor, reading = sample.monitor, sample.reading
    why_early = _cut_to_seconds(sample) if "early_event" in reading.refusals.counts else ""
    hints = _HINTS | ({"early_event": why_early} if why_early else {})
    counts = {reason: int(rows.sum()) for reason, rows in reading.refusals.counts.items()}
    for reason, strays in reading.strays.items():
        counts[reason] = counts.get(reason, 0) + len(strays)
    null_items = reading.refusals.counts.get("null_item", np.zeros(0, np.int64))
    if (empty := int(((null_items == 1) & (reading.impressions[: null_items.size] == 0)).sum())) >= FEWEST:
        text = f"{empty:,} of {len(reading.served):,} requests have one row with a position but no item, refused"
        remedy = "also set the position to NULL, or name the column with the number of results as `results:`"
        if (items := monitor.rankings.items) is not None:
            text = f"{empty:,} of {len(reading.served):,} requests have no ids in {items!r}, refused"
            remedy = "write NULL or []" + (f", and 0 in {results!r}" if (results := monitor.rankings.results) else "")
        yield Remark(_KEYS["null_item"], f"{text} as null_item; if they had no results, {remedy}")
        del counts["null_item"]
    if not isinstance(monitor.recipe, Events):
        yield from _on_grades(monitor, reading, {reason: counts.pop(reason, 0) for reason in OF_GRADES})
    for reason, refused in sorted(counts.items()):
        every = refused + int((reading.events if reason.endswith("_event") else reading.impressions).sum())
        if reason == "mixed_query":
            every = len(reading.served)
        if reason not in _BY_THEMSELVES and refused >= FEWEST and refused > NOTABLE * every:
            text = f"{refused:,} of {every:,} are refused as {reason}: {REASONS[reason]}{hints.get(reason, '')}"
            yield Remark(_KEYS.get(reason, ("relevance",)), text)


def _on_grades(monitor: Monitor, reading: Reading, counts: Mapping[str, int]) -> Iterator[Remark]:
    """Remarks on grades often refused among items shown, or among nonzero ones, which are few and carry the signal."""
    bound, depth = monitor.recipe.bound, monitor.depth
    # A grade that only a measure refuses still counts as a label, so it is already in `judged`.
    refused_by_all = sum(n for reason, n in counts.items() if reason != "grade_above_max" or bound is not None)
    every = int(reading.judged.sum()) + refused_by_all
    rows = reading.rankings
    is_judged = np.full(rows.rank.shape, True) if depth is None else rows.rank <= depth
    telling = int(np.count_nonzero(rows.grade[is_judged])) + refused_by_all
    place = "judgments" if isinstance(monitor.recipe, Judgments) else "column"
    for reason, refused in sorted(counts.items()):
        if refused >= FEWEST_GRADES and refused >= NOTABLE_GRADES * min(every, telling):
            which = f"{refused:,} of the {every:,} grades of shown items ({percent(refused, every)})"
            if telling < every:
                which += f", and of the {telling:,} that are not 0 ({percent(refused, telling)}),"
            text = f"{which} are refused as {reason}: {_why_refused(monitor, reason)}; {OF_GRADES[reason]}"
            yield Remark(("relevance", place, "grade"), text)


def _why_refused(monitor: Monitor, reason: str) -> str:
    if reason == "bad_grade" and not any(isinstance(m.gain, tuple) for m in monitor.measures):
        return "they are not numbers"
    if reason == "grade_above_max" and (bound := monitor.recipe.bound) is not None:
        return f"they are above {bound:g}"
    return REASONS[reason]


def _cut_to_seconds(sample: Sample) -> str:
    """The message if events are logged in whole seconds and requests are not, with the fix; else empty."""
    served = sample.monitor.rankings.time
    with sample.asking() as (reader, queries):
        read = [to_micros(time.declared, reader.columns(queries.sample(time))[0]).micros for time in queries.times]
    is_whole = [bool((micros % MICROS == 0).all()) for micros in read]
    if is_whole != [False, True]:
        return ""
    example = ""
    if served.format == "native":
        example = f", as by date_trunc('second', {served.column}) AS {served.column}"
    elif (units := PER_SECOND.get(served.format, 1)) > 1:
        example = f", as by {served.column} - {served.column} % {units} AS {served.column}"
    return (
        "; event times are cut to whole seconds and request times are not, so events in the "
        "same second as their request come before it: log fractions there too, or cut the request times in a `select:`"
        + example
    )


# ---- slices ---------------------------------------------------------------------------------------------------------


def check_slices(sample: Sample) -> Iterator[Remark]:
    """Remarks on slices that differ within most requests, or that hardly two requests share."""
    monitor, reading = sample.monitor, sample.reading
    size = len(reading.served)
    if size < FEWEST:
        return
    keys = {column: key for alias, key, column in columns_of(monitor) if alias == "r" and key[0] != "relevance"}
    for one in monitor.slices:
        values = reading.slices.get(one.dimension, ())
        mixed = sum(value == MIXED for value in values)
        if mixed > NOTABLE * size:
            yield Remark(
                keys[one.column],
                f"the rows of {mixed:,} of {size:,} requests ({percent(mixed, size)}) differ in {one.column!r}, and "
                f"such requests all count as {MIXED}; use a column with one value per request",
            )
        elif (distinct := len(set(values))) > max(ALONE * size, one.max_values):
            yield Remark(
                keys[one.column],
                f"{distinct:,} values of {one.column!r} among {size:,} requests: all but {one.max_values} of them "
                "count as other; use a column with values that many requests share",
            )


def check_named_slices(sample: Sample) -> Iterator[Remark]:
    """Remarks on values in rules and tables that no sampled request has although their dimension has others."""
    for key, (dimension, value), harm in _named_slices(sample.monitor):
        seen = Counter(map(stored_name, sample.reading.slices.get(dimension, ())))
        there = [name for name, _ in seen.most_common() if name not in RESERVED]
        if value in RESERVED or value in there or seen.total() < FEWEST or not there:
            continue
        text = f"none of the {seen.total():,} sampled requests has {dimension}={value}, and without one {harm}"
        yield Remark(key, f"{text}; {instead(value, there)}")


def _named_slices(monitor: Monitor) -> Iterator[tuple[Key, tuple[str, str], str]]:
    """(key, (dimension, value), what it is good for) of each value that the configuration names."""
    for number, rule in enumerate(monitor.alerts):
        for place, (dimension, value) in enumerate(rule.slices):
            if value is not None:
                yield ("alerts", number, "slices", place), (dimension, value), f"rule {rule.name} cannot fire on it"
    for number, measure in enumerate(monitor.measures):
        for one, _ in measure.by_slice:
            yield ("measures", number), one, "its examination is not used"
