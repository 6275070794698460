"""Real servers that cut a reader off mid-statement: the error is clear, and nothing is lost or counted twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.service.cycle import BatchSize, read_partials
from monitor.source.choice import open_reader
from monitor.source.dialects import base
from monitor.source.engine import Database
from monitor.source.parallel import ParallelReader
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.store import Store
from monitor.types import Monitor, Slice
from tests.service.test_runner import Bench, Faulty, Hand
from tests.source.test_source import assert_same
from tests.support.engines import mariadb
from tests.support.logs import BUCKET, BUCKETS, END, START, Log, Style, events, monitor, write
from tests.support.mariadb import MariaServer
from tests.support.monitors import new_store
from tests.support.postgres import PostgresServer
from tests.support.proxy import proxy
from tests.support.tallies import rows

EPOCH = Style("bigint", "epoch_ms", None, lambda micros: micros // 1000)
WAYS = ("pull", "pushdown")
CUT_OFF = 3
"""The read that is disturbed; those before it are stored."""


def log() -> Log:
    """Three requests a bucket, each with a click."""
    made = Log()
    for b in range(BUCKETS):
        for n in range(3):
            at = START + b * BUCKET + 10 * n
            made.show(f"r{b}-{n}", [1, 2, 3], at, device=("tv", "pc", None)[n], country="x", query="q", grade=[0, 1, 2])
            made.happen(f"r{b}-{n}", 2, at + 5)
    return made


def watched(way: str) -> Monitor:
    """A monitor by clicks that can read the whole log within one cycle."""
    return monitor(
        events(EPOCH),
        EPOCH,
        ("ndcg@3", "mrr"),
        slices=(Slice("device", "device"),),
        engine=way,
        lookback=END - START + 3600,
    )


class Scene:
    """A database whose statements can be made to hang."""

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, *statements: str) -> None:
        """Run statements as the owner."""
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()

    def ask(self, query: str) -> list[Any]:
        """The first column of the answer."""
        engine = sa.create_engine(self.url)
        with engine.connect() as connection:
            found = list(connection.exec_driver_sql(query).scalars())
        engine.dispose()
        return found

    def hang(self, seconds: int) -> None:
        """Make each statement on the rankings that begins from now on take this long."""
        self.execute(f"UPDATE flag SET seconds = {seconds}")

    def hanging(self) -> list[int]:
        """Ids of the connections that hang."""
        raise NotImplementedError


class OnPostgres(Scene):
    """PostgreSQL."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        write(url, log(), EPOCH)
        self.execute(
            "ALTER TABLE rankings RENAME TO shown",
            "CREATE TABLE flag AS SELECT 0 AS seconds",
            "CREATE FUNCTION hold() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS "
            "$$ BEGIN PERFORM pg_sleep(seconds) FROM flag; RETURN true; END $$",
            "CREATE VIEW rankings AS SELECT * FROM shown WHERE hold() OFFSET 0",
        )

    def hanging(self) -> list[int]:
        mine = "datname = current_database() AND application_name = 'rankmon m'"
        return self.ask(f"SELECT pid FROM pg_stat_activity WHERE {mine} AND wait_event = 'PgSleep'")


class OnMaria(Scene):
    """MariaDB."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        kind = mariadb(url)
        kind.write(log(), kind.styles["epoch ms"], "whole", "number")
        self.execute(
            "RENAME TABLE rankings TO shown",
            "CREATE TABLE flag AS SELECT 0 AS seconds",
            "CREATE VIEW rankings AS SELECT * FROM shown WHERE SLEEP((SELECT seconds FROM flag)) = 0",
        )

    def hanging(self) -> list[int]:
        mine = "db = database() AND info LIKE '/* rankmon m */%%'"
        return self.ask(f"SELECT id FROM information_schema.processlist WHERE {mine} AND state = 'User sleep'")


@dataclass
class Reading:
    """A runner that reads a scene and can be disturbed in one of its reads."""

    scene: Scene
    way: str
    store: Store
    url: str = ""
    reads: int = 0
    disturb: Callable[[], None] | None = None
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = Database("s", parse_url(self.url or self.scene.url), 50)
        source = open_reader(watched(self.way), self.database)
        assert isinstance(source, Pull if self.way == "pull" else ParallelReader)
        self.bench = Bench(watched(self.way), Faulty(source), self.store, clock=Hand(END + 3600))
        self.bench.source.before_reading = self._before
        self.bench.runner._batch_size = BatchSize(buckets=1, most=1)

    def _before(self) -> None:
        self.reads += 1
        if self.disturb is not None and self.reads == CUT_OFF:
            self.disturb()

    def cut_off_by(self, mishap: Callable[[int], None]) -> None:
        """Make one of the reads hang, and apply `mishap` to its connection meanwhile."""

        def act() -> None:
            deadline = time.monotonic() + 30
            while not (found := self.scene.hanging()):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            self.scene.hang(0)
            mishap(found[0])

        def disturb() -> None:
            self.scene.hang(40)
            self.threads.append(threading.Thread(target=act))
            self.threads[-1].start()

        self.disturb = disturb

    def run(self) -> Exception | None:
        """Run one cycle; return the error it failed with."""
        error = self.bench.run()
        for thread in self.threads:
            thread.join(60)
        self.threads.clear()
        return error

    def failures(self) -> dict[str, float]:
        """Failed cycles by reason."""
        counts = self.bench.telemetry.counts().items()
        return {labels[1]: n for (name, labels), n in counts if name == "rankmon_evaluation_failures" and n}

    def stored(self) -> int:
        """How many stored buckets have requests."""
        history = self.store.history(watched(self.way).traffic, START, END)
        return int((history.slice(("", ""))[:, 0] > 0).sum())


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Makes empty stores."""
    made: list[Store] = []

    def new() -> Store:
        made.append(new_store(f"sqlite:///{tmp_path}/store-{len(made)}.db"))
        return made[-1]

    yield new
    for store in made:
        store.close()


