"""DuckDB and ClickHouse inside this process: their limits, their files, and what their errors mean."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError, Stopped, TooMany
from monitor.series.readings import Aggregates
from monitor.source.engine import Database, Reader
from monitor.source.pushdown import PushDown
from monitor.types import Monitor
from tests.support.engines import Kind, clickhouse, duckdb_over_parquet
from tests.support.logs import BUCKET, END, START, Log, events, monitor

LONG = 30
"""Seconds that suffice on a busy machine, and far fewer than a statement takes that is not ended."""

AMPLE = 120
"""Seconds for a statement that is meant to finish, however busy the machine is."""

ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
WRITER = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1])
connection.execute("CREATE OR REPLACE TABLE written AS SELECT 1 AS x")
print("open", flush=True)
if len(sys.argv) > 2:
    sys.stdin.read()
"""


def log() -> Log:
    made = Log()
    for n in range(0, END - START, BUCKET):
        made.show(f"r{n}", [1, 2, 3], START + n, device="tv", country="x", query="q", grade=[0, 1, 2])
        made.happen(f"r{n}", 2, START + n + 5)
    return made


@pytest.fixture
def duck(tmp_path: Path) -> Kind:
    """DuckDB, with views on Parquet files and a log in them."""
    pytest.importorskip("duckdb_engine")
    kind = duckdb_over_parquet(tmp_path)
    kind.write(log(), kind.styles["epoch ms"], "whole", "number")
    return kind


@pytest.fixture
def house(tmp_path: Path) -> Kind:
    """ClickHouse's engine, and a log in it."""
    pytest.importorskip("chdb")
    kind = clickhouse(tmp_path / "data")
    kind.write(log(), kind.styles["epoch ms"], "whole", "number")
    return kind


@pytest.fixture
def in_house(house: Kind) -> Iterator[Database]:
    """A source in ClickHouse's engine, which can open one folder at a time."""
    source = Database("s", parse_url(house.url), AMPLE)
    yield source
    source.close()


def watched(kind: Kind) -> Monitor:
    return monitor(events(kind.styles["epoch ms"]), kind.styles["epoch ms"])


def failing(source: Database, query: str) -> SourceError:
    """The error that a statement ends with, in time."""
    began = time.monotonic()
    with pytest.raises(SourceError) as caught, source.reading() as reader:
        ask(reader, query)
    assert time.monotonic() - began < LONG
    return caught.value


def ask(reader: Reader, query: str) -> object:
    return reader.one(sa.text(query))  # type: ignore[arg-type]


# ---- DuckDB --------------------------------------------------------------------------------------------------------


def test_duckdb_respects_the_time_limit_and_the_next_read_works(duck: Kind) -> None:
    source = Database("s", parse_url(duck.url), 0.5, max_concurrent=1)
    error = failing(source, ENDLESS)
    assert (error.reason, "longer than 0.5 s; raise statement_timeout" in str(error)) == ("timeout", True)
    source.statement_timeout = AMPLE
    with source.reading() as reader:
        assert ask(reader, "SELECT count(*) > 0 FROM rankings") is True


def test_reads_too_slow_for_duckdb_call_for_a_shorter_range(duck: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PushDown(watched(duck), Database("s", parse_url(duck.url), AMPLE))
    assert isinstance(source.read(START, END), Aggregates)
    source.database.statement_timeout = 0.5
    monkeypatch.setattr(Reader, "rows_of", lambda reader, *_: ask(reader, ENDLESS))
    with pytest.raises(TooMany, match="within time or memory"):
        source.read(START, END)
    with pytest.raises(SourceError, match="raise statement_timeout"):
        source.read(START, START + BUCKET)
    assert source.yields == ""


def test_a_stopping_process_does_not_wait_for_duckdb(duck: Kind) -> None:
    ending, ended = threading.Event(), threading.Event()
    source = Database("s", parse_url(duck.url), 600, ending.is_set)

    def end() -> None:
        ending.set()
        source.interrupt()
        while not ended.wait(0.3):  # as a process does, because the statement may begin later
            source.interrupt()

    timer = threading.Timer(0.3, end)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Stopped), source.reading() as reader:
        ask(reader, ENDLESS)
    assert time.monotonic() - began < LONG
    ended.set()
    timer.join()


def test_duckdb_out_of_memory_does_not_end_push_down(duck: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    url = parse_url(f"{duck.url}?memory_limit=30MB&temp_directory=")
    source = PushDown(watched(duck), Database("s", url, 60))
    large = "SELECT len(list(range)) FROM range(100000000)"
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "rows_of", lambda reader, *_: ask(reader, large))
        with pytest.raises(TooMany, match="within time or memory"):
            source.read(START, END)
        with pytest.raises(SourceError, match="ran out of memory or disk") as caught:
            source.read(START, START + BUCKET)
    assert caught.value.reason == "resources"
    assert isinstance(source.read(START, END), Aggregates)


