"""Missing drivers, unknown dialects and server errors: each is reported with a remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.source.dialects import dialect_of
from monitor.source.dialects.faults import looked_for
from monitor.source.engine import Database
from monitor.source.pushdown import PushDown
from tests.support.logs import END, START, Style, events, monitor

EPOCH = Style("bigint", "epoch_ms", None, lambda micros: micros // 1000)


def refusal(url: str) -> str:
    """The error that opening a source ends with."""
    with pytest.raises(SourceError) as caught, Database("shop", parse_url(url), 60).reading():
        pass
    assert caught.value.reason == "driver", caught.value
    return str(caught.value)


@pytest.mark.parametrize(
    ("module", "url", "words"),
    [
        ("trino", "trino://u@h/c", ("the driver trino", "is not installed", "-m pip install 'rankmon[trino]'")),
        ("oracledb", "oracle+oracledb://u@h/", ("oracledb is not installed", "-m pip install 'rankmon[oracle]'")),
        ("MySQLdb", "mysql+mysqldb://u@h/d", ("begin with mysql+pymysql://", "-m pip install 'rankmon[mysql]'")),
        ("pg8000", "postgresql+pg8000://u@h/d", ("postgresql+psycopg://", "pip install 'rankmon[postgresql]'")),
        ("pymssql", "mssql+pymssql://u@h/d", ("mssql+pyodbc://", "-m pip install 'rankmon[mssql]'")),
        ("", "postgres://u@h/d", ("let the URL begin with postgresql://",)),
        ("", "firebirdsql://u@h/d", ("install the SQLAlchemy driver for firebirdsql, if it speaks SQL",)),
        (
            "",
            "postgressql://u@h/d",
            ("did you mean postgresql://? Else install the SQLAlchemy driver for postgressql",),
        ),
        ("", "mongodb://h/d", ("if it speaks SQL; rankmon itself knows bigquery, clickhousedb, databricks, duckdb, ",)),
        ("", "spark://h:10000/d", ("let the URL begin with hive://",)),
        ("", "duckdb+x:////log.duckdb", ("there is no driver duckdb.x; let the URL begin with duckdb://", "[duckdb]'")),
        ("", "clickhousedb+asynch://h/d", ("no driver clickhousedb.asynch; let the URL begin with clickhousedb://",)),
        ("", "databricks+x://h", ("let the URL begin with databricks:// and run pip install databricks-sqlalchemy",)),
    ],
)
def test_a_missing_driver_is_reported_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, module: str, url: str, words: tuple[str, ...]
) -> None:
    if module:
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    said = refusal(url)
    assert said.startswith("source shop: ")
    assert [word for word in words if word not in said] == [], said


def test_a_driver_that_cannot_be_loaded_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_: object, **__: object) -> None:
        raise ImportError("no pq wrapper available.\nAttempts made: libpq library not found")

    monkeypatch.setattr("sqlalchemy.create_engine", create)
    said = refusal("postgresql://u@h/d")
    assert "the driver for postgresql cannot be loaded: no pq wrapper available. Attempts made" in said
    assert "-m pip install 'rankmon[postgresql]'" in said


def test_push_down_refuses_an_unsupported_dialect() -> None:
    url = sa.URL.create("firebird", host="h")
    source = PushDown(monitor(events(EPOCH), EPOCH), Database("s", url, 60), is_bound=True)
    with pytest.raises(SourceError, match="does not know time arithmetic in firebird; use engine: auto"):
        source.read(START, END)


@pytest.mark.parametrize(
    ("name", "said", "reason", "word"),
    [
        ("postgresql", "ERROR: canceling statement due to conflict with recovery", "timeout", "hot_standby_feedback"),
        ("oracle", "ORA-01031: insufficient privileges", "permission", "grant SELECT"),
        ("snowflake", "Object 'X' does not exist or not authorized.", "permission", "grant SELECT"),
        ("mssql", "The SELECT permission was denied on the object 'log'", "permission", "grant SELECT"),
        ("hive", "TSocket read 0 bytes", "connect", "is the database up"),
        ("postgresql", 'invalid input value for enum kind: "purchase"', "data", "ALTER TYPE"),
        (
            "postgresql",
            'FATAL: pg_hba.conf rejects connection for user "u", database "shop"',
            "connect",
            "may this user log in",
        ),
        ("bigquery", "Your default credentials were not found. To set up", "connect", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("mysql", "(1820, 'You must SET PASSWORD before executing this statement')", "connect", "ALTER USER"),
    ],
)
def test_errors_of_other_servers_get_a_reason_and_remedy(name: str, said: str, reason: str, word: str) -> None:
    fault = dialect_of(name).fault_of(SQLAlchemyError(said))
    assert fault is not None
    assert (fault.reason, word in fault.remedy) == (reason, True)


class Refused(Exception):
    """Like a driver's error, with an SQLSTATE if it has one."""

    def __init__(self, said: str, sqlstate: str = "") -> None:
        super().__init__(said)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "reason", "word"),
    [
        (Refused("could not serialize access", "40001"), "timeout", "in the way"),
        (Refused("deadlock detected", "40P01"), "timeout", "in the way"),
        (Refused("too many clients already", "53300"), "connect", "lower max_concurrent"),
        (Refused("no more of it", "53200"), "resources", "ran out of memory or disk"),
        (Refused('could not write: "No space left on device"', "53100"), "resources", "ran out of memory or disk"),
        (Refused("terminating connection", "57P01"), "connect", "the server ended it"),
        (Refused("crash of another server process", "57P02"), "connect", "the server ended it"),
        (Refused("the database system is starting up", "57P03"), "connect", "is the database up"),
        (Refused("(1213, 'Deadlock found when trying to get lock')"), "timeout", "in the way"),
        (Refused("(1038, 'Out of sort memory, consider increasing')"), "resources", "ran out of memory or disk"),
        (Refused("DB::Exception: Query was cancelled. (QUERY_WAS_CANCELLED)"), "connect", "somebody ended"),
        (Refused("DB::Exception: Too many. (TOO_MANY_SIMULTANEOUS_QUERIES)"), "connect", "max_concurrent"),
        (Refused("DB::Exception: Timeout exceeded: elapsed (TIMEOUT_EXCEEDED)"), "timeout", "statement_timeout"),
        (
            Refused("Lost task 0.3 in stage 1.0: ExecutorLostFailure (executor 1 exited)"),
            "resources",
            "ran out of memory or disk",
        ),
        (Refused("Job 3 cancelled because SparkContext was shut down"), "connect", "somebody ended"),
        (Refused("Query exceeded per-node memory limit of 1GB"), "resources", "ran out of memory or disk"),
        (Refused("Resources exceeded during query execution"), "resources", "ran out of memory or disk"),
        (Refused("ORA-01652: unable to extend temp segment"), "resources", "ran out of memory or disk"),
        (Refused("Transaction was deadlocked on lock resources"), "timeout", "in the way"),
        (Refused("(1412, 'Table definition has changed, please retry transaction')"), "timeout", "in the way"),
    ],
)
def test_transient_errors_are_not_lasting(error: Exception, reason: str, word: str) -> None:
    fault = dialect_of("clickhousedb" if "DB::" in str(error) else "postgresql").fault_of(error)
    assert fault is not None
    assert (fault.reason, word in fault.remedy, fault.lasting) == (reason, True, False)


