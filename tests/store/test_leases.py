"""One writer per monitor, among processes, threads and machines, by the database's clock."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor.errors import LeaseLost, StoreError
from monitor.store import Lease, Store
from monitor.store.engine import NOW
from monitor.store.lease import _Identity, _is_dead, _process_identity
from monitor.store.schema import leases
from tests.support.monitors import new_store
from tests.support.pgbouncer import find_pooler, pooled
from tests.support.postgres import PostgresServer
from tests.support.requirements import missing
from tests.support.tallies import HOUR, let_on, line, python, rows, tally, watched, write

MONITOR = watched()
ELSEWHERE = "other-host|b00t1234|pid:[1]|17|99|abcdef01"


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = new_store(database_url, 60)
    yield opened
    opened.close()


@pytest.fixture
def other(store: Store) -> Iterator[Store]:
    """The same store, as another process would open it."""
    opened = Store(store.url, lease_seconds=60)
    yield opened
    opened.close()


def row(store: Store) -> tuple[str, int, float]:
    """(holder, token, seconds left by the database's clock)."""
    left = leases.c.expires_at - sa.literal_column(NOW[store.dialect], sa.Double)
    with store.reading() as connection:
        found = connection.execute(sa.select(leases.c.holder, leases.c.token, left)).one()
        return found[0], found[1], found[2]


def put(store: Store, holder: str, left: float, token: int = 5) -> None:
    """Store a lease of `holder` with `left` seconds to go."""
    expires = sa.literal_column(NOW[store.dialect], sa.Double) + left
    with store.writing() as connection:
        connection.execute(leases.delete())
        connection.execute(leases.insert().values(monitor=MONITOR.name, holder=holder, token=token, expires_at=expires))


def taken(store: Store) -> Lease:
    lease = store.leases.acquire(MONITOR.name)
    assert lease is not None
    return lease


# ---- two processes -------------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from sqlalchemy.engine import make_url
from monitor.store import Store

store = Store(make_url(sys.argv[1]), lease_seconds=float(sys.argv[2]))
with store.hold("search"):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
sys.stdin.readline()
"""


def test_a_second_process_is_refused_until_the_first_releases_its_lease(store: Store, database_url: str) -> None:
    process = python(HOLDER, database_url, 1.5)
    assert line(process) == "held"
    refused = rf"monitor search: process {process.pid} on \S+ is writing it; this one yields"
    deadline = time.monotonic() + 3.2  # more than two lifetimes, so it must renew
    while time.monotonic() < deadline:
        with pytest.raises(LeaseLost, match=refused), store.hold(MONITOR.name):
            pass
        time.sleep(0.2)
    let_on(process)
    assert line(process) == "released"
    assert row(store)[1] == 1
    with store.hold(MONITOR.name) as lease:  # immediately, while the other process still runs
        assert lease.token == 2
    process.kill()
    process.communicate()


def test_a_writer_killed_on_this_machine_is_replaced_at_once(store: Store, database_url: str) -> None:
    process = python(HOLDER, database_url, 600)
    assert line(process) == "held"
    assert row(store)[2] > 500
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but still a zombie
    with store.hold(MONITOR.name) as lease:
        assert lease.token == 2
    process.communicate()


def test_a_hung_writer_loses_its_lease_and_writes_nothing_on_waking(store: Store, database_url: str) -> None:
    process = python(WAKING, database_url)
    assert line(process) == "held"
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while (lease := store.leases.acquire(MONITOR.name)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lease is not None
    assert lease.token == 2
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
    before = rows(store)
    process.send_signal(signal.SIGCONT)
    assert process.communicate("write\n", timeout=20)[0] == (
        "monitor search: another process took over writing; this one yielded\n"
    )
    assert rows(store) == before


WAKING = """
import sys
from sqlalchemy.engine import make_url
from monitor.errors import LeaseLost
from monitor.store import Store
from tests.support.tallies import tally, watched, write

store = Store(make_url(sys.argv[1]), lease_seconds=0.6)
try:
    with store.hold("search") as lease:
        print("held", flush=True)
        sys.stdin.readline()
        write(store, lease, watched(), tally(watched(), {0: {"tv": 99}}))
        print("written", flush=True)
except LeaseLost as error:
    print(error, flush=True)
"""

RACING = """
import sys
from sqlalchemy.engine import make_url
from monitor.store import Store

store = Store(make_url(sys.argv[1]), lease_seconds=60)
print("ready", flush=True)
sys.stdin.readline()
print("none" if store.leases.acquire("search") is None else "taken", flush=True)
sys.stdin.readline()
"""


def test_one_of_several_racing_processes_gets_the_lease(store: Store, database_url: str) -> None:
    racers = [python(RACING, database_url) for _ in range(4)]
    for racer in racers:
        assert line(racer) == "ready"
    for racer in racers:
        let_on(racer)
    assert sorted(line(racer) for racer in racers) == ["none", "none", "none", "taken"]
    for racer in racers:
        racer.kill()
        racer.communicate()


# ---- one process ---------------------------------------------------------------------------------------------------


def test_a_held_lease_is_renewed_for_as_long_as_the_work_takes(database_url: str) -> None:
    store = new_store(database_url, 2)
    second = Store(make_url(database_url), lease_seconds=2)
    with store.hold(MONITOR.name) as lease:
        for _ in range(9):
            time.sleep(0.5)
            assert second.leases.acquire(MONITOR.name) is None
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
    assert taken(second).token == 2
    second.close()
    store.close()


def test_two_threads_of_one_process_do_not_write_the_same_monitor(store: Store) -> None:
    found: list[Lease | None] = []
    with store.hold(MONITOR.name):
        thread = threading.Thread(target=lambda: found.append(store.leases.acquire(MONITOR.name)))
        thread.start()
        thread.join()
        with pytest.raises(LeaseLost, match=f"process {os.getpid()} on"), store.hold(MONITOR.name):
            pass
        with store.hold("another"):
            pass
    assert found == [None]
    with store.hold(MONITOR.name):
        pass


def test_two_stores_of_one_process_do_not_write_the_same_monitor(store: Store, other: Store) -> None:
    with store.hold(MONITOR.name):
        assert other.leases.acquire(MONITOR.name) is None
    assert other.leases.acquire(MONITOR.name) is not None


def test_the_token_rises_with_each_holder(store: Store, other: Store) -> None:
    tokens = []
    for holder in (store, other, other, store):
        with holder.hold(MONITOR.name) as lease:
            tokens.append(lease.token)
    assert tokens == [1, 2, 3, 4]


def test_an_exception_inside_releases_the_lease_and_propagates(store: Store, other: Store) -> None:
    with pytest.raises(KeyError), store.hold(MONITOR.name):
        raise KeyError
    assert other.leases.acquire(MONITOR.name) is not None


def test_a_released_lease_cannot_write_and_blocks_nobody(store: Store, other: Store) -> None:
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
    before = rows(store)
    with pytest.raises(LeaseLost):
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 2}}))
    with pytest.raises(LeaseLost):
        store.leases.renew(lease)
    assert rows(store) == before
    assert other.leases.acquire(MONITOR.name) is not None


def test_a_stale_holder_cannot_renew_write_or_release(store: Store, other: Store) -> None:
    stale = taken(store)
    put(store, stale.holder, left=-1, token=stale.token)
    fresh = taken(other)
    assert fresh.token == stale.token + 1
    with pytest.raises(LeaseLost):
        store.leases.renew(stale)
    with pytest.raises(LeaseLost):
        write(store, stale, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
    store.leases.release(stale)
    assert row(store)[:2] == (fresh.holder, fresh.token)
    assert row(store)[2] > 50
    write(other, fresh, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))


def test_a_late_release_leaves_a_newer_lease_of_the_same_process_alone(store: Store, other: Store) -> None:
    late = taken(store)
    put(store, late.holder, left=-1, token=late.token)
    between = taken(other)
    other.leases.release(between)
    present = taken(store)
    store.leases.release(late)
    assert store.leases.acquire(MONITOR.name) is None
    write(store, present, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))


def full_at_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each commit of a lease fail, as on a full disk."""
    writing = store.leases.writing

    @contextmanager
    def failing() -> Iterator[sa.Connection]:
        with writing() as connection:
            yield connection
            raise StoreError("store: the disk is full")

    monkeypatch.setattr(store.leases, "writing", failing)


def test_a_process_with_failed_commits_does_not_lock_itself_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = taken(store)
    with monkeypatch.context() as meanwhile:
        full_at_the_end(store, meanwhile)
        with pytest.raises(StoreError):
            store.leases.release(lease)
        with pytest.raises(StoreError):
            store.leases.acquire(MONITOR.name)
    assert row(store)[1] == 1, "neither change was stored"
    assert row(store)[2] > 50
    assert taken(store).token == 2
    assert store.leases.acquire(MONITOR.name) is None


def test_a_forged_token_writes_nothing(store: Store) -> None:
    lease = taken(store)
    with pytest.raises(LeaseLost):
        write(store, replace(lease, token=lease.token + 1), MONITOR, tally(MONITOR, {0: {"mobile": 1}}))


def test_an_expired_lease_that_nobody_took_still_holds(store: Store) -> None:
    lease = taken(store)
    put(store, lease.holder, left=-100, token=lease.token)
    write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}}))
    assert row(store)[2] > 50


