"""Ids of rankings and of labels that stand in columns of types that the database does not compare."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from monitor.core.types import Column, Judgments, Relation
from monitor.errors import SourceError
from monitor.source.engine import Reader
from monitor.source.queries import Queries

_NO_OPERATOR = "operator does not exist: "
_WHOLE: dict[str, dict[Any, tuple[str, int]]] = {
    "postgresql": {23: ("integer", 31), 20: ("bigint", 63), 1700: ("numeric", 999)},
    "duckdb": {
        **{"INTEGER": ("INTEGER", 31), "UINTEGER": ("UINTEGER", 32), "BIGINT": ("BIGINT", 63)},
        **{"UBIGINT": ("UBIGINT", 64), "HUGEINT": ("HUGEINT", 127), "UHUGEINT": ("UHUGEINT", 128)},
    },
}
_FLOATS: dict[str, dict[Any, tuple[str, int]]] = {
    "postgresql": {700: ("real", 24), 701: ("double precision", 53)},
    "duckdb": {"FLOAT": ("FLOAT", 24), "DOUBLE": ("DOUBLE", 53)},
}
"""Dialect -> type code of whole and of floating-point numbers -> (name, bits that it tells apart)."""


def check_pairs(queries: Queries, reader: Reader) -> None:
    """See whether PostgreSQL compares the ids of both; others convert them. To floats too, of which some are alike.

    Raises:
        SourceError: it does not, or not each with its like alone, with both columns, and their types.
    """
    r, recipe, dialect = queries.monitor.rankings, queries.monitor.recipe, queries.dialect.name
    if dialect not in _WHOLE or isinstance(recipe, Column):
        return
    for key in ("query" if isinstance(recipe, Judgments) else "request", "item"):
        shown, labelled = getattr(r, key), getattr(recipe, key)
        kinds = queries.kinds.rankings[shown], queries.kinds.labels[labelled]
        if kinds[0] == kinds[1]:
            continue
        if told := _inexact(
            dialect, kinds, (_named(r.relation, shown, "rankings"), _named(recipe.relation, labelled, "labels"))
        ):
            raise SourceError(f"{key} of rankings and labels cannot be compared: {told}", "data", lasting=True)
        if dialect != "postgresql":
            continue
        ids = queries.rankings.c[shown]
        try:
            reader.types(sa.select(ids).where(ids == queries.labels.c[labelled]))
        except ProgrammingError as error:
            said = str(error.orig).partition("\n")[0]
            if not said.startswith(_NO_OPERATOR):
                raise
            one, _, other = said.removeprefix(_NO_OPERATOR).partition(" = ")
            names = _named(r.relation, shown, "rankings"), _named(recipe.relation, labelled, "labels")
            told = f"{names[0]} is {one}, {names[1]} is {other}"
            raise SourceError(
                f"{key} of rankings and labels cannot be compared: {told}; convert one of them in a `select:`",
                "data",
                lasting=True,
            ) from error


def _inexact(dialect: str, kinds: tuple[Any, Any], names: tuple[str, str]) -> str:
    """That one of two ids is a whole number and the other a float of fewer bits; empty if not."""
    for whole, other in ((0, 1), (1, 0)):
        number, float_ = _WHOLE[dialect].get(kinds[whole]), _FLOATS[dialect].get(kinds[other])
        if number is not None and float_ is not None and number[1] > float_[1]:
            return (
                f"{names[whole]} is {number[0]}, {names[other]} is {float_[0]}, by which large ids are alike; convert "
                f"that to {number[0]} in a `select:`, or where it is written (pandas has floats in a column with gaps)"
            )
    return ""


def _named(relation: Relation, column: str, side: str) -> str:
    return ".".join((*relation.table, column)) if relation.table else f"{column} of the {side}' SELECT"
