"""Are the logged lists whole, and each logged once? A look at positions and copies, for `check-config --connect`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from monitor.series.readings import Reading
from monitor.source.engine import Reader
from monitor.source.mapped import columns_of
from monitor.source.queries import Queries
from monitor.source.refused import NOTABLE_GRADES
from monitor.source.remark import FEWEST, NOTABLE, Key, Remark, percent, shown

MOST_POSITIONS = 5_000
MOST_LISTS = 5_000

ONE_BASE = 0.9
"""Share of lists that begin at 0, from which on it is where they all are meant to begin."""

_POSITION: Key = ("rankings", "position")


def on_lists(queries: Queries, reader: Reader, reading: Reading) -> Iterator[Remark]:
    """What is odd about positions, and lists that were logged twice, in pages, or by two that disagree."""
    where = queries.served(reading.since, reading.until)
    (values,) = reader.columns(sa.select(queries.position).where(where).limit(MOST_POSITIONS)) or [[]]
    column = queries.monitor.rankings.position
    known = [v for v in values if v is not None]
    texts = [v for v in known if _number(v) is None]
    if len(known) < NOTABLE * len(values):
        text = f"{_of(len(values) - len(known), values)} in {column!r} are NULL; such rows have no place"
        yield Remark(_POSITION, text)
    if texts:
        text = f"{column!r} holds text, such as {shown(texts[0])}"
        yield Remark(_POSITION, f"{text}; name the column with the rank, a whole number")
        return
    if not known:
        return
    lists = _lists(queries, reader, where)
    of_base = list(_on_base(queries, np.array([_number(v) for v in known], np.float64), lists[3]))
    yield from of_base or _on_copies(queries, reader, where, lists)


def _lists(queries: Queries, reader: Reader, where: Any) -> NDArray[np.float64]:
    """(6, requests) rows, different rows, items, lowest and highest position, positions of some requests."""
    named = where, queries.request.isnot(None), queries.item.isnot(None), queries.position.isnot(None)
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
    return np.array([[_number(v) or 0.0 for v in column] for column in found], np.float64).reshape(6, -1)


def _on_base(queries: Queries, numbers: NDArray[np.float64], first: NDArray[np.float64]) -> Iterator[Remark]:
    """Positions that do not begin where they are said to."""
    base, column = queries.monitor.rankings.position_base, queries.monitor.rankings.position
    zeros, lowest = int((numbers == 0).sum()), numbers.min()
    from_0 = int((first == 0).sum())
    if base == 1 and zeros and from_0 >= ONE_BASE * first.size:
        text = f"{_of(zeros, numbers)} in {column!r} are 0, and would be refused"
        yield Remark(_POSITION, f"{text}; if they start at 0, write `position: {{column: {column}, base: 0}}`")
    elif base == 1 and zeros:
        text = f"{from_0:,} of {first.size:,} lists begin at 0 in {column!r}, which is refused, and the others at 1"
        example = f"CASE WHEN client = 'app' THEN {column} + 1 ELSE {column} END AS {column}"
        yield Remark(
            _POSITION,
            f"{text}; `base: 0` would spoil the others, so add 1 in a `select:` for those that count from 0, by the "
            f"column that tells them: `{example}`",
        )
    elif len(numbers) >= FEWEST and lowest > 1:
        text = f"the lowest of {len(numbers):,} in {column!r} is {lowest:g}, and no list begins there"
        yield Remark(_POSITION, f"{text}; name the column with the rank within a request, from {base} on")
    elif base == 0 and len(numbers) >= FEWEST and lowest >= 1:
        text = f"no position in {column!r} is 0, the lowest is {lowest:g}, so that all would be off by one"
        yield Remark(_POSITION, f"{text}; take `base: 0` away")
    elif (wrong := int(((numbers < base) | (numbers % 1 != 0)).sum())) > NOTABLE * len(numbers):
        text = f"{_of(wrong, numbers)} in {column!r} are no whole numbers from {base} on, and are refused"
        yield Remark(_POSITION, text)


def _on_copies(queries: Queries, reader: Reader, where: Any, lists: NDArray[np.float64]) -> Iterator[Remark]:
    """Rows that were logged twice, at other places, or as the next page."""
    rows, once, items, first, last, places = lists
    every, base = first.size, queries.monitor.rankings.position_base
    if every < FEWEST:
        return
    twice, moved = int(((rows > once) & (once == items)).sum()), int((once > items).sum())
    collide, later = int(((once == items) & (items > places)).sum()), first > base

    def told(number: int, what: str) -> str:
        return f"{number:,} of {every:,} requests ({percent(number, every)}) {what}"

    if twice > NOTABLE_GRADES * every:
        text = "have rows that were logged twice, of which relevant ones are refused as duplicate_row; "
        yield Remark(("rankings",), told(twice, text + _once(queries, reader, where)))
    if moved > NOTABLE_GRADES * every:
        text = (
            "have an item at several positions, as where two servers log a list and disagree; it counts at the last "
            "one (duplicate_item), so that values are too low: keep the rows of the server whose list people see, by "
            "a condition in a `select:`"
        )
        yield Remark(_POSITION, told(moved, text))
    if collide > NOTABLE_GRADES * every:
        text = f"have several items at one position, as where each page of a list begins at {base} again; "
        yield Remark(_POSITION, told(collide, text + _paged(queries, last)))
    if NOTABLE_GRADES * every < later.sum() < every and first.min() == base:
        begin = float(np.min(first[later]))
        text = (
            f"begin at position {begin:g} or later, as where the next page of a list is logged as a request of its "
            "own, which counts as a list with a bad top; give all pages one id in a `select:`, here and in the events"
        )
        if last[~later].max() < begin:
            names = ", ".join(_names(queries))
            only = f"SELECT {names} FROM {_from(queries)} WHERE {queries.monitor.rankings.position} < {begin:g}"
            text += f', or leave later pages out: `select: "{only}"`'
        yield Remark(_POSITION, told(int(later.sum()), text))


def _once(queries: Queries, reader: Reader, where: Any) -> str:
    """How copies are read once: as DISTINCT rows, where they do not differ in another column."""
    names = _names(queries)
    each = sa.select(*(queries.rankings.c[name] for name in names)).where(where)
    key = [queries.request, queries.item, queries.position]
    once = sa.select(*key).where(where).distinct().subquery("once")
    distinct, wanted = (
        reader.one(sa.select(sa.func.count()).select_from(found)) for found in (each.distinct().subquery("all"), once)
    )
    if distinct == wanted:
        return f'read each once: `select: "SELECT DISTINCT {", ".join(names)} FROM {_from(queries)}"`'
    rankings = queries.monitor.rankings
    kept = rankings.request, rankings.item, rankings.position
    others = [f"MIN({name}) AS {name}" for name in names if name not in kept]
    return (
        "the copies differ in other columns, so take one of each: "
        f'`select: "SELECT {", ".join([*kept, *others])} FROM {_from(queries)} GROUP BY {", ".join(kept)}"`'
    )


def _paged(queries: Queries, last: NDArray[np.float64]) -> str:
    r = queries.monitor.rankings
    others = ", ".join(name for name in _names(queries) if name != r.position)
    size = f"{np.median(last) - r.position_base + 1:g}"
    counted = f"SELECT {others}, {r.position} + {size} * (page - 1) AS {r.position} FROM {_from(queries)}"
    ranked = f"ROW_NUMBER() OVER (PARTITION BY {r.request} ORDER BY {r.time.column}, {r.position})"
    shift = " - 1" if r.position_base == 0 else ""
    return (
        f'count on from page to page: `select: "{counted}"` where a column tells the page; else '
        f"`{ranked}{shift} AS {r.position}`, which reads all of the table each time"
    )


def _names(queries: Queries) -> list[str]:
    """The columns that are read of the rankings, as they are written in SQL."""
    quote = queries.dialect.identifier_preparer.quote
    return list(dict.fromkeys(quote(name) for side, _, name in columns_of(queries.monitor) if side == "r" and name))


def _from(queries: Queries) -> str:
    relation, quote = queries.monitor.rankings.relation, queries.dialect.identifier_preparer.quote
    return ".".join(map(quote, relation.table)) if relation.table else "(...) AS log"


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        return None


def _of(some: int, every: Sequence[object] | NDArray[np.float64]) -> str:
    return f"{some:,} of {len(every):,} positions"
