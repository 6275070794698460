"""Database URLs, with their passwords filled in."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy.engine import URL

from monitor.database_url import parse_url

_ASYNCHRONOUS = frozenset({"asyncpg", "psycopg_async", "aiosqlite", "aiomysql", "asyncmy", "aioodbc"})
_SHOWN = ("password", "passwd", "pwd")


def store_url(url: URL) -> URL:
    """The URL, if rankmon's own tables can be there.

    Raises:
        ValueError: with the remedy.
    """
    if url.get_backend_name() in ("sqlite", "postgresql"):
        return url
    remedy = "use sqlite:///rankmon.db or postgresql+psycopg://user@host/name"
    raise ValueError(f"rankmon cannot keep its tables in {url.get_backend_name()}; {remedy}")


def database_url(text: str, password: str | None, folder: Path) -> URL:
    """The URL of a text, with the password, if any, and a relative file made one in `folder`.

    Raises:
        ValueError: with the remedy, and without a part of the URL, which may be a password that was not escaped.
    """
    try:
        url = parse_url(text)
    except ValueError:
        url = None
    if url is None:
        raise ValueError("is not a database URL; write e.g. postgresql+psycopg://user@host/name or sqlite:///file.db")
    if wrong := _fault(url, password or None):
        raise ValueError(wrong)
    return _in_folder(folder, url.set(password=password) if password else url)


def _in_folder(folder: Path, url: URL) -> URL:
    """The URL with a relative file made one in `folder`; `:memory:`, `file:…` and `md:…` are no paths."""
    if url.get_backend_name() not in ("sqlite", "duckdb") or not url.database or re.match(r"\w*:", url.database):
        return url
    return url.set(database=str(folder / url.database))


def _fault(url: URL, password: str | None) -> str | None:
    _, _, driver = url.drivername.partition("+")
    if driver in _ASYNCHRONOUS:
        return f"{driver} is an asynchronous driver; use another, e.g. postgresql+psycopg"
    # After a password with @ and / what is left of it would be taken for the database's name, and shown as such.
    if "@" in (url.host or "") or (url.password is not None and "@" in (url.database or "")):
        return "the user or password contains an @; write it as %40, or set `password:`"
    if url.password is not None and password is not None and url.password != password:
        return "contains a password, and another is given; keep one"
    if any(word in key.lower() for key in url.query for word in _SHOWN):
        return "contains a password after the ?, where it would be shown; set `password:` instead"
    return _sqlite_fault(url, password) if url.get_backend_name() == "sqlite" else None


def _sqlite_fault(url: URL, password: str | None) -> str | None:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        return "names no SQLite file; write sqlite:///relative.db or sqlite:////absolute/path.db"
    if url.host or url.username or password is not None or url.password is not None:
        return "SQLite has no host, user or password; write sqlite:///relative.db or sqlite:////absolute/path.db"
    return None
