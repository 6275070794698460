"""Rankings per request, as SQL: time served, slices, and counts by kind of row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from monitor.source.dialects.base import Condition, Expression, written
from monitor.source.label_sql import LabelSQL
from monitor.source.queries import Queries, refused_rows
from monitor.types import Monitor

_ZERO, _ONE = written("0"), written("1")

NOTHING = "nothing_null_item"
"""Count of a request's rows that say that its list is empty."""


class Place(NamedTuple):
    """Column names of a dimension.

    Attributes:
        value: in the result, the value as written.
        mixed: in the result, whether requests have several values.
        exact: distinguishes values where they cannot be compared directly; not in the result.
    """

    value: str
    mixed: str
    exact: str = ""

    @property
    def compared(self) -> str:
        """The column used to compare values."""
        return self.exact or self.value


@dataclass(frozen=True)
class RankingSQL:
    """Builds the per-request part of a monitor's statement."""

    queries: Queries
    labels: LabelSQL

    @property
    def monitor(self) -> Monitor:
        """The monitor whose rankings these are."""
        return self.queries.monitor

    @property
    def places(self) -> dict[str, Place]:
        """Dimension -> column names."""
        lax = self.queries.lax_slices
        return {
            s.dimension: Place(f"slice_{i}", f"mixed_{i}", f"exact_{i}" if s.column in lax else "")
            for i, s in enumerate(self.monitor.slices)
        }

    def careful(self, since: int, until: int) -> sa.CTE:
        """One row per request, named q, for any log."""
        q = self.queries
        first, last = sa.func.min(q.time), sa.func.max(q.time)
        columns: list[Expression] = [
            q.request.label("request"),
            first.label("first_at"),
            last.label("last_at"),
            sa.func.count().label("n_rows"),
            *(q.unshown_count(name).label(name) for name in q.unshown()),
            *(count.label(name) for name, count in {**q.shown_counts(), **q.graded_counts()}.items()),
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
        """`careful` with fewer columns, assuming a plain log; see `contrary`.

        In a plain log, all rows of a request share one time and one set of slices, and each has an item and position or
        marks an empty list. Also includes requests served a little before and after.
        """
        q = self.queries
        slices = zip(self.monitor.slices, self.places.values(), strict=True)
        keys = [q.request, q.time, *(self._comparable(dimension.column) for dimension, _ in slices)]
        names = ["request", "first_at", *(place.compared for place in self.places.values())]
        columns: list[Expression] = [key.label(name) for key, name in zip(keys, names, strict=True)]
        for dimension, place in zip(self.monitor.slices, self.places.values(), strict=True):
            columns += [sa.func.min(q.rankings.c[dimension.column]).label(place.value)] if place.exact else []
        columns += [sa.func.count().label("n_rows"), q.unshown_count(NOTHING).label(NOTHING)]
        columns += [count.label(name) for name, count in q.shown_counts().items()]
        return sa.select(*columns).where(q.served(*self.labels.wide(since, until))).group_by(*keys).cte("rankmon_q")

    def contrary(self, requests: sa.FromClause) -> Expression:
        """How many requests violate the assumption of `plain`."""
        q, everywhere = requests.c, self.queries.cutoffs.index(None)
        lacks = sa.and_(q.n_rows > q[f"shown_{everywhere}"], q.n_rows > q[NOTHING])
        found = sa.or_(sa.func.count() > _ONE, sa.func.sum(sa.case((lacks, _ONE), else_=_ZERO)) > _ZERO)
        strange = sa.select(q.request).where(q.request.isnot(None)).group_by(q.request).having(found).subquery("s")
        return sa.select(sa.func.count()).select_from(strange).scalar_subquery()

    def _comparable(self, column: str) -> Expression:
        """A slice column as a type that has min and max."""
        q, value = self.queries, self.queries.rankings.c[column]
        if column in q.varied_slices:
            return sa.cast(value, sa.Text)
        if column in q.bit_slices | q.lax_slices:
            return q.exactly(column)
        is_truth = column in q.boolean_slices
        return sa.case((value == sa.true(), _ONE), (value == sa.false(), _ZERO)) if is_truth else value

    def untimely(self, first: Expression, last: Expression | None) -> list[Condition]:
        """Why the times of a request's first and last row require a row-by-row read, if they may differ."""
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
        """Whether a request's list is empty: a row says so, and none has an item."""
        lacking = q.c.get("null_item", q.c[NOTHING])
        return sa.and_(q.c[NOTHING] > _ZERO, q.c.n_rows == lacking)

    # ---- what there is of a request ----------------------------------------------------------------------------

    def asked(self, q: sa.FromClause, since: int, until: int) -> Condition | None:
        """Condition for requests in the range; None if there are no others."""
        if "last_at" in q.c:
            return None
        began, ended = self.labels.time(since), self.labels.time(until)
        return sa.or_(q.c.request.is_(None), sa.and_(q.c.first_at >= began, q.c.first_at < ended))

    def slices(self, q: sa.FromClause, place: Place) -> tuple[list[Any], Expression | None]:
        """(columns of a dimension's value, whether there are several; None if there never are)."""
        names = [name for name in (place.value, place.exact) if name]
        most = q.c.get(f"most_{place.value}")
        if most is None:
            return [q.c[name] for name in names], None
        least = q.c[place.compared]
        differ = sa.case((least < most, _ONE), else_=_ZERO)
        agree = least == most if self.queries.sql.nan_is_itself else sa.or_(least == most, least != least)
        return [sa.case((agree, q.c[name])).label(name) for name in names], differ

    def refused(self, q: sa.FromClause) -> dict[str, Expression]:
        """Reason -> refused rows; reasons that cannot occur are left out."""
        if "null_item" not in q.c:
            return {}
        empty = self.is_empty(q)
        return refused_rows(q.c, lambda name: sa.case((empty, q.c[name]), else_=_ZERO))
