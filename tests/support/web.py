"""A site with TLS and passwords: its certificates, its files, daemons of it, and a client."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from monitor.config import load
from monitor.errors import ConfigError
from monitor.service.app import App

TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"
MAIN = """\
store: {url: "sqlite:///FOLDER/store.db"}
web: {listen: "127.0.0.1:0", config_file: web.yml}
sources:
  shop: {url: "sqlite:///FOLDER/none.db"}
monitors:
  - name: search
    source: shop
    rankings: {table: log, request: r, item: i, position: p, time: t}
    relevance: {column: {grade: g}}
    measures: [ndcg@10]
"""


class Authority:
    """An authority of a test's own, and certificates by it as files."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self.folder = folder
        self.path = folder / f"{name}.crt"
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name: str = "server", host: str = "127.0.0.1") -> tuple[Path, Path]:
        """Certificate and key, `name.crt` and `name.key`; what was there is replaced."""
        made = self._ca.issue_cert(host)
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key

    def client(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What a client trusts, and the certificate that it shows."""
        context = ssl.create_default_context(cafile=self.path)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context


@dataclass(frozen=True)
class Answer:
    """What came back over HTTP, and the server's certificate (DER) if there was one."""

    status: int
    body: str
    headers: http.client.HTTPMessage
    certificate: bytes | None


def ask(
    port: int, path: str, tls: ssl.SSLContext | None = None, method: str = "GET", timeout: float = 10, **headers: str
) -> Answer:
    """One request over a connection of its own."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=tls)
    )
    try:
        connection.connect()
        certificate = connection.sock.getpeercert(True) if isinstance(connection.sock, ssl.SSLSocket) else None
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode(), answer.headers, certificate)
    finally:
        connection.close()


class Site:
    """A configuration with its web file, in a folder, and daemons of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rankmon.yaml"
        self.path.write_text(MAIN.replace("FOLDER", str(folder)), encoding="utf-8")
        self.authority = Authority(folder)
        self.authority.issue()

    def write(self, text: str) -> None:
        """Write the web file."""
        (self.folder / "web.yml").write_text(text, encoding="utf-8")

    @contextmanager
    def serving(self, text: str) -> Iterator[App]:
        """A daemon with this web file; nothing is scheduled."""
        self.write(text)
        app = App(load(self.path, {}))
        try:
            app.prepare()
            app.show()
            app.web.start()
            yield app
        finally:
            app.stop()

    def problems(self, text: str) -> list[str]:
        """What is wrong with this web file, without the folder in front."""
        self.write(text)
        with pytest.raises(ConfigError) as caught:
            load(self.path, {})
        return [p.replace(f"{self.folder}/", "") for p in caught.value.problems]
