"""Limits on concurrent statements and their duration, and what the database's administrator sees of rankmon."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor.clock import ReplayClock
from monitor.config import load
from monitor.database_url import parse_url
from monitor.errors import SourceError, Stopped
from monitor.service.app import App
from monitor.source.checks.assess import assess
from monitor.source.choice import open_source
from monitor.source.dialects import dialect_of
from monitor.source.engine import MOST_AT_ONCE, Database
from monitor.source.inspect import inspect
from monitor.source.watch import turn
from monitor.types import Monitor
from tests.service.test_app import Setting, eventually, of_search
from tests.service.test_cycle import SETTLED, log_searches
from tests.support.engines import clickhouse, duckdb_over_parquet
from tests.support.logs import END, START, Log, Style, events, monitor, write
from tests.support.mariadb import MariaServer

EPOCH = Style("bigint", "epoch_ms", None, lambda micros: micros // 1000)
ONE = sa.select(sa.literal(1))


def filled(url: str) -> Monitor:
    """Write a log with one request; return a monitor of it with click labels."""
    log = Log()
    log.show("r1", [1, 2, 3], START + 5, device="tv", country="x")
    log.happen("r1", 2, START + 10)
    write(url, log, EPOCH)
    return monitor(events(EPOCH), EPOCH)


@pytest.fixture
def some_url(database_url: str) -> str:
    """A database with a log, on each engine in turn."""
    filled(database_url)
    return database_url


@pytest.fixture
def patience() -> Iterator[threading.Event]:
    """Is set after a while, to stop a reader that would wait forever."""
    over = threading.Event()
    timer = threading.Timer(30, over.set)
    timer.start()
    yield over
    timer.cancel()


def database(url: str, most: int = MOST_AT_ONCE, stop: threading.Event | None = None, timeout: float = 60) -> Database:
    return Database("s", parse_url(url), timeout, (stop or threading.Event()).is_set, most)


class Watching:
    """Polls what a PostgreSQL database is doing for rankmon."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.connected: list[int] = []
        self.active: list[int] = []
        self.names: set[str] = set()
        self.statements: set[str] = set()

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._engine.dispose()

    def _look(self) -> None:
        query = (
            "SELECT state, application_name, query FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name ~ '^rankmon( |$)'"
        )
        with self._engine.connect() as connection:
            while not self._ended.wait(0.005):
                rows = connection.exec_driver_sql(query).all()
                under_way = [row for row in rows if row.state != "idle"]
                self.connected.append(len(rows))
                self.active.append(len(under_way))
                self.names |= {row.application_name for row in under_way}
                self.statements |= {row.query for row in under_way}


# ---- concurrent statements -----------------------------------------------------------------------------------------


@contextmanager
def readers(number: int, source: Database, work: Any) -> Iterator[list[BaseException]]:
    """Run `work` in `number` threads with a reader each; yield the errors they end with."""
    raised: list[BaseException] = []

    def read() -> None:
        try:
            with source.reading() as reader:
                work(reader)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=read) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield raised
    finally:
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)


def test_postgresql_never_sees_more_statements_than_the_limit(postgres_url: str) -> None:
    source = database(postgres_url, most=3)
    slow = sa.select(sa.func.pg_sleep(0.1))
    with Watching(postgres_url) as seen, readers(15, source, lambda reader: reader.columns(slow)) as raised:
        pass
    assert raised == []
    assert max(seen.active) == 3, "the whole limit is used"
    assert max(seen.connected) == 3
    source.close()


@pytest.mark.parametrize("most", [1, 2])
def test_a_reader_waits_for_a_free_turn_when_all_are_taken(some_url: str, most: int) -> None:
    source, entered, leave = database(some_url, most), threading.Semaphore(0), threading.Event()

    def stay(reader: Any) -> None:
        assert reader.one(ONE) == 1
        entered.release()
        assert leave.wait(20)

    with readers(most + 2, source, stay) as raised:
        came = [entered.acquire(timeout=20) for _ in range(most)]
        is_one_more = entered.acquire(timeout=0.3)
        leave.set()
    assert came == [True] * most
    assert not is_one_more, "the others wait"
    assert raised == []
    source.close()