def test_a_holder_on_another_machine_keeps_its_lease_until_it_expires(store: Store) -> None:
    put(store, ELSEWHERE, left=0.5)
    told = "monitor search: process 17 on other-host is writing it"
    with pytest.raises(LeaseLost, match=told), store.hold(MONITOR.name):
        pass
    time.sleep(0.6)
    assert taken(store).token == 6


def test_a_lease_dated_by_a_clock_that_ran_ahead_blocks_nobody(store: Store) -> None:
    put(store, ELSEWHERE, left=3 * 24 * HOUR)
    with store.hold(MONITOR.name) as lease:
        assert lease.token == 6
        assert 0 < row(store)[2] <= 60


def test_an_unidentified_holder_keeps_its_lease(store: Store) -> None:
    put(store, "somebody", left=100)
    with pytest.raises(LeaseLost, match="monitor search: another process is writing it"), store.hold(MONITOR.name):
        pass


def test_leases_use_the_databases_clock(store: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(store)
    for clock in ("time", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: 0.0)
    assert 55 < row(store)[2] <= 60
    assert other.leases.acquire(MONITOR.name) is None
    put(store, ELSEWHERE, left=-0.01)
    assert other.leases.acquire(MONITOR.name) is not None


# ---- is the holder dead? -------------------------------------------------------------------------------------------


ME = _Identity(*_process_identity().split("|"))
NOBODY = str(int(Path("/proc/sys/kernel/pid_max").read_text()) - 1)

DEATHS = [
    ("a process of this machine that is gone", ME._replace(pid=NOBODY), True),
    ("one whose number another has now", ME._replace(started="1"), True),
    ("this very process", ME._replace(nonce="another"), False),
    ("the first process, which lives as long as the machine", ME._replace(pid="1", started="?"), False),
    ("one on another host", ME._replace(pid=NOBODY, host="elsewhere"), False),
    ("one before the last boot", ME._replace(pid=NOBODY, boot="b00t"), False),
    ("one in another container", ME._replace(pid=NOBODY, namespace="pid:[1]"), False),
    ("one whose machine tells no boot", ME._replace(pid=NOBODY, boot="?"), False),
]


@pytest.mark.parametrize(("holder", "dead"), [c[1:] for c in DEATHS], ids=[c[0] for c in DEATHS])
def test_only_a_process_of_this_machine_is_known_to_be_dead(holder: _Identity, dead: bool) -> None:
    assert _is_dead("|".join(holder), "|".join(ME)) is dead


@pytest.mark.parametrize("text", ["", "x", "a|b|c|4|x", "a|b|c|d|e|f|g"])
def test_an_unreadable_identity_is_not_dead(text: str) -> None:
    assert not _is_dead(text, "|".join(ME))


# ---- a server that goes away ---------------------------------------------------------------------------------------


def test_a_lease_survives_a_short_server_outage(postgres: PostgresServer, postgres_url: str) -> None:
    store = new_store(postgres_url, 2)
    with store.hold(MONITOR.name) as lease:
        postgres.stop()
        time.sleep(1)  # it tries to renew meanwhile
        postgres.start()
        time.sleep(0.5)
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 1}, HOUR: {}}))
        assert row(store)[2] > 0
    store.close()


