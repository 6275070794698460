"""Logs of drivers, limits on repeated lines, and logs that nobody reads."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.cli import run
from monitor.database_url import parse_url
from monitor.errors import TooMany
from monitor.logs import MAX_LINES, REPEATING, NonBlockingHandler, RateLimit, silence_drivers
from monitor.source.engine import Database
from tests.service.test_app import Setting, eventually, of_shop
from tests.service.test_cycle import filled, shop_url
from tests.support.postgres import free_port
from tests.support.processes import ROOT
from tests.support.web import ask

__all__ = ["filled", "shop_url"]

CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{shop: {{url: "{url}"}}}}
monitors:
  - name: search
    source: shop
    rankings: {{table: r, request: id, item: item, position: position, time: at}}
    relevance: {{column: {{grade: grade, attribution: 1h}}}}
    measures: [ndcg@10]
"""


@pytest.fixture(autouse=True)
def levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers as in a process that has configured nothing."""
    for name in REPEATING:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)


@pytest.mark.parametrize(
    ("driver", "url"),
    [
        ("clickhouse_connect", "clickhousedb://u@127.0.0.1:{port}/d"),
        ("clickhouse_connect", "clickhousedb://u@nowhere.invalid:{port}/d"),
        ("pyhive", "hive://u@127.0.0.1:{port}/d?auth=NOSASL"),
        ("pyhive", "hive://u@nowhere.invalid:{port}/d?auth=NOSASL"),
    ],
)
def test_an_unreachable_source_is_reported_without_driver_logs(
    tmp_path: Path, driver: str, url: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(driver)
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path, url=url.format(port=free_port())), encoding="utf-8")
    assert run(["check-config", "--connect", "-c", str(path)]) == 3
    assert [(r.name, r.getMessage()) for r in caplog.records] == []
    assert "search: source shop: " in capsys.readouterr().err


def test_a_connection_lost_mid_answer_logs_nothing_from_the_pool(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    silence_drivers()
    other, to_end = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT"), list[int]()

    def end_it() -> bool:
        with other.connect() as connection:
            while to_end:
                connection.exec_driver_sql(f"SELECT pg_terminate_backend({to_end.pop()}, 10000)")
        return False

    database = Database("shop", parse_url(postgres_url), 60, end_it)  # called after each part of an answer
    with database.reading() as reader:
        to_end.append(reader.one(sa.text("SELECT pg_backend_pid()")))
        with pytest.raises(TooMany):
            reader.columns(sa.text("SELECT generate_series(1, 100000)"), most=10)
        with pytest.raises(sa.exc.OperationalError, match="closed"):
            reader.one(sa.text("SELECT 1"))
    assert [(r.name, r.getMessage()) for r in caplog.records] == []
    database.close()
    other.dispose()


def test_repeated_log_lines_are_limited_and_counted() -> None:
    clock = iter([*[0.0] * 10_000, 61.0, 61.0])
    bounded, said = RateLimit(lambda: next(clock)), []
    for _ in range(10_000):
        record = logging.LogRecord("asyncio", logging.ERROR, "events.py", 7, "out of %s", ("files",), None)
        said.append(bounded.filter(record))
    assert sum(said) == MAX_LINES
    assert bounded.filter(record)
    assert record.getMessage() == f"out of files ({10_000 - MAX_LINES:,} lines like this left out)"
    other = logging.LogRecord("asyncio", logging.ERROR, "events.py", 8, "else", (), None)
    assert bounded.filter(other)
    assert other.getMessage() == "else"


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    while True:
        try:
            os.write(pipe, b"-" * 4095 + b"\n")
        except BlockingIOError:
            break
    os.set_blocking(pipe, True)


@pytest.mark.parametrize("free", [0, 4096])
def test_lines_a_full_pipe_cannot_take_are_dropped_and_counted(free: int) -> None:
    reader, writer = os.pipe()
    fill(writer)
    os.read(reader, free)
    with os.fdopen(writer, "w", encoding="ascii", errors="backslashreplace") as stream:
        handler = NonBlockingHandler(stream)

        def say(text: str) -> None:
            handler.emit(logging.LogRecord("monitor", logging.ERROR, "cycle.py", 7, "%s", (text,), None))

        began = time.monotonic()
        for _ in range(20):
            say("\N{SNOWMAN}" * 20_000)
        assert time.monotonic() - began < 10
        os.read(reader, 1 << 20)
        say("that fits")
        say("and that")
    with os.fdopen(reader, encoding="ascii") as told:
        assert told.read().splitlines()[-2:] == ["that fits (20 lines before this lost: not read)", "and that"]


def test_a_daemon_with_an_unread_log_runs_and_stops_on_a_signal(tmp_path: Path, shop_url: str) -> None:
    setting, port = Setting(tmp_path, {"shop": shop_url}), free_port()
    setting.head = f'web: {{listen: "127.0.0.1:{port}"}}\nlog: {{level: debug}}'
    setting.write(of_shop("shop"))

    def has_run() -> bool:
        try:
            return 'rankmon_evaluations_total{monitor="shop"} 2' in ask(port, "/metrics").body
        except OSError:
            return False

    reader, writer = os.pipe()
    fill(writer)
    called = [sys.executable, "-c", "from monitor.cli import main; main()", "run", "-c", setting.path]
    with subprocess.Popen(called, stderr=writer, env={**os.environ, "PYTHONPATH": str(ROOT)}) as daemon:
        try:
            eventually(has_run)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(10) == 0
        finally:
            daemon.kill()
            os.close(reader)
            os.close(writer)
