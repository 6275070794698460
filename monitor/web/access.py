"""Who may see the site, and over what: swapped as a whole when the configuration is loaded anew."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from monitor.config import AccessConfig
from monitor.web.certificates import Certificates
from monitor.web.passwords import Passwords, TooManyChecks

OPEN = frozenset({"/-/healthy", "/-/ready"})
"""Paths that need no password: who asks for them restarts rankmon, and need not know more."""

CHECKS_AT_ONCE = 2
"""Threads that check passwords; what else is served does not wait for them."""

_CHALLENGE = {"WWW-Authenticate": 'Basic realm="rankmon", charset="UTF-8"', "Cache-Control": "no-store"}


class Access:
    """TLS and passwords as the configuration has them now."""

    def __init__(self, config: AccessConfig) -> None:
        """Raises TlsFault if the certificate's files are wrong."""
        self._config = AccessConfig()
        self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, "password")
        self._certificates: Certificates | None = None
        self.passwords: Passwords | None = None
        self.adopt(config)

    def adopt(self, config: AccessConfig) -> None:
        """Use another configuration from the next connection and request on.

        Raises:
            TlsFault: the certificate's files are wrong; then nothing changes.
        """
        if config.tls != self._config.tls:
            self._certificates = None if config.tls is None else Certificates(config.tls)
        if config.users != self._config.users:
            self.passwords = Passwords(config.users, self._threads) if config.users else None
        self._config = config

    def context(self) -> ssl.SSLContext | None:
        """The TLS context for a new connection; None for plain HTTP."""
        certificates = self._certificates
        return None if certificates is None else certificates.context()

    @property
    def is_restricted(self) -> bool:
        """Whether a client must prove who it is, by a password or a certificate."""
        tls = self._config.tls
        return self.passwords is not None or (tls is not None and tls.client_auth == "RequireAndVerifyClientCert")


class Gate:
    """Lets requests with the password through to the application, and all while there are no users."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        passwords = self._access.passwords
        refused = None if passwords is None or scope["path"] in OPEN else await _refusal(passwords, scope)
        await (refused or self._app)(scope, receive, send)


async def _refusal(passwords: Passwords, scope: Scope) -> Response | None:
    """What to answer to a request without the password; None if it has it."""
    client, _ = scope["client"] or ("", 0)
    given = Headers(scope=scope).get("authorization", "")
    try:
        if await passwords.are_right(given, client):
            return None
    except TooManyChecks:
        return PlainTextResponse("too many passwords at once; try again later\n", 429, headers={"Retry-After": "5"})
    text = "wrong user or password\n" if given else "a user and a password are needed\n"
    return PlainTextResponse(text, 401, headers=_CHALLENGE)
