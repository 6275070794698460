"""The right to write a monitor: a row in the store, timed by the database's clock and renewed while work continues."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.errors import LeaseLost, StoreError
from monitor.store.engine import NOW, PROGRAM, Connected, upserted
from monitor.store.schema import leases

LONGEST_LEFT = 3600.0
"""Most seconds a lease can have left, unless this process's own are longer: more was written by a clock that ran ahead.
"""


UNNAMED = "another process"

_CUT_OFF = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
    "AND datname = current_database() AND usename = current_user AND application_name = :program "
    "AND xact_start IS NOT NULL AND wait_event_type = 'Client' "
    "AND greatest(query_start, state_change) < clock_timestamp() - make_interval(secs => :seconds)"
).bindparams(program=PROGRAM)
"""Ends transactions in which PostgreSQL waits for a frozen process. `idle_in_transaction_session_timeout` only works
between two commands, not within the rows of an INSERT or of a result."""


@dataclass(frozen=True)
class Lease:
    """The right to write one monitor until it expires or is taken over. `token` rises with each holder."""

    monitor: str
    holder: str
    token: int


class Leases(Connected):
    """The leases of this process."""

    def __init__(self, engine: sa.Engine, url: URL, seconds: float) -> None:
        """`seconds`: longest time a writer that died on another machine keeps others out."""
        super().__init__(engine, url)
        self.seconds = seconds
        self.holder = _process_identity()
        self._now = sa.literal_column(NOW[self.dialect], sa.Double)
        values = {"holder": _HOLDER, "token": _TOKEN, "expires_at": self._now + self.seconds}
        self._taking = leases.update().where(leases.c.monitor == _MONITOR).values(**values)
        expires_at = self._now + self.seconds
        self._renewing = leases.update().where(*_IS, leases.c.expires_at > 0).values(expires_at=expires_at)
        self._held: dict[str, int] = {}

    @contextmanager
    def hold(self, monitor: str) -> Iterator[Lease]:
        """The right to write `monitor` while the block runs. Raises LeaseLost if another process or thread has it."""
        lease = self.acquire(monitor)
        if lease is None:
            raise LeaseLost(f"monitor {monitor}: {self.describe(monitor)} is writing it; this one yields")
        done = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(lease, done), name=f"lease-{monitor}", daemon=True)
        keeper.start()
        try:
            yield lease
        finally:
            done.set()
            keeper.join()
            with suppress(StoreError):  # then it expires on its own
                self.release(lease)

    def _keep(self, lease: Lease, done: threading.Event) -> None:
        while not done.wait(self.seconds / 3):
            try:
                self.renew(lease)
            except StoreError:
                continue  # if it is lost, the next write is fenced and says so
            except LeaseLost:
                return

    def describe(self, monitor: str) -> str:
        """The holder of a monitor, in words."""
        return holder_in_words(self.scalar(sa.select(leases.c.holder).where(leases.c.monitor == monitor)) or "")

    def is_gone(self, holder: str) -> bool:
        """Whether a holder is known to have ended."""
        return _is_dead(holder, self.holder)

    def number(self, monitor: str) -> int:
        """How many holders a monitor has had."""
        return self.integer(sa.select(leases.c.token).where(leases.c.monitor == monitor)) or 0

    def released(self, monitor: str) -> int | None:
        """Number of a monitor's last holder if it released the lease and can no longer write; else None."""
        is_its = leases.c.monitor == monitor
        return self.integer(sa.select(leases.c.token).where(is_its, leases.c.expires_at == 0.0))

    def acquire(self, monitor: str) -> Lease | None:
        """The right to write `monitor`; None while another living process, or thread of this one, has it."""
        with self.writing() as connection:
            row = connection.execute(
                sa.select(leases, self._has_expired.label("expired"))
                .where(leases.c.monitor == monitor)
                .with_for_update(skip_locked=True)  # whoever locked it renews it or will be cut off
            ).one_or_none()
            lease = Lease(monitor, self.holder, row.token + 1 if row else 1)
            if row is None:
                taken = self._insert(connection, lease)
            elif taken := row.expired or self._is_abandoned(row):
                connection.execute(self._taking, named_in(lease))
                if self.dialect == "postgresql":
                    connection.execute(_CUT_OFF, {"seconds": self.seconds / 2})
            if taken:
                self._held[monitor] = lease.token  # before others see the row
            return lease if taken else None

    @property
    def _has_expired(self) -> sa.ColumnElement[bool]:
        # A living holder renews within seconds once the clock is right; and every write is fenced.
        return ~leases.c.expires_at.between(self._now, self._now + max(LONGEST_LEFT, 2 * self.seconds))

    def _insert(self, connection: sa.Connection, lease: Lease) -> bool:
        values = {"monitor": lease.monitor, "holder": lease.holder, "token": lease.token}
        added = upserted(self.dialect, leases, {**values, "expires_at": self._now + self.seconds})
        return connection.execute(added, execution_options={"preserve_rowcount": True}).rowcount == 1

    def _is_abandoned(self, row: sa.Row[Any]) -> bool:
        """Whether the holder is gone. Own leases count by number: one taken on a full disk was never stored."""
        if row.holder == self.holder:
            return bool(self._held.get(row.monitor) != row.token)
        return _is_dead(row.holder, self.holder)

    def renew(self, lease: Lease) -> None:
        """Extend the lease. Raises LeaseLost if it was taken over."""
        with self.fenced(lease):
            pass

    def release(self, lease: Lease) -> None:
        """Give the lease back; no effect if it was taken over already."""
        if self._held.get(lease.monitor) == lease.token:
            del self._held[lease.monitor]
        with self.writing() as connection:
            connection.execute(_RELEASING, named_in(lease))

    def park(self, connection: sa.Connection, lease: Lease, holder: str, seconds: float) -> None:
        """Within a transaction, keep everybody else out for so long; `holder` says why, see `holder_in_words`."""
        values = {"holder": holder, "expires_at": self._now + seconds}
        connection.execute(leases.update().where(*_IS).values(values), named_in(lease))

    def check(self, lease: Lease) -> None:
        """Raises LeaseLost if the lease is no longer held."""
        if not self.scalar(_HELD, named_in(lease)):
            raise _lost(lease)

    @contextmanager
    def fenced(self, lease: Lease) -> Iterator[sa.Connection]:
        """A transaction that renews the lease and commits only while it is held. Raises LeaseLost; nothing is stored
        then.

        Reads the lease at the start and locks it only to commit, so a frozen process blocks nobody from taking over.
        """
        with self.writing() as connection:
            if not connection.execute(_HELD, named_in(lease)).scalar():
                raise _lost(lease)
            yield connection
            if connection.execute(self._renewing, named_in(lease)).rowcount != 1:
                raise _lost(lease)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"monitor {lease.monitor}: another process took over writing; this one yielded")


