"""The site: metrics, health, readiness, reload and the page. Only incident pages touch the store."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from monitor.errors import StoreError
from monitor.messages.words import on_one_line, plain, storable
from monitor.page import IncidentSource, PageSource, render, render_incident, render_monitor
from monitor.web.access import Access, Gate, is_loopback

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


_WITH_FORMS = {
    **_HEADERS,
    "Content-Security-Policy": _HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'"),
    "Referrer-Policy": "same-origin",  # without a referrer a form's Origin is null, as that of another site's page
}

_NO_GZIP = re.compile(r"\bgzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)

LONGEST_FORM = 4096
"""Bytes."""


class SiteSource(PageSource, Protocol):
    """What the site needs to know."""

    desk: IncidentSource

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
        if not _may_change(request, access):
            return _forbidden("reload is")
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
            *_of_incidents(served, access),
            Route("/metrics", metrics),
            Route("/-/healthy", healthy),
            Route("/-/ready", ready),
            Route("/-/reload", reload, methods=["POST"]),
        ],
        middleware=[Middleware(Gate, access=access), Middleware(_GZip, minimum_size=1000, compresslevel=5)],
        exception_handlers={StoreError: _store_failed, ClientDisconnect: _client_left},
    )


class _GZip(GZipMiddleware):
    """Compresses for clients that accept it; Starlette's own middleware takes `gzip;q=0`, which forbids it, for yes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_forbidden = _NO_GZIP.search(Headers(scope=scope).get("accept-encoding", ""))
        await (self.app if is_forbidden else super().__call__)(scope, receive, send)


def _store_failed(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 503)


def _client_left(*_: object) -> Response:
    return PlainTextResponse("the request never ended\n", 400)


def _forbidden(what: str) -> Response:
    text = f"{what} allowed from this machine only, or with a password (web.config_file)\n"
    return PlainTextResponse(text, 403)


def _of_incidents(served: SiteSource, access: Access) -> list[Route]:
    def incident(request: Request) -> Response:
        view = served.desk.view(request.path_params["id"])
        if view is None:
            return PlainTextResponse("no such incident\n", 404)
        return HTMLResponse(plain(render_incident(view, _may_change(request, access))), headers=_WITH_FORMS)

    def chart(request: Request) -> Response:
        found = served.desk.chart(request.path_params["id"])
        return (
            Response(found, media_type="image/png", headers=_HEADERS) if found else PlainTextResponse("no chart\n", 404)
        )

    async def change(request: Request) -> Response:
        if not _may_change(request, access):
            return _forbidden("changes are")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_FORM:
                return PlainTextResponse("too long\n", 413)
        form = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        return await run_in_threadpool(_change, served.desk, request, form)

    return [
        Route("/incidents/{id}", incident),
        Route("/incidents/{id}/chart.png", chart),
        Route("/incidents/{id}/{what}", change, methods=["POST"]),
    ]


def _may_change(request: Request, access: Access) -> bool:
    return access.is_restricted or _is_local(request)


def _change(desk: IncidentSource, request: Request, form: Mapping[str, str]) -> Response:
    id_, by, note = request.path_params["id"], _user(request), on_one_line(storable(form.get("note", "")))
    match request.path_params["what"]:
        case "acknowledge":
            is_done = desk.acknowledge(id_, by, note)
        case "silence":
            is_done = desk.silence(id_, form.get("for", ""), by, note)
        case "label":
            is_done = desk.label(id_, form.get("label", ""), by, note)
        case _:
            is_done = False
    if not is_done:
        return PlainTextResponse("no such incident, or nothing to show for it\n", 404)
    return RedirectResponse(f"../{id_}", 303)


def _user(request: Request) -> str:
    """Who is asking, by the correct password; `page` if none is needed."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return "page"
    return storable(b64decode(given, validate=False).decode("utf-8", "replace").partition(":")[0]) or "page"


def _verdict(problem: str) -> Response:
    return PlainTextResponse(f"{problem}\n", 503) if problem else PlainTextResponse("ok\n")


def _is_local(request: Request) -> bool:
    """Whether the peer is this machine and no proxy claims to forward the request."""
    is_handed_on = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
    return request.client is not None and is_loopback(request.client.host) and not is_handed_on
