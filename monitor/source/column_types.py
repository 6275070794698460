"""Of which types a source's columns are: statements are made by that, and it is looked at again with each read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from monitor.source.engine import Reader

MYSQL_TEXTS = (15, 245, *range(247, 255))
"""MySQL's type codes of what a collation may hold to be equal: texts, JSON, enums and sets."""


@dataclass(frozen=True)
class Kinds:
    """The driver's type codes of the columns, by name.

    Attributes:
        version: SQLite's number of how its tables are made; its columns have no types.
        is_behind: whether the transaction may not see the rows that are there; see `Reader.kinds`.
    """

    rankings: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    is_behind: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, reader: Reader, rankings: sa.FromClause, labels: sa.FromClause | None, to_sum: bool = False) -> Kinds:
        """Those that the columns have now, and until the transaction ends.

        Args:
            to_sum: whether to prepare for statements that sum up on the way.

        Raises:
            SourceError: a table or a column is not there.
        """
        found, is_behind = reader.kinds([rankings] if labels is None else [rankings, labels], to_sum)
        version = reader.one(sa.text("PRAGMA schema_version")) if reader.dialect.name == "sqlite" else 0
        return cls(found[0], found[1] if labels is not None else {}, version, is_behind)

    def others(self, before: Kinds) -> list[str]:
        """The columns that are of another type than before."""
        sides = ("rankings", self.rankings, before.rankings), ("labels", self.labels, before.labels)
        return [f"{side}.{name}" for side, now, then in sides for name in now if now[name] != then.get(name)]
