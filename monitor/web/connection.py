"""Connections limited in number and time, so a stalled client does not delay others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class Limits:
    """A server's limits: open connections, and seconds.

    `waiting`: connections queued to be accepted, one by one. `request_time`: for TLS handshake and request head
    together, and for each further head. `answer_time`: for the rest of a request and its answer.
    """

    connections: int = 256
    waiting: int = 64
    request_time: float = 10.0
    answer_time: float = 60.0
    tls_shutdown_time: float = 2.0


class OpenConnections:
    """Shared by a server's connections: the limits, and the TLS context for new ones."""

    def __init__(self, context: Callable[[], ssl.SSLContext | None], limits: Limits) -> None:
        self.context = context
        self.limits = limits
        self._open: dict[HttpConnection, None] = {}

    def add(self, connection: HttpConnection) -> None:
        """Count a connection; if there is no room, drop the oldest silent one, else the oldest."""
        if len(self._open) >= self.limits.connections:
            next((c for c in self._open if c.is_silent), next(iter(self._open))).drop()
        self._open[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        """Stop counting a connection."""
        self._open.pop(connection, None)


class HttpConnection(H11Protocol):
    """One HTTP connection. It does TLS itself, so handshakes are counted and timed like requests."""

    def __init__(
        self,
        open_connections: OpenConnections,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._open_connections = open_connections
        self._context: ssl.SSLContext | None = None
        self._socket: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self._is_made = False
        self._limit: asyncio.TimerHandle | None = None

    @property
    def is_silent(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        """Close at once, whatever is in progress."""
        self._leave()
        if self._socket is not None:
            self._socket.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the handshake, or the request without TLS."""
        self._socket = transport
        self._open_connections.add(self)
        self._allow(self._open_connections.limits.request_time)
        self._context = self._open_connections.context()
        if self._context is None:
            self._is_made = True
            super().connection_made(transport)
        else:
            transport.pause_reading()  # until TLS takes over
            self._handshake = self.loop.create_task(self._secure(transport, self._context))

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        limits = self._open_connections.limits
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=limits.request_time,
                ssl_shutdown_timeout=limits.tls_shutdown_time,
            )
        except OSError:  # the client's fault or absence; every scanner causes some
            secured = None
        if secured is None or secured.is_closing():
            self.drop()
            return
        self._is_made = True
        super().connection_made(secured)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        """Handle incoming bytes; a request may arrive with the handshake's end, before its end is known here."""
        if self._is_made:
            super().data_received(data)
        else:
            self._early += data

    def handle_events(self) -> None:
        """Read on; a request with a complete head gets the time for its answer."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._allow(self._open_connections.limits.answer_time)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless the certificate has changed since this connection began."""
        self._allow(self._open_connections.limits.request_time)
        if self._open_connections.context() is not self._context:
            self.transport.close()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        self._leave()
        if self._is_made:
            super().connection_lost(exc)

    def _allow(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(seconds, self.drop)

    def _leave(self) -> None:
        self._open_connections.remove(self)
        if self._limit is not None:
            self._limit.cancel()
