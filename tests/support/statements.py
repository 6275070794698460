"""Statements that tests run on a database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements in one transaction; the last one's first column, if it returns rows."""
    engine, found = sa.create_engine(url), list[Any]()
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(sa.text(statement.replace(":", r"\:")))  # a % is one with every driver
            found = list(result.scalars()) if result.returns_rows and result.keys() else []
    engine.dispose()  # or DuckDB's file stays locked
    return found
