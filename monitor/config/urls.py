"""Database URLs with their passwords, from the file itself or from secret files beside it."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy.engine import URL

from monitor.config.report import Report, Where
from monitor.config.shape import Database
from monitor.database_url import parse_url

_ASYNCHRONOUS = frozenset({"asyncpg", "psycopg_async", "aiosqlite", "aiomysql", "asyncmy", "aioodbc"})
_SHOWN = ("password", "passwd", "pwd")


def store_url(shape: Database, where: Where, report: Report) -> URL | None:
    """The URL of rankmon's own database; None if it is wrong, which is reported."""
    url = database_url(shape, where, report)
    if url is None:
        return None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        remedy = "use sqlite:///rankmon.db or postgresql+psycopg://user@host/name"
        report.add(_place(shape, where), f"rankmon cannot keep its tables in {url.get_backend_name()}; {remedy}")
        return None
    return url


def database_url(shape: Database, where: Where, report: Report) -> URL | None:
    """The URL that `shape` gives, with its password; None if it is wrong, which is reported."""
    text = shape.url if shape.url_file is None else secret(shape.url_file, (*where, "url_file"), report)
    password = shape.password or None
    if shape.password_file is not None:
        password = secret(shape.password_file, (*where, "password_file"), report)
    if text is None or (password is None and shape.password_file is not None):
        return None
    url = _checked(text, password, _place(shape, where), report)
    return None if url is None else _beside(report.file.parent, url)


def _beside(folder: Path, url: URL) -> URL:
    """The URL with a relative file made one in `folder`; `:memory:`, `file:…` and `md:…` are no paths."""
    if url.get_backend_name() not in ("sqlite", "duckdb") or not url.database or re.match(r"\w*:", url.database):
        return url
    return url.set(database=str(folder / url.database))


def _place(shape: Database, where: Where) -> Where:
    return (*where, "url" if shape.url_file is None else "url_file")


def secret(name: str, where: Where, report: Report) -> str | None:
    """What stands in a secret's file, named relative to the configuration; None if it is wrong, which is reported."""
    path = report.file.parent / name
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except FileNotFoundError:
        report.add_no_file(where, name)
    except UnicodeDecodeError:
        report.add_of_file(where, name, "the file {file} is not written in UTF-8")
    except OSError as error:
        report.add_of_file(where, name, f"the file {{file}} cannot be read ({error.strerror}); let this user read it")
    else:
        if text:
            return text
        report.add_of_file(where, name, "the file {file} is empty")
    return None


def _checked(text: str, password: str | None, place: Where, report: Report) -> URL | None:
    try:
        url = parse_url(text, None)
    except ValueError:
        # SQLAlchemy's own text would show parts of the URL, and so of a password that was not escaped.
        report.add(place, "is no database URL; write e.g. postgresql+psycopg://user@host/name or sqlite:///file.db")
        return None
    if wrong := _fault(url, password):
        report.add(place, wrong)
        return None
    return url if password is None else url.set(password=password)


def _fault(url: URL, password: str | None) -> str | None:
    _, _, driver = url.drivername.partition("+")
    if driver in _ASYNCHRONOUS:
        return f"{driver} is an asynchronous driver; use another, e.g. postgresql+psycopg"
    # After a password with @ and / what is left of it would be taken for the database's name, and shown as such.
    if "@" in (url.host or "") or (url.password is not None and "@" in (url.database or "")):
        return "the user or password holds an @; write it as %40, or give the password as `password:`"
    if url.password is not None and password is not None:
        return "holds a password, and there is one beside it; keep just one"
    if any(word in key.lower() for key in url.query for word in _SHOWN):
        return "holds a password after the ?, where it would be shown; give it as `password:`"
    return _sqlite_fault(url, password) if url.get_backend_name() == "sqlite" else None


def _sqlite_fault(url: URL, password: str | None) -> str | None:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        return "names no SQLite file; write sqlite:///relative.db or sqlite:////absolute/path.db"
    if url.host or url.username or password is not None or url.password is not None:
        return "SQLite has no host, user or password; write sqlite:///relative.db or sqlite:////absolute/path.db"
    return None
