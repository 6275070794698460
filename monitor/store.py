"""rankmon's own database: what was computed, until when, and who may write.

Every write is one transaction, fenced by the writer's lease, and replaces whole buckets; so a write that is repeated
changes nothing, and one that is cut short never was.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from monitor.core.buckets import FIELDS, TRAFFIC_FIELDS
from monitor.core.tally import Cell, Tally
from monitor.core.types import OVERALL, TRAFFIC, Definition, Monitor
from monitor.core.watermark import BucketState
from monitor.core.windows import History
from monitor.errors import LeaseLost, StoreError
from monitor.schema import (
    judgments_used,
    leases,
    metadata,
    monitors,
    partials,
    refusals,
    restatements,
    series,
    slices,
    traffic,
)

Floats = NDArray[np.float64]

_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
}
_BATCH = 500
_MIGRATION_LOCK = 7_265_616


@dataclass(frozen=True)
class Lease:
    """The right to write one monitor, until it expires or somebody takes it over. `token` rises with each holder."""

    monitor: str
    holder: str
    token: int


@dataclass(frozen=True)
class Progress:
    """What is known of a monitor's runs, by any process; instants in seconds."""

    newest_source_at: float | None = None
    last_attempt_at: float | None = None
    last_success_at: float | None = None
    last_error: str = ""


@dataclass(frozen=True)
class Written:
    """What a write did: buckets stored by series, and the starts of final ones kept because the read held less."""

    buckets: int
    kept: tuple[int, ...]


