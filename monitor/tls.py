"""The server's TLS: from file names to an SSL context, renewed when the files change."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Self

from pydantic import model_validator

from monitor.errors import InputError
from monitor.fields import Maybe, Text
from monitor.section import Section, key

log = logging.getLogger(__name__)

ClientAuth = Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"]
Version = Literal["TLS12", "TLS13"]

_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class TlsConfig(Section):
    """TLS: certificate and key of the server, and which client certificates it requires."""

    cert_file: Annotated[Text, key("Certificate with its chain, in PEM.", examples=["server.crt"])]
    key_file: Annotated[Text, key("Private key in PEM.", examples=["server.key"])]
    client_auth_type: Annotated[ClientAuth, key("What clients must present.")] = "NoClientCert"
    client_ca_file: Annotated[Maybe[Text], key("Authorities that issue client certificates.")] = None
    min_version: Annotated[Version, key("Minimum TLS version.")] = "TLS12"
    max_version: Annotated[Version, key("Maximum TLS version.")] = "TLS13"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.client_auth_type == "NoClientCert") != (self.client_ca_file is None):
            raise ValueError(
                "client_ca_file goes with client_auth_type RequireAndVerifyClientCert or VerifyClientCertIfGiven, "
                "and these with it; give both or neither"
            )
        if self.min_version > self.max_version:
            raise ValueError("min_version is above max_version; swap them")
        return self

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the context is made from."""
        return tuple(Path(p) for p in (self.cert_file, self.key_file, self.client_ca_file) if p is not None)

    def within(self, folder: Path) -> TlsConfig:
        """With relative files in `folder`."""
        authorities = None if self.client_ca_file is None else str(folder / self.client_ca_file)
        cert, key_file = str(folder / self.cert_file), str(folder / self.key_file)
        return replace(self, cert_file=cert, key_file=key_file, client_ca_file=authorities)


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
        context.verify_mode = _VERIFY[config.client_auth_type]
    return context


def _trust(context: ssl.SSLContext, key: str, path: str) -> None:
    _check_readable(key, path)
    try:
        context.load_verify_locations(path)
    except OSError:
        raise TlsFault(
            key, f"the file {path} holds no PEM certificate; one starts with -----BEGIN CERTIFICATE"
        ) from None


def _check_readable(key: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except FileNotFoundError:
        raise TlsFault(key, f"there is no file {path}; relative paths start at this file's folder") from None
    except OSError as error:
        raise TlsFault(key, f"the file {path} cannot be read ({error.strerror}); let this user read it") from None


def _load_pair(context: ssl.SSLContext, config: TlsConfig) -> None:
    _check_readable("key_file", config.key_file)
    try:
        context.load_cert_chain(config.cert_file, config.key_file, _no_password)
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else ""
        if reason == "KEY_VALUES_MISMATCH":
            text = f"does not match the certificate in {config.cert_file}; use a matching pair"
            raise TlsFault("key_file", text) from None
        if reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
            raise TlsFault("cert_file", "the certificate is too weak for TLS; create one with a longer key") from None
        raise TlsFault("key_file", f"the file {config.key_file} holds no PEM private key") from None


def _no_password() -> NoReturn:
    # Without it OpenSSL would ask at the terminal.
    raise TlsFault("key_file", "the key is encrypted; give it without a passphrase, readable by this user only")


# ---- as it changes ---------------------------------------------------------------------------------------------------

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
