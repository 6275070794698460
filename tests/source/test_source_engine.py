"""Databases that are down, refuse, are slow or hold wrong data: errors give reason and remedy, never a password."""

from __future__ import annotations

import os
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError, Stopped, TooMany
from monitor.source import engine as engine_module
from monitor.source.dialects.base import CONNECT_TIMEOUT
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.watch import ASKED_FOR
from monitor.types import Events, Monitor, Relation
from tests.source.test_pushdown import both
from tests.source.test_source import assert_same
from tests.store.test_store_faults import as_somebody_else
from tests.support.logs import END, START, Log, column, events, monitor, styles, write
from tests.support.postgres import PostgresServer, find_binaries, postgres_server
from tests.support.requirements import missing
from tests.support.statements import execute

SLOW_SQLITE = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) "
    "SELECT 'r' AS request, 1 AS item, 1 AS position, 1 AS at, 'q' AS query, sum(i) AS grade FROM n"
)
INSIDE = "'2026-01-01 12:10Z'::timestamptz AS at"
SLOW_POSTGRES = f"SELECT 'r' AS request, 1 AS item, 1 AS position, {INSIDE}, 'q' AS query, 1 AS grade FROM pg_sleep(30)"


def small(url: str) -> Monitor:
    """Write a log with one request; return a monitor that takes its grades from a column."""
    style = styles(url)["epoch s"]
    log = Log()
    log.show("r1", [1, 2, 3], START + 5, grade=[0, 1, 2])
    write(url, log, style)
    return monitor(column(), style, slices=())


def by_select(url: str, select: str) -> Monitor:
    """A monitor whose rankings come from this SELECT."""
    style = styles(url)["epoch s" if url.startswith("sqlite") else "timestamptz"]
    plain = monitor(column(), style, slices=())
    rankings = plain.rankings.__class__(Relation(select=select), *_mapping(plain))
    return monitor(column(), style, slices=(), rankings=rankings)


def _mapping(plain: Monitor) -> tuple[Any, ...]:
    r = plain.rankings
    return r.request, r.item, r.position, r.time, r.query


def failure(url: str, monitored: Monitor, timeout: float = 60, password: str | None = None) -> SourceError:
    """The error that reading ends with."""
    database = Database("shop", parse_url(url).set(password=password), timeout)
    try:
        with pytest.raises(SourceError) as caught:
            Pull(monitored, database).read(START, END)
    finally:
        database.close()
    assert str(caught.value).startswith("source shop: ")
    return caught.value


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    if find_binaries() is None:
        missing("no PostgreSQL binaries")
    with postgres_server() as server:
        yield server


# ---- out of reach ------------------------------------------------------------------------------------------------


def test_a_missing_sqlite_file_is_named_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    error = failure(f"sqlite:///{path}", small(f"sqlite:///{tmp_path / 'other.db'}"))
    assert error.reason == "connect"
    assert f"there is no file {path}" in str(error)
    assert not path.exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str, tmp_path: Path) -> None:
    error = failure(url, small(f"sqlite:///{tmp_path / 'other.db'}"))
    assert (error.reason, "sqlite:////absolute/path.db" in str(error)) == ("connect", True)


