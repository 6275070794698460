"""Who may access the site, and how; replaced as a whole when the configuration is reloaded."""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from monitor.config.values import AccessConfig, WebConfig
from monitor.tls import Certificates
from monitor.web.passwords import Passwords, TooManyChecks

log = logging.getLogger(__name__)

OPEN = frozenset({"/-/healthy", "/-/ready"})
"""Paths without a password, for supervisors."""

CHECKS_AT_ONCE = 2
"""Threads that check passwords, so other requests need not wait."""

_CHALLENGE = {"WWW-Authenticate": 'Basic realm="rankmon", charset="UTF-8"', "Cache-Control": "no-store"}


class Access:
    """TLS, passwords and the site's own names, as configured now."""

    def __init__(self, web: WebConfig) -> None:
        """Raises TlsFault if the certificate's files are wrong."""
        self._config = AccessConfig()
        self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, "password")
        self._certificates: Certificates | None = None
        self.passwords: Passwords | None = None
        self.adopt(web)

    def adopt(self, web: WebConfig) -> None:
        """Use another configuration from the next connection and request on. On a TlsFault nothing changes."""
        config = web.access
        if config.tls != self._config.tls:
            self._certificates = None if config.tls is None else Certificates(config.tls)
        if config.users != self._config.users:
            self.passwords = Passwords(config.users, self._threads) if config.users else None
        self._config = config
        self._is_by_name = bool(web.host_names) or is_loopback(web.host) or web.host == "localhost"
        self._names = {web.host, urlsplit(web.external_url).hostname, socket.gethostname().lower()}
        self._names |= {name.lower() for name in web.host_names}

    def foreign(self, scope: Scope) -> Response | None:
        """A refusal for browsers sent here by another site's page; None for all other requests.

        Such a page can trigger changes, and by DNS rebinding read what only this machine may; but not under an IP
        address or a name without a dot.
        """
        headers, is_reading = Headers(scope=scope), scope["method"] in ("GET", "HEAD")
        host, origin = headers.get("host", ""), headers.get("origin")
        site = headers.get(
            "sec-fetch-site", "none" if origin in (None, f"{scope['scheme']}://{host}") else "cross-site"
        )
        if not is_reading and site not in ("none", "same-origin"):
            return PlainTextResponse("requests from pages of other sites are refused\n", 403)
        if scope["path"] in OPEN or self.passwords is not None or (is_reading and not self._is_by_name):
            return None
        if self._knows(host):
            return None
        return PlainTextResponse(
            "unknown host name; set web.external_url to the address you use, or add it to web.host_names\n", 421
        )

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or "." not in name or name.endswith(".localhost") or is_address(name)

    def context(self) -> ssl.SSLContext | None:
        """TLS context for a new connection; None for plain HTTP."""
        certificates = self._certificates
        return None if certificates is None else certificates.context()

    @property
    def is_restricted(self) -> bool:
        """Whether clients must authenticate, by password or certificate."""
        tls = self._config.tls
        return self.passwords is not None or (tls is not None and tls.client_auth_type == "RequireAndVerifyClientCert")


class Gate:
    """Passes authenticated requests to the application, or all while there are no users."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        passwords, refused = self._access.passwords, self._access.foreign(scope)
        if refused is None and passwords is not None and scope["path"] not in OPEN:
            refused = await _refusal(passwords, scope)
        await (refused or self._app)(scope, receive, send)


async def _refusal(passwords: Passwords, scope: Scope) -> Response | None:
    client, _ = scope["client"] or ("", 0)
    given = Headers(scope=scope).get("authorization", "")
    try:
        if await passwords.are_right(given, client):
            return None
    except TooManyChecks:
        return PlainTextResponse("too many passwords at once; try again later\n", 429, headers={"Retry-After": "5"})
    if given:
        log.warning("wrong user or password from %s for %s; answered 401", client, scope["path"])
    text = "wrong user or password\n" if given else "a user and a password are needed\n"
    return PlainTextResponse(text, 401, headers=_CHALLENGE)


def is_address(host: str) -> bool:
    """Whether it is an IP address and not a name."""
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return is_address(host) and ipaddress.ip_address(host).is_loopback