# ---- DuckDB files --------------------------------------------------------------------------------------------------


@contextmanager
def writing(path: str) -> Iterator[int]:
    """Another process that has the file open for writing; yields its PID."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path, "stay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process.pid
        process.communicate("")


def written(path: str) -> subprocess.CompletedProcess[str]:
    """The result of another process that opens the file, writes it and ends."""
    return subprocess.run([sys.executable, "-c", WRITER, path], capture_output=True, text=True, timeout=60, check=False)


def test_a_duckdb_file_is_free_between_two_reads_even_after_errors(duck: Kind) -> None:
    source = Database("s", parse_url(duck.url), AMPLE)
    path = str(source.url.database)
    kept = PushDown(watched(duck), source)
    assert isinstance(kept.read(START, END), Aggregates)
    done = written(path)
    assert done.returncode == 0, done.stderr
    source.statement_timeout = 0.5
    errors = [failing(source, ENDLESS)]
    source.statement_timeout = AMPLE
    errors.append(failing(source, "SELECT * FROM nowhere"))
    done = written(path)
    assert done.returncode == 0, (done.stderr, errors)
    with source.reading() as reader:
        assert ask(reader, "SELECT x FROM written") == 1


def test_a_duckdb_file_is_held_during_a_batch_and_free_after_it(duck: Kind) -> None:
    source = Database("s", parse_url(duck.url), AMPLE)
    path = str(source.url.database)
    with source.held():
        with source.reading() as reader:
            assert ask(reader, "SELECT 1") == 1
        assert "lock" in written(path).stderr
        assert isinstance(PushDown(watched(duck), source).read(START, END), Aggregates)
    done = written(path)
    assert done.returncode == 0, done.stderr
    with writing(path), source.held():  # it cannot be opened, as the read reports
        assert failing(source, "SELECT 1").reason == "timeout"


def test_a_duckdb_file_can_be_read_by_several_processes(duck: Kind) -> None:
    source = Database("s", parse_url(duck.url), 60)
    look = "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).execute('SELECT 7').fetchone()[0])"
    with source.reading() as reader:
        done = subprocess.run(
            [sys.executable, "-c", look, str(source.url.database)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr
        with pytest.raises(sa.exc.SQLAlchemyError, match="read-only"):
            reader._connection.exec_driver_sql("CREATE TABLE x (y int)")


def test_a_duckdb_file_being_written_is_reported_with_the_pid_and_read_later(duck: Kind) -> None:
    source = Database("s", parse_url(duck.url), 60)
    with writing(str(source.url.database)) as number:
        error = failing(source, "SELECT 1")
    assert error.reason == "timeout"
    assert f"(PID {number})" in str(error)
    assert "write Parquet files" in str(error)
    assert "is the URL right" not in str(error)
    with source.reading() as reader:
        assert ask(reader, "SELECT 1") == 1


# ---- ClickHouse ----------------------------------------------------------------------------------------------------


def test_clickhouse_respects_the_time_limit(in_house: Database) -> None:
    in_house.statement_timeout = 2
    error = failing(in_house, "SELECT sum(number * number) FROM numbers(100000000000000)")
    assert (error.reason, "raise statement_timeout" in str(error)) == ("timeout", True)


@pytest.mark.parametrize(
    ("query", "reason", "lasting"),
    [
        ("SELECT groupArray(number) FROM numbers(1000000000) SETTINGS max_memory_usage = 50000000", "resources", False),
        ("SELECT no_such_function(1)", "query", True),
        ("SELECT (1", "query", True),
        ("SELECT 1 + [1]", "data", True),
        ("SELECT toInt32('a')", "data", False),
        ("SELECT x FROM nowhere", "missing", True),
    ],
)
def test_clickhouse_errors_get_a_reason(in_house: Database, query: str, reason: str, lasting: bool) -> None:
    error = failing(in_house, query)
    assert (error.reason, error.lasting) == (reason, lasting), error


def test_clickhouse_out_of_memory_does_not_end_push_down(
    house: Kind, in_house: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    source = PushDown(watched(house), in_house)
    large = "SELECT length(groupArray(number)) FROM numbers(1000000000) SETTINGS max_memory_usage = 50000000"
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "rows_of", lambda reader, *_: ask(reader, large))
        with pytest.raises(SourceError, match="MEMORY_LIMIT_EXCEEDED"):
            source.read(START, START + BUCKET)
    assert isinstance(source.read(START, END), Aggregates)
    assert [m for m in caplog.messages if m.startswith("monitor ")] == []