def test_a_server_down_at_release_neither_fails_nor_hides_an_error(postgres: PostgresServer, postgres_url: str) -> None:
    store = new_store(postgres_url, 60)

    def fail() -> None:
        with store.hold(MONITOR.name):  # its own lease, which it could not release
            postgres.stop()
            raise KeyError

    with store.hold(MONITOR.name):
        postgres.stop()
    postgres.start()
    with pytest.raises(KeyError):
        fail()
    with pytest.raises(StoreError), store.hold(MONITOR.name):
        pass
    store.close()


# ---- frozen anywhere -----------------------------------------------------------------------------------------------

BUSY = """
import sys
from itertools import count
from sqlalchemy.engine import make_url
from monitor.errors import LeaseLost, StoreError
from monitor.store import Store
from tests.support.tallies import tally, watched, write

store = Store(make_url(sys.argv[1]), lease_seconds=float(sys.argv[2]))
try:
    with store.hold("search") as lease:
        for number in count(1):
            write(store, lease, watched(), tally(watched(), {hour * 3600: {"tv": number} for hour in range(20)}))
            store.record("search", lease, last_attempt_at=float(number))
            if number == 3:
                print("held", flush=True)
except (LeaseLost, StoreError) as error:
    print("lost", flush=True)
"""

LEASE = 4.0
"""Seconds. The server lets a process that is slow, but not frozen, take half of them between two statements."""

