"""uvicorn in a thread, over connections that are limited and, if configured, encrypted."""

from __future__ import annotations

import ipaddress
import logging
import resource
import socket
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import uvicorn
from starlette.applications import Starlette

from monitor.errors import Unserved
from monitor.web.access import Access
from monitor.web.connection import HttpConnection, Limits, OpenConnections

log = logging.getLogger(__name__)

_LIMITS = Limits()

LEAST_CONNECTIONS = 8
"""Connections served however few files this process may open."""


def _files() -> int:
    """Files this process may open; the site takes a quarter and leaves the rest to databases."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


class WebServer:
    """uvicorn in its own thread."""

    def __init__(self, host: str, port: int, site: Starlette, access: Access, limits: Limits = _LIMITS) -> None:
        self.host = host
        self.port = port
        self._access = access
        self._waiting = limits.waiting
        limits = replace(limits, connections=min(limits.connections, max(LEAST_CONNECTIONS, _files() // 4)))
        config = uvicorn.Config(
            site,
            http=partial(HttpConnection, OpenConnections(access.context, limits)),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # the client is the socket's peer, whatever a request claims
            backlog=1,  # accepted at once: when out of files, asyncio retries for each, and for each of those
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self._access.context() is None else "https"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/"

    def listen(self) -> None:
        """Bind the address; `start` answers requests. With port 0, `port` is the one taken. Raises Unserved."""
        if self._listener is not None:
            return
        self._listener = bound(self.host, self.port)
        self.port = self._listener.getsockname()[1]

    def start(self) -> None:
        """Serve in the background, listening first if needed. Raises Unserved: the address cannot be listened on."""
        self.listen()
        listener = self._listener
        assert listener is not None
        address = listener.getsockname()[0]
        if not (ipaddress.ip_address(address).is_loopback or self._access.is_restricted):
            log.warning("%s is open to everyone who can reach it; set passwords in web.config_file", self.url)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="web", daemon=True)
        self._thread.start()
        for _ in range(500):
            if self._server.started:
                listener.listen(self._waiting)
                return
            time.sleep(0.01)
        raise Unserved(f"the web server on {self.host}:{self.port} did not start")

    def stop(self) -> None:
        """Finish current requests and stop."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        elif self._listener is not None:
            self._listener.close()


def bound(host: str, port: int, remedy: str = "change web.listen") -> socket.socket:
    """A listening socket. Raises Unserved, with the `remedy` if another process has the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        told = f"cannot listen on {host}:{port}: {error.strerror}; {remedy}, or check what runs there"
        raise Unserved(told) from error