def test_a_file_that_disappears_and_returns_is_noticed_each_time(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    pull = Pull(small(f"sqlite:///{path}"), Database("shop", parse_url(f"sqlite:///{path}"), 60))
    assert len(pull.read(START, END).served) == 1
    path.rename(tmp_path / "away.db")
    with pytest.raises(SourceError, match="there is no file"):
        pull.read(START, END)
    small(f"sqlite:///{path}")
    execute(f"sqlite:///{path}", "DELETE FROM rankings")
    assert len(pull.read(START, END).served) == 0


def test_an_unreadable_file_is_a_permission_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    monitored = small(url)
    (tmp_path / "shop.db").chmod(0)
    if os.geteuid() == 0:  # root may read everything
        monkeypatch.setattr("os.access", lambda *_: False)
    assert failure(url, monitored).reason == "permission"


@pytest.mark.parametrize("content", [b"no database at all, but long enough to have a header " * 9, b"\0" * 5000])
def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "shop.db"
    path.write_bytes(content)
    error = failure(f"sqlite:///{path}", small(f"sqlite:///{tmp_path / 'other.db'}"))
    assert (error.reason, "not a database" in str(error)) == ("connect", True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["with space.db", "100%25.db", "a?b=c.db", "a#b.db", "ü.db", "a'b\".db"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    url = sa.URL.create("sqlite", database=str(tmp_path / name))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE kept AS SELECT 7 AS x")
    engine.dispose()
    with Database("shop", url, 60).reading() as reader:
        assert reader.one(sa.select(sa.column("x")).select_from(sa.table("kept"))) == 7
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "address", ["postgres@127.0.0.1:9/shop", "postgres@no-such-host.invalid/shop", "postgres@%2Fno%2Fsocket/shop"]
)
def test_an_unreachable_server_is_a_connect_error(address: str) -> None:
    url = f"postgresql://{address}"
    error = failure(url, by_select(url, "SELECT 1"), password="hunter2")
    assert error.reason == "connect"
    assert "is the database up, and is the URL right?" in str(error)
    assert "hunter2" not in str(error)


def test_a_server_that_accepts_but_never_speaks_is_given_up_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://postgres@127.0.0.1:{server.getsockname()[1]}/shop"
        began = time.monotonic()
        error = failure(f"{url}?connect_timeout=2", by_select(url, "SELECT 1"))
    assert time.monotonic() - began < CONNECT_TIMEOUT
    assert error.reason == "connect"


def test_a_database_that_does_not_exist_is_missing(postgres: PostgresServer) -> None:
    postgres.start()
    error = failure(postgres.url("nowhere"), by_select("postgresql:", "SELECT 1"))
    assert (error.reason, '"nowhere" does not exist' in str(error)) == ("missing", True)


def test_a_user_who_does_not_exist_cannot_connect(postgres: PostgresServer) -> None:
    postgres.start()
    url = postgres.url().replace("postgres@", "nobody@")
    error = failure(url, by_select(url, "SELECT 1"))
    assert (error.reason, "may this user log in" in str(error)) == ("connect", True)


def test_a_missing_or_unknown_driver_is_reported() -> None:
    plain = by_select("postgresql:", "SELECT 1")
    error = failure("oracle+oracledb://u@h/d", plain)
    assert error.reason == "driver"
    assert "pip install 'rankmon[oracle]'" in str(error)
    assert failure("nonsense://u@h/d", plain).reason == "driver"


def test_a_missing_psycopg_names_our_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr("sqlalchemy.create_engine", create)
    error = failure("postgresql://u@h/d", by_select("postgresql:", "SELECT 1"))
    assert (error.reason, " -m pip install 'rankmon[postgresql]'" in str(error)) == ("driver", True)


# ---- missing permissions, tables and columns ---------------------------------------------------------------------


def test_a_role_without_select_is_a_permission_error_that_a_grant_fixes(postgres_url: str) -> None:
    monitored = small(postgres_url)
    name = "reader_" + postgres_url.rpartition("_")[2]
    execute(postgres_url, f"CREATE ROLE {name} LOGIN")
    error = failure(postgres_url.replace("postgres@", f"{name}@"), monitored)
    assert (error.reason, "grant SELECT to it" in str(error)) == ("permission", True)
    execute(postgres_url, f"GRANT SELECT ON rankings TO {name}")
    database = Database("shop", parse_url(postgres_url.replace("postgres@", f"{name}@")), 60)
    assert len(Pull(monitored, database).read(START, END).served) == 1
    database.close()
    execute(postgres_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_the_printed_grants_name_the_schema_and_work(postgres_url: str) -> None:
    small(postgres_url)
    style = styles(postgres_url)["epoch s"]
    monitored, name = monitor(events(style), style), "reader_" + postgres_url.rpartition("_")[2]
    execute(
        postgres_url,
        f"CREATE ROLE {name} LOGIN",
        "CREATE SCHEMA reco",
        *(f"ALTER TABLE {table} SET SCHEMA reco" for table in ("rankings", "events")),
    )
    recipe = monitored.recipe
    assert isinstance(recipe, Events)
    monitored = replace(
        monitored,
        rankings=replace(monitored.rankings, relation=Relation(("reco", "rankings"))),
        recipe=replace(recipe, relation=Relation(("reco", "events"))),
    )
    url = postgres_url.replace("postgres@", f"{name}@")
    for what in ("USAGE ON SCHEMA reco", 'SELECT ON "reco"."rankings"', 'SELECT ON "reco"."events"'):
        grant = f"GRANT {what} TO {name}"
        assert str(failure(url, monitored)).endswith(f": {grant}")
        execute(postgres_url, grant)
    database = Database("shop", parse_url(url), 60)
    assert len(Pull(monitored, database).read(START, END).served) == 1
    database.close()
    execute(postgres_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_short_passwords_are_redacted_only_as_whole_words() -> None:
    database = Database("shop", parse_url("postgresql://me@127.0.0.1:9/shop").set(password="x"), 60)
    said = "column r.surface does not exist, for x at postgresql://me:x@127.0.0.1"
    told = "column r.surface does not exist, for *** at postgresql://me:***@127.0.0.1"
    assert database.redact(said) == told


@pytest.mark.parametrize("what", ["rankings", "events", "position", "value"])
def test_a_missing_table_or_column_is_reported_by_name(database_url: str, what: str) -> None:
    small(database_url)
    style = styles(database_url)["epoch s"]
    if what in ("rankings", "events"):
        execute(database_url, f"ALTER TABLE {what} RENAME TO others")
    else:
        table = "rankings" if what == "position" else "events"
        execute(database_url, f"ALTER TABLE {table} RENAME COLUMN {what} TO others")
    error = failure(database_url, monitor(events(style), style))
    assert (error.reason, what in str(error)) == ("missing", True)
    assert "compare the table and columns" in str(error)
    if what in ("position", "value"):
        place = "the rankings, rankings" if what == "position" else "the labels, events"
        assert f"; looked for in {place}; " in str(error)


def test_a_table_that_appears_later_is_found_by_the_same_pull(database_url: str) -> None:
    monitored = small(database_url)
    execute(database_url, "ALTER TABLE rankings RENAME TO others")
    pull = Pull(monitored, Database("shop", parse_url(database_url), 60))
    with pytest.raises(SourceError):
        pull.freshness(START, END)
    execute(database_url, "ALTER TABLE others RENAME TO rankings")
    assert pull.freshness(START, END).newest == START + 5
    pull.database.close()


def test_a_mistake_in_the_select_is_a_query_error(database_url: str) -> None:
    small(database_url)
    error = failure(database_url, by_select(database_url, "SELECT 'r' AS request, connect FROM FROM x"))
    assert (error.reason, 'near "FROM"' in str(error)) == ("query", True)


def test_a_value_that_utf_8_cannot_hold_is_a_source_error(database_url: str) -> None:
    execute(database_url, "CREATE TABLE t (a TEXT)")
    database = Database("shop", parse_url(database_url), 60)
    try:
        with (
            pytest.raises(SourceError, match=r"source shop: .*surrogates not allowed"),
            database.reading("shop") as reader,
        ):
            reader.one(sa.select(sa.literal("caf\udce9")))
    finally:
        database.close()


@pytest.mark.parametrize(
    ("table", "broken"),
    [("rankings", "request"), ("rankings", "device"), ("events", "item"), ("events", "type"), ("events", "request")],
)
def test_text_that_is_not_utf_8_affects_only_its_own_request(tmp_path: Path, table: str, broken: str) -> None:
    url, log = f"sqlite:///{tmp_path / 'shop.db'}", Log()
    style = styles(url)["text Z"]
    for n in range(6):
        log.show(f"r{n}", ["a", "b"], START + n, device="tv")
        log.happen(f"r{n}", "b", START + n + 5)
    write(url, log, style)
    execute(url, f"UPDATE {table} SET {broken} = CAST(x'ff41' AS TEXT) WHERE request = 'r2'")
    database, watched = Database("s", parse_url(url), 60), monitor(events(style), style)
    try:
        reading = Pull(watched, database).read(START, END)
        assert len(reading.served) == 6 - (broken == "device")
        refused = {reason: len(rows) for reason, rows in reading.strays.items() if len(rows)}
        assert refused == ({"bad_text": 2} if broken == "device" else {})
        assert reading.labelled.sum() == 5
        by_sums, by_pull, _ = both(watched, database, START, END)
        assert_same(by_sums, by_pull, "by push-down")
    finally:
        database.close()


def test_a_wal_file_in_an_unwritable_folder_is_reported_with_a_remedy() -> None:
    if os.geteuid():
        pytest.skip("only root can become somebody who may not write there")
    with tempfile.TemporaryDirectory() as made:
        folder, path = Path(made), Path(made) / "shop.db"
        monitored = small(f"sqlite:///{path}")
        execute(f"sqlite:///{path}", "PRAGMA journal_mode = WAL")
        folder.chmod(0o555)
        with as_somebody_else():
            error = failure(f"sqlite:///{path}", monitored)
        assert error.reason == "permission"
        assert "let this user write to its folder or have its owner run PRAGMA journal_mode = DELETE" in str(error)
        assert "GRANT" not in str(error).upper()


@pytest.mark.parametrize("wrong", ["position", "grade", "at"])
def test_a_column_of_the_wrong_type_is_reported_on_postgresql(postgres_url: str, wrong: str) -> None:
    monitored = small(postgres_url)
    execute(postgres_url, f'ALTER TABLE rankings ALTER COLUMN "{wrong}" TYPE text')
    error = failure(postgres_url, monitored)
    told = "is text, and positions are numbers" if wrong == "position" else "a different type"
    assert (error.reason, told in str(error)) == ("data", True)
    assert f"'{wrong}'" in str(error) or f'"{wrong}"' in str(error)


# ---- read-only ---------------------------------------------------------------------------------------------------

COLUMNS = f"'r' AS request, 1 AS item, {INSIDE}, 'q' AS query, 1 AS grade"
WRITING = {
    "a function that writes": f"SELECT {COLUMNS}, setval('counter', 5) AS position",
    "a sequence": f"SELECT {COLUMNS}, nextval('counter') AS position FROM rankings",
    "a statement that deletes": f"WITH gone AS (DELETE FROM rankings RETURNING position) SELECT {COLUMNS}, * FROM gone",
    "a second statement": f"SELECT {COLUMNS}, 1 AS position) AS r; DELETE FROM rankings; SELECT * FROM (SELECT 1",
    "a lock": f"SELECT {COLUMNS}, position FROM rankings FOR UPDATE",
}


@pytest.mark.parametrize("select", WRITING.values(), ids=WRITING)
def test_nothing_can_be_written_on_postgresql(postgres_url: str, select: str) -> None:
    small(postgres_url)
    execute(postgres_url, "CREATE SEQUENCE counter")
    error = failure(postgres_url, by_select(postgres_url, select))
    assert error.reason == "query"
    engine = sa.create_engine(postgres_url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM rankings").scalar() == 3
        assert connection.exec_driver_sql("SELECT is_called FROM counter").scalar() is False
    engine.dispose()


def test_a_select_that_writes_reports_that_sources_are_read_only(postgres_url: str) -> None:
    small(postgres_url)
    execute(postgres_url, "CREATE SEQUENCE counter")
    assert "sources are read-only" in str(failure(postgres_url, by_select(postgres_url, WRITING["a sequence"])))


def test_nothing_can_be_written_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    small(url)
    before = (tmp_path / "shop.db").read_bytes()
    database = Database("shop", parse_url(url), 60)
    for statement in ("DELETE FROM rankings", "CREATE TABLE x (y)", "PRAGMA user_version = 7", "VACUUM"):
        with pytest.raises((SourceError, sqlite3.Error)), database.reading() as reader:
            reader._connection.exec_driver_sql(statement)
    assert (tmp_path / "shop.db").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["shop.db"]


def test_a_reader_sees_one_snapshot_of_the_data(database_url: str) -> None:
    small(database_url)
    if database_url.startswith("sqlite"):
        execute(database_url, "PRAGMA journal_mode = WAL")
    database = Database("shop", parse_url(database_url), 60)
    count = sa.select(sa.func.count()).select_from(sa.table("rankings"))
    with database.reading() as reader:
        assert reader.one(count) == 3
        execute(database_url, "DELETE FROM rankings")
        assert reader.one(count) == 3
    with database.reading() as reader:
        assert reader.one(count) == 0
    database.close()


def test_a_locked_sqlite_file_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    monitored = small(url)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **(k | {"timeout": 0.05})))
    writer = connect(tmp_path / "shop.db", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    error = failure(url, monitored)
    assert (error.reason, "WAL" in str(error)) == ("timeout", True)
    writer.close()


# ---- too slow, too much, stopped -----------------------------------------------------------------------------------


def test_a_statement_that_takes_too_long_is_a_timeout(database_url: str) -> None:
    small(database_url)
    slow = SLOW_SQLITE if database_url.startswith("sqlite") else SLOW_POSTGRES
    began = time.monotonic()
    error = failure(database_url, by_select(database_url, slow), timeout=0.3)
    assert time.monotonic() - began < 5
    assert (error.reason, "raise statement_timeout" in str(error)) == ("timeout", True)


def test_the_time_limit_applies_to_each_statement(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.source.dialects.sqlite._STEPS", 1)
    monitored = small(database_url)
    database = Database("shop", parse_url(database_url), 0.2)
    count = sa.select(sa.func.count()).select_from(sa.table("rankings"))
    with database.reading() as reader:
        for _ in range(3):
            assert reader.one(count) == 3
            time.sleep(0.15)
    assert len(Pull(monitored, database).read(START, END).served) == 1
    database.close()


def test_a_fetch_that_takes_too_long_is_a_timeout_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    small(url)
    numbers = sa.text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n")
    database = Database("shop", parse_url(url), 0.2)
    with pytest.raises(SourceError) as caught, database.reading() as reader:
        reader.columns(sa.select(numbers.columns(sa.column("i")).subquery("n")))
    assert caught.value.reason == "timeout"


def test_more_rows_than_the_limit_raise_too_many(database_url: str) -> None:
    monitored = small(database_url)
    database = Database("shop", parse_url(database_url), 60)
    assert len(Pull(monitored, database, most_rows=2).read(START, END).served) == 1
    with pytest.raises(TooMany, match="more than 1 rows"):
        Pull(monitored, database, most_rows=1).read(START, END)
    database.close()


def test_fetching_stops_soon_after_the_row_limit(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "FETCH", 10)
    small(database_url)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT i FROM n"
    database = Database("shop", parse_url(database_url), 60)
    with database.reading() as reader:
        with pytest.raises(TooMany):
            reader.columns(sa.select(sa.text(numbers).columns(sa.column("i")).subquery("n")), most=25)
        assert reader.rows == 30
    database.close()


def test_a_stopping_process_stops_between_fetches(database_url: str) -> None:
    monitored = small(database_url)
    asked = iter([False])
    database = Database("shop", parse_url(database_url), 60, lambda: next(asked, True))
    with pytest.raises(Stopped):
        Pull(monitored, database).read(START, END)
    database.close()


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_a_stopping_process_stops_within_a_statement(database_url: str, how: str) -> None:
    if not database_url.startswith("sqlite"):
        how = "interrupt"  # a server does not poll for a stop itself
    small(database_url)
    slow = SLOW_SQLITE if database_url.startswith("sqlite") else SLOW_POSTGRES
    ending = threading.Event()
    database = Database("shop", parse_url(database_url), 60, ending.is_set)

    def end() -> None:
        ending.set()
        if how == "interrupt":
            database.interrupt()

    timer = threading.Timer(0.3, end)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        Pull(by_select(database_url, slow), database).read(START, END)
    assert time.monotonic() - began < 5
    timer.join()
    database.close()


def test_cancelling_a_statement_waits_only_briefly_for_the_server(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(psycopg.Connection, "cancel_safe", lambda _, timeout: asked.append(timeout))
    database = Database("shop", parse_url(postgres_url), 60)
    with database.reading():
        database.interrupt()
    database.interrupt()
    assert asked == [ASKED_FOR]
    database.close()


def test_an_interrupted_statement_is_an_error_if_the_process_continues(postgres_url: str) -> None:
    database = Database("shop", parse_url(postgres_url), 60)
    timer = threading.Timer(0.3, database.interrupt)
    timer.start()
    with pytest.raises(SourceError) as caught:
        Pull(by_select(postgres_url, SLOW_POSTGRES), database).read(START, END)
    assert caught.value.reason == "connect"
    timer.join()
    database.close()


# ---- connections that break --------------------------------------------------------------------------------------


def _backends(url: str) -> str:
    return f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.rpartition('/')[2]}' " + (
        "AND pid <> pg_backend_pid() AND application_name ~ '^rankmon( |$)'"
    )


def _broken(act: Callable[[], object], database: Database) -> SourceError:
    """The error that reading ends with if `act` happens after the first answer."""

    def read() -> None:
        with database.reading() as reader:
            assert reader.one(sa.select(sa.func.count()).select_from(sa.table("rankings"))) == 3
            act()
            reader.columns(sa.select(sa.column("request")).select_from(sa.table("rankings")))

    with pytest.raises(SourceError) as caught:
        read()
    return caught.value


def test_a_connection_cut_mid_read_is_an_error_and_the_next_read_works(postgres_url: str) -> None:
    monitored = small(postgres_url)
    database = Database("shop", parse_url(postgres_url), 60)
    for _ in range(2):
        error = _broken(lambda: execute(postgres_url, _backends(postgres_url)), database)
        assert error.reason == "connect"
        assert len(Pull(monitored, database).read(START, END).served) == 1
    execute(postgres_url, _backends(postgres_url))  # while it is idle in the pool
    assert len(Pull(monitored, database).read(START, END).served) == 1
    database.close()


def test_a_server_killed_mid_read_is_an_error_and_reading_works_after_a_restart(own_server: PostgresServer) -> None:
    own_server.start()
    url = own_server.create_database()
    monitored = small(url)
    database = Database("shop", parse_url(url), 60)
    assert _broken(own_server.kill, database).reason == "connect"
    with pytest.raises(SourceError) as caught:
        Pull(monitored, database).read(START, END)
    assert caught.value.reason == "connect"
    own_server.start()
    assert len(Pull(monitored, database).read(START, END).served) == 1
    database.close()


def test_an_error_leaves_the_connection_usable_for_the_next_read(database_url: str) -> None:
    monitored = small(database_url)
    database = Database("shop", parse_url(database_url), 60)
    with pytest.raises(KeyError), database.reading() as reader:
        {}[reader.one(sa.select(sa.literal(1)))]
    with pytest.raises(SourceError), database.reading() as reader:
        reader.one(sa.select(sa.column("x")).select_from(sa.table("nowhere")))
    assert len(Pull(monitored, database).read(START, END).served) == 1
    database.close()


def test_threads_share_one_database(database_url: str) -> None:
    monitored = small(database_url)
    database = Database("shop", parse_url(database_url), 60)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(len(Pull(monitored, database).read(START, END).served)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    database.close()


# ---- passwords ---------------------------------------------------------------------------------------------------


def test_a_password_is_never_in_a_message(postgres: PostgresServer) -> None:
    postgres.start()
    for password in ("hunter2", "p@ss/wörd:%"):
        url = parse_url("postgresql://nobody@127.0.0.1:9/shop?sslpassword=other%20secret")
        database = Database("shop", url.set(password=password), 60)
        said = f"cannot log in with {password}, sslpassword 'other secret'"
        assert database.redact(said) == "cannot log in with ***, sslpassword '***'"
        with pytest.raises(SourceError) as caught, database.reading():
            pass
        assert password not in f"{caught.value!r} {caught.value.__cause__!r} {database!r}"
    error = failure(postgres.url("hunter2"), by_select("postgresql:", "SELECT 1"), password="hunter2")
    assert "hunter2" not in str(error)
