"""The server's certificate, reloaded when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from monitor.tls import TlsConfig, TlsFault, server_context

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Mtime, inode and size of each file; None if missing."""


class Certificates:
    """Reloads the TLS context when a file changes, so a renewed certificate needs no restart."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises TlsFault if the files are wrong."""
        self.config = config
        self._stamp = _stamp(config)
        self._context = server_context(config)

    def context(self) -> ssl.SSLContext:
        """Context for a new connection. Invalid files are warned about once, and the old ones stay."""
        stamp = _stamp(self.config)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = server_context(self.config)
                log.info("certificate in %s has changed; using the new one", self.config.cert_file)
            except TlsFault as fault:
                log.warning("changed TLS files are not usable: %s: %s; keeping the old ones", fault.key, fault)
        return self._context


def _stamp(config: TlsConfig) -> Stamp:
    return tuple(_file_stamp(path) for path in config.files)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