class Store:
    """The tables of `schema`, in SQLite (WAL) or PostgreSQL. Safe to share between threads."""

    def __init__(self, url: URL, lease_seconds: float = 30) -> None:
        """`lease_seconds`: how long a writer that has died keeps others out, at most."""
        self.url = url
        self.lease_seconds = lease_seconds
        self.holder = _process_identity()
        self._engine = _engine(url)
        self._ids: dict[Definition, int] = {}

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with _explained(self.url), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        with _explained(self.url), self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    # ---- schema ----------------------------------------------------------------------------------------------

    def migrate(self) -> tuple[str | None, str]:
        """Bring the tables to this version's schema; (revision before, revision now). Two at once wait in line.

        Raises:
            StoreError: out of reach, or written by a newer rankmon.
        """
        from alembic import command

        with self._write() as connection:
            if self.dialect == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            config, before = _alembic(connection), _revision(connection)
            _refuse_newer(config, before)
            command.upgrade(config, "head")
            return before, str(_revision(connection))

    def check_schema(self) -> None:
        """Raises StoreError unless the tables are just as this version needs them."""
        with self._write() as connection:
            config, current = _alembic(connection), _revision(connection)
        _refuse_newer(config, current)
        if current != _head(config):
            raise StoreError(
                f"the store is at schema {current or 'none'}, needed is {_head(config)}; run rankmon migrate"
            )

    # ---- leases ----------------------------------------------------------------------------------------------

    def acquire(self, monitor: str) -> Lease | None:
        """The right to write `monitor`, or None while another living process has it."""
        now = sa.literal_column(_NOW[self.dialect], sa.Double)
        with self._write() as connection:
            row = connection.execute(
                sa.select(leases, (leases.c.expires_at < now).label("expired"))
                .where(leases.c.monitor == monitor)
                .with_for_update()
            ).one_or_none()
            if row is None:
                return self._first_lease(connection, monitor, now)
            if row.holder != self.holder and not row.expired and not _is_dead(row.holder, self.holder):
                return None
            token = row.token if row.holder == self.holder else row.token + 1
            connection.execute(
                leases.update()
                .where(leases.c.monitor == monitor)
                .values(holder=self.holder, token=token, expires_at=now + self.lease_seconds)
            )
            return Lease(monitor, self.holder, token)

    def _first_lease(self, connection: sa.Connection, monitor: str, now: sa.ColumnElement[float]) -> Lease | None:
        added = connection.execute(
            _insert_new(self.dialect, leases).from_select(
                ["monitor", "holder", "token", "expires_at"],
                sa.select(sa.literal(monitor), sa.literal(self.holder), sa.literal(1), now + self.lease_seconds),
            )
            if self.dialect == "postgresql"
            else leases.insert().values(
                monitor=monitor, holder=self.holder, token=1, expires_at=now + self.lease_seconds
            )
        )
        return Lease(monitor, self.holder, 1) if added.rowcount == 1 else None

    def renew(self, lease: Lease) -> None:
        """Keep the lease for another while. Raises LeaseLost if somebody took it over."""
        with self._write() as connection:
            self._fence(connection, lease)

    def release(self, lease: Lease) -> None:
        """Let others write at once. The row stays, so that tokens go on rising."""
        mine = (leases.c.monitor == lease.monitor, leases.c.holder == lease.holder, leases.c.token == lease.token)
        with self._write() as connection:
            connection.execute(leases.update().where(*mine).values(expires_at=0.0))

    def _fence(self, connection: sa.Connection, lease: Lease) -> None:
        now = sa.literal_column(_NOW[self.dialect], sa.Double)
        mine = (leases.c.monitor == lease.monitor, leases.c.holder == lease.holder, leases.c.token == lease.token)
        kept = connection.execute(leases.update().where(*mine).values(expires_at=now + self.lease_seconds))
        if kept.rowcount != 1:
            raise LeaseLost(f"monitor {lease.monitor}: another process took over writing; this one stepped aside")

    # ---- what is stored --------------------------------------------------------------------------------------

    def states(self, definition: Definition, since: int) -> dict[int, BucketState]:
        """Start -> state of the buckets of a series from `since` on, and of all older ones that are not final."""
        table = _table(definition)
        query = (
            sa.select(table.c.bucket_start, table.c.read_at, table.c.final)
            .join(series, series.c.id == table.c.series_id)
            .join(slices, slices.c.id == table.c.slice_id)
            .where(*_is(definition), slices.c.dimension == OVERALL[0])
            .where(sa.or_(table.c.bucket_start >= since, ~table.c.final))
        )
        with self._read() as connection:
            return {start: BucketState(read_at, bool(final)) for start, read_at, final in connection.execute(query)}

    def newest_bucket(self, definition: Definition) -> int | None:
        """Start of the newest bucket that is stored of a series."""
        table = _table(definition)
        query = sa.select(sa.func.max(table.c.bucket_start)).join(series, series.c.id == table.c.series_id)
        with self._read() as connection:
            return connection.execute(query.where(*_is(definition))).scalar()

    def known_slices(self, monitor: str) -> dict[str, set[str]]:
        """Dimension -> values that were admitted."""
        known: dict[str, set[str]] = {}
        query = sa.select(slices.c.dimension, slices.c.value).where(slices.c.monitor == monitor)
        with self._read() as connection:
            for dimension, value in connection.execute(query):
                known.setdefault(dimension, set()).add(value)
        return known

    def history(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> History:
        """The stored buckets of a series that start in [since, until) seconds."""
        table = _table(definition)
        fields = TRAFFIC_FIELDS if definition.kernel == TRAFFIC else FIELDS
        query = (
            sa.select(
                table.c.bucket_start, table.c.final, slices.c.dimension, slices.c.value, *(table.c[f] for f in fields)
            )
            .join(series, series.c.id == table.c.series_id)
            .join(slices, slices.c.id == table.c.slice_id)
            .where(*_is(definition), table.c.bucket_start >= since, table.c.bucket_start < until)
        )
        if overall_only:
            query = query.where(slices.c.dimension == OVERALL[0])
        with self._read() as connection:
            cursor: Any = connection.execute(query).cursor
            columns = [list(c) for c in zip(*cursor.fetchall(), strict=True)]
        return History.of(columns or [[] for _ in range(4 + len(fields))], len(fields))

    def refused(self, definition: Definition, since: int, until: int) -> dict[str, int]:
        """Reason -> refused rows (overall) of the buckets that start in [since, until)."""
        query = (
            sa.select(refusals.c.reason, sa.func.sum(refusals.c.rows))
            .join(series, series.c.id == refusals.c.series_id)
            .join(slices, slices.c.id == refusals.c.slice_id)
            .where(*_is(definition), slices.c.dimension == OVERALL[0])
            .where(refusals.c.bucket_start >= since, refusals.c.bucket_start < until)
            .group_by(refusals.c.reason)
        )
        with self._read() as connection:
            return {reason: int(rows) for reason, rows in connection.execute(query)}

    # ---- writing ---------------------------------------------------------------------------------------------

    def write(
        self,
        lease: Lease,
        monitor: Monitor,
        tally: Tally,
        targets: Mapping[Definition, Sequence[int]],
        read_at: float,
        finals: Iterable[int],
        force: bool = False,
    ) -> Written:
        """Store buckets of a tally, for each series those that `targets` names, in one transaction.

        A stored final bucket is replaced only by a read that holds at least as many requests and labels, or by `force`.

        Raises:
            LeaseLost: another process writes this monitor now; nothing was stored.
        """
        final = set(finals)
        with self._write() as connection:
            self._fence(connection, lease)
            numbers = self._slice_ids(connection, monitor.name, tally)
            ids = {d: self._series_id(connection, monitor, d) for d in targets}
            kept = () if force else _shrinking(connection, ids, targets, tally)
            stored = 0
            for definition, starts in targets.items():
                wanted = [s for s in starts if s not in kept]
                stored = max(stored, len(wanted))
                self._replace(connection, ids[definition], definition, wanted, tally, numbers, read_at, final)
        return Written(stored, kept)

    def _replace(
        self,
        connection: sa.Connection,
        number: int,
        definition: Definition,
        starts: Sequence[int],
        tally: Tally,
        slice_ids: Mapping[tuple[str, str], int],
        read_at: float,
        final: set[int],
    ) -> None:
        table, is_traffic = _table(definition), definition.kernel == TRAFFIC
        gone = (table, refusals, judgments_used) if is_traffic else (table,)
        for old in gone:
            _delete(connection, old, number, starts)
        wanted = set(starts)
        cells = tally.traffic if is_traffic else tally.measures[definition.kernel]
        rows = [
            {
                **_key(number, cell, slice_ids),
                **_fields(values, is_traffic),
                "read_at": read_at,
                "final": cell[0] in final,
            }
            for cell, values in cells.items()
            if cell[0] in wanted
        ]
        _insert(connection, table, rows)
        if is_traffic:
            refused = [
                {**_key(number, cell, slice_ids), "reason": reason, "rows": rows_refused}
                for (cell, reason), rows_refused in tally.refused.items()
                if cell[0] in wanted
            ]
            _insert(connection, refusals, refused)
            used = [{"series_id": number, "bucket_start": s, "fingerprint": tally.fingerprint} for s in starts]
            _insert(connection, judgments_used, used if tally.fingerprint else [])

    def _slice_ids(self, connection: sa.Connection, monitor: str, tally: Tally) -> dict[tuple[str, str], int]:
        query = sa.select(slices.c.dimension, slices.c.value, slices.c.id).where(slices.c.monitor == monitor)
        found = {(d, v): i for d, v, i in connection.execute(query)}
        named = dict.fromkeys([OVERALL, *tally.admitted, *((d, v) for _, d, v in tally.traffic)])
        for dimension, value in named:
            if (dimension, value) not in found:
                added = slices.insert().values(monitor=monitor, dimension=dimension, value=value)
                key = connection.execute(added).inserted_primary_key
                found[dimension, value] = int(key[0]) if key else 0
        return found

    def _series_id(self, connection: sa.Connection, monitor: Monitor, definition: Definition) -> int:
        found = connection.execute(sa.select(series.c.id).where(*_is(definition))).scalar()
        if found is not None:
            return int(found)
        added = series.insert().values(
            monitor=definition.monitor,
            kernel=definition.kernel,
            definition=definition.id,
            bucket_seconds=monitor.bucket,
            defined_as=definition.text,
        )
        key = connection.execute(added).inserted_primary_key
        return int(key[0]) if key else 0

    def log_restatement(self, lease: Lease, since: int, until: int, now: float, forced: bool, buckets: int) -> None:
        """Note that final buckets in [since, until) were read again."""
        with self._write() as connection:
            self._fence(connection, lease)
            connection.execute(
                restatements.insert().values(
                    monitor=lease.monitor, since=since, until=until, restated_at=now, forced=forced, buckets=buckets
                )
            )

    # ---- progress --------------------------------------------------------------------------------------------

    def progress(self, monitor: str) -> Progress:
        """What is known of a monitor's runs."""
        columns = [monitors.c[f] for f in Progress.__dataclass_fields__]
        with self._read() as connection:
            row = connection.execute(sa.select(*columns).where(monitors.c.monitor == monitor)).one_or_none()
        return Progress(*row) if row is not None else Progress()

    def record(self, monitor: str, **changes: float | str | None) -> Progress:
        """Note some fields of `Progress`; the others stay."""
        with self._write() as connection:
            updated = connection.execute(monitors.update().where(monitors.c.monitor == monitor).values(**changes))
            if updated.rowcount == 0:
                connection.execute(_insert_new(self.dialect, monitors).values(monitor=monitor, **changes))
        return replace(Progress(), **changes)  # type: ignore[arg-type]


# ---- helpers -------------------------------------------------------------------------------------------------


def _table(definition: Definition) -> sa.Table:
    return traffic if definition.kernel == TRAFFIC else partials


def _is(definition: Definition) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        series.c.monitor == definition.monitor,
        series.c.kernel == definition.kernel,
        series.c.definition == definition.id,
    )


