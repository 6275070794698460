"""Posts JSON over HTTP: a 2xx or an error, within a time limit, without secrets in messages."""

from __future__ import annotations

import base64
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, ValidationInfo

from monitor.errors import Undelivered, without
from monitor.fields import Maybe, PositiveDuration, Text
from monitor.messages.words import plain
from monitor.notify import ChannelConfig, GiveUpAfter
from monitor.section import key, no_file, unreadable
from monitor.units import DAY

LONGEST_ANSWER = 200
"""Characters that are told of an answer; more of it is read, so that no half of a secret is left at the end."""

LONGEST_READ = 65_536
"""Bytes that are read of an answer."""

_WORD = re.compile(r"[A-Za-z]?[a-z]{0,6}|v\d+")
"""A part of an address's path that is not a secret, such as `api` or `v2`."""

LEAST_VALUE = 4
"""Least characters of a secret in an address's query; shorter values are like `page=2`."""

UNKNOWN_ISSUER = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate whose issuer nobody told us to trust."""


_Address = tuple[Any, ...]
"""As `socket.getaddrinfo` gives it."""


def _certificates(name: str, info: ValidationInfo[Any]) -> str:
    """Full path of a file with certificates to trust, which are looked at."""
    path = str(info.context.folder / name)
    try:
        ssl.create_default_context(cafile=path)
    except FileNotFoundError:
        raise no_file(name) from None
    except ssl.SSLError:
        text = "the file {file} holds no certificate; give one in PEM format (-----BEGIN CERTIFICATE-----)"
        raise unreadable(name, text) from None
    except OSError as error:
        raise unreadable(name, f"the file {{file}} cannot be read ({error.strerror}); let this user read it") from None
    return path


@dataclass(frozen=True, slots=True)
class HttpChannel(ChannelConfig):
    """A channel over HTTP."""

    ca_file: Annotated[
        Maybe[Annotated[Text, AfterValidator(_certificates)]],
        key("CA certificates to trust instead of the system's, relative to this file. Default: the system's."),
    ] = field(default=None, kw_only=True)
    timeout: Annotated[PositiveDuration, key("Time limit of one attempt.")] = field(default=10, kw_only=True)
    give_up_after: GiveUpAfter = field(default=DAY, kw_only=True)


class Answer(NamedTuple):
    """A receiver's answer: status, begin of what it said, seconds after which one may come again, and its clock."""

    status: int
    said: bytes
    wait: float
    date: float | None


class Poster:
    """Posts to one address, over a connection of its own each time.

    Neither redirects nor the environment's proxies are followed: they would carry credentials elsewhere.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        ca_file: str | None = None,
        longest_read: int = LONGEST_READ,
        secrets: Collection[str] = (),
    ) -> None:
        """Connect to nothing yet.

        Args:
            timeout: seconds for an attempt as a whole, however slowly names are resolved or the other side answers.
            secrets: what else is not to be told of an answer.
        """
        self._longest_read = longest_read
        self._secrets = secrets
        self._url = urlsplit(url)
        self._own = (
            {} if self._url.username is None else basic(unquote(self._url.username), unquote(self._url.password or ""))
        )
        self._path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        self._timeout = timeout
        self._ca_file = ca_file
        self.place = place(url)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post JSON; the answer, a 2xx. Raises Undelivered for any other."""
        until = time.monotonic() + self._timeout
        headers = {**self._own, **headers}
        try:
            answer = self._ask(body, headers, until)
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = "did not answer in time" if time.monotonic() >= until else _cause(error)
            raise Undelivered(f"{self.place}: {cause}") from None
        if not 200 <= answer.status < 300:
            told = self.harmless(answer.said, headers)
            raise Undelivered(f"{self.place}: answered {answer.status}" + (f": {told}" if told else ""), answer.wait)
        return answer

    def harmless(self, said: bytes, headers: Mapping[str, str]) -> str:
        """What the receiver said, on one line, without what is secret in what it was sent."""
        secrets = {*self._secrets, *secrets_of(self._path, {**self._own, **headers})}
        return without(plain(" ".join(said.decode("utf-8", "replace").split())), secrets)[:LONGEST_ANSWER]

    def _ask(self, body: bytes, headers: Mapping[str, str], until: float) -> Answer:
        trust = self._trust()
        connection = self._connection(trust)
        line = _reach(self._addresses(connection.host, connection.port, until), until)
        if trust is not None:
            line = trust.wrap_socket(line, server_hostname=connection.host, do_handshake_on_connect=False)
        # A time limit of the socket's own starts again with every byte that drips in.
        watch = threading.Timer(until - time.monotonic(), _cut, [line])
        watch.daemon = True
        watch.start()
        with closing(line):
            try:
                if isinstance(line, ssl.SSLSocket):
                    line.do_handshake()
                connection.sock = line
                sent = {"Content-Type": "application/json", "User-Agent": "rankmon", "Connection": "close", **headers}
                connection.request("POST", self._path, body, sent)
                with closing(connection.getresponse()) as answer:
                    said = answer.read(self._longest_read)
                    wait = _seconds(answer.headers.get("Retry-After"))
                    return Answer(answer.status, said, wait, _instant(answer.headers.get("Date")))
            finally:
                watch.cancel()

    def _addresses(self, host: str, port: int, until: float) -> list[_Address]:
        """Where a name leads to. The system's resolver has no time limit, so it is left to finish."""
        found: list[_Address] = []
        failed: list[OSError | UnicodeError] = []

        def resolve() -> None:
            try:
                found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                failed.append(error)

        resolver = threading.Thread(target=resolve, name=f"resolve {host}", daemon=True)
        resolver.start()
        resolver.join(max(until - time.monotonic(), 0.0))
        if resolver.is_alive():
            raise Undelivered(f"{self.place}: its name was not resolved in time")
        if failed:
            raise failed[0]
        return found

    def _trust(self) -> ssl.SSLContext | None:
        """Whom to trust, None without TLS. Read each time, for certificates are renewed."""
        if self._url.scheme != "https":
            return None
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise Undelivered(f"{self.place}: the file {self._ca_file} holds no certificates ({error})") from None

    def _connection(self, trust: ssl.SSLContext | None) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if trust is None:
            return http.client.HTTPConnection(host, port)
        return http.client.HTTPSConnection(host, port, context=trust)


