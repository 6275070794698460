"""`rankmon healthcheck` next to a running daemon, with every web setup, also when its file has changed since."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import bcrypt
import pytest

from monitor import cli
from monitor.config import load
from monitor.config.values import AccessConfig, WebConfig
from monitor.errors import StoreError
from monitor.service.app import App
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
def test_the_healthcheck_passes_with_a_daemon_and_fails_without(
    site: Site, web: str, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(site, web or "{}", listen):
        assert check(site) == 0
    assert check(site) == 1
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["TLS12", "TLS13"])
def test_the_healthcheck_passes_with_client_certificates_on_each_tls_version(site: Site, version: str) -> None:
    with running(site, MUTUAL.replace("}", f", min_version: {version}, max_version: {version}}}")):
        assert check(site) == 0


@pytest.mark.parametrize(("before", "after"), [("{}", TLS), (TLS, "{}"), (TLS, "]"), ("{}", "tls_server_config: {}")])
def test_the_healthcheck_passes_while_a_changed_web_file_is_not_loaded(site: Site, before: str, after: str) -> None:
    with running(site, before):
        site.write(after)
        assert check(site) == 0


def test_the_healthcheck_ignores_mistakes_outside_the_web_keys(site: Site) -> None:
    with running(site, "{}"):
        text = site.path.read_text(encoding="utf-8")
        site.path.write_text(text.replace("ndcg@10", "'${NOT_SET}'") + "nonsense: 1\n", encoding="utf-8")
        assert check(site) == 0
        site.path.write_text("web: {listen: nowhere}\n", encoding="utf-8")
        assert check(site) == 2


def test_a_stopped_scheduler_fails_the_healthcheck(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with running(site, "{}") as app:
        app.scheduler.stop()
        assert check(site) == 1
    assert "answers 503: the scheduler has stopped" in capsys.readouterr().err


def test_the_healthcheck_fails_on_another_program(site: Site) -> None:
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


# ---- address of the page, liveness, resources ------------------------------------------------------------------------


def test_page_links_use_a_reachable_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    tls = AccessConfig(None, TlsConfig(str(tmp_path / "a"), str(tmp_path / "b")))
    assert WebConfig(("0.0.0.0", 9184)).page_url() == "http://box:9184/"
    assert WebConfig(("::", 9184), access=tls).page_url() == "https://box:9184/"
    assert WebConfig(("::1", 0)).page_url(81) == "http://[::1]:81/"
    assert WebConfig(("0.0.0.0", 9184), external_url="https://mon.test/x").page_url() == "https://mon.test/x/"


def test_a_hung_run_is_reported_after_the_longest_allowed_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run that never returns; its start is moved back to let time pass."""
    is_going, may_end = threading.Event(), threading.Event()
    with running(site, "{}") as app:
        (runner,) = app.runners.values()

        def hang(*_: object) -> None:
            is_going.set()
            may_end.wait(60)
            raise StoreError("the end")

        monkeypatch.setattr(runner, "_cycle", hang)
        run = threading.Thread(target=runner.run)
        run.start()
        try:
            assert is_going.wait(10)
            assert app.health() == ""
            allowed = 600 + 6 * 60 + 300  # its deadline, the statements of one stretch, and the store
            for going_on, told in (
                (allowed - 60, ""),
                (allowed + 60, "a run of search has hung for 22 min; restart rankmon"),
            ):
                runner._began = time.monotonic() - going_on
                assert app.health() == told
        finally:
            monkeypatch.undo()
            may_end.set()
            run.join()
        assert app.health() == ""


def test_systemd_is_notified_of_readiness_and_life(site: Site, tmp_path: Path) -> None:
    site.write("{}")
    site.path.write_text(site.path.read_text(encoding="utf-8").replace(":0", f":{free_port()}"), encoding="utf-8")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        line.bind(f"{folder}/notify")
        line.settimeout(30)
        environment = os.environ | {"NOTIFY_SOCKET": f"{folder}/notify"}
        command = [sys.executable, "-c", "from monitor.cli import main; main()", "run", "-c", str(site.path)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            assert [line.recv(100), line.recv(100)] == [b"READY=1", b"WATCHDOG=1"]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_a_lack_of_memory_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("monitor.cli.commands.version.platform.python_version", lambda: "x" * 2**62)
    assert cli.run(["version"]) == 1
    assert (
        capsys.readouterr().err
        == "rankmon: out of memory; give this process more, or read a shorter period at a time\n"
    )


def test_a_lack_of_threads_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> str:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("monitor.cli.commands.version.platform.python_version", refused)
    assert cli.run(["version"]) == 1
    assert capsys.readouterr().err.startswith("rankmon: out of threads; raise the limit on processes (ulimit -u, ")
