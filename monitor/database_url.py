"""Database URLs, read by the same parser that opens them."""

from __future__ import annotations

import sys
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
"""The driver that is taken where a URL names none."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra into this rankmon."""
    return f"{sys.executable} -m pip install 'rankmon[{extra}]'"


def postgresql_arguments(url: URL, program: str, connect_timeout: int, silence: int) -> dict[str, Any]:
    """Connection arguments for PostgreSQL, a source or the store, except those that the URL sets.

    A pooler may give each transaction another connection, so nothing is prepared beyond one.

    Args:
        program: the application's name, which poolers let through.
        silence: seconds after which a machine that is gone is noticed.
    """
    if url.get_driver_name() not in ("psycopg", "psycopg2"):
        return {}
    wanted: dict[str, Any] = {"application_name": program, "connect_timeout": connect_timeout}
    wanted |= {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    wanted |= {"tcp_user_timeout": 1000 * silence}
    if url.get_driver_name() == "psycopg":
        wanted["prepare_threshold"] = None
    return {name: value for name, value in wanted.items() if name not in url.query}


def parse_url(text: str) -> URL:
    """The URL, with the driver that rankmon uses. Raises ValueError: no database URL."""
    try:
        url = make_url(text)
    except SQLAlchemyError as error:
        raise ValueError("is not a database URL; write e.g. postgresql+psycopg://user@host/name") from error
    if url.drivername in _DRIVERS:
        url = url.set(drivername=_DRIVERS[url.drivername])
    return url
