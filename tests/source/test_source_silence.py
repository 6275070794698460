"""Servers that stop answering, and engines without limits of their own: no reader waits forever."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor.database_url import parse_url
from monitor.errors import SourceError, Stopped
from monitor.source.dialects import base
from monitor.source.engine import Database, Reader
from monitor.source.watch import ASKED_FOR, Watch, give_back
from tests.support.mariadb import MariaServer
from tests.support.proxy import Proxy, proxy

LIMIT, GRACE = 0.5, 1
LONG = 20
"""Seconds that suffice on a busy machine, and far fewer than a statement takes that is not ended."""

ONE = sa.select(sa.literal(1))
SLEEP = {"postgresql": "SELECT pg_sleep(120)", "mysql": "SELECT sleep(120)"}
ASLEEP = {
    "postgresql": "pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'",
    "mysql": "information_schema.processlist WHERE db = database() AND state = 'User sleep'",
}


@pytest.fixture(params=["postgresql", "mariadb"])
def behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """A proxy in front of a server, and the URL of a database through it."""
    monkeypatch.setattr(base, "GRACE", GRACE)
    monkeypatch.setattr(base, "CONNECT_TIMEOUT", 2)
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    else:
        url = request.getfixturevalue("maria").create_database()
    made = make_url(url)
    assert made.port is not None
    with proxy(made.port) as between:
        yield between, made.set(port=between.port).render_as_string(hide_password=False)


def database(url: str, limit: float = LIMIT, stop: Callable[[], bool] = lambda: False, most: int = 1) -> Database:
    return Database("s", parse_url(url), limit, stop, most)


def sleep(reader: Reader) -> Any:
    """Run a statement that takes long."""
    return reader.one(sa.text(SLEEP[reader.dialect.name]))  # type: ignore[arg-type]


def asleep(url: str) -> int:
    """How many of these statements are running on the server."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {ASLEEP[engine.dialect.name]}").scalar_one())


def later(act: Callable[[], object]) -> None:
    timer = threading.Timer(0.3, act)
    timer.daemon = True
    timer.start()


def failing(source: Database, work: Callable[[Reader], object]) -> SourceError:
    """The error that `work` ends with, in time."""
    began = time.monotonic()
    with pytest.raises(SourceError) as caught, source.reading() as reader:
        work(reader)
    assert time.monotonic() - began < LONG
    return caught.value


def test_reading_gives_up_on_a_server_silent_mid_statement_and_recovers(
    behind: tuple[Proxy, str],
) -> None:
    between, url = behind
    source = database(url)
    later(between.fall_silent)
    error = failing(source, sleep)
    assert error.reason == "connect"
    assert "did not answer for 1.5 s" in str(error)
    assert "is the database up" in str(error)
    between.speak()
    with source.reading() as reader:  # the only turn was given back
        assert reader.one(ONE) == 1
    source.close()


def test_reading_gives_up_on_a_server_silent_between_statements(behind: tuple[Proxy, str]) -> None:
    between, url = behind
    source = database(url)

    def work(reader: Reader) -> None:
        assert reader.one(ONE) == 1
        between.fall_silent()
        reader.columns(ONE)

    assert "did not answer" in str(failing(source, work))
    source.close()


def test_silence_after_the_last_answer_does_not_fail_the_reader(behind: tuple[Proxy, str]) -> None:
    between, url = behind
    source, began = database(url), time.monotonic()
    with source.reading() as reader:
        assert reader.one(ONE) == 1
        between.fall_silent()
    assert time.monotonic() - began < LONG
    between.speak()
    with source.reading() as reader:
        assert reader.one(ONE) == 1
    source.close()


def test_an_idle_connection_that_was_dropped_is_replaced_silently(behind: tuple[Proxy, str]) -> None:
    between, url = behind
    source = database(url)
    with source.reading() as reader:
        assert reader.one(ONE) == 1
    between.fall_silent()
    between.speak()
    began = time.monotonic()
    with source.reading() as reader:
        assert reader.one(ONE) == 1
    assert time.monotonic() - began < LONG
    source.close()


