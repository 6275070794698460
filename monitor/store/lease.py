"""Who may write a monitor: a row in the store, by the database's clock, renewed while the work goes on."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.errors import LeaseLost, StoreError
from monitor.schema import leases
from monitor.store.engine import NOW, Connected, insert_new


@dataclass(frozen=True)
class Lease:
    """The right to write one monitor, until it expires or somebody takes it over. `token` rises with each holder."""

    monitor: str
    holder: str
    token: int


class Leases(Connected):
    """Leases of this process."""

    def __init__(self, engine: sa.Engine, url: URL, seconds: float) -> None:
        """`seconds`: how long a writer that has died on another machine keeps others out, at most."""
        super().__init__(engine, url)
        self.seconds = seconds
        self.holder = _process_identity()

    @contextmanager
    def hold(self, monitor: str) -> Iterator[Lease]:
        """The right to write `monitor` for as long as the block runs.

        Raises:
            LeaseLost: another living process has it.
        """
        lease = self.acquire(monitor)
        if lease is None:
            raise LeaseLost(f"monitor {monitor}: {self.describe(monitor)} is writing it; this one steps aside")
        done = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(lease, done), name=f"lease-{monitor}", daemon=True)
        keeper.start()
        try:
            yield lease
        finally:
            done.set()
            keeper.join()
            self.release(lease)

    def _keep(self, lease: Lease, done: threading.Event) -> None:
        while not done.wait(self.seconds / 3):
            try:
                self.renew(lease)
            except StoreError:
                continue  # the next write is fenced and says so, if it is lost
            except LeaseLost:
                return

    def describe(self, monitor: str) -> str:
        """Who holds a monitor, in words."""
        with self.reading() as connection:
            holder = connection.execute(sa.select(leases.c.holder).where(leases.c.monitor == monitor)).scalar()
        parts = str(holder or "").split("|")
        return f"process {parts[3]} on {parts[0]}" if len(parts) == 5 else "another process"

    def acquire(self, monitor: str) -> Lease | None:
        """The right to write `monitor`, or None while another living process has it."""
        now = sa.literal_column(NOW[self.dialect], sa.Double)
        with self.writing() as connection:
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
                .values(holder=self.holder, token=token, expires_at=now + self.seconds)
            )
            return Lease(monitor, self.holder, token)

    def _first_lease(self, connection: sa.Connection, monitor: str, now: sa.ColumnElement[float]) -> Lease | None:
        added = connection.execute(
            insert_new(self.dialect, leases).from_select(
                ["monitor", "holder", "token", "expires_at"],
                sa.select(sa.literal(monitor), sa.literal(self.holder), sa.literal(1), now + self.seconds),
            )
            if self.dialect == "postgresql"
            else leases.insert().values(monitor=monitor, holder=self.holder, token=1, expires_at=now + self.seconds)
        )
        return Lease(monitor, self.holder, 1) if added.rowcount == 1 else None

    def renew(self, lease: Lease) -> None:
        """Keep the lease for another while. Raises LeaseLost if somebody took it over."""
        with self.writing() as connection:
            self.fence(connection, lease)

    def release(self, lease: Lease) -> None:
        """Let others write at once. The row stays, so that tokens go on rising."""
        mine = (leases.c.monitor == lease.monitor, leases.c.holder == lease.holder, leases.c.token == lease.token)
        with self.writing() as connection:
            connection.execute(leases.update().where(*mine).values(expires_at=0.0))

    def fence(self, connection: sa.Connection, lease: Lease) -> None:
        """Renew the lease as part of a transaction. Raises LeaseLost if it is another's now."""
        now = sa.literal_column(NOW[self.dialect], sa.Double)
        mine = (leases.c.monitor == lease.monitor, leases.c.holder == lease.holder, leases.c.token == lease.token)
        kept = connection.execute(leases.update().where(*mine).values(expires_at=now + self.seconds))
        if kept.rowcount != 1:
            raise LeaseLost(f"monitor {lease.monitor}: another process took over writing; this one stepped aside")


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
