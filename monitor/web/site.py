"""The site: metrics, health, readiness, reload and the page. No request touches a database."""

from __future__ import annotations

from typing import Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from monitor.messages.words import plain
from monitor.page import PageSource, render, render_monitor
from monitor.web.access import Access, Gate, is_loopback

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class SiteSource(PageSource, Protocol):
    """What the site needs to know."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """(text of `/metrics`, content type) for an Accept header."""

    def readiness(self) -> str:
        """Empty, or what is still missing."""

    def reload(self) -> list[str]:
        """Reload the configuration; the problems."""


def create_site(served: SiteSource, access: Access) -> Starlette:
    """The application. Handlers are plain functions, so a slow one blocks only its thread."""

    def metrics(request: Request) -> Response:
        text, kind = served.metrics(request.headers.get("accept", ""))
        return Response(text, media_type=kind, headers={"Cache-Control": "no-store"})

    def healthy(_: Request) -> Response:
        return _verdict(served.health())

    def ready(_: Request) -> Response:
        return _verdict(served.readiness())

    def reload(request: Request) -> Response:
        if access.passwords is None and not _is_local(request):
            text = "reload is allowed from this machine only, or with a password (web.config_file)\n"
            return PlainTextResponse(text, 403)
        problems = served.reload()
        return PlainTextResponse("\n".join(problems or ["ok"]) + "\n", 400 if problems else 200)

    def page(_: Request) -> Response:
        return HTMLResponse(plain(render(served)), headers=_HEADERS)

    def monitor(request: Request) -> Response:
        found = render_monitor(served, request.path_params["name"])
        if found is None:
            return PlainTextResponse("no such monitor\n", 404)
        return HTMLResponse(plain(found), headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/monitors/{name}", monitor),
            Route("/metrics", metrics),
            Route("/-/healthy", healthy),
            Route("/-/ready", ready),
            Route("/-/reload", reload, methods=["POST"]),
        ],
        middleware=[Middleware(Gate, access=access), Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
    )


def _verdict(problem: str) -> Response:
    return PlainTextResponse(f"{problem}\n", 503) if problem else PlainTextResponse("ok\n")


def _is_local(request: Request) -> bool:
    """Whether the peer is this machine and no proxy claims to forward the request."""
    is_handed_on = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
    return request.client is not None and is_loopback(request.client.host) and not is_handed_on
