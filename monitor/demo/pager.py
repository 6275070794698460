"""The demo's pager: a local web server that shows each notification as on-call would see it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Show = Callable[[dict[str, Any]], None]


class Pager:
    """Receives webhook notifications on a free local port."""

    def __init__(self, show: Show) -> None:
        """`show` gets each notification once, however often it is sent."""
        self._seen: set[str] = set()
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805 (self is the pager)
                body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
                self._take(json.loads(body), show)
                handler.send_response(204)
                handler.end_headers()

            def log_message(handler, *_: object) -> None:  # noqa: N805
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="pager", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def _take(self, notification: dict[str, Any], show: Show) -> None:
        with self._lock:
            if notification["key"] not in self._seen:
                self._seen.add(notification["key"])
                show(notification)

    def close(self) -> None:
        """Stop receiving."""
        self._server.shutdown()
        self._server.server_close()
