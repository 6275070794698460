"""Rankings by request, as SQL: when each was served, which slices it is in, how many rows of which kind it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from monitor.source.dialects.base import Condition, Expression, written
from monitor.source.label_sql import LabelSQL
from monitor.source.queries import NOTHING, Queries, refused_rows
from monitor.types import Monitor

_ZERO, _ONE = written("0"), written("1")


class Place(NamedTuple):
    """Names of a dimension's columns.

    Attributes:
        value: in the answer, a value as it is written.
        mixed: in the answer, whether requests have several.
        exact: what tells values apart, where they are not compared themselves; not in the answer.
    """

    value: str
    mixed: str
    exact: str = ""

    @property
    def compared(self) -> str:
        """The column that tells whether values differ."""
        return self.exact or self.value


@dataclass(frozen=True)
class RankingSQL:
    """Makes the part of a monitor's statement that has one row a request."""

    queries: Queries
    labels: LabelSQL

    @property
    def monitor(self) -> Monitor:
        """Whose rankings they are."""
        return self.queries.monitor

    @property
    def places(self) -> dict[str, Place]:
        """Dimension -> names of its columns."""
        lax = self.queries.lax_slices
        return {
            s.dimension: Place(f"slice_{i}", f"mixed_{i}", f"exact_{i}" if s.column in lax else "")
            for i, s in enumerate(self.monitor.slices)
        }

    def careful(self, since: int, until: int) -> sa.CTE:
        """One row a request, named q, whatever the rows are like."""
        q = self.queries
        first, last = sa.func.min(q.time), sa.func.max(q.time)
        columns: list[Expression] = [
            q.request.label("request"),
            first.label("first_at"),
            last.label("last_at"),
            *(count.label(name) for name, count in q.request_counts().items()),
        ]
        for dimension, place in zip(self.monitor.slices, self.places.values(), strict=True):
            value = self._comparable(dimension.column)
            columns += [sa.func.min(value).label(place.compared), sa.func.max(value).label(f"most_{place.value}")]
            if place.exact:
                columns.append(sa.func.min(q.rankings.c[dimension.column]).label(place.value))
        began = self.labels.time(since)
        asked = sa.and_(first >= began, first < self.labels.time(until))
        earlier = sa.and_(first < began, sa.or_(*self.untimely(first, last)))
        grouped = sa.select(*columns).where(q.served(*self.labels.wide(since, until))).group_by(q.request)
        return (
            grouped.having(sa.or_(q.request.is_(None), asked, earlier))
            .cte("rankmon_q")
            .prefix_with("MATERIALIZED", dialect="sqlite")
        )

    def plain(self, since: int, until: int) -> sa.CTE:
        """The same in fewer columns, supposing that the log is plain; see `contrary`.

        All rows of a request have one time and the same slices, and each of them has an item and a position, or says
        that the list was empty. Those served a little before and after stand here too.
        """
        q = self.queries
        slices = zip(self.monitor.slices, self.places.values(), strict=True)
        keys = [q.request, q.time, *(self._comparable(dimension.column) for dimension, _ in slices)]
        names = ["request", "first_at", *(place.compared for place in self.places.values())]
        columns: list[Expression] = [key.label(name) for key, name in zip(keys, names, strict=True)]
        for dimension, place in zip(self.monitor.slices, self.places.values(), strict=True):
            columns += [sa.func.min(q.rankings.c[dimension.column]).label(place.value)] if place.exact else []
        columns += [sa.func.count().label("n_rows"), q.nothing()[0].label(NOTHING[0])]
        columns += [count.label(name) for name, count in q.shown_counts().items()]
        return sa.select(*columns).where(q.served(*self.labels.wide(since, until))).group_by(*keys).cte("rankmon_q")

    def contrary(self, requests: sa.FromClause) -> Expression:
        """Of how many requests `plain` was mistaken."""
        q, everywhere = requests.c, self.queries.cutoffs.index(None)
        lacks = sa.and_(q.n_rows > q[f"shown_{everywhere}"], q.n_rows > q[NOTHING[0]])
        found = sa.or_(sa.func.count() > _ONE, sa.func.sum(sa.case((lacks, _ONE), else_=_ZERO)) > _ZERO)
        strange = sa.select(q.request).where(q.request.isnot(None)).group_by(q.request).having(found).subquery("s")
        return sa.select(sa.func.count()).select_from(strange).scalar_subquery()

    def _comparable(self, column: str) -> Expression:
        """A column to slice by, as something that has a least and a greatest value."""
        q, value = self.queries, self.queries.rankings.c[column]
        if column in q.varied_slices:
            return sa.cast(value, sa.Text)
        if column in q.bit_slices | q.lax_slices:
            return q.exactly(column)
        is_truth = column in q.boolean_slices
        return sa.case((value == sa.true(), _ONE), (value == sa.false(), _ZERO)) if is_truth else value

    def untimely(self, first: Expression, last: Expression | None) -> list[Condition]:
        """Why a request is to be read row by row for the times of its first and its last row, if they may differ."""
        time, span = self.monitor.rankings.time, self.monitor.max_request_span
        found: list[Condition] = []
        if last is not None:
            end = self.queries.sql.later(first, time, span) if span else first
            found.append(sa.and_(last > first, last > end))
        for at in (first,) if last is None else (first, last):
            plain = self.queries.sql.is_plain(at, time)
            found += [] if plain is None else [sa.not_(plain)]
        return found

    def is_empty(self, q: sa.FromClause) -> Condition:
        """Whether a request is of an empty list: a row says so, and none has an item."""
        items = q.c.get("n_items")
        nothing = q.c[NOTHING[0]]
        return sa.and_(nothing > _ZERO, q.c.n_rows == nothing if items is None else items == _ZERO)

    # ---- what there is of a request ----------------------------------------------------------------------------

    def asked(self, q: sa.FromClause, since: int, until: int) -> Condition | None:
        """Which of the requests are asked for; None where no others are there."""
        if "last_at" in q.c:
            return None
        began, ended = self.labels.time(since), self.labels.time(until)
        return sa.or_(q.c.request.is_(None), sa.and_(q.c.first_at >= began, q.c.first_at < ended))

    def slices(self, q: sa.FromClause, place: Place) -> tuple[list[Any], Expression | None]:
        """(columns of a dimension's one value, whether there are several; None where there never are)."""
        names = [name for name in (place.value, place.exact) if name]
        most = q.c.get(f"most_{place.value}")
        if most is None:
            return [q.c[name] for name in names], None
        least = q.c[place.compared]
        differ = sa.case((least < most, _ONE), else_=_ZERO)
        agree = least == most if self.queries.sql.nan_is_itself else sa.or_(least == most, least != least)
        return [sa.case((agree, q.c[name])).label(name) for name in names], differ

    def refused(self, q: sa.FromClause) -> dict[str, Expression]:
        """Reason -> rows; nothing where there are none."""
        if "n_items" not in q.c:
            return {}
        empty = self.is_empty(q)
        nothing = [sa.case((empty, q.c[name]), else_=_ZERO) for name in NOTHING]
        return refused_rows(q.c, q.c[f"shown_{self.queries.cutoffs.index(None)}"], nothing)