def test_remedies_do_not_promise_a_retry() -> None:
    """Whoever retries says when."""
    folder = Path(sys.modules[Database.__module__].__file__ or "").parent
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    assert len(texts) > 30
    assert sum(text.count("will retry") for text in texts) == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused("syntax error at or near", "42601"), "query"),
        (Refused("function f(integer) does not exist", "42883"), "data"),
        (Refused("FULL JOIN is only supported with", "0A000"), "query"),
        (Refused("(1064, 'You have an error in your SQL syntax')"), "query"),
        (Refused("(1305, 'FUNCTION shop.f does not exist')"), "query"),
        (Refused("Code: 46. DB::Exception: Function with name `f` does not exist. (UNKNOWN_FUNCTION)"), "query"),
        (Refused("Code: 43. DB::Exception: Illegal types (ILLEGAL_TYPE_OF_ARGUMENT)"), "data"),
        (Refused("[UNRESOLVED_ROUTINE] Cannot resolve routine `f`", "42883"), "data"),
        (Refused("[DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES] Cannot resolve", "42K09"), "data"),
        (Refused("TrinoUserError(type=USER_ERROR, name=FUNCTION_NOT_FOUND, message=...)"), "query"),
    ],
)
def test_queries_that_a_database_can_never_run_are_lasting_errors(error: Exception, reason: str) -> None:
    fault = dialect_of("clickhousedb" if "DB::" in str(error) else "postgresql").fault_of(error)
    assert fault is not None
    assert (fault.reason, fault.lasting) == (reason, True)