def _key(number: int, cell: Cell, slice_ids: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {"series_id": number, "bucket_start": cell[0], "slice_id": slice_ids[cell[1], cell[2]]}


def _fields(values: Floats, is_traffic: bool) -> dict[str, float]:
    names = TRAFFIC_FIELDS if is_traffic else FIELDS
    return dict(zip(names, (int(v) for v in values) if is_traffic else values.tolist(), strict=True))


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)


def _delete(connection: sa.Connection, table: sa.Table, number: int, starts: Sequence[int]) -> None:
    for at in range(0, len(starts), _BATCH):
        some = table.c.bucket_start.in_(list(starts[at : at + _BATCH]))
        connection.execute(table.delete().where(table.c.series_id == number, some))


def _insert_new(dialect: str, table: sa.Table) -> Any:
    """An INSERT that leaves a row that is there alone."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).on_conflict_do_nothing()


def _shrinking(
    connection: sa.Connection, ids: Mapping[Definition, int], targets: Mapping[Definition, Sequence[int]], tally: Tally
) -> tuple[int, ...]:
    """Starts of stored final buckets that held more requests or labels than the tally does."""
    found: list[int] = []
    for definition, number in ids.items():
        if definition.kernel != TRAFFIC:
            continue
        starts = list(targets[definition])
        for at in range(0, len(starts), _BATCH):
            query = (
                sa.select(traffic.c.bucket_start, traffic.c.requests, traffic.c.labelled)
                .join(slices, slices.c.id == traffic.c.slice_id)
                .where(traffic.c.series_id == number, traffic.c.final, slices.c.dimension == OVERALL[0])
                .where(traffic.c.bucket_start.in_(starts[at : at + _BATCH]))
            )
            for start, requests, labelled in connection.execute(query):
                now = tally.traffic[start, *OVERALL]
                if now[0] < requests or now[1] < labelled:
                    found.append(start)
    return tuple(found)


def _engine(url: URL) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url)
    arguments = {"connect_timeout": 10, "application_name": "rankmon-store"}
    return sa.create_engine(url, pool_pre_ping=True, pool_recycle=3600, connect_args=arguments)


def _sqlite_engine(url: URL) -> sa.Engine:
    folder = Path(url.database or "").parent
    if not folder.is_dir():
        raise StoreError(f"store: there is no folder {folder.absolute()}; make it, or change store.url")
    engine = sa.create_engine(url, connect_args={"timeout": 30})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin below, and at once as writers
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if connection.get_isolation_level() != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextmanager
def _explained(url: URL) -> Iterator[None]:
    try:
        yield
    except (DBAPIError, SQLAlchemyError, ModuleNotFoundError) as error:
        cause = getattr(error, "orig", None) or error
        said = " ".join(str(cause).split())
        if url.password:
            said = said.replace(str(url.password), "***")
        raise StoreError(f"store {url.render_as_string(hide_password=True)}: {said}") from error


def _alembic(connection: sa.Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.attributes["connection"] = connection
    return config


def migrations_folder() -> Path:
    """Where the migration scripts are: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "_migrations"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "migrations"


def _head(config: Any) -> str:
    from alembic.script import ScriptDirectory

    return str(ScriptDirectory.from_config(config).get_current_head())


def _refuse_newer(config: Any, current: str | None) -> None:
    from alembic.script import ScriptDirectory

    known = {s.revision for s in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise StoreError(f"the store is at schema {current}, written by a newer rankmon; upgrade this one")


def _revision(connection: sa.Connection) -> str | None:
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def _process_identity() -> str:
    """host|boot|process namespace|pid|nonce: enough to tell on the same machine whether a holder still lives."""
    return "|".join([socket.gethostname(), _boot(), _namespace(), str(os.getpid()), uuid.uuid4().hex[:8]])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "?"


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "?"


def _is_dead(holder: str, own: str) -> bool:
    """Whether the holder was a process of this very machine that is no more."""
    theirs, mine = holder.split("|"), own.split("|")
    if len(theirs) != len(mine) or theirs[:3] != mine[:3] or "?" in theirs[:3]:
        return False
    if theirs[3] == mine[3]:
        return False  # another store in this very process, or its number used again: wait for the lease to expire
    try:
        os.kill(int(theirs[3]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


__all__ = ["Lease", "Progress", "Store", "Written", "metadata", "migrations_folder"]
