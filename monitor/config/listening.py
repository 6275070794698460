"""Where a daemon listens, read from a file that may be wrong elsewhere: the daemon keeps what it read before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitor.config.document import read
from monitor.config.report import Report
from monitor.errors import ConfigError

DEFAULT = "127.0.0.1:9184"
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that stand for all of a machine's own -> the one by which it reaches itself."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a daemon listens, and what its web file says, which it may not have loaded yet.

    Attributes:
        has_tls: whether it speaks TLS.
        wants_certificates: whether it lets nobody in without one.
    """

    host: str
    port: int
    has_tls: bool = False
    wants_certificates: bool = False


def listening(path: Path, environ: Mapping[str, str]) -> Listening:
    """Where the daemon of the configuration `path` listens.

    Raises:
        ConfigError: the file cannot be read, or that itself is wrong in it.
    """
    report = Report(path)
    web = read(path, environ, report).get("web")
    web = web if isinstance(web, dict) else {}
    tls = _tls(path, web, environ)
    of_tls = (tls is not None, (tls or {}).get("client_auth_type") == "RequireAndVerifyClientCert")
    try:
        return Listening(*parse_listen(str(web.get("listen") or DEFAULT)), *of_tls)
    except ValueError as error:
        report.add(("web", "listen"), str(error))
        report.raise_if_any()
        raise


def _tls(path: Path, web: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    """What the web file says of TLS; None if it says nothing, or cannot be read."""
    if not isinstance(file := web.get("config_file"), str):
        return None
    try:
        tls = read(path.parent / file, environ, Report(path.parent / file)).get("tls_server_config")
    except ConfigError:
        return None
    return tls if isinstance(tls, dict) else None


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9184` or `[::1]:9184`; port 0 is any free one.

    Raises:
        ValueError: no host and port.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"{text!r} is not a host:port; write e.g. 127.0.0.1:9184, or 0.0.0.0:9184 for all interfaces")
    return match[1] or match[2], int(match[3])
