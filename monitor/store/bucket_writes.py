"""Buckets of a series replaced as a whole by what a read holds, in the transaction of the caller, who has fenced it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from monitor.series.finality import Mark
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, Cell, Partials
from monitor.store.naming import table_of
from monitor.store.schema import bucket_marks, judgments_used, refusals, row_counts
from monitor.types import TRAFFIC, Definition

Floats = NDArray[np.float64]
_BATCH = 500


@dataclass(frozen=True)
class Replacing:
    """Buckets of one series, about to be replaced as a whole: their rows of today go, whatever slices they are of."""

    connection: sa.Connection
    series_id: int
    starts: Sequence[int]
    slice_ids: Mapping[tuple[str, str], int]

    def put(self, definition: Definition, partials: Partials, read_at: float, final: set[int]) -> None:
        """What was counted of the buckets, the traffic or a measure."""
        is_traffic, wanted = definition.kernel == TRAFFIC, set(self.starts)
        cells = partials.traffic if is_traffic else partials.measures[definition.kernel]
        rows = [
            {**self._key(cell), **_fields(values, is_traffic), "read_at": read_at, "final": cell[0] in final}
            for cell, values in cells.items()
            if cell[0] in wanted
        ]
        self._empty(table_of(definition))
        self._fill(table_of(definition), rows)

    def put_refusals(self, partials: Partials) -> None:
        """What the reading of the buckets' traffic refused, and which judgments it used."""
        wanted = set(self.starts)
        refused = [
            {**self._key(cell), "reason": reason, "rows": rows}
            for (cell, reason), rows in partials.refused.items()
            if cell[0] in wanted
        ]
        used = [
            {"series_id": self.series_id, "bucket_start": start, "fingerprint": partials.fingerprint}
            for start in self.starts
            if partials.fingerprint
        ]
        for table, rows in ((refusals, refused), (judgments_used, used)):
            self._empty(table)
            self._fill(table, rows)

    def put_row_counts(self, counted: Mapping[int, int]) -> None:
        """How many rows the source has of some of the buckets, by the rows' own times."""
        self._empty(row_counts)
        rows = [{"bucket_start": start, "rows": counted[start]} for start in self.starts if start in counted]
        self._fill(row_counts, [{"series_id": self.series_id, **row} for row in rows])

    def mark(self, mark: Mark, which: Collection[int], noted_at: float) -> None:
        """Mark some of the buckets; the marks of the others go."""
        self._empty(bucket_marks)
        more = {"series_id": self.series_id, "mark": mark, "noted_at": noted_at}
        self._fill(bucket_marks, [{"bucket_start": start, **more} for start in self.starts if start in which])

    def hold(self, definition: Definition, read_at: float, final: set[int]) -> None:
        """Leave buckets as they are, and note that they were read once more."""
        table = table_of(definition)
        for at in range(0, len(self.starts), _BATCH):
            part = self.starts[at : at + _BATCH]
            for ends, some in ((False, set(part) - final), (True, final.intersection(part))):
                at_hand = (table.c.series_id == self.series_id, table.c.bucket_start.in_(some))
                self.connection.execute(table.update().where(*at_hand).values(read_at=read_at, final=ends))

    def refuse(self, definition: Definition, noted_at: float) -> None:
        """Note that buckets were refused. What is not final of them goes: it would hold up the series and never be."""
        table = table_of(definition)
        query = sa.select(table.c.bucket_start).where(table.c.series_id == self.series_id, table.c.final).distinct()
        final = {
            start
            for at in range(0, len(self.starts), _BATCH)
            for start in self.connection.scalars(
                query.where(table.c.bucket_start.in_(list(self.starts[at : at + _BATCH])))
            )
        }
        replace(self, starts=[s for s in self.starts if s not in final])._empty(table)
        self.mark("refused", set(self.starts) - final, noted_at)

    def _empty(self, table: sa.Table) -> None:
        for at in range(0, len(self.starts), _BATCH):
            some = table.c.bucket_start.in_(list(self.starts[at : at + _BATCH]))
            self.connection.execute(table.delete().where(table.c.series_id == self.series_id, some))

    def _fill(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.connection.execute(table.insert(), rows)

    def _key(self, cell: Cell) -> dict[str, int]:
        return {"series_id": self.series_id, "bucket_start": cell[0], "slice_id": self.slice_ids[cell[1], cell[2]]}


def _fields(values: Floats, is_traffic: bool) -> dict[str, float]:
    names = TRAFFIC_FIELDS if is_traffic else FIELDS
    return dict(zip(names, (int(v) for v in values) if is_traffic else values.tolist(), strict=True))
