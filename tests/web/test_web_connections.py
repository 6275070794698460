"""Connections that send nothing or only part of a request: they block no other connection and get closed."""

import asyncio
import contextlib
import http.client
import logging
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.web import Limits, WebServer
from tests.support.web import TLS, Site, ask

HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
WHOLE = HALF + b"\r\n"
QUICK = Limits(request_time=1.0, answer_time=2.0)
PATIENT = Limits(request_time=6.0, answer_time=6.0)
HELD_UP = PATIENT.request_time / 2
"""Seconds. A scrape that waits for an idle connection takes at least `request_time`, the time such a connection may
stay open. A scrape that waits for nothing takes a few milliseconds, or a second when the machine is busy."""


class Server:
    """A site on a server with its own limits, with or without TLS."""

    def __init__(self, web: WebServer, trusted: ssl.SSLContext | None) -> None:
        self.web = web
        self.trusted = trusted

    def connect(self) -> socket.socket:
        """A TCP connection, before any handshake."""
        return socket.create_connection(("127.0.0.1", self.web.port), timeout=10)

    def secured(self) -> socket.socket:
        """A connection that is ready for a request."""
        plain = self.connect()
        return plain if self.trusted is None else self.trusted.wrap_socket(plain, server_hostname="127.0.0.1")

    def scrape(self) -> float:
        """Scrapes once; returns the seconds it took."""
        before = time.monotonic()
        assert ask(self.web.port, "/metrics", self.trusted).status == 200
        return time.monotonic() - before


@contextmanager
def serving(folder: Path, limits: Limits, tls: bool) -> Iterator[Server]:
    site = Site(folder)
    (folder / "web.yml").touch()
    with site.serving(TLS) as app:
        if not tls:
            site.path.write_text(site.path.read_text().replace(", config_file: web.yml", ""), encoding="utf-8")
            assert app.reload({}) == []
        web = WebServer("127.0.0.1", 0, app.web._server.config.app, app.access, limits)  # type: ignore[arg-type]
        web.start()
        yield Server(web, site.authority.client() if tls else None)
        web.stop()


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, QUICK, request.param) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def patient(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, PATIENT, request.param) as made:
        yield made


def is_closed(connection: socket.socket, within: float) -> bool:
    """Whether the other side closes the connection within that many seconds."""
    connection.settimeout(within)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def hello(server: Server) -> bytes:
    """The ClientHello of a TLS client."""
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def silent(server: Server) -> socket.socket:
    return server.connect()


def half_request(server: Server) -> socket.socket:
    connection = server.secured()
    connection.sendall(HALF)
    return connection


def first_byte(server: Server) -> socket.socket:
    connection = server.connect()
    connection.sendall(b"G" if server.trusted is None else b"\x16")
    return connection


def mid_handshake(server: Server) -> socket.socket:
    """The client sends its ClientHello and then nothing. Without TLS, that is an invalid request and refused."""
    connection = server.connect()
    connection.sendall(hello(server))
    return connection


def half_second_request(server: Server) -> socket.socket:
    connection = server.secured()
    connection.sendall(WHOLE)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    connection.sendall(HALF)
    return connection


def body_that_never_comes(server: Server) -> socket.socket:
    connection = server.secured()
    connection.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
    return connection


def form_that_never_comes(server: Server) -> socket.socket:
    connection = server.secured()
    head = b"POST /incidents/1/acknowledge HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx"
    connection.sendall(head)
    return connection


IDLE = [
    silent,
    first_byte,
    half_request,
    mid_handshake,
    half_second_request,
    body_that_never_comes,
    form_that_never_comes,
]


def test_fifty_idle_connections_delay_no_scrape_and_are_closed(
    patient: Server, caplog: pytest.LogCaptureFixture
) -> None:
    idle = [kind(patient) for _ in range(8) for kind in IDLE]
    assert len(idle) >= 50
    assert max(patient.scrape() for _ in range(5)) < HELD_UP
    ended = time.monotonic() + PATIENT.request_time + 5
    assert all(is_closed(connection, max(ended - time.monotonic(), 0.01)) for connection in idle)
    for connection in idle:
        connection.close()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("kind", IDLE)
