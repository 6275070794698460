"""`rankmon healthcheck` beside a daemon: whatever it speaks, whoever is let in, whatever its file says meanwhile."""

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
    assert "answers 503: the scheduler has stopped" in capsys.readouterr().err


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
    tls = AccessConfig(None, TlsConfig(str(tmp_path / "a"), str(tmp_path / "b")))
    assert WebConfig(("0.0.0.0", 9184)).page_url() == "http://box:9184/"
    assert WebConfig(("::", 9184), access=tls).page_url() == "https://box:9184/"
    assert WebConfig(("::1", 0)).page_url(81) == "http://[::1]:81/"
    assert WebConfig(("0.0.0.0", 9184), external_url="https://mon.test/x").page_url() == "https://mon.test/x/"


def test_a_run_that_hangs_is_told_once_it_is_longer_than_any_may_take(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run that waits for ever, on a clock of the process that has run on."""
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
            allowed = 600 + 6 * 60 + 300  # its deadline, the statements of a stretch, and the store
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


def test_systemd_hears_that_the_daemon_is_ready_and_lives(site: Site, tmp_path: Path) -> None:
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


def test_a_lack_of_memory_is_told_without_a_traceback(
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