@pytest.mark.parametrize(
    ("said", "grant"),
    [
        ("permission denied for schema logs LINE 1: ...", "GRANT USAGE ON SCHEMA logs TO watcher"),
        ('permission denied for database "shop" DETAIL: User', "GRANT CONNECT ON DATABASE shop TO watcher"),
        ("permission denied for materialized view shown", "GRANT SELECT ON shown TO watcher"),
        ("permission denied for foreign table far", "GRANT SELECT ON far TO watcher"),
        ("permission denied for function hold", "GRANT EXECUTE ON FUNCTION hold TO watcher"),
        ("SELECT command denied to user 'watcher'@'h' for table 'events'", "GRANT SELECT ON events TO 'watcher'@'h'"),
        (
            "SELECT command denied to user 'watcher'@'h' for column 'at' in table 'log'",
            "GRANT SELECT ON log TO 'watcher'@'h'",
        ),
        ("Access denied for user 'watcher'@'%' to database 'shop'", "GRANT SELECT ON shop.* TO 'watcher'@'%'"),
        ("something else", ""),
    ],
)
def test_a_permission_error_names_the_grant_to_run(said: str, grant: str) -> None:
    dialect = dialect_of("mysql" if "denied to user" in said or "denied for user" in said else "postgresql")
    assert dialect.grant_for(said, "watcher") == grant
    assert dialect.grant_for(said, None) == ""


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ('SELECT e."events" FROM "shop"."events" AS e', '"shop"."events"'),
        ("SELECT 1 FROM (SELECT * FROM log AS r left join shop.web.events) AS r", "shop.web.events"),
        ("SELECT 1 FROM shop.events_2 AS e JOIN events AS f", "events"),
        ("SELECT 1 FROM a.events UNION ALL SELECT 1 FROM b.events", "events"),
    ],
)
def test_a_grant_names_the_schema_as_the_statement_does(statement: str, table: str) -> None:
    said = "permission denied for table events"
    assert dialect_of("postgresql").grant_for(said, "watcher", statement) == f"GRANT SELECT ON {table} TO watcher"


@pytest.mark.parametrize(
    ("said", "user", "grant"),
    [
        ("permission denied for schema Web Logs LINE 1: ...", "me", 'GRANT USAGE ON SCHEMA "Web Logs" TO me'),
        ("permission denied for table SearchLog", "rank-mon", 'GRANT SELECT ON "SearchLog" TO "rank-mon"'),
        ("permission denied for table log%", "me", 'GRANT SELECT ON "Web%"."log%" TO me'),
        ('permission denied for database "my-shop" DETAIL: User', "me", 'GRANT CONNECT ON DATABASE "my-shop" TO me'),
        (
            "SELECT command denied to user 'me'@'h' for table `shop`.`a b`",
            "me",
            "GRANT SELECT ON `shop`.`a b` TO 'me'@'h'",
        ),
        ("Access denied for user 'a-b'@'%' to database 'my-shop'", "a-b", "GRANT SELECT ON `my-shop`.* TO 'a-b'@'%'"),
    ],
)
def test_names_in_a_grant_are_quoted_where_needed(said: str, user: str, grant: str) -> None:
    dialect = dialect_of("mysql" if "denied to user" in said or "denied for user" in said else "postgresql")
    assert dialect.grant_for(said, user, 'SELECT 1 FROM "Web%%"."log%%" AS e') == grant


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("column r.usr does not exist LINE 1: ...", "looked for in the rankings, reco.log"),
        ("no such column: e.usr", "looked for in the labels, feedback"),
        ("(1054, \"Unknown column 'e.usr' in 'SELECT'\")", "looked for in the labels, feedback"),
        ('Binder Error: Table "r" does not have a column named "usr"', "looked for in the rankings, reco.log"),
        ('Binder Error: Values list "e" does not have a column named "usr"', "looked for in the labels, feedback"),
        ("column usr does not exist", ""),
    ],
)
def test_a_missing_column_error_names_the_table_that_was_searched(said: str, place: str) -> None:
    assert looked_for(said, 'SELECT r.usr FROM "reco"."log" AS r, "feedback" AS e') == place


@pytest.mark.parametrize("error", [ConnectionResetError("reset by peer"), EOFError("nothing more"), TimeoutError()])
def test_connection_errors_of_the_drivers_library_are_connect_errors(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def connect(*_: object) -> None:
        raise error

    monkeypatch.setattr("monitor.source.dialects.sqlite.open_file", connect)
    with (
        pytest.raises(SourceError) as caught,
        Database("s", parse_url(f"sqlite:///{tmp_path}/x.db"), 60).reading(),
    ):
        pass
    assert caught.value.reason == "connect"


def test_a_half_written_parquet_file_is_reported_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1" + bytes(200))
    database = Database("s", parse_url("duckdb:///:memory:"), 5)
    with (
        pytest.raises(SourceError, match="write it under a different name and rename it when it is complete") as caught,
        database.reading() as reader,
    ):
        reader.one(sa.text(f"SELECT count(*) FROM read_parquet('{path}')"))
    assert str(path) in str(caught.value)
    assert caught.value.reason == "data"


def test_duckdbs_suggestions_are_kept_only_for_the_users_own_tables() -> None:
    said = 'Table with name {} does not exist!\nDid you mean "{}"?\n\nLINE 1: SELECT 1 FROM x\n               ^'
    assert (
        dialect_of("duckdb").reworded(said.format("nosuch", "pg_sequences"), True)
        == "Table with name nosuch does not exist!"
    )
    assert (
        dialect_of("duckdb")
        .reworded(said.format("lag", "log"), True)
        .endswith('lag does not exist!\nDid you mean "log"?')
    )