def test_each_kind_of_idle_connection_is_closed(server: Server, kind: Callable[[Server], socket.socket]) -> None:
    with kind(server) as connection:
        assert is_closed(connection, QUICK.request_time + 5)


def test_a_slow_request_gets_no_extra_time(server: Server) -> None:
    began = time.monotonic()
    with server.secured() as connection, contextlib.suppress(OSError):
        while time.monotonic() < began + 10:
            connection.sendall(b"G")
            time.sleep(0.05)
    assert QUICK.request_time * 0.5 < time.monotonic() - began < QUICK.request_time + 5


def deaf(server: Server) -> socket.socket:
    """Asks for much and reads nothing, from a server whose own send buffer also fills up immediately."""
    for listening in server.web._server.servers:
        for listener in listening.sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.web.port))
    connection.sendall(WHOLE * 2000)
    return connection


def test_unread_answers_delay_no_scrape(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(connections=5), tls=False) as server:
        unheard = [deaf(server) for _ in range(5)]
        time.sleep(1)
        assert server.scrape() < HELD_UP
        for connection in unheard:
            connection.close()


def test_a_connection_with_unread_answers_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path, QUICK, tls=False) as server, deaf(server) as connection:
        time.sleep(QUICK.answer_time + 1)
        assert is_closed(connection, 1)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_oldest_silent_connection_makes_room_for_a_new_one(tmp_path: Path, tls: bool) -> None:
    with serving(tmp_path, Limits(connections=20), tls) as server:
        idle, took = [], []
        for _ in range(3):
            idle += [kind(server) for _ in range(10) for kind in (silent, half_request, first_byte, mid_handshake)]
            took.append(server.scrape())
        assert statistics.median(took) < HELD_UP
        assert is_closed(idle[0], 1)
        assert not is_closed(idle[-2], 0.2)
        for connection in idle:
            connection.close()


def test_a_burst_during_a_busy_server_queues_only_a_few_connections(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(connections=5, waiting=8), tls=False) as server:
        (listening,) = server.web._server.servers
        is_busy, may_go_on = threading.Event(), threading.Event()
        listening.get_loop().call_soon_threadsafe(lambda: (is_busy.set(), may_go_on.wait(30)))
        assert is_busy.wait(30)
        burst = [socket.socket() for _ in range(100)]
        for connection in burst:
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", server.web.port))
        time.sleep(0.2)
        waiting = [connection for connection in burst if has_peer(connection)]
        may_go_on.set()
        assert 1 <= len(waiting) <= 10
        for connection in burst:
            connection.close()
        assert server.scrape() < HELD_UP


def has_peer(connection: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        return bool(connection.getpeername())
    return False


def test_a_connection_in_use_outlives_the_request_time(tmp_path: Path) -> None:
    with serving(tmp_path, QUICK, tls=True) as server:
        connection = http.client.HTTPSConnection("127.0.0.1", server.web.port, context=server.trusted, timeout=5)
        connection.connect()
        used = connection.sock
        for _ in range(8):
            connection.request("GET", "/metrics")
            assert connection.getresponse().read()
            time.sleep(0.25)
        assert connection.sock is used
        connection.close()


def test_the_server_stops_quickly_with_connections_open(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(), tls=True) as server:
        idle = [kind(server) for _ in range(3) for kind in IDLE]
        before = time.monotonic()
        server.web.stop()
        assert time.monotonic() - before < Limits().request_time - 2
        for connection in idle:
            connection.close()


def test_a_failed_handshake_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, PATIENT, tls=True) as server:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", hello(server)):
            with server.connect() as connection:
                connection.sendall(said)
        assert server.scrape() < HELD_UP
    assert [r.getMessage() for r in caplog.records if r.name == asyncio.__name__] == []
