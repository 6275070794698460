"""The server's TLS: from the names of its files to an SSL context."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from monitor.errors import InputError

ClientAuth = Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"]
Version = Literal["TLS12", "TLS13"]

_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The server's certificate and key (PEM files), and whether clients must show a certificate too."""

    cert_file: Path
    key_file: Path
    client_auth: ClientAuth = "NoClientCert"
    client_ca_file: Path | None = None
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the context is made from."""
        return tuple(p for p in (self.cert_file, self.key_file, self.client_ca_file) if p is not None)


class TlsFault(InputError):
    """A file that TLS cannot use; `key` is the field of TlsConfig that names it."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context to serve with, its files read now. Raises TlsFault if they are unreadable or do not fit together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.maximum_version = _VERSIONS[config.max_version]
    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "cert_file", config.cert_file)  # only to see that it holds some
    _load_pair(context, config)
    if config.client_ca_file is not None:
        _trust(context, "client_ca_file", config.client_ca_file)
        context.verify_mode = _VERIFY[config.client_auth]
    return context


def _trust(context: ssl.SSLContext, key: str, path: Path) -> None:
    _check_readable(key, path)
    try:
        context.load_verify_locations(path)
    except OSError:
        raise TlsFault(key, f"the file {path} holds no certificate in PEM; it begins -----BEGIN CERTIFICATE") from None


def _check_readable(key: str, path: Path) -> None:
    try:
        path.read_bytes()
    except FileNotFoundError:
        raise TlsFault(key, f"there is no file {path}; a relative path starts at the folder of this file") from None
    except OSError as error:
        raise TlsFault(key, f"the file {path} cannot be read ({error.strerror}); let this user read it") from None


def _load_pair(context: ssl.SSLContext, config: TlsConfig) -> None:
    _check_readable("key_file", config.key_file)
    try:
        context.load_cert_chain(config.cert_file, config.key_file, _no_password)
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else ""
        if reason == "KEY_VALUES_MISMATCH":
            text = f"is not the key of the certificate in {config.cert_file}; give the two that were made together"
            raise TlsFault("key_file", text) from None
        if reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
            raise TlsFault("cert_file", "the certificate is too weak for TLS; make one with a longer key") from None
        raise TlsFault("key_file", f"the file {config.key_file} holds no private key in PEM") from None


def _no_password() -> NoReturn:
    # Without it OpenSSL would ask at the terminal.
    raise TlsFault("key_file", "the key is encrypted; give it without a passphrase, readable by this user only")