_MONITOR, _HOLDER = sa.bindparam("of", type_=sa.Text), sa.bindparam("by", type_=sa.Text)
_TOKEN = sa.bindparam("number", type_=sa.BigInteger)
_IS = (leases.c.monitor == _MONITOR, leases.c.holder == _HOLDER, leases.c.token == _TOKEN)
_RELEASING = leases.update().where(*_IS).values(expires_at=0.0)
IS_HELD = sa.exists().where(*_IS, leases.c.expires_at > 0)
"""SQL condition that a lease is still its holder's; takes the parameters of `named_in`."""
_HELD = sa.select(IS_HELD)


def named_in(lease: Lease) -> dict[str, str | int]:
    """A lease as statement parameters."""
    return {"of": lease.monitor, "by": lease.holder, "number": lease.token}


def holder_in_words(holder: str) -> str:
    """A holder in words."""
    identity = _Identity.parse(holder)
    if identity is None:
        return holder if holder.startswith(UNNAMED) else UNNAMED
    return f"process {identity.pid} on {identity.host}"


class _Identity(NamedTuple):
    """Enough to tell on the same machine whether a process still lives; `?` for what is unknown."""

    host: str
    boot: str
    namespace: str
    pid: str
    started: str
    nonce: str

    @classmethod
    def parse(cls, text: str) -> _Identity | None:
        parts = text.split("|")
        return cls(*parts) if len(parts) == len(cls._fields) else None


def _process_identity() -> str:
    pid = str(os.getpid())
    nonce = uuid.uuid4().hex[:8]
    return "|".join(_Identity(socket.gethostname(), _boot(), _namespace(), pid, _started(pid), nonce))


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


def _started(pid: str) -> str:
    """When a process started, in ticks since boot; empty if it has ended, `?` if unknown."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError:
        return "?"
    return "" if state in "ZX" else fields[18]


def _is_dead(holder: str, own: str) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    theirs, mine = _Identity.parse(holder), _Identity.parse(own)
    if theirs is None or mine is None or theirs[:3] != mine[:3] or "?" in theirs[:5]:
        return False
    try:
        os.kill(int(theirs.pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # another user's process, which we cannot inspect
    # Covers zombies and reused process ids.
    return _started(theirs.pid) not in ("?", theirs.started)