def contents(store: Store) -> dict[str, Any]:
    """All stored results, without when and how often cycles ran."""
    return rows(store, "progress", "monitors")


def undisturbed(scene: Scene, way: str, store: Store) -> dict[str, Any]:
    """The stored results of an undisturbed run."""
    reading = Reading(scene, way, store)
    assert reading.run() is None
    assert reading.stored() == BUCKETS
    reading.database.close()
    return contents(store)


def recovers(
    reading: Reading,
    expected: dict[str, Any],
    reason: str,
    *words: str,
    mend: Callable[[], object] = lambda: None,
) -> None:
    """Assert that it fails once with this reason and words, keeps what it had, and reads the rest after `mend`."""
    before = reading.run()
    assert isinstance(before, SourceError), before
    assert before.reason == reason, before
    assert [word for word in words if word not in str(before)] == [], before
    assert reading.failures() == {reason: 1}
    assert len(reading.bench.waits) == 1, "a retry is scheduled"
    assert reading.stored() == CUT_OFF - 1, "earlier reads stay stored, and nothing of the rest is"
    reading.disturb = None
    mend()
    assert reading.run() is None
    assert contents(reading.store) == expected
    assert reading.failures() == {reason: 1}


# ---- PostgreSQL ----------------------------------------------------------------------------------------------------


@pytest.fixture
def scene(postgres_url: str) -> OnPostgres:
    return OnPostgres(postgres_url)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("pg_cancel_backend", ("due to user request", "somebody ended this statement")),
        ("pg_terminate_backend", ("the server ended it", "is the database up?")),
    ],
)
def test_a_cancelled_or_killed_statement_is_read_again(
    scene: OnPostgres, stores: Callable[[], Store], way: str, function: str, words: tuple[str, ...]
) -> None:
    expected = undisturbed(scene, way, stores())
    reading = Reading(scene, way, stores())
    reading.cut_off_by(lambda pid: scene.execute(f"SELECT {function}({pid})"))
    recovers(reading, expected, "connect", *words)
    reading.database.close()


def test_two_parallel_pieces_killed_mid_read_are_read_again(scene: OnPostgres) -> None:
    database = Database("s", parse_url(scene.url), 50)
    made = watched("pushdown")
    source = ParallelReader(PushDown(made, database, is_bound=True), cut_from=0, margins=0)
    expected, ended = read_partials(made, source, START, END, {}), list[int]()

    def end_them() -> None:
        deadline = time.monotonic() + 30
        while len(ended) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
            ended[:] = scene.hanging()
        scene.hang(0)
        for pid in ended:
            scene.execute(f"SELECT pg_terminate_backend({pid})")

    scene.hang(40)
    ending = threading.Thread(target=end_them)
    ending.start()
    with pytest.raises(SourceError, match="the server ended it") as caught:
        read_partials(made, source, START, END, {})
    ending.join()
    assert len(ended) == 2
    assert caught.value.reason == "connect"
    assert_same(read_partials(made, source, START, END, {}), expected, "read again")
    database.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_reading_resumes_after_a_restart_mid_statement(
    postgres: PostgresServer, scene: OnPostgres, stores: Callable[[], Store], way: str, how: str
) -> None:
    expected = undisturbed(scene, way, stores())
    reading = Reading(scene, way, stores())

    # This thread restarts the server, because a server ends with the thread that started it.
    reading.cut_off_by(lambda _: getattr(postgres, how)())
    recovers(reading, expected, "connect", "is the database up", mend=postgres.start)
    reading.database.close()


