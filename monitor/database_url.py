"""Database URLs: read with the configuration by the same parser that they are opened with."""

from __future__ import annotations

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError


def parse_url(text: str, password: str | None) -> URL:
    """The URL with `password` filled in.

    Raises:
        ValueError: no database URL.
    """
    try:
        url = make_url(text)
    except SQLAlchemyError as error:
        raise ValueError("is no database URL; write e.g. postgresql+psycopg://user@host/name") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    return url if password is None else url.set(password=password)