def test_mapping_checks_never_open_a_transaction_while_holding_another(tmp_path: Path) -> None:
    """Not even if many events are unmatched and the checks search for their impressions."""
    log, url = Log(), f"sqlite:///{tmp_path / 'log.db'}"
    for i in range(300):
        log.show(f"r{i}", ["a", "b"], START + i)
        log.happen(f"{'r' if i % 2 else 'x'}{i}", "a", START + i + 1)
    write(url, log, EPOCH)
    late = time.monotonic() + 120
    database = Database("s", parse_url(url), 60, lambda: time.monotonic() > late, max_concurrent=1)
    found = assess(monitor(events(EPOCH), EPOCH), database, END + 3600.0, None)
    assert any("match no impression" in remark.text for remark in found.remarks), found


def test_a_failed_reader_gives_its_turn_back(some_url: str, patience: threading.Event) -> None:
    source = database(some_url, most=1, stop=patience)
    for _ in range(3):
        with pytest.raises(SourceError), source.reading() as reader:
            reader.one(sa.select(sa.column("x")).select_from(sa.table("nowhere")))
    with source.reading() as reader:
        assert reader.one(ONE) == 1
    source.close()


def test_an_unreachable_server_does_not_keep_a_turn(patience: threading.Event) -> None:
    source = database("postgresql://postgres@127.0.0.1:9/shop", most=1, stop=patience)
    for _ in range(3):
        with pytest.raises(SourceError), source.reading():
            pass


def test_readers_waiting_for_a_turn_stop_when_interrupted(some_url: str) -> None:
    stop = threading.Event()
    source = database(some_url, most=1, stop=stop)
    with ExitStack() as held:
        held.enter_context(source.reading())
        with readers(5, source, lambda reader: reader.one(ONE)) as raised:
            time.sleep(0.1)
            assert raised == []
            stop.set()
            source.interrupt()
    assert [type(error) for error in raised] == [Stopped] * 5
    source.close()


def test_a_reader_waiting_for_a_turn_polls_for_a_stop() -> None:
    stop, stopped = threading.Event(), threading.Event()
    turns = threading.Semaphore(1)

    def wait() -> None:
        with suppress(Stopped), turn(turns, stop.is_set):
            return
        stopped.set()

    with turn(turns, stop.is_set):
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        assert not stopped.wait(0.1)
        stop.set()
        assert stopped.wait(20)


def test_all_monitors_run_within_the_limit_of_their_source(tmp_path: Path, postgres_url: str) -> None:
    log_searches(postgres_url, hours=70)
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:  # so that statements would overlap if they could
        wait = "WITH w AS MATERIALIZED (SELECT pg_sleep(0.02) IS NOT NULL AS is_over)"
        connection.exec_driver_sql(f"CREATE VIEW slow AS {wait} SELECT r.* FROM rankings r, w WHERE w.is_over")
    engine.dispose()
    setting, names = Setting(tmp_path, {"search": postgres_url}), [f"m{n}" for n in range(8)]
    setting.scheduler = "{lease: 3s, workers: 8}"
    setting.limits += ", max_concurrent: 2"
    setting.write(*(of_search(name, refresh="1h", table="slow") for name in names))
    app = App(load(setting.path, {}), ReplayClock(SETTLED))
    with Watching(postgres_url) as seen:
        try:
            app.prepare()
            app.start()
            counted = app.telemetry.counts
            eventually(lambda: all(counted().get(("rankmon_evaluations", (n,)), 0) for n in names), 120)
        finally:
            app.stop()
    assert max(seen.active) == 2
    assert max(seen.connected) <= 2
    assert seen.names >= {f"rankmon {name}" for name in names}


@pytest.mark.parametrize(("key", "expected"), [("", MOST_AT_ONCE), ("max_concurrent: 7", 7)])
def test_max_concurrent_is_set_per_source_and_has_a_default(tmp_path: Path, key: str, expected: int) -> None:
    setting = Setting(tmp_path, {"search": f"sqlite:///{tmp_path}/none.db"})
    if key:
        setting.limits = key
    setting.write(of_search("m"))
    app = App(load(setting.path, {}))
    app.prepare()
    assert app._databases["search"].max_concurrent == expected
    app.close()


# ---- time limits of statements, and what the administrator sees ------------------------------------------------------


def setting_of(source: Database, query: str, who: str = "search") -> Any:
    with source.reading(who) as reader:
        return reader.one(sa.text(query))  # type: ignore[arg-type]


def test_postgresql_sessions_carry_the_time_limit_and_the_monitor_name(postgres_url: str) -> None:
    source = database(postgres_url, timeout=12.5)
    assert setting_of(source, "SELECT current_setting('statement_timeout')") == "12500ms"
    assert setting_of(source, "SELECT current_setting('application_name')") == "rankmon search"
    assert setting_of(source, "SELECT current_setting('transaction_read_only')") == "on"
    assert setting_of(source, "SELECT current_setting('TimeZone')") == "UTC"
    assert setting_of(source, "SELECT current_setting('application_name')", who="") == "rankmon"
    assert len(setting_of(source, "SELECT current_setting('application_name')", who="m" * 90)) == 63
    source.close()
    named = database(f"{postgres_url}?application_name=ours")
    assert setting_of(named, "SELECT current_setting('application_name')") == "ours", "as the URL says"
    named.close()


