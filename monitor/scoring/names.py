"""The names of columns: those that are given, and those that are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

ALIASES: dict[str, tuple[str, ...]] = {
    "request": ("request", "request_id"),
    "query": ("query", "query_id", "qid", "topic"),
    "item": ("item", "item_id", "docno", "docid", "doc_id"),
    "position": ("position", "rank"),
    "score": ("score",),
    "grade": ("grade", "relevance", "rel", "label"),
}
"""What a column is called where no option names it: the first of these that is there."""


@dataclass(frozen=True, slots=True)
class Names:
    """The columns' names as far as they are given; for the others `ALIASES` are tried. `base`: the first position."""

    request: str | None = None
    query: str | None = None
    item: str | None = None
    position: str | None = None
    score: str | None = None
    grade: str | None = None
    base: int = 1

    def of(self, role: str) -> str | None:
        """The name given for a key of `ALIASES`."""
        return cast("str | None", getattr(self, role))
