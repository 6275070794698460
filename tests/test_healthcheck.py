"""`rankmon healthcheck` beside a daemon: whatever it speaks, whoever is let in, whatever its file says meanwhile."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import bcrypt
import pytest

from monitor import cli
from monitor.app import App
from monitor.config import load
from monitor.config.values import AccessConfig, WebConfig
from monitor.tls import TlsConfig
from tests.support.postgres import free_port
from tests.support.web import TLS, Site

USERS = f"basic_auth_users:\n  ali: {bcrypt.hashpw(b'x', bcrypt.gensalt(4)).decode()}\n"
MUTUAL = TLS.replace("}", ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt}")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@contextmanager
def running(site: Site, web: str, listen: str = "127.0.0.1") -> Iterator[App]:
    """A daemon that listens where its file says."""
    text = site.path.read_text(encoding="utf-8")
    site.path.write_text(re.sub(r'listen: "[^"]+"', f'listen: "{listen}:{free_port()}"', text), encoding="utf-8")
    site.write(web)
    app = App(load(site.path, {}))
    app.prepare()
    app.start()
    try:
        yield app
    finally:
        app.stop()


def check(site: Site) -> int:
    return cli.run(["healthcheck", "-c", str(site.path)])


@pytest.mark.parametrize("web", ["", USERS, TLS, TLS + USERS, MUTUAL], ids=["plain", "users", "tls", "both", "mutual"])
@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_it_passes_on_a_daemon_that_lives_and_fails_without_it(
    site: Site, web: str, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(site, web or "{}", listen):
        assert check(site) == 0
    assert check(site) == 1
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["TLS12", "TLS13"])
def test_a_daemon_that_wants_certificates_lives_whatever_tls_it_speaks(site: Site, version: str) -> None:
    with running(site, MUTUAL.replace("}", f", min_version: {version}, max_version: {version}}}")):
        assert check(site) == 0


@pytest.mark.parametrize(("before", "after"), [("{}", TLS), (TLS, "{}"), (TLS, "]"), ("{}", "tls_server_config: {}")])
def test_a_web_file_that_was_changed_and_not_loaded_yet_does_not_matter(site: Site, before: str, after: str) -> None:
    with running(site, before):
        site.write(after)
        assert check(site) == 0


def test_a_mistake_elsewhere_in_the_file_does_not_matter_for_the_daemon_goes_on(site: Site) -> None:
    with running(site, "{}"):
        text = site.path.read_text(encoding="utf-8")
        site.path.write_text(text.replace("ndcg@10", "'${NOT_SET}'") + "nonsense: 1\n", encoding="utf-8")
        assert check(site) == 0
        site.path.write_text("web: {listen: nowhere}\n", encoding="utf-8")
        assert check(site) == 2


def test_a_scheduler_that_gives_no_sign_of_life_fails_it(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with running(site, "{}") as app:
        app.scheduler.stop()
        assert check(site) == 1
    assert "answers 503: the scheduler gives no sign of life" in capsys.readouterr().err


def test_it_takes_no_other_program_for_a_daemon(site: Site) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

    server = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = site.path.read_text(encoding="utf-8").replace("127.0.0.1:0", f"127.0.0.1:{server.server_port}")
    site.path.write_text(text, encoding="utf-8")
    assert check(site) == 1
    server.shutdown()
    server.server_close()


# ---- where people find the page --------------------------------------------------------------------------------------


def test_links_lead_to_an_address_that_can_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    tls = AccessConfig(None, TlsConfig(tmp_path / "a", tmp_path / "b"))
    assert WebConfig("0.0.0.0", 9184).page_url() == "http://box:9184/"
    assert WebConfig("::", 9184, tls).page_url() == "https://box:9184/"
    assert WebConfig("::1", 0).page_url(81) == "http://[::1]:81/"
    assert WebConfig("0.0.0.0", 9184, external_url="https://mon.test/x").page_url() == "https://mon.test/x/"