FREEZES = int(os.environ.get("RANKMON_TEST_FREEZES", "2"))


@pytest.mark.parametrize("way", ["straight", "pooled"])
def test_a_frozen_holder_is_replaced_within_two_leases_and_stores_nothing_on_waking(
    postgres_url: str, way: str
) -> None:
    """The server frees what the holder has locked in a transaction, also behind a pooler."""
    if way == "pooled" and find_pooler() is None:
        missing("no pgbouncer: install Debian's pgbouncer")
    rng = random.Random(29)
    new_store(postgres_url).close()
    with pooled(postgres_url) if way == "pooled" else nullcontext(postgres_url) as url:
        for _ in range(FREEZES):
            fail_over(url, rng.random())


def fail_over(url: str, after: float) -> None:
    process, other = python(BUSY, url, LEASE), Store(make_url(url), lease_seconds=LEASE)
    assert line(process) == "held"
    time.sleep(after)
    process.send_signal(signal.SIGSTOP)
    frozen, lease = time.monotonic(), None
    while lease is None:
        assert time.monotonic() - frozen < 2 * LEASE, "nobody else gets the lease"
        lease = other.leases.acquire(MONITOR.name)
        time.sleep(0.02)
    write(other, lease, MONITOR, tally(MONITOR, {hour * HOUR: {"tv": 10**6} for hour in range(20)}))
    other.record("search", last_attempt_at=0.0)
    took, before = time.monotonic() - frozen, rows(other)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=30)[0] == "lost\n"
    assert rows(other) == before
    other.leases.release(lease)
    other.close()
    print(f"fail-over within {took:.2f} s")
    assert took < 2 * LEASE
