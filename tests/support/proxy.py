"""A TCP proxy in front of a real server that can fall silent, as a firewall or a broken load balancer does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Passes on what comes, until it is to be silent; then connections stay open and nothing comes through them."""

    def __init__(self, port: int) -> None:
        """Listen on loopback in front of the server on that port."""
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._is_silent = threading.Event()
        self._open: list[socket.socket] = []
        self._lost: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """Take connections and pass on nothing, neither of those that are open nor of new ones."""
        self._is_silent.set()
        self._lost |= set(self._open)

    def speak(self) -> None:
        """Pass on what comes through new connections; those that were open before stay silent."""
        self._is_silent.clear()

    def close(self) -> None:
        """End all connections."""
        for each in (self._listener, *self._open):
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                if self._is_silent.is_set():
                    self._lost.add(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open.append(server)
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                if one in self._lost or other in self._lost:
                    return
                other.sendall(data)
            if one not in self._lost and other not in self._lost:
                other.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy in front of the server on that port, until the end of the block."""
    made = Proxy(port)
    try:
        yield made
    finally:
        made.close()
