"""Database URLs: read with the configuration by the same parser that they are opened with."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

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


SHORT = 8
"""Characters below which a secret is hidden where it is a word of its own only: it may be part of any word."""


def without(text: str, secrets: Iterable[str]) -> str:
    """`text` with stars in place of secrets, such as the password that a URL holds.

    >>> without("column exists; cannot log in with x at db://me:x@host", ["x"])
    'column exists; cannot log in with *** at db://me:***@host'
    >>> without("at db://me:open-sesame@host, not open-sesame1", ["open-sesame"])
    'at db://me:***@host, not ***1'
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        found = re.escape(secret)
        text = re.sub(rf"(?<!\w){found}(?!\w)" if len(secret) < SHORT else found, "***", text)
    return text
