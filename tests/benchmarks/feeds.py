"""Ways from a query to a DataFrame. Imports nothing of rankmon, which Evidently's environment lacks."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

Feed = Callable[[str], pd.DataFrame]
"""The answer to a query."""


def read_sql(url: str) -> Feed:
    """By pandas.read_sql over SQLAlchemy and psycopg, as pandas documents it first."""
    import sqlalchemy as sa

    engine = sa.create_engine(url, poolclass=sa.NullPool)

    def feed(query: str) -> pd.DataFrame:
        with engine.connect() as connection:
            return pd.read_sql(query, connection)

    return feed


def adbc(url: str) -> Feed:
    """By Arrow's driver for PostgreSQL, which takes the rows from a binary COPY."""
    import adbc_driver_postgresql.dbapi

    plain = url.replace("+psycopg", "")

    def feed(query: str) -> pd.DataFrame:
        with adbc_driver_postgresql.dbapi.connect(plain) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            frame: pd.DataFrame = cursor.fetch_arrow_table().to_pandas()
            return frame

    return feed


FEEDS: dict[str, Callable[[str], Feed]] = {"pandas.read_sql": read_sql, "ADBC": adbc}
FEED_MODULES = {"pandas.read_sql": "pandas", "ADBC": "adbc_driver_postgresql"}
"""Feed -> what must be installed."""
