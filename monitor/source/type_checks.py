"""Ids of rankings and of labels that stand in columns of types that the database does not compare."""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from monitor.errors import SourceError
from monitor.source.column_types import MYSQL_TEXTS
from monitor.source.dialect import Expression, family_of
from monitor.source.engine import Reader
from monitor.source.queries import PADDED, Queries
from monitor.source.requests import of_parts
from monitor.types import Column, Judgments, Relation

_NO_OPERATOR = "operator does not exist: "
_COLLATIONS = re.compile(r"Illegal mix of collations \((\w+),\w+\) and \((\w+),\w+\)")
_WHOLE: dict[str, dict[Any, tuple[str, int]]] = {
    "postgresql": {23: ("integer", 31), 20: ("bigint", 63), 1700: ("numeric", 999)},
    "duckdb": {
        **{"INTEGER": ("INTEGER", 31), "UINTEGER": ("UINTEGER", 32), "BIGINT": ("BIGINT", 63)},
        **{"UBIGINT": ("UBIGINT", 64), "HUGEINT": ("HUGEINT", 127), "UHUGEINT": ("UHUGEINT", 128)},
    },
    "mysql": {3: ("INT", 32), 8: ("BIGINT", 64), 246: ("DECIMAL", 999)},
}
_FLOATS: dict[str, dict[Any, tuple[str, int]]] = {
    "postgresql": {700: ("real", 24), 701: ("double precision", 53)},
    "duckdb": {"FLOAT": ("FLOAT", 24), "DOUBLE": ("DOUBLE", 53)},
    "mysql": {4: ("FLOAT", 24), 5: ("DOUBLE", 53)},
}
"""Dialect -> type code of whole and of floating-point numbers -> (name, bits that it tells apart)."""


_PARTS = re.compile(r"\[\d*\]$|^(array|list|map|struct|tuple|nested)\b", re.IGNORECASE)
"""Names of types whose values have parts."""
_PG_ARRAYS = ("1005", "1007", "1009", "1014", "1015", "1016", "1231", "2951")
"""PostgreSQL's type codes of arrays of whole numbers, texts, numeric and UUIDs."""
_STRICT_TEXTS = {"postgresql": (25, PADDED, 1043), "duckdb": ("VARCHAR",)}
"""Dialect -> types of texts, where these are not compared with numbers."""


def check_columns(queries: Queries) -> None:
    """See whether ids are single values, and positions numbers.

    Raises:
        SourceError: one is not, with its column and the remedy.
    """
    r, recipe, dialect = queries.monitor.rankings, queries.monitor.recipe, queries.dialect.name
    ids = [(name, queries.kinds.rankings[name]) for name in (r.request, r.item)]
    if not isinstance(recipe, Column):
        ids.append((recipe.item, queries.kinds.labels[recipe.item]))
    for name, kind in ids:
        if _PARTS.search(str(kind)) or (dialect == "postgresql" and str(kind) in _PG_ARRAYS):
            raise of_parts(name)
    if queries.position_kind in _STRICT_TEXTS.get(dialect, ()):
        told = f"column {r.position!r} is text, and positions are numbers; take CAST({r.position} AS integer)"
        raise SourceError(f"{told} in a `select:`", "data", lasting=True)


def check_pairs(queries: Queries, reader: Reader) -> None:
    """See whether the database compares the ids of both, each with its like alone, and whatever plan it takes.

    PostgreSQL and MySQL are asked; others convert ids, or say of which types they are.

    Raises:
        SourceError: it does not, with both columns, and their types or collations.
    """
    r, recipe, family = queries.monitor.rankings, queries.monitor.recipe, family_of(queries.dialect.name)
    if family not in _WHOLE or isinstance(recipe, Column):
        return
    for key in ("query" if isinstance(recipe, Judgments) else "request", "item"):
        shown, labelled = getattr(r, key), getattr(recipe, key)
        kinds = queries.kinds.rankings[shown], queries.kinds.labels[labelled]
        names = _named(r.relation, shown, "rankings"), _named(recipe.relation, labelled, "labels")
        told = _inexact(family, kinds, names)
        # Of texts, MySQL may not compare those of one type either.
        if not told and (kinds[0] != kinds[1] if family == "postgresql" else family == "mysql"):
            told = _not_compared(reader, queries.rankings.c[shown], queries.labels.c[labelled], names)
        if told:
            raise SourceError(f"{key} of rankings and labels cannot be compared: {told}", "data", lasting=True)


def _not_compared(reader: Reader, shown: Expression, labelled: Expression, names: tuple[str, str]) -> str:
    """Why the database refuses to compare two columns; empty if it does compare them."""
    try:
        reader.types(sa.select(shown).where(shown == labelled))
    except (OperationalError, ProgrammingError) as error:
        said = str(error.orig).partition("\n")[0]
        if mixed := _COLLATIONS.search(said):
            exact = f"CONVERT({shown.name} USING utf8mb4) COLLATE utf8mb4_bin"
            remedy = f"give both the same with ALTER TABLE, or take `{exact} AS {shown.name}` in a `select:`"
            return f"{names[0]} is {mixed[1]}, {names[1]} is {mixed[2]}; {remedy}"
        if not said.startswith(_NO_OPERATOR):
            raise
        one, _, other = said.removeprefix(_NO_OPERATOR).partition(" = ")
        return f"{names[0]} is {one}, {names[1]} is {other}; convert one of them in a `select:`"
    return ""


def _inexact(family: str, kinds: tuple[Any, Any], names: tuple[str, str]) -> str:
    """That one of two ids is a whole number and the other a float of fewer bits, or read as one; empty if not."""
    for whole, other in ((0, 1), (1, 0)):
        number, float_ = _WHOLE[family].get(kinds[whole]), _FLOATS[family].get(kinds[other])
        if number is not None and family == "mysql" and kinds[other] in MYSQL_TEXTS:
            # And beyond 2^63 it depends on the plan whether MariaDB finds a match at all.
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
