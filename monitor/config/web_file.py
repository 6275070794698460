"""The web configuration file: TLS and passwords, in the format of Prometheus exporters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import bcrypt
from pydantic import AfterValidator, TypeAdapter, ValidationError

from monitor.config.document import read
from monitor.config.explain import explain
from monitor.config.report import Report
from monitor.config.values import AccessConfig
from monitor.errors import Where
from monitor.fields import Maybe
from monitor.section import Secret, Section, key
from monitor.tls import TlsConfig, TlsFault, server_context

MOST_ROUNDS = 15
"""Highest cost of a bcrypt hash: a check takes about two seconds; each step more doubles it."""

_OPENSSL = "rankmon leaves this to OpenSSL; remove it"
_UNSUPPORTED: Mapping[tuple[str, ...], str] = {
    ("http_server_config",): "rankmon speaks HTTP/1.1 and sets its own headers; remove it",
    ("rate_limit",): "rankmon does not limit rates; remove it",
    ("tls_server_config", "cert"): "rankmon reads the certificate from a file; use cert_file",
    ("tls_server_config", "key"): "rankmon reads the key from a file; use key_file",
    ("tls_server_config", "client_ca"): "rankmon reads the authority from a file; use client_ca_file",
    ("tls_server_config", "client_allowed_sans"): "rankmon admits every certificate of client_ca_file; remove it, "
    "and give those clients their own authority",
    ("tls_server_config", "cipher_suites"): _OPENSSL,
    ("tls_server_config", "prefer_server_cipher_suites"): _OPENSSL,
    ("tls_server_config", "curve_preferences"): _OPENSSL,
}
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert")
_HASH = re.compile(r"(\$2[aby]\$)([0-9]{2})(\$[./A-Za-z0-9]{22})[./A-Za-z0-9]{31}")


def _user(name: str) -> str:
    if not name or ":" in name:
        raise ValueError("is not a user name; write at least one letter, and no colon")
    return name


def _hash(text: str) -> str:
    found = _HASH.fullmatch(text)
    if found is None or not _is_salt(f"{found[1]}04{found[3]}"):
        raise ValueError("is not a bcrypt hash; make one with `rankmon hash-password NAME`, or `htpasswd -nBC 10 NAME`")
    if not 4 <= int(found[2]) <= MOST_ROUNDS:
        raise ValueError(f"has a cost of {found[2]}, but 04 to {MOST_ROUNDS} is allowed; use 10")
    return text


def _is_salt(text: str) -> bool:
    try:
        bcrypt.hashpw(b"", text.encode())
    except ValueError:
        return False
    return True


UserName = Annotated[str, AfterValidator(_user)]
Hash = Annotated[str, AfterValidator(_hash)]


@dataclass(frozen=True, slots=True)
class WebFile(Section):
    """The web configuration file."""

    tls_server_config: Annotated[Maybe[TlsConfig], key("TLS; plain HTTP without it.")] = None
    basic_auth_users: Annotated[
        Maybe[dict[UserName, Hash]], Secret, key("bcrypt hashes of passwords by user name.", min_length=1)
    ] = field(default=None, repr=False)


def load_web_file(path: Path, environ: Mapping[str, str]) -> AccessConfig:
    """What the web configuration file `path` says, its certificates tried out.

    Raises:
        ConfigError: with every mistake there is, each as `file:line: path.to.key: what is wrong; remedy`.
    """
    report = Report(path)
    data = read(path, environ, report, "`tls_server_config:` or `basic_auth_users:`")
    for where, text in _take_out_unsupported(data):
        report.add(where, text)
    shape = _fit(data, report)
    if shape is None:
        _look_at_files(data, report)
    report.raise_if_any()
    assert shape is not None  # or it would have been reported
    tls = None if shape.tls_server_config is None else _tls(shape.tls_server_config, report)
    report.raise_if_any()
    users = shape.basic_auth_users or {}
    return AccessConfig(path, tls, tuple((name, hashed.encode()) for name, hashed in users.items()))


def _look_at_files(data: dict[str, Any], report: Report) -> None:
    """Try the certificates out although something else is wrong, so that one mistake does not hide another."""
    with suppress(ValidationError):
        if (given := data.get("tls_server_config")) is not None:
            _tls(TypeAdapter(TlsConfig).validate_python(given), report)


def _take_out_unsupported(data: dict[str, Any]) -> Iterator[tuple[Where, str]]:
    """Take what rankmon knows, but cannot do, out of `data`; the place of each, and why."""
    for (*path, last), text in _UNSUPPORTED.items():
        holder = data.get(path[0]) if path else data
        if isinstance(holder, dict) and last in holder:
            del holder[last]
            yield (*path, last), text
    tls = data.get("tls_server_config")
    if isinstance(tls, dict) and tls.get("client_auth_type") in _UNVERIFIED:
        text = f"{tls.pop('client_auth_type')} would not verify certificates; use RequireAndVerifyClientCert"
        tls.pop("client_ca_file", None)
        yield ("tls_server_config", "client_auth_type"), text


def _fit(data: dict[str, Any], report: Report) -> WebFile | None:
    try:
        return TypeAdapter(WebFile).validate_python(data)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            report.add(*explain(one, WebFile))
    return None


def _tls(found: TlsConfig, report: Report) -> TlsConfig | None:
    config = found.within(report.file.parent)
    try:
        server_context(config)
    except TlsFault as fault:
        report.add(("tls_server_config", fault.key), str(fault))
        return None
    return config
