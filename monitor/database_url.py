"""Database URLs: read with the configuration by the same parser that they are opened with."""

from __future__ import annotations

import sys

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
"""The driver that is taken where a URL names none."""


def how_to_install(extra: str) -> str:
    """The command that brings what an extra needs, be this rankmon of a wheel or of a checkout: it is there already."""
    return f"{sys.executable} -m pip install 'rankmon[{extra}]'"


def parse_url(text: str, password: str | None) -> URL:
    """The URL with `password` filled in.

    Raises:
        ValueError: no database URL.
    """
    try:
        url = make_url(text)
    except SQLAlchemyError as error:
        raise ValueError("is no database URL; write e.g. postgresql+psycopg://user@host/name") from error
    if url.drivername in _DRIVERS:
        url = url.set(drivername=_DRIVERS[url.drivername])
    return url if password is None else url.set(password=password)
