"""Ids of rankings and of labels that stand in columns of types that the database does not compare."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from monitor.core.types import Column, Judgments, Relation
from monitor.errors import SourceError
from monitor.source.engine import Reader
from monitor.source.queries import Queries

_NO_OPERATOR = "operator does not exist: "


def check_pairs(queries: Queries, reader: Reader) -> None:
    """See whether PostgreSQL compares the ids of both; others convert them.

    Raises:
        SourceError: it does not, with both columns, and their types.
    """
    r, recipe = queries.monitor.rankings, queries.monitor.recipe
    if queries.dialect.name != "postgresql" or isinstance(recipe, Column):
        return
    for key in ("query" if isinstance(recipe, Judgments) else "request", "item"):
        shown, labelled = getattr(r, key), getattr(recipe, key)
        if queries.kinds.rankings[shown] == queries.kinds.labels[labelled]:
            continue
        ids = queries.rankings.c[shown]
        try:
            reader.types(sa.select(ids).where(ids == queries.labels.c[labelled]))
        except ProgrammingError as error:
            said = str(error.orig).partition("\n")[0]
            if not said.startswith(_NO_OPERATOR):
                raise
            one, _, other = said.removeprefix(_NO_OPERATOR).partition(" = ")
            told = f"{_named(r.relation, shown)} is {one}, {_named(recipe.relation, labelled)} is {other}"
            raise SourceError(
                f"{key} of rankings and labels cannot be compared: {told}; convert one of them in a `select:`",
                "data",
                lasting=True,
            ) from error


def _named(relation: Relation, column: str) -> str:
    return ".".join((*relation.table, column)) if relation.table else f"{column} of the SELECT"
