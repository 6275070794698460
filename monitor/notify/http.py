"""Posting JSON over HTTP: a 2xx or an error, within a time limit, and no secret in what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import urllib3

from monitor.errors import Undelivered

LONGEST_ANSWER = 200


class Poster:
    """Posts to one address. Redirects are not followed: they would carry credentials elsewhere."""

    def __init__(self, url: str, timeout: float, ca_file: str | None = None) -> None:
        """`timeout`: seconds for connecting, and again for each wait for the answer."""
        self._url = url
        self.place = place(url)
        self._pool = urllib3.PoolManager(
            num_pools=1,
            retries=False,
            timeout=urllib3.Timeout(connect=timeout, read=timeout),
            cert_reqs="CERT_REQUIRED",
            ca_certs=ca_file,
        )

    def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Post JSON. Raises Undelivered unless the answer is a 2xx."""
        try:
            answer = self._pool.request(
                "POST",
                self._url,
                body=body,
                headers={"Content-Type": "application/json", "User-Agent": "rankmon", **headers},
                redirect=False,
                preload_content=False,
            )
            said = answer.read(LONGEST_ANSWER + 1).decode("utf-8", "replace")
            answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Undelivered(f"{self.place}: {_cause(error)}") from None
        if not 200 <= answer.status < 300:
            raise Undelivered(f"{self.place}: answered {answer.status}: {' '.join(said.split())[:LONGEST_ANSWER]}")


def place(url: str) -> str:
    """A URL's scheme, host and port: what may be shown of it, for paths and queries may hold tokens.

    >>> place("https://user:secret@hooks.example.com:8443/T0/B1?key=2")
    'https://hooks.example.com:8443'
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def _cause(error: BaseException) -> str:
    """What went wrong, without the URL that urllib3 names."""
    reason = getattr(error, "reason", None)
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "its name cannot be resolved"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return f"cannot be reached ({str(error).rpartition(': ')[2]})"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return "did not answer in time"
    if isinstance(error, urllib3.exceptions.SSLError):
        return f"TLS: {reason or error}; give its certificate's issuer as ca_file"
    return type(error).__name__
