"""The HTTP side: metrics, health, readiness, reload, and the page. No request touches a database."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from monitor import __version__
from monitor.clock import Clock
from monitor.core.types import OVERALL, format_duration
from monitor.errors import InputError
from monitor.snapshot import Board, MonitorSnapshot, Series, shown

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Served(Protocol):
    """What the site shows."""

    clock: Clock
    registry: CollectorRegistry
    board: Board

    def health(self) -> str:
        """Empty, or what is wrong with the process."""

    def readiness(self) -> str:
        """Empty, or what is still missing."""

    def reload(self) -> list[str]:
        """Load the configuration anew; the problems."""

    def next_run_at(self, name: str) -> float | None:
        """When a monitor runs next, in real seconds."""


def create_site(served: Served) -> Starlette:
    """The application. Handlers are plain functions, so a slow one holds up a thread and not the others."""

    def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(served.registry), media_type=kind, headers={"Cache-Control": "no-store"})

    def healthy(_: Request) -> Response:
        return _verdict(served.health())

    def ready(_: Request) -> Response:
        return _verdict(served.readiness())

    def reload(request: Request) -> Response:
        if not _is_local(request):
            return PlainTextResponse("reload is allowed from this machine only\n", 403)
        problems = served.reload()
        return PlainTextResponse("\n".join(problems or ["ok"]) + "\n", 400 if problems else 200)

    def page(_: Request) -> Response:
        return HTMLResponse(render(served), headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/metrics", metrics),
            Route("/-/healthy", healthy),
            Route("/-/ready", ready),
            Route("/-/reload", reload, methods=["POST"]),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
    )


def _verdict(problem: str) -> Response:
    return PlainTextResponse(f"{problem}\n", 503) if problem else PlainTextResponse("ok\n")


def _is_local(request: Request) -> bool:
    host = request.client.host if request.client else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class WebServer:
    """uvicorn in a thread of its own."""

    def __init__(self, host: str, port: int, site: Starlette) -> None:
        self.host = host
        self.port = port
        config = uvicorn.Config(
            site, log_config=None, access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, and serve in the background. Port 0 takes a free one; `port` says which.

        Raises:
            InputError: the address cannot be listened on.
        """
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            listener = socket.create_server((self.host, self.port), family=family, backlog=256)
        except OSError as error:
            raise InputError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror}; change web.listen, or see what runs there"
            ) from error
        self.port = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="web", daemon=True)
        self._thread.start()
        for _ in range(500):
            if self._server.started:
                return
            time.sleep(0.01)
        raise InputError(f"the web server on {self.host}:{self.port} did not start")

    def stop(self) -> None:
        """Finish the requests under way and end."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)


# ---- the page --------------------------------------------------------------------------------------------------


def ago(seconds: float | None) -> str:
    """How long ago, in words: the larger unit from two of it on.

    >>> ago(7300), ago(None)
    ('2 h ago', 'never')
    """
    if seconds is None:
        return "never"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return _when(f"{abs(seconds) / size:.0f} {unit}", seconds)
    return _when(f"{abs(seconds):.0f} s", seconds)


def _when(amount: str, seconds: float) -> str:
    return f"{amount} ago" if seconds >= 0 else f"in {amount}"


def utc(instant: float | None) -> str:
    """`2022-02-24 05:00 UTC`, or a dash."""
    return "–" if instant is None else datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M UTC")


_TEMPLATES = Environment(loader=PackageLoader("monitor"), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
_TEMPLATES.filters.update(ago=ago, utc=utc, duration=format_duration)


def render(served: Served) -> str:
    """The landing page as HTML."""
    now = served.clock.now()
    snapshots: Mapping[str, MonitorSnapshot] = served.board.snapshots
    rows = [_row(snapshots[name], served, now) for name in sorted(snapshots)]
    template = _TEMPLATES.get_template("index.html")
    return template.render(version=__version__, now=now, monitors=rows, health=served.health())


def _row(snapshot: MonitorSnapshot, served: Served, now: float) -> dict[str, Any]:
    progress, next_run = snapshot.progress, served.next_run_at(snapshot.monitor.name)
    return {
        "name": snapshot.monitor.name,
        "labels": snapshot.monitor.labels,
        "runbook": snapshot.monitor.runbook_url,
        "error": progress.last_error,
        "success": None if progress.last_success_at is None else now - progress.last_success_at,
        "newest": None if progress.newest_source_at is None else now - progress.newest_source_at,
        "next_run": None if next_run is None else time.time() - next_run,
        "due": snapshot.due_buckets,
        "provisional": snapshot.provisional_buckets,
        "refused": sorted(snapshot.refused.items()),
        "unmatched": snapshot.unmatched,
        "future": snapshot.future_rows,
        "series": [_line(s, snapshot.monitor.min_completeness) for s in snapshot.series],
    }


def _line(series: Series, least: float) -> dict[str, Any]:
    points = shown(series, least)
    overall = next((p for p in points if (p.dimension, p.slice) == OVERALL), None)
    sliced = [p for p in points if (p.dimension, p.slice) != OVERALL]
    latest = next((p for p in series.provisional if (p.dimension, p.slice) == OVERALL), None)
    return {
        "measure": str(series.measure),
        "window": format_duration(series.length),
        "definition": series.definition.id,
        "point": overall,
        "slices": sliced,
        "provisional": latest,
    }