def _seconds(retry_after: str | None) -> float:
    """What `Retry-After` says in seconds; 0 without it, or where it names a date by a clock that is not ours."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else 0.0


def _instant(date: str | None) -> float | None:
    """What `Date` says in seconds since 1970; None without it."""
    with suppress(TypeError, ValueError):
        return parsedate_to_datetime(date or "").timestamp()
    return None


def basic(username: str, password: str) -> dict[str, str]:
    """The header of basic authentication."""
    return {"Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}


def place(url: str) -> str:
    """A URL's scheme, host and port: what may be shown of it, for paths and queries may hold tokens.

    >>> place("https://user:secret@hooks.example.com:8443/T0/B1?key=2")
    'https://hooks.example.com:8443'
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def _reach(found: Sequence[_Address], until: float) -> socket.socket:
    """A line to the first of a host's addresses that takes it; each has its share of the time. Raises OSError."""
    for left, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        line = socket.socket(family, kind, protocol)
        remaining = max(until - time.monotonic(), 0.01)
        line.settimeout(remaining / left)
        try:
            line.connect(address)
        except OSError:
            line.close()
            if left == 1:
                raise
        else:
            line.settimeout(remaining)
            return line
    raise OSError("it has no address")


def _cut(line: socket.socket) -> None:
    """End what is waited for; past TLS, which would want to say farewell."""
    with suppress(OSError):
        socket.socket.shutdown(line, socket.SHUT_RDWR)


def secrets_of(path: str, headers: Mapping[str, str]) -> set[str]:
    """What is secret in a request: parts of its path and query, as sent and decoded, and its credentials.

    >>> sorted(secrets_of("/api/v2/T0K3N?key=ab%20cd&page=2", basic("me", "x")))
    ['T0K3N', 'ab cd', 'ab%20cd', 'bWU6eA==', 'x']
    """
    address, _, query = path.partition("?")
    found = {part for part in address.split("/") if not _WORD.fullmatch(part)}
    values = (pair.rpartition("=")[2] for pair in query.split("&"))
    found |= {value for value in values if len(value) >= LEAST_VALUE}
    found |= {unquote(part) for part in found}
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme == "Basic":
        found.add(base64.b64decode(token).decode().partition(":")[2])
    return {*found, token} - {""}


def _cause(error: BaseException) -> str:
    """What went wrong, in words that hold neither path nor headers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "; give its issuer's certificate as ca_file" if error.verify_code in UNKNOWN_ISSUER else ""
        return f"its certificate is not trusted ({error.verify_message}){remedy}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed ({error.reason or 'no reason given'})"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
        return "closed the connection without an answer"
    if isinstance(error, OSError):
        return f"cannot be reached ({error.strerror or type(error).__name__})"
    if isinstance(error, http.client.InvalidURL | ValueError):
        return f"cannot be called: its address or a token has characters not allowed in HTTP ({type(error).__name__})"
    return f"its answer is not HTTP ({type(error).__name__})"