def test_a_server_silent_since_the_last_read_is_a_connect_error(
    behind: tuple[Proxy, str],
) -> None:
    between, url = behind
    source = database(url, limit=600)
    with source.reading() as reader:
        assert reader.one(ONE) == 1
    between.fall_silent()
    error = failing(source, lambda reader: reader.one(ONE))
    assert error.reason == "connect"
    assert "it did not answer in time: is the database up" in str(error)
    assert "601 s" not in str(error), "nobody waited that long"
    source.close()


def test_a_connection_with_a_late_ping_is_replaced(behind: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, url = behind
    source = database(url, limit=600)
    number = sa.func.pg_backend_pid() if source.dialect == "postgresql" else sa.func.connection_id()
    with source.reading() as reader:
        before = reader.one(sa.select(number))
        ping = source._connected().dialect.do_ping

    def late(driver: Any) -> bool:
        time.sleep(0.5)
        return ping(driver)

    monkeypatch.setattr(source._connected().dialect, "do_ping", late)
    monkeypatch.setattr(base, "CONNECT_TIMEOUT", 0.1)
    with source.reading() as reader:
        assert reader.one(sa.select(number)) != before, "the old one was asked to end"
    assert "nowhere" in str(failing(source, lambda reader: reader.one(sa.text("SELECT 1 FROM nowhere"))))
    source.close()


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mariadb+pymysql"])
def test_connecting_to_a_silent_server_does_not_wait_for_the_statement_timeout(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "CONNECT_TIMEOUT", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = database(f"{scheme}://u@127.0.0.1:{silent.getsockname()[1]}/d", limit=600)
        error = failing(source, lambda reader: reader.one(ONE))
    assert error.reason == "connect"
    assert "it did not answer in time: is the database up" in str(error)
    assert not re.search(r"\d s\b", str(error)), "only the driver knows how long it waited"
    assert "raise it" not in str(error), "the user has set no limit to raise"


@pytest.mark.parametrize(
    ("scheme", "name"), [("postgresql+psycopg", "connect_timeout"), ("mariadb+pymysql", "read_timeout")]
)
def test_a_url_timeout_too_short_to_connect_is_named(scheme: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://u@127.0.0.1:{silent.getsockname()[1]}/d?{name}=2"
        error = failing(database(url, limit=600), lambda reader: reader.one(ONE))
    assert error.reason == "connect"
    assert "it did not answer in time: is the database up" in str(error)
    assert f"Or the URL's {name} of 2 s may be too short: raise it, or remove it" in str(error)


@pytest.mark.parametrize("in_bits", [False, True])
def test_a_statement_longer_than_the_urls_read_timeout_is_a_timeout(maria: MariaServer, in_bits: bool) -> None:
    source = database(f"{maria.create_database()}?read_timeout=1&connect_timeout=9", limit=600)
    slow = sa.text("SELECT 1 UNION ALL SELECT sleep(30)") if in_bits else sa.text("SELECT sleep(30)")
    error = failing(source, lambda reader: reader.columns(slow))
    assert error.reason == "timeout"
    assert "the URL's read_timeout of 1 s may be too short: raise it, or remove it" in str(error)
    assert "connect_timeout" not in str(error)
    source.close()


@pytest.mark.parametrize(
    ("module", "url"),
    [
        ("clickhouse_connect", "clickhousedb://u@127.0.0.1:{}/d"),
        ("trino", "trino://u@127.0.0.1:{}/c"),
        ("thrift_sasl", "hive://u@127.0.0.1:{}/d"),
        ("pyhive", "hive://u@127.0.0.1:{}/d?auth=NOSASL"),
    ],
)
def test_drivers_with_their_own_sockets_give_up_on_a_silent_server(
    module: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module)
    monkeypatch.setattr(base, "GRACE", GRACE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = failing(database(url.format(silent.getsockname()[1])), lambda reader: reader.one(ONE))
    assert (error.reason, "is the database up" in str(error)) == ("connect", True), error


def test_a_stopping_process_does_not_wait_for_a_silent_server(behind: tuple[Proxy, str]) -> None:
    between, url = behind
    ending = threading.Event()
    source = database(url, limit=600, stop=ending.is_set)

    def end() -> None:
        between.fall_silent()
        ending.set()
        source.interrupt()

    later(end)
    began = time.monotonic()
    with pytest.raises(Stopped), source.reading() as reader:
        sleep(reader)
    assert time.monotonic() - began < LONG
    source.close()


def test_interrupting_many_readers_takes_about_as_long_as_one(behind: tuple[Proxy, str]) -> None:
    between, url = behind
    ending = threading.Event()
    source = database(url, limit=600, stop=ending.is_set, most=4)

    def read() -> None:
        with suppress(Stopped), source.reading() as reader:
            sleep(reader)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LONG
    while asleep(url) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(source._open) == 4
    between.fall_silent()
    ending.set()
    began = time.monotonic()
    source.interrupt()
    assert time.monotonic() - began < 2 * ASKED_FOR + 1
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)
    source.close()


def test_a_timely_reader_is_not_interrupted_and_leaves_no_thread(behind: tuple[Proxy, str]) -> None:
    _, url = behind
    source = database(url, limit=LIMIT)
    for _ in range(3):
        with source.reading() as reader:
            assert reader.one(ONE) == 1
            time.sleep(LIMIT + GRACE + 0.3)  # longer than a statement may take, but there is none
            assert reader.columns(ONE) == [[1]]
    source.close()
    assert [t.name for t in threading.enumerate() if t.name.startswith("rankmon-watch")] == []


# ---- the watch -----------------------------------------------------------------------------------------------------


def test_a_timely_step_is_not_ended() -> None:
    asked: list[object] = []
    with Watch(0.2, asked.append) as watch:
        watch.on("driver")
        for _ in range(5):
            with watch.step():
                time.sleep(0.01)
        time.sleep(0.3)
    assert asked == []
    assert not watch.is_late


def test_a_nested_step_has_its_own_limit_and_restores_the_outer_one() -> None:
    ended = threading.Event()
    with Watch(0.3, lambda _: ended.set()) as watch:
        watch.on("driver")
        with watch.step():
            with watch.step(0.1):
                pass
            assert ended.wait(LONG), "the outer step is late in the end"
    assert watch.is_late


class Slow(Watch):
    """A watch that pauses between finding a step late and acting on it."""

    def __init__(self, limit: float, ask: Callable[[Any], None]) -> None:
        super().__init__(limit, ask)
        self.has_found, self.may_go_on = threading.Event(), threading.Event()

    def _await_late(self) -> Any:
        if (found := super()._await_late()) is not None:
            self.has_found.set()
            assert self.may_go_on.wait(LONG)
        return found


def pooled() -> sa.Engine:
    """An engine that hands each connection on to the next user."""
    return sa.create_engine("sqlite://", poolclass=sa.QueuePool, pool_size=1, max_overflow=0)


def test_a_connection_about_to_be_ended_is_not_handed_on() -> None:
    engine, asked = pooled(), list[Any]()
    with Slow(0.1, asked.append) as watch:
        connection = engine.connect()
        driver = connection.connection.driver_connection
        watch.on(driver)
        with watch.step():
            assert watch.has_found.wait(LONG)
        give_back(connection, watch)
        with engine.connect() as another:
            assert another.connection.driver_connection is not driver
        watch.may_go_on.set()
    assert watch.is_late


def test_ending_a_reader_spares_the_connection_it_gave_back() -> None:
    engine, asked = pooled(), list[Any]()
    with Watch(LONG, asked.append) as watch:
        connection = engine.connect()
        driver = connection.connection.driver_connection
        watch.on(driver)
        give_back(connection, watch)
        with engine.connect() as another:
            assert another.connection.driver_connection is driver
            watch.end()(LONG)
    assert asked == []


def test_ending_a_reader_ends_only_the_connection_it_had_then() -> None:
    asked: list[Any] = []

    class Meanwhile(Watch):
        def _ask_for_an_end(self, *driver: Any) -> threading.Thread:
            self.on("what it got later")
            return super()._ask_for_an_end(*driver)

    with Meanwhile(LONG, asked.append) as watch:
        watch.on("what it had")
        watch.end()(LONG)
    assert asked == ["what it had"]


def test_a_connection_that_does_not_end_when_asked_is_cut() -> None:
    one, other = socket.socketpair()
    with Watch(0.1, lambda _: time.sleep(LONG)) as watch:
        watch.on(one)
        with watch.step():
            assert one.recv(1) == b"", "the read ends"
    assert watch.is_late
    one.close()
    other.close()
