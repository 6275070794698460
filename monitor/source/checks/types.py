"""Checks that ids of rankings and labels have column types the database can compare."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from monitor.errors import SourceError
from monitor.source.dialects.base import Dialect, Expression
from monitor.source.engine import Reader
from monitor.source.queries import Queries
from monitor.source.requests import of_parts
from monitor.types import ITEM, Column, Judgments, Relation

_PARTS = re.compile(r"\[\d*\]$|^(array|list|map|struct|tuple|nested)\b", re.IGNORECASE)
"""Names of composite types."""


def check_columns(queries: Queries) -> None:
    """Checks that ids are single values and positions are numbers.

    Raises:
        SourceError: one is not, with its column and the fix.
    """
    r, recipe = queries.monitor.rankings, queries.monitor.recipe
    ids = [(name, queries.types.rankings[name]) for name in (r.request, r.item)]
    if not isinstance(recipe, Column):
        ids.append((recipe.item, queries.types.labels[recipe.item]))
    for name, kind in ids:
        if _PARTS.search(str(kind)) or str(kind) in queries.sql.arrays:
            raise of_parts(name) if name != ITEM else _of_lists(r.items)
    if queries.position_type in queries.sql.strict_texts:
        name = r.position.column
        told = f"column {name!r} is text, and positions are numbers; take CAST({name} AS integer)"
        raise SourceError(f"{told} in a `select:`", "data", lasting=True)


def _of_lists(items: str | None) -> SourceError:
    told = f"column {items!r} has lists of lists or of objects, not of ids"
    return SourceError(f"{told}; take the ids out in a `select:`", "data", lasting=True)


def check_pairs(queries: Queries, reader: Reader) -> None:
    """Checks that the database compares ids exactly, whatever plan it picks.

    PostgreSQL and MySQL are probed; others convert ids or report their types.

    Raises:
        SourceError: it does not, with both columns and their types or collations.
    """
    r, recipe = queries.monitor.rankings, queries.monitor.recipe
    if not queries.sql.whole_numbers or isinstance(recipe, Column):
        return
    for key in ("query" if isinstance(recipe, Judgments) else "request", "item"):
        shown, labelled = getattr(r, key), getattr(recipe, key)
        kinds = queries.types.rankings[shown], queries.types.labels[labelled]
        column = r.items if r.items is not None and key == "item" else shown
        names = _named(r.relation, column, "rankings"), _named(recipe.relation, labelled, "labels")
        told = _inexact(queries.sql, kinds, names)
        if not told and queries.sql.must_try_to_compare(*kinds):
            told = _not_compared(reader, queries.rankings.c[shown], queries.labels.c[labelled], names)
        if told:
            raise SourceError(f"{key} of rankings and labels cannot be compared: {told}", "data", lasting=True)


def _not_compared(reader: Reader, shown: Expression, labelled: Expression, names: tuple[str, str]) -> str:
    try:
        reader.types(sa.select(shown).where(shown == labelled))
    except (OperationalError, ProgrammingError) as error:
        said = str(error.orig).partition("\n")[0]
        if not (why := reader.sql.why_not_compared(said, names, (str(shown.name), str(labelled.name)))):
            raise
        return why
    return ""


def _inexact(sql: Dialect, kinds: tuple[Any, Any], names: tuple[str, str]) -> str:
    """A message if one id is a whole number and the other a float of fewer bits, or compared as one; else empty."""
    for whole, other in ((0, 1), (1, 0)):
        number, float_ = sql.whole_numbers.get(kinds[whole]), sql.float_numbers.get(kinds[other])
        if number is not None and kinds[other] in sql.loose_texts:
            # Beyond 2^63 MariaDB's plan decides whether it finds a match at all.
            return (
                f"{names[whole]} is {number[0]}, {names[other]} is text, and both are compared as floats, by which "
                "large ids are alike and '12a' is 12; convert one of them in a `select:`"
            )
        if number is not None and float_ is not None and number[1] > float_[1]:
            return (
                f"{names[whole]} is {number[0]}, {names[other]} is {float_[0]}, by which large ids are alike; convert "
                f"that to {number[0]} in a `select:`, or where it is written (pandas has floats in a column with gaps)"
            )
    return ""


def _named(relation: Relation, column: str, side: str) -> str:
    return ".".join((*relation.table, column)) if relation.table else f"{column} of the {side}' SELECT"
