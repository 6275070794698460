"""Migrates and checks the store's schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from monitor.errors import StoreError
from monitor.store.engine import Connected
from monitor.store.waiting import at_leisure

PACKAGE = Path(__file__).parent.parent
LOCK = 7_265_616
"""Advisory lock held in PostgreSQL while tables change."""

UNRELEASED = "0015"
"""The last schema before the first release. It and earlier ones name tables that this version lacks."""


class Schema(Connected):
    """The tables of `monitor.store.schema` and their migrations."""

    def migrate(self) -> tuple[str | None, str]:
        """(revision before, revision now) of migrating to this version's schema; concurrent calls queue.

        Raises:
            StoreError: out of reach, or written by a newer rankmon.
        """
        with self.writing() as connection, self._alone(connection):
            before, needed = _revision(connection), _known()[-1]
            _refuse_others(before)
            if before != needed:
                from alembic import command

                command.upgrade(_alembic(connection), "head")
            return before, needed

    @contextmanager
    def _alone(self, connection: sa.Connection) -> Iterator[None]:
        """Waits, possibly long, until nobody else changes the tables."""
        if self.dialect == "sqlite":  # allows only one writer
            yield
            return
        with at_leisure(connection):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
            yield

    def lacks(self) -> str:
        """What is wrong with a database without rankmon's tables; empty if it has them. Raises StoreError."""
        with self.reading() as connection:
            if _revision(connection) is not None:
                return ""
            others = sorted(sa.inspect(connection).get_table_names())
        if others:
            named = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            return f"has tables of another program ({named}) and none of rankmon; check store.url"
        return "no rankmon tables yet; rankmon run creates them"

    def check(self) -> None:
        """Raises StoreError unless the tables match this version."""
        with self.reading() as connection:
            current, needed = _revision(connection), _known()[-1]
        _refuse_others(current)
        if current != needed:
            raise StoreError(
                f"the store is at schema {current or 'none'}, but {needed} is required; run rankmon migrate"
            )


def _alembic(connection: sa.Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrations_folder() -> Path:
    """The folder of migration scripts: inside the installed package, or next to it in a checkout."""
    inside = PACKAGE / "_migrations"
    return inside if inside.is_dir() else PACKAGE.parent / "migrations"


def _known() -> list[str]:
    """All revisions, newest last, from file names: importing Alembic takes longer than the check."""
    return sorted(path.name.partition("_")[0] for path in (migrations_folder() / "versions").glob("[0-9]*.py"))


def _refuse_others(current: str | None) -> None:
    if current is None or current in _known():
        return
    if current <= UNRELEASED:
        raise StoreError(
            f"the store is at schema {current}, from before the first release, and cannot be migrated: set store.url "
            "to a new store, and fill it with rankmon backfill"
        )
    raise StoreError(
        f"the store is at schema {current}, written by a newer rankmon: upgrade this one; "
        "unless store.url names the database of another program"
    )


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return revision