def test_a_monitor_name_cannot_break_out_of_its_sql_comment(postgres_url: str) -> None:
    source = database(postgres_url)
    for name in ("*/ SELECT 2 --", "100%", "%s %(x)s", "a'b", "\0"):
        assert setting_of(source, "SELECT 1", who=name) == 1
    source.close()


@pytest.mark.parametrize("engine", ["pull", "pushdown"])
def test_the_administrator_sees_which_monitor_reads(postgres_url: str, engine: str) -> None:
    made = replace(filled(postgres_url), name="front-page", engine=engine)
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rankings RENAME TO shown")
        slow = "SELECT * FROM shown WHERE pg_sleep(0.05) IS NOT NULL OFFSET 0"
        connection.exec_driver_sql(f"CREATE VIEW rankings AS {slow}")
    source = database(postgres_url)
    with Watching(postgres_url) as seen:
        for _ in range(20):  # on a busy machine the poller may be too late
            open_source(replace(made, source="s"), source).read(START, END)
            inspect(replace(made, source="s"), source, "r1")
            if any("rankings" in statement for statement in seen.statements.copy()):
                break
    assert "rankmon front-page" in seen.names
    reads = [statement for statement in seen.statements if "rankings" in statement]
    assert reads
    # If an answer is streamed, the comment follows the cursor's declaration.
    assert [statement for statement in reads if "/* rankmon front-page */" not in statement] == []
    source.close()


def test_mariadb_sessions_carry_the_time_limit_and_the_monitor_name(maria: MariaServer) -> None:
    source = database(maria.create_database(), timeout=12.5)
    assert float(setting_of(source, "SELECT @@SESSION.max_statement_time")) == 12.5
    assert setting_of(source, "SELECT @@SESSION.time_zone") == "+00:00"
    own = "SELECT info FROM information_schema.processlist WHERE id = connection_id()"
    assert setting_of(source, own).startswith("/* rankmon search */ SELECT info")
    source.close()


def test_mariadb_uses_hash_joins_without_an_index(maria: MariaServer) -> None:
    url = maria.create_database()
    name = url.rpartition("/")[2]
    for table in ("one", "other"):
        maria.execute(f"CREATE TABLE {name}.{table} AS SELECT seq AS id FROM {name}.seq_1_to_1000")
    source = database(url)
    with source.reading() as reader:
        joined = "SELECT one.id FROM one JOIN other ON one.id = other.id"
        *_, (*_, how) = reader._connection.exec_driver_sql(f"EXPLAIN {joined}")
    assert "BNLH join" in how
    source.close()


def test_clickhouse_sessions_carry_the_time_limit_and_the_monitor_name(tmp_path: Path) -> None:
    pytest.importorskip("chdb")
    source = database(clickhouse(tmp_path / "data").url, timeout=12)
    assert float(setting_of(source, "SELECT toString(getSetting('max_execution_time'))")) == 12
    assert setting_of(source, "SELECT getSetting('log_comment')") == "rankmon"
    own = setting_of(source, "SELECT query FROM system.processes WHERE query LIKE '%processes%'")
    assert own.startswith("/* rankmon search */ SELECT query")
    source.close()


def test_duckdb_and_sqlite_accept_a_reader_with_a_monitor_name(tmp_path: Path) -> None:
    pytest.importorskip("duckdb_engine")
    kind = duckdb_over_parquet(tmp_path)
    kind.write(Log(), kind.styles["epoch ms"], "whole", "number")
    for url in (kind.url, "sqlite:///" + str(tmp_path / "log.db")):
        if url.startswith("sqlite"):
            filled(url)
        source = database(url)
        assert setting_of(source, "SELECT 1") == 1
        source.close()


OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "trino": (
        "trino://u@h:8443/c",
        {"source": "rankmon", "session_properties": {"query_max_run_time": "13s"}, "request_timeout": 30.0},
        {},
    ),
    "snowflake": (
        "snowflake://u@a/d",
        {
            "session_parameters": {
                **{"QUERY_TAG": "rankmon", "STATEMENT_TIMEOUT_IN_SECONDS": 13},
                "TIMESTAMP_INPUT_FORMAT": "AUTO",
            },
            "login_timeout": 30,
            "network_timeout": 43,
        },
        {},
    ),
    "bigquery": ("bigquery://p/d", {}, {"labels": "program:rankmon"}),
    "databricks": (
        "databricks://token:x@h",
        {
            "user_agent_entry": "rankmon",
            "session_configuration": {"STATEMENT_TIMEOUT": "13", "TIMEZONE": "UTC"},
            "_socket_timeout": 43,
        },
        {},
    ),
    "redshift": ("redshift+redshift_connector://u@h/d", {"application_name": "rankmon", "timeout": 43}, {}),
    "pymssql": (
        "mssql+pymssql://u:p@h/d",
        {"appname": "rankmon", "login_timeout": 5, "timeout": 13},
        {},
    ),
    "another driver for SQL Server": ("mssql+other://u:p@h/d", {}, {}),
    "mssql": ("mssql+pyodbc://u:p@h/d?driver=ODBC", {"timeout": 5}, {"driver": "ODBC", "APP": "rankmon"}),
    "cx_oracle": ("oracle+cx_oracle://u@h/", {}, {}),
    "oracle": ("oracle+oracledb://u@h/", {"tcp_connect_timeout": 5.0}, {}),
    "clickhouse": (
        "clickhousedb://u@h/d",
        {},
        {
            "join_use_nulls": "1",
            "aggregate_functions_null_for_empty": "1",
            "readonly": "2",
            "max_execution_time": "12.5",
            "log_comment": "rankmon",
            "client_name": "rankmon",
            "send_receive_timeout": "43",
            "tz_mode": "aware",
        },
    ),
    "mysql": ("mysql+pymysql://u@h/d", {"program_name": "rankmon", "connect_timeout": 5, "read_timeout": 5}, {}),
    "mysqlclient": (
        "mysql+mysqldb://u@h/d",
        {"connect_timeout": 5, "read_timeout": 43, "write_timeout": 43},
        {},
    ),
    "libpq": (
        "postgresql+psycopg2://u@h/d",
        {
            "application_name": "rankmon",
            "connect_timeout": 5,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
        },
        {},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_drivers_not_run_here_receive_the_time_limit_and_program_name(name: str) -> None:
    url, arguments, query = OTHERS[name]
    made = make_url(url)
    assert dialect_of(made.get_backend_name()).arguments(made, 12.5) == arguments
    assert dict(dialect_of(made.get_backend_name()).address(made, 12.5).query) == query


def test_settings_in_the_url_are_left_alone() -> None:
    made = make_url("trino://u@h/c?source=ours")
    assert "source" not in dialect_of(made.get_backend_name()).arguments(made, 60)
    labelled = make_url("bigquery://p/d?labels=team:find")
    assert dialect_of("bigquery").address(labelled, 60) == labelled


class _Driver:
    """A driver's connection that keeps the attributes set on it."""


@pytest.mark.parametrize(
    ("url", "expected", "said"),
    [
        (
            "oracle+oracledb://h/d",
            {"call_timeout": 12_500, "module": "rankmon", "action": "search"},
            ["ALTER SESSION SET TIME_ZONE = '+00:00'"],
        ),
        ("mssql+pyodbc://h/d", {"timeout": 13}, []),
        ("mssql+pymssql://h/d", {}, []),
        ("redshift+redshift_connector://h/d", {}, ["SET statement_timeout TO 12500"]),
    ],
)
def test_drivers_with_connection_limits_have_them_set(
    url: str, expected: dict[str, Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, driver = sa.create_engine("sqlite://"), _Driver()
    monkeypatch.setattr(engine.dialect, "name", make_url(url).get_backend_name())
    heard: list[str] = []

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def hear(_: object, __: object, statement: str, parameters: Any, *___: object) -> tuple[str, Any]:
        heard.append(statement)
        return "SELECT 1", parameters

    with engine.connect() as connection:
        dialect_of(engine.dialect.name).begin(connection, driver, make_url(url), 12.5, "search")
    assert vars(driver) == expected
    assert heard == said


def test_bigquery_receives_the_time_limit_with_each_job() -> None:
    pytest.importorskip("google.cloud.bigquery")
    engine = sa.create_engine("sqlite://")
    engine.dialect.name = "bigquery"
    with engine.connect() as connection:
        begun = dialect_of("bigquery").begin(connection, _Driver(), make_url("bigquery://p/d"), 12.5, "search")
    assert int(begun.get_execution_options()["job_config"].job_timeout_ms) == 12_500
