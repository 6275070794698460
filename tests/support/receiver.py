"""A local receiver of notifications, over HTTP or HTTPS, that does as the test tells it and keeps what it got."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.postgres import free_port


@dataclass(frozen=True)
class Got:
    """One POST."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return self.headers["Idempotency-Key"]


@dataclass(frozen=True)
class Reply:
    """What is answered.

    Attributes:
        hangs: seconds before the answer begins; the receiver's end is not waited for.
        drips: seconds between two bytes of the whole answer.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: float = 0.0
    drips: float = 0.0


HANGS = Reply(hangs=60)


class Receiver:
    """Takes POSTs at `url`. `behave` says what is answered to each; `taken` are those that were answered with a 2xx."""

    def __init__(
        self, behave: Callable[[Got], Reply] = lambda _: Reply(), certificate: tuple[Path, Path] | None = None
    ) -> None:
        self.behave = behave
        self.got: list[Got] = []
        self.taken: list[Got] = []
        self.port = free_port()
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self.port}"
        self._certificate = certificate
        self._server: ThreadingHTTPServer | None = None
        self.open()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Be there, at the same port as ever."""
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", self.port), _handler(self, self._closing))
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Be away: connections are refused."""
        if self._server is not None:
            self._closing.set()
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def titles(self) -> list[str]:
        """Incident and kind of all that was taken, in order: `a firing`."""
        return [f"{g.document['incident']} {g.document['kind']}" for g in list(self.taken)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """The other side may leave at any time."""


def _handler(receiver: Receiver, closing: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            got = Got(self.path, dict(self.headers), self.rfile.read(length))
            if len(got.body) < length:
                return  # the other side has died on the way
            receiver.got.append(got)
            reply = receiver.behave(got)
            if closing.wait(reply.hangs):
                return
            if 200 <= reply.status < 300:
                receiver.taken.append(got)
            self._answer(reply)

        def _answer(self, reply: Reply) -> None:
            lines = [f"HTTP/1.1 {reply.status} said", f"Content-Length: {len(reply.body)}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in reply.headers.items()]
            text = "\r\n".join([*lines, "", ""]).encode() + reply.body
            if not reply.drips:
                self.wfile.write(text)
                return
            for at in range(len(text)):
                self.wfile.write(text[at : at + 1])
                time.sleep(reply.drips)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


class Mute:
    """Takes connections and says nothing, not even in TLS; or says `greeting`, whatever it is asked."""

    def __init__(self, greeting: bytes = b"") -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._greeting = greeting
        self._taken: list[socket.socket] = []
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def __enter__(self) -> "Mute":
        return self

    def __exit__(self, *_: object) -> None:
        for line in (*self._taken, self._socket):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._socket.accept()
                self._taken.append(line)
                if self._greeting:
                    line.recv(65_536)
                    line.sendall(self._greeting)
                    line.shutdown(socket.SHUT_WR)
