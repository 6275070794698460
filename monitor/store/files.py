"""SQLite store files: permissions, damage, and remedies."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

PRIVATE = 0o600
"""Mode of the store's files: they hold queries that people typed."""

OTHERS = 0o007
"""Mode bits of everybody else."""

LONGEST_LOOK = 60
"""Seconds to search for damage; after that a fault counts as a bug of rankmon."""

_EFFECTIVE = os.access in os.supports_effective_ids


def fault_of(path: Path) -> str:
    """Why this user cannot write or create the store `path`, with the remedy; empty if nothing is wrong."""
    path, folder = path.absolute(), path.absolute().parent
    if is_folder(path):
        return f"{path} is a folder; set store.url to a file in it, e.g. sqlite:///{path}/rankmon.db"
    if _seen(path.exists) and not _may(path, os.R_OK):
        return f"{user()} may not read {path}; run rankmon as its owner, or let its group read it (chmod 640)"
    if not _may(folder, os.W_OK | os.X_OK):
        return (
            f"{user()} may not write to the folder {folder}, where SQLite keeps the store and its journal; let "
            "this user write there, run rankmon as the user who may, or change store.url"
        )
    if _seen(path.exists) and not _may(path, os.R_OK | os.W_OK):
        return f"{user()} may not write {path}; let this user write it, or run rankmon as the user who may"
    return ""


def keep_private(path: Path) -> None:
    """Make a new or world-readable store readable by its owner alone, whatever the umask.

    SQLite gives its journal the same mode. A file that only a group may read was made so on purpose.
    """
    with suppress(OSError):  # SQLite reports it
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, PRIVATE))
            path.chmod(PRIVATE)  # a umask may have removed more
        elif path.stat().st_mode & OTHERS and _may(path, os.W_OK):
            for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
                with suppress(FileNotFoundError):
                    path.with_name(name).chmod(PRIVATE)


def user() -> str:
    """The user this process runs as, such as `user rankmon`."""
    import pwd

    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user {os.geteuid()}"  # a container's user may have no name


def is_left_alone(path: Path) -> bool:
    """Whether this user may only read the store and no process has it open: then there is no journal."""
    if not _seen(path.is_file) or path.with_name(path.name + "-wal").exists():
        return False
    return not (_may(path, os.W_OK) and _may(path.parent, os.W_OK | os.X_OK))


def open_left_alone(path: Path, timeout: float) -> Any:
    """A read-only connection. SQLite would otherwise create a journal even to read."""
    name = f"file:{quote(str(path.absolute()))}?immutable=1"
    return sqlite3.connect(name, uri=True, timeout=timeout, check_same_thread=False)


def damage_of(path: Path) -> str:
    """The first damage SQLite finds in a store, reading all of it; empty if none, or if that takes too long."""
    until = time.monotonic() + LONGEST_LOOK
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            connection.set_progress_handler(lambda: time.monotonic() > until, 100_000)
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.OperationalError:
        return ""
    except (sqlite3.DatabaseError, UnicodeError) as error:  # its own words may be damaged too
        found = str(error)
    return "" if found == "ok" else str(found)


def is_folder(path: Path) -> bool:
    """Whether it is a folder, as far as this user can see."""
    return _seen(path.is_dir)


def _seen(is_so: Callable[[], bool]) -> bool:
    try:
        return is_so()
    except PermissionError:
        return False  # that folder cannot be searched


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=_EFFECTIVE)