@pytest.mark.parametrize("way", WAYS)
def test_every_cycle_fails_until_the_server_is_back(
    postgres: PostgresServer, scene: OnPostgres, stores: Callable[[], Store], way: str
) -> None:
    expected = undisturbed(scene, way, stores())
    reading = Reading(scene, way, stores())
    reading.disturb = postgres.stop
    for _ in range(3):
        error = reading.run()
        assert isinstance(error, SourceError)
        assert error.reason == "connect"
    assert reading.stored() == CUT_OFF - 1
    assert reading.bench.waits == sorted(set(reading.bench.waits)), "each wait is longer"
    postgres.start()
    assert reading.run() is None
    assert contents(reading.store) == expected
    reading.database.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("revoked", "grant"),
    [
        ("SELECT ON events", "GRANT SELECT ON events TO watcher"),
        ("SELECT ON rankings", "GRANT SELECT ON rankings TO watcher"),
    ],
)
def test_a_permission_revoked_mid_read_is_reported_with_the_grant_to_run(
    scene: OnPostgres, stores: Callable[[], Store], way: str, revoked: str, grant: str
) -> None:
    scene.execute(
        "DROP ROLE IF EXISTS watcher",
        "CREATE ROLE watcher LOGIN",
        "GRANT SELECT ON rankings, events TO watcher",
    )
    expected = undisturbed(scene, way, stores())
    reading = Reading(scene, way, stores(), scene.url.replace("postgres@", "watcher@"))
    reading.disturb = lambda: scene.execute(f"REVOKE {revoked} FROM watcher")
    recovers(reading, expected, "permission", f"grant SELECT to it: {grant}", mend=lambda: scene.execute(grant))
    reading.database.close()
    scene.execute("DROP OWNED BY watcher", "DROP ROLE watcher")


def test_a_locked_table_is_a_timeout_and_is_read_afterwards(scene: OnPostgres, stores: Callable[[], Store]) -> None:
    expected = undisturbed(scene, "pull", stores())
    reading = Reading(scene, "pull", stores())
    reading.database.statement_timeout = 0.5
    locker = sa.create_engine(scene.url).connect()

    def lock() -> None:
        locker.exec_driver_sql("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")

    reading.disturb = lock
    recovers(reading, expected, "timeout", "raise statement_timeout", mend=locker.rollback)
    locker.close()
    reading.database.close()


def lost_on_the_way(scene: Scene, stores: Callable[[], Store], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in front of the server falls silent mid-statement, and forwards new connections later."""
    monkeypatch.setattr(base, "GRACE", 1)
    expected, url = undisturbed(scene, way, stores()), sa.make_url(scene.url)
    assert url.port is not None
    with proxy(url.port) as between:
        through = url.set(port=between.port).render_as_string(hide_password=False)
        reading = Reading(scene, way, stores(), through)
        reading.database.statement_timeout = 4
        reading.cut_off_by(lambda _: between.fall_silent())
        recovers(reading, expected, "connect", "did not answer for 5 s", mend=between.speak)
        reading.database.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_read_lost_to_a_silent_proxy_is_repeated(
    scene: OnPostgres, stores: Callable[[], Store], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_on_the_way(scene, stores, way, monkeypatch)


# ---- MariaDB -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["QUERY", "CONNECTION", "restart"])
def test_a_read_cut_off_on_mariadb_is_repeated(
    maria: MariaServer, stores: Callable[[], Store], way: str, how: str
) -> None:
    scene = OnMaria(maria.create_database())
    expected = undisturbed(scene, way, stores())
    reading = Reading(scene, way, stores())

    def mishap(connection: int) -> None:
        if how == "restart":
            maria.stop()
        else:
            scene.execute(f"KILL {how} {connection}")

    def mend() -> None:
        if how == "restart":
            maria.start()
            scene.hang(0)  # the server may have lost the last write

    reading.cut_off_by(mishap)
    recovers(reading, expected, "connect", mend=mend)
    reading.database.close()


def test_a_read_lost_to_a_silent_proxy_is_repeated_on_mariadb(
    maria: MariaServer, stores: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_on_the_way(OnMaria(maria.create_database()), stores, "pull", monkeypatch)


@pytest.mark.parametrize("hosts", ["%", "127.0.0.%"])
def test_a_revoked_mariadb_permission_is_reported_with_the_grant_to_run(
    maria: MariaServer, stores: Callable[[], Store], hosts: str
) -> None:
    scene = OnMaria(maria.create_database())
    name, user = scene.url.rpartition("/")[2], f"of-{len(hosts)}"
    whom = f"'{user}'@'{hosts}'"
    tables = [f"{name}.{table}" for table in ("rankings", "events", "flag")]
    maria.execute(f"CREATE OR REPLACE USER {whom}", *(f"GRANT SELECT ON {table} TO {whom}" for table in tables))
    expected = undisturbed(scene, "pull", stores())
    reading = Reading(scene, "pull", stores(), scene.url.replace("root@", f"{user}@"))
    reading.disturb = lambda: maria.execute(f"REVOKE SELECT ON {name}.events FROM {whom}")
    grant = f"GRANT SELECT ON `{name}`.`events` TO {whom}"
    recovers(reading, expected, "permission", grant, mend=lambda: maria.execute(grant))
    reading.database.close()
