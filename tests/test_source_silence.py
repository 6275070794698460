"""Servers that stop answering, and engines without limits of their own: no reader waits for ever."""

from __future__ import annotations

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
from monitor.source import session
from monitor.source.engine import Database, Reader
from monitor.source.watch import ASKED_FOR, Watch
from tests.support.proxy import Proxy, proxy

LIMIT, GRACE = 0.5, 1
LONG = 20
"""Seconds in which all of this is over on a busy machine, and far fewer than a statement takes that is not ended."""

ONE = sa.select(sa.literal(1))
SLEEP = {"postgresql": "SELECT pg_sleep(120)", "mysql": "SELECT sleep(120)"}


@pytest.fixture(params=["postgresql", "mariadb"])
def behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """A proxy before a server, and the URL of a database through it."""
    monkeypatch.setattr(session, "GRACE", GRACE)
    monkeypatch.setattr(session, "CONNECT_TIMEOUT", 2)
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    else:
        url = request.getfixturevalue("maria").create_database()
    made = make_url(url)
    assert made.port is not None
    with proxy(made.port) as between:
        yield between, made.set(port=between.port).render_as_string(hide_password=False)


def database(url: str, limit: float = LIMIT, stop: Callable[[], bool] = lambda: False, most: int = 1) -> Database:
    return Database("s", parse_url(url, None), limit, stop, most)


def sleep(reader: Reader) -> Any:
    """A statement that takes long."""
    return reader.one(sa.text(SLEEP[reader.dialect.name]))  # type: ignore[arg-type]


def later(act: Callable[[], object]) -> None:
    timer = threading.Timer(0.3, act)
    timer.daemon = True
    timer.start()


def failing(source: Database, work: Callable[[Reader], object]) -> SourceError:
    """What that work ends with, in time."""
    began = time.monotonic()
    with pytest.raises(SourceError) as caught, source.reading() as reader:
        work(reader)
    assert time.monotonic() - began < LONG
    return caught.value


def test_a_server_that_falls_silent_within_a_statement_is_given_up_and_the_next_read_works(
    behind: tuple[Proxy, str],
) -> None:
    between, url = behind
    source = database(url)
    later(between.fall_silent)
    error = failing(source, sleep)
    assert error.reason == "connect"
    assert "did not answer for 1.5 s" in str(error)
    assert "what was cut off is read again" in str(error)
    between.speak()
    with source.reading() as reader:  # of one turn, which was given back
        assert reader.one(ONE) == 1
    source.close()


def test_a_server_that_falls_silent_between_two_statements_is_given_up(behind: tuple[Proxy, str]) -> None:
    between, url = behind
    source = database(url)

    def work(reader: Reader) -> None:
        assert reader.one(ONE) == 1
        between.fall_silent()
        reader.columns(ONE)

    assert "did not answer" in str(failing(source, work))
    source.close()


def test_a_reader_that_has_all_it_wants_is_not_failed_by_the_silence_after_it(behind: tuple[Proxy, str]) -> None:
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


def test_a_connection_that_was_dropped_while_it_lay_idle_is_replaced_unseen(behind: tuple[Proxy, str]) -> None:
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


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mariadb+pymysql"])
def test_what_takes_connections_and_never_speaks_is_not_waited_for_as_for_a_statement(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CONNECT_TIMEOUT", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = database(f"{scheme}://u@127.0.0.1:{silent.getsockname()[1]}/d", limit=600)
        error = failing(source, lambda reader: reader.one(ONE))
    assert error.reason == "connect"
    assert "it did not answer for 5 s: is the database up" in str(error)


@pytest.mark.parametrize(
    ("module", "url"),
    [
        ("clickhouse_connect", "clickhousedb://u@127.0.0.1:{}/d"),
        ("trino", "trino://u@127.0.0.1:{}/c"),
        ("thrift_sasl", "hive://u@127.0.0.1:{}/d"),
        ("pyhive", "hive://u@127.0.0.1:{}/d?auth=NOSASL"),
    ],
)
def test_drivers_without_a_socket_of_ours_have_limits_of_their_own(
    module: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module)
    monkeypatch.setattr(session, "GRACE", GRACE)
    if url.startswith("hive"):
        monkeypatch.setattr("monitor.source.spark.GRACE", GRACE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = failing(database(url.format(silent.getsockname()[1])), lambda reader: reader.one(ONE))
    assert (error.reason, "is the database up" in str(error)) == ("connect", True), error


def test_a_process_that_is_to_end_does_not_wait_for_a_silent_server(behind: tuple[Proxy, str]) -> None:
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


def test_to_be_told_to_end_takes_no_longer_than_asking_once_however_many_read(behind: tuple[Proxy, str]) -> None:
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
    while len([watch for watch in source._open if watch._driver is not None]) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    between.fall_silent()
    ending.set()
    began = time.monotonic()
    source.interrupt()
    assert time.monotonic() - began < 2 * ASKED_FOR + 1
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads)
    source.close()


def test_who_reads_in_time_is_not_disturbed_and_leaves_no_thread(behind: tuple[Proxy, str]) -> None:
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


def test_a_step_in_time_is_not_ended() -> None:
    asked: list[object] = []
    with Watch(0.2, asked.append) as watch:
        watch.on("driver")
        for _ in range(5):
            with watch.step():
                time.sleep(0.01)
        time.sleep(0.3)
    assert asked == []
    assert not watch.is_late


def test_a_step_within_another_one_has_its_own_time_and_gives_the_other_one_its_own_back() -> None:
    ended = threading.Event()
    with Watch(0.3, lambda _: ended.set()) as watch:
        watch.on("driver")
        with watch.step():
            with watch.step(0.1):
                pass
            assert ended.wait(LONG), "the outer one is late in the end"
    assert watch.is_late


def test_what_does_not_end_when_it_is_asked_is_cut() -> None:
    one, other = socket.socketpair()
    with Watch(0.1, lambda _: time.sleep(LONG)) as watch:
        watch.on(one)
        with watch.step():
            assert one.recv(1) == b"", "what is read from ends"
    assert watch.is_late
    one.close()
    other.close()
