"""What drivers log by themselves, beside what is said of their errors."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.cli import run
from monitor.database_url import parse_url
from monitor.errors import TooMany
from monitor.logs import MAX_LINES, REPEATING, Bounded, silence_drivers
from monitor.source.engine import Database
from tests.support.postgres import free_port

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
    """As in a process that has set nothing up."""
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
def test_a_source_that_is_away_is_told_once_and_not_by_its_driver(
    tmp_path: Path, driver: str, url: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(driver)
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path, url=url.format(port=free_port())), encoding="utf-8")
    assert run(["check-config", "--connect", "-c", str(path)]) == 3
    assert [(r.name, r.getMessage()) for r in caplog.records] == []
    assert "search: source shop: " in capsys.readouterr().err


def test_a_connection_that_is_lost_before_its_answer_was_closed_leaves_no_trace_of_the_pool(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    silence_drivers()
    other, to_end = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT"), list[int]()

    def end_it() -> bool:
        with other.connect() as connection:
            while to_end:
                connection.exec_driver_sql(f"SELECT pg_terminate_backend({to_end.pop()}, 10000)")
        return False

    database = Database("shop", parse_url(postgres_url, None), 60, end_it)  # asked after each part of an answer
    with database.reading() as reader:
        to_end.append(reader.one(sa.text("SELECT pg_backend_pid()")))
        with pytest.raises(TooMany):
            reader.columns(sa.text("SELECT generate_series(1, 100000)"), most=10)
        with pytest.raises(sa.exc.OperationalError, match="closed"):
            reader.one(sa.text("SELECT 1"))
    assert [(r.name, r.getMessage()) for r in caplog.records] == []
    database.close()
    other.dispose()


def test_one_place_fills_no_disk_and_what_was_left_out_is_counted() -> None:
    clock = iter([*[0.0] * 10_000, 61.0, 61.0])
    bounded, said = Bounded(lambda: next(clock)), []
    for _ in range(10_000):
        record = logging.LogRecord("asyncio", logging.ERROR, "events.py", 7, "out of %s", ("files",), None)
        said.append(bounded.filter(record))
    assert sum(said) == MAX_LINES
    assert bounded.filter(record)
    assert record.getMessage() == f"out of files ({10_000 - MAX_LINES:,} lines like this left out)"
    other = logging.LogRecord("asyncio", logging.ERROR, "events.py", 8, "else", (), None)
    assert bounded.filter(other)
    assert other.getMessage() == "else"
