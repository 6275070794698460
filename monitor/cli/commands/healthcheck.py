"""Ask the daemon on this machine whether it is healthy. Exit code 0 if so, otherwise 1.

Needs no password and accepts any certificate. It reads only `web` from the configuration, so it works even if the rest
is wrong. If the server requires client certificates, a refusal counts as healthy.
"""

from __future__ import annotations

import http.client
import os
import ssl
from contextlib import closing
from pathlib import Path

import click

from monitor.cli.common import command
from monitor.cli.options import config_option

TIMEOUT = 4.0


@command
@config_option
def healthcheck(config_path: Path) -> int:
    from monitor.config.listening import EVERYWHERE, listening

    at = listening(config_path, os.environ)
    said = ask(EVERYWHERE.get(at.host, at.host), at.port, at.has_tls, at.wants_certificates)
    click.echo(said or "ok", err=bool(said))
    return 1 if said else 0


def ask(host: str, port: int, has_tls: bool = False, wants_certificates: bool = False) -> str:
    """What is wrong with the daemon at that address, asked with and without TLS; empty if nothing is."""
    said = ""
    for tls in (has_tls, not has_tls):
        try:
            status, answer = _get(host, port, tls)
        except (ssl.SSLError, ConnectionResetError, http.client.HTTPException) as error:
            # It answered, if only by closing the connection.
            said = said or f"{host}:{port}: {getattr(error, 'reason', '') or type(error).__name__}"
        except OSError as error:
            return f"{host}:{port}: {error.strerror or type(error).__name__}"
        else:
            return "" if status == 200 else f"{host}:{port} answers {status}: {answer}"
    return "" if wants_certificates else said


def _get(host: str, port: int, tls: bool) -> tuple[int, str]:
    if not tls:
        line = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is this machine, whatever its name
        line = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
    with closing(line):
        line.request("GET", "/-/healthy")
        answer = line.getresponse()
        return answer.status, answer.read(500).decode("utf-8", "replace").strip()
