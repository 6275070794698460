"""TLS and passwords over real sockets with real certificates, and every mistake in the web file."""

import asyncio
import base64
import http.client
import io
import json
import logging
import re
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import bcrypt
import pytest
from cryptography.hazmat.primitives import serialization as s
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from monitor.cli import run
from monitor.config import WebConfig, load
from monitor.errors import ConfigError, InputError
from monitor.service.app import App
from monitor.tls import Certificates, TlsConfig
from monitor.web import Access, WebServer
from monitor.web.access import Gate
from monitor.web.passwords import MOST_REMEMBERED, MOST_WAITING, Passwords, TooManyChecks
from tests.support.postgres import free_port
from tests.support.prometheus import eventually
from tests.support.requirements import missing
from tests.support.web import TLS, Answer, Authority, Site, ask

PASSWORD = "open sesame"
HASH = bcrypt.hashpw(PASSWORD.encode(), b"$2b$04$RVH/I5Gn8uQ7IJaktwhDiO").decode()
"""The salt is fixed because the hash is part of parametrized test ids."""
USERS = f"basic_auth_users:\n  ali: {HASH}\n"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def get(app: App, path: str, password: str | None = PASSWORD, method: str = "GET", **headers: str) -> Answer:
    if password is not None:
        headers["Authorization"] = basic("ali", password)
    return ask(app.web.port, path, None, method, **headers)


# ---- passwords -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/metrics", "GET"), ("/no", "GET"), ("/-/reload", "POST")])
def test_everything_needs_the_password(site: Site, path: str, method: str) -> None:
    with site.serving(USERS) as app:
        refused = get(app, path, None, method)
        assert (refused.status, refused.body) == (401, "a user and a password are needed\n")
        assert refused.headers["WWW-Authenticate"] == 'Basic realm="rankmon", charset="UTF-8"'
        wrong = get(app, path, "wrong", method)
        assert (wrong.status, wrong.body) == (401, "wrong user or password\n")
        assert get(app, path, PASSWORD, method).status == {"/no": 404}.get(path, 200)


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
def test_health_and_readiness_need_no_password(site: Site, path: str) -> None:
    with site.serving(USERS) as app:
        assert get(app, path, None).status in (200, 503)
        assert get(app, path, "wrong").status in (200, 503)
        assert get(app, path + "/", None).status == 401


HEADERS = [
    "",
    "Basic",
    "Basic !!!",
    "Basic " + base64.b64encode(b"no colon").decode(),
    "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
    "Bearer " + base64.b64encode(f"ali:{PASSWORD}".encode()).decode(),
    basic("ali", ""),
    basic("ali", PASSWORD + "\0"),
    basic("ali", "x" * 5000),
    basic("", PASSWORD),
    basic("ALI", PASSWORD),
    basic("ali ", PASSWORD),
    basic("ali", HASH),
]


@pytest.mark.parametrize("header", HEADERS)
def test_any_other_authorization_header_is_refused(site: Site, header: str) -> None:
    with site.serving(USERS) as app:
        assert ask(app.web.port, "/metrics", Authorization=header).status == 401


def test_a_remote_reload_needs_a_password(site: Site) -> None:
    elsewhere = {"X_Forwarded_For": "192.0.2.7"}
    with site.serving(USERS) as app:
        assert get(app, "/-/reload", None, "POST", **elsewhere).status == 401
        assert get(app, "/-/reload", PASSWORD, "POST", **elsewhere).status == 200
    with site.serving(TLS) as app:
        trusted = site.authority.client()
        assert ask(app.web.port, "/-/reload", trusted, "POST", **elsewhere).status == 403
        assert ask(app.web.port, "/-/reload", trusted, "POST").status == 200


FROM_PAGES = {
    "fetch": {"Sec_Fetch_Site": "cross-site"},
    "of another port": {"Sec_Fetch_Site": "same-site"},
    "of an older browser": {"Origin": "https://evil.example.com"},
    "of a file": {"Origin": "null"},
}


def without_users(site: Site) -> None:
    text = site.path.read_text(encoding="utf-8")
    site.path.write_text(text.replace(", config_file: web.yml", ""), encoding="utf-8")


@pytest.mark.parametrize("headers", FROM_PAGES.values(), ids=FROM_PAGES)
def test_pages_of_other_sites_cannot_reload(site: Site, headers: dict[str, str]) -> None:
    for password in (PASSWORD, None):
        with site.serving(USERS) as app:
            assert get(app, "/-/reload", password, "POST", **headers).status == 403
            own = f"http://127.0.0.1:{app.web.port}"
            assert get(app, "/-/reload", password, "POST", Origin=own, Host=own[7:]).status == 200
            assert get(app, "/", password, **headers).status == 200, "a link from elsewhere"
        without_users(site)


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_a_proxied_request_does_not_count_as_local(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    without_users(site)
    with site.serving("") as app:
        assert ask(app.web.port, "/-/reload", method="POST", **{name: "127.0.0.1"}).status == 403
        assert ask(app.web.port, "/-/reload", method="POST").status == 200


def test_forwarding_headers_do_not_change_the_client_address(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    asked = dict[str, str]()

    def look(request: Request) -> Response:
        asked["client"] = request.client.host if request.client else ""
        return Response()

    access = Access(WebConfig())
    web = WebServer("127.0.0.1", 0, Starlette(routes=[Route("/", look)]), access)
    web.start()
    try:
        assert ask(web.port, "/", X_Forwarded_For="192.0.2.7").status == 200
    finally:
        web.stop()
    assert asked == {"client": "127.0.0.1"}, "the socket's peer"


def test_an_unknown_host_name_is_refused_against_dns_rebinding(site: Site) -> None:
    own = ["127.0.0.1:9184", "localhost:9184", "[::1]:9184", "rankmon:9184", "a.localhost", ""]
    without_users(site)
    with site.serving("") as app:
        for path, method in (("/", "GET"), ("/metrics", "GET"), ("/monitors/search", "HEAD"), ("/-/reload", "POST")):
            answer = get(app, path, None, method, Host="evil.example.com:9184")
            assert (answer.status, "web.external_url" in answer.body) == (421, method != "HEAD")
            assert {get(app, path, None, method, Host=host).status for host in own} == {200}
        assert get(app, "/-/healthy", None, Host="evil.example.com").status != 421
        site.path.write_text(
            site.path.read_text().replace("listen:", "external_url: https://rank.example.com/, listen:"),
            encoding="utf-8",
        )
        assert get(app, "/-/reload", None, "POST").status == 200
        assert get(app, "/", None, Host="rank.example.com").status == 200, "the host a proxy forwards"
        assert get(app, "/", None, Host="evil.example.com").status == 421


def test_only_names_in_host_names_are_answered_on_every_address() -> None:
    def answer(request: Request) -> Response:
        return Response()

    for names, reading in (((), 200), (("mon.example.com", "Rank.Example.com"), 421)):
        access = Access(WebConfig(("0.0.0.0", 0), host_names=names))
        routes = [Route("/", answer, methods=["GET", "POST"])]
        site = Starlette(routes=routes, middleware=[Middleware(Gate, access=access)])
        web = WebServer("0.0.0.0", 0, site, access)
        web.start()
        try:
            for host in ("10.1.2.3:9184", "rankmon", "rank.example.com:80", "mon.example.com")[: 2 + len(names)]:
                assert ask(web.port, "/", Host=host).status == 200, host
                assert ask(web.port, "/", method="POST", Host=host).status == 200, host
            assert ask(web.port, "/", Host="evil.example.com").status == reading
            refused = ask(web.port, "/", method="POST", Host="evil.example.com")
            assert (refused.status, "web.host_names" in refused.body) == (421, True)
        finally:
            web.stop()


def test_hashes_of_other_tools_and_long_passwords_are_accepted(site: Site) -> None:
    apache = HASH.replace("$2b$", "$2y$")
    long = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    with site.serving(f"basic_auth_users:\n  ali: '{apache}'\n  bo: '{long}'\n") as app:
        assert get(app, "/metrics").status == 200
        assert ask(app.web.port, "/metrics", Authorization=basic("bo", "x" * 90)).status == 200


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Collects the hashes that are checked while the block runs."""
    checked: list[bytes] = []
    check = bcrypt.checkpw

    def count(password: bytes, hashed: bytes) -> bool:
        checked.append(hashed)
        return check(password, hashed)

    with monkeypatch.context() as patched:
        patched.setattr(bcrypt, "checkpw", count)
        yield checked


def test_right_passwords_are_remembered_and_wrong_ones_checked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.serving(USERS) as app, counted(monkeypatch) as checked:
        assert [get(app, "/metrics").status for _ in range(3)] == [200] * 3
        assert len(checked) == 1
        assert [get(app, "/metrics", "wrong").status for _ in range(2)] == [401] * 2
        assert len(checked) == 3


@pytest.mark.parametrize("name", ["nobody", "ali", "bo"])
def test_unknown_and_known_users_cost_the_same_hash_checks(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    dear = bcrypt.hashpw(b"other", bcrypt.gensalt(6)).decode()
    with site.serving(f"{USERS}  bo: {dear}\n") as app, counted(monkeypatch) as checked:
        assert ask(app.web.port, "/", Authorization=basic(name, "guess")).status == 401
    assert sorted(hashed[:7] for hashed in checked) == [b"$2b$04$", b"$2b$06$"]
    assert "wrong user or password from 127.0.0.1 for /; answered 401" in caplog.text
    assert "guess" not in caplog.text


def answers(port: int) -> bool:
    try:
        return ask(port, "/-/healthy").status == 200
    except OSError:
        return False


def test_a_process_with_few_file_descriptors_still_answers_and_logs_little(tmp_path: Path) -> None:
    """A real daemon limited to 64 open files, with more clients than it can hold."""
    site, port = Site(tmp_path), free_port()
    text = site.path.read_text(encoding="utf-8").replace(":0", f":{port}").replace(", config_file: web.yml", "")
    site.path.write_text(text, encoding="utf-8")
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); from monitor.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "-c", str(site.path)]
    clients = []
    with (tmp_path / "log").open("w+b") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            eventually(lambda: answers(port), 30, "the site answers")
            clients = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(100)]
            time.sleep(3)
            assert ask(port, "/-/healthy").status == 200, "silent connections make room"
        finally:
            for client in clients:
                client.close()
            process.terminate()
            process.wait(30)
    assert (tmp_path / "log").read_bytes().count(b"\n") < 100


def test_remembered_passwords_are_bounded_and_never_in_plain_text() -> None:
    users = [(f"u{i}", bcrypt.hashpw(f"geheim{i}".encode(), bcrypt.gensalt(4))) for i in range(MOST_REMEMBERED + 5)]

    async def check(passwords: Passwords) -> None:
        for i in range(len(users)):
            assert await passwords.are_right(basic(f"u{i}", f"geheim{i}"), "client")

    with ThreadPoolExecutor(1) as threads:
        passwords = Passwords(users, threads)
        asyncio.run(check(passwords))
    assert len(passwords._right) == MOST_REMEMBERED
    assert not passwords._waiting
    assert not passwords._under_way
    assert b"geheim" not in b"".join(passwords._right)


def test_pending_checks_per_client_are_limited_but_equal_right_passwords_all_pass() -> None:
    users = [("ali", bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(8)))]

    async def flood(passwords: Passwords) -> list[object]:
        guesses = [passwords.are_right(basic("ali", f"guess {i}"), "192.0.2.7") for i in range(20)]
        right = [passwords.are_right(basic("ali", PASSWORD), "192.0.2.8") for _ in range(20)]
        return await asyncio.gather(*guesses, *right, return_exceptions=True)

    with ThreadPoolExecutor(2) as threads:
        answers = asyncio.run(flood(Passwords(users, threads)))
    assert answers[:MOST_WAITING] == [False] * MOST_WAITING
    assert {type(a) for a in answers[MOST_WAITING:20]} == {TooManyChecks}
    assert answers[20:] == [True] * 20


def test_a_flood_of_wrong_passwords_delays_neither_health_nor_scrapes(site: Site) -> None:
    slow = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(11)).decode()
    with site.serving(f"basic_auth_users: {{ali: '{slow}'}}") as app:
        assert get(app, "/metrics").status == 200
        one_check = _time_of(lambda: get(app, "/metrics", "wrong"), {401})
        ended, statuses = threading.Event(), set()

        def guess(number: int) -> None:
            while not ended.is_set():
                statuses.add(get(app, "/metrics", f"{number} {time.monotonic()}").status)

        threads = [threading.Thread(target=guess, args=(i,)) for i in range(20)]
        for thread in threads:
            thread.start()
        try:
            took = [_time_of(lambda: get(app, "/metrics")) for _ in range(20)]
            took += [_time_of(lambda: get(app, "/-/healthy", None)) for _ in range(20)]
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert statuses == {401, 429}
    assert statistics.median(took) < 10 * one_check, "a right password does not wait for the 20 guessing clients"


def _time_of(call: Any, of: Collection[int] = (200, 503)) -> float:
    before = time.monotonic()
    assert call().status in of
    return time.monotonic() - before


# ---- TLS -------------------------------------------------------------------------------------------------------------


def test_with_tls_nothing_is_served_in_plain_text(site: Site) -> None:
    with site.serving(TLS + USERS) as app:
        assert app.web.url == f"https://127.0.0.1:{app.web.port}/"
        trusted = site.authority.client()
        assert ask(app.web.port, "/-/ready", trusted).status in (200, 503)
        assert ask(app.web.port, "/metrics", trusted).status == 401
        assert ask(app.web.port, "/metrics", trusted, Authorization=basic("ali", PASSWORD)).status == 200
        with pytest.raises(OSError):
            ask(app.web.port, "/metrics")


def test_a_request_sent_with_the_last_handshake_bytes_is_answered(site: Site) -> None:
    with site.serving(TLS) as app:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = site.authority.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", app.web.port), timeout=10) as connection:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(65536))
            tls.write(b"GET /-/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            connection.sendall(outgoing.read())  # the end of the handshake together with the request
            while data := connection.recv(65536):
                incoming.write(data)
        assert tls.read(65536).startswith(b"HTTP/1.1 ")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize(
    ("lowest", "highest", "spoken"),
    [("TLS12", "TLS13", ["TLSv1.2", "TLSv1.3"]), ("TLS13", "TLS13", ["TLSv1.3"]), ("TLS12", "TLS12", ["TLSv1.2"])],
)
def test_only_the_configured_tls_versions_are_spoken(site: Site, lowest: str, highest: str, spoken: list[str]) -> None:
    text = TLS.replace("}", f", min_version: {lowest}, max_version: {highest}}}")
    with site.serving(text) as app:
        assert [v.name.replace("_", ".") for v in ssl.TLSVersion if v > 0 and _speaks(site, app, v)] == spoken


def _speaks(site: Site, app: App, version: ssl.TLSVersion) -> bool:
    client = site.authority.client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    try:
        client.minimum_version = client.maximum_version = version
        ask(app.web.port, "/-/ready", client)
    except (OSError, ValueError):
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "without", "other"),
    [("RequireAndVerifyClientCert", False, False), ("VerifyClientCertIfGiven", True, False)],
)
def test_client_certificates_must_come_from_the_configured_authority(
    site: Site, kind: str, without: bool, other: bool
) -> None:
    clients, strangers = Authority(site.folder, "clients"), Authority(site.folder, "strangers")
    text = TLS.replace("}", f", client_auth_type: {kind}, client_ca_file: clients.crt}}")
    with site.serving(text) as app:
        assert _gets_in(site, app, clients.issue("prometheus"))
        assert _gets_in(site, app, None) is without
        assert _gets_in(site, app, strangers.issue("stranger")) is other


def _gets_in(site: Site, app: App, pair: tuple[Path, Path] | None) -> bool:
    try:
        return ask(app.web.port, "/metrics", site.authority.client(pair)).status == 200
    except OSError:
        return False


def test_a_renewed_certificate_is_served_without_a_restart(site: Site) -> None:
    with site.serving(TLS) as app:
        trusted = site.authority.client()
        before = ask(app.web.port, "/-/ready", trusted).certificate
        assert ask(app.web.port, "/-/ready", trusted).certificate == before
        site.authority.issue()
        assert ask(app.web.port, "/-/ready", trusted).certificate not in (None, before)


def test_a_half_done_renewal_keeps_the_old_certificate_and_warns_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with site.serving(TLS) as app:
        trusted = site.authority.client()
        before = ask(app.web.port, "/-/ready", trusted).certificate
        certificate, key = site.authority.issue("next")
        certificate.replace(site.folder / "server.crt")
        assert [ask(app.web.port, "/-/ready", trusted).certificate for _ in range(3)] == [before] * 3
        warnings = [r.getMessage() for r in caplog.records if "changed TLS files" in r.getMessage()]
        assert len(warnings) == 1
        assert "key_file: does not match the certificate" in warnings[0]
        key.replace(site.folder / "server.key")
        assert ask(app.web.port, "/-/ready", trusted).certificate not in (None, before)


def test_a_connection_older_than_a_renewal_closes_after_its_request(site: Site) -> None:
    with site.serving(TLS) as app:
        connection = http.client.HTTPSConnection("127.0.0.1", app.web.port, context=site.authority.client(), timeout=5)
        connection.request("GET", "/-/ready")
        connection.getresponse().read()
        assert connection.sock is not None
        site.authority.issue()
        connection.request("GET", "/-/ready")
        connection.getresponse().read()
        assert connection.sock.recv(1) == b""
        connection.close()


# ---- reload and start ------------------------------------------------------------------------------------------------


def test_a_reload_adopts_new_users_and_tls(site: Site) -> None:
    with site.serving(USERS) as app:
        assert get(app, "/metrics").status == 200
        changed = bcrypt.hashpw(b"changed", bcrypt.gensalt(4)).decode()
        site.write(f"{TLS}basic_auth_users: {{ali: '{changed}'}}")
        assert get(app, "/-/reload", method="POST").body == "ok\n"
        trusted = site.authority.client()
        assert ask(app.web.port, "/metrics", trusted, Authorization=basic("ali", PASSWORD)).status == 401
        assert ask(app.web.port, "/metrics", trusted, Authorization=basic("ali", "changed")).status == 200
        site.write(TLS)
        assert app.reload({}) == []
        assert ask(app.web.port, "/metrics", trusted).status == 200


def test_a_reload_with_mistakes_changes_nothing(site: Site) -> None:
    with site.serving(TLS + USERS) as app:
        site.write("basic_auth_users: {ali: plain}")
        trusted, right = site.authority.client(), basic("ali", PASSWORD)
        refused = ask(app.web.port, "/-/reload", trusted, "POST", Authorization=right)
        assert refused.status == 400
        assert "web.yml:1: basic_auth_users.ali: is not a bcrypt hash" in refused.body
        assert "plain" not in refused.body
        assert ask(app.web.port, "/metrics", trusted, Authorization=right).status == 200
        assert ask(app.web.port, "/metrics", trusted).status == 401


@pytest.mark.parametrize("command", ["check-config", "run", "once"])
def test_a_mistake_in_the_web_file_stops_a_command(
    site: Site, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.write("tls_server_config: {cert_file: server.crt, key_file: other.key}")
    assert run([command, "-c", str(site.path)]) == 2
    assert "web.yml:1: tls_server_config.key_file: there is no file" in capsys.readouterr().err


def test_check_config_accepts_a_good_file(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write(TLS + USERS)
    assert run(["check-config", "-c", str(site.path)]) == 0
    assert HASH not in "".join(capsys.readouterr())


def test_a_missing_certificate_file_is_an_input_error(site: Site) -> None:
    with pytest.raises(InputError, match="there is no file"):
        Certificates(TlsConfig(str(site.folder / "away.crt"), str(site.folder / "server.key")))


OPEN_TO_ALL = "is open to everyone who can reach it; set passwords in web.config_file"


@pytest.mark.parametrize(
    ("host", "text", "warned"),
    [("0.0.0.0", TLS, True), ("::", TLS, True), ("0.0.0.0", USERS, False), ("127.0.0.1", TLS, False)],
)
def test_an_address_open_to_all_warns_once(
    site: Site, caplog: pytest.LogCaptureFixture, host: str, text: str, warned: bool
) -> None:
    with site.serving(text) as app:
        app.web.stop()
        caplog.clear()
        app.web = WebServer(host, 0, app.web._server.config.app, app.access)  # type: ignore[arg-type]
        app.web.start()
        app.web.stop()
    assert sum(OPEN_TO_ALL in r.getMessage() for r in caplog.records) == warned


def test_hashes_and_passwords_are_never_shown(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with site.serving(USERS) as app:
        shown = [get(app, path).body for path in ("/", "/metrics", "/-/ready")]
        shown += [get(app, "/", "geheim-31337").body, get(app, "/-/reload", method="POST").body]
        shown += [repr(app.config), repr(vars(app.access)), repr(load(site.path, {})), caplog.text]
    assert not [text for text in shown if HASH[7:] in text or PASSWORD in text or "geheim" in text]


# ---- mistakes in the file --------------------------------------------------------------------------------------------

WITH_CA = "client_auth_type: RequireAndVerifyClientCert, client_ca_file:"
MISTAKES = [
    ("", "web.yml:1: is empty; write keys and values, starting with `tls_server_config:` or `basic_auth_users:`"),
    ("[]", "web.yml:1: is not a mapping; write keys and values, starting with `tls_server_config:` or "
     "`basic_auth_users:`"),
    ("a: [", "web.yml:1: invalid YAML; check quotes, colons and indentation around here"),
    ("basic_auth_user: {}", "web.yml:1: basic_auth_user: there is no such key; did you mean 'basic_auth_users'?"),
    ("basic_auth_users: {}", "web.yml:1: basic_auth_users: is empty; it needs at least one"),
    ("basic_auth_users:", "web.yml:1: basic_auth_users: is empty; give it a value, or remove the key"),
    ("basic_auth_users: {ali: 31337}", "web.yml:1: basic_auth_users.ali: is a number to YAML, not text; put it in "
     "quotes"),
    ("basic_auth_users: {ali: hunter2}", "web.yml:1: basic_auth_users.ali: is not a bcrypt hash; make one with "
     "`rankmon hash-password NAME`, or `htpasswd -nBC 10 NAME`"),
    (f"basic_auth_users: {{ali: '{HASH[:-1]}'}}", "web.yml:1: basic_auth_users.ali: is not a bcrypt hash; make one "
                                                  "with `rankmon hash-password NAME`, or `htpasswd -nBC 10 NAME`"),
    (f"basic_auth_users: {{ali: '{HASH[:7] + 'z' * 53}'}}", "web.yml:1: basic_auth_users.ali: is not a bcrypt hash; "
                                                            "make one with `rankmon hash-password NAME`, or `htpasswd "
                                                            "-nBC 10 NAME`"),
    (f"basic_auth_users: {{ali: '{HASH.replace('$04$', '$31$')}'}}", "web.yml:1: basic_auth_users.ali: has a cost of "
     "31, but 04 to 15 is allowed; use 10"),
    (f"basic_auth_users: {{'a:b': '{HASH}'}}", "web.yml:1: basic_auth_users.a:b: is not a user name; write at least "
                                               "one letter, and no colon"),
    ("tls_server_config: {cert_file: server.crt}", "web.yml:1: tls_server_config.key_file: is missing; add e.g. "
     "`key_file: server.key`"),
    ("tls_server_config: {cert_file: none.crt, key_file: server.key}", "web.yml:1: tls_server_config.cert_file: there "
     "is no file none.crt; relative paths start at this file's folder"),
    ("tls_server_config: {cert_file: ., key_file: server.key}", "web.yml:1: tls_server_config.cert_file: the file "
     "FOLDER cannot be read (Is a directory); let this user read it"),
    ("tls_server_config: {cert_file: web.yml, key_file: server.key}", "web.yml:1: tls_server_config.cert_file: the "
     "file web.yml holds no PEM certificate; one starts with -----BEGIN CERTIFICATE"),
    ("tls_server_config: {cert_file: server.crt, key_file: server.crt}", "web.yml:1: tls_server_config.key_file: the "
     "file server.crt holds no PEM private key"),
    ("tls_server_config: {cert_file: server.crt, key_file: other.key}", "web.yml:1: tls_server_config.key_file: does "
     "not match the certificate in server.crt; use a matching pair"),
    ("tls_server_config: {cert_file: server.crt, key_file: encrypted.key}", "web.yml:1: tls_server_config.key_file: "
     "the key is encrypted; give it without a passphrase, readable by this user only"),
    (TLS.replace("}", f", {WITH_CA} server.key}}"), "web.yml:1: tls_server_config.client_ca_file: the file server.key "
     "holds no PEM certificate; one starts with -----BEGIN CERTIFICATE"),
    (TLS.replace("}", ", client_auth_type: Always}"), "web.yml:1: tls_server_config.client_auth_type: must be "
     "'NoClientCert', 'VerifyClientCertIfGiven' or 'RequireAndVerifyClientCert', not 'Always'"),
    (TLS.replace("}", ", client_auth_type: RequireAnyClientCert}"), "web.yml:1: tls_server_config.client_auth_type: "
     "RequireAnyClientCert would not verify certificates; use RequireAndVerifyClientCert"),
    (TLS.replace("}", ", client_auth_type: RequireAndVerifyClientCert}"), "web.yml:1: tls_server_config: "
     "client_ca_file goes with client_auth_type RequireAndVerifyClientCert or VerifyClientCertIfGiven, and these with "
     "it; give both or neither"),
    (TLS.replace("}", ", min_version: TLS11}"), "web.yml:1: tls_server_config.min_version: must be 'TLS12' or 'TLS13', "
     "not 'TLS11'"),
    (TLS.replace("}", ", min_version: TLS13, max_version: TLS12}"), "web.yml:1: tls_server_config: min_version is "
     "above max_version; swap them"),
    (TLS.replace("}", ", cipher_suites: [X]}"), "web.yml:1: tls_server_config.cipher_suites: rankmon leaves this to "
     "OpenSSL; remove it"),
    (TLS.replace("}", ", client_allowed_sans: [X]}"), "web.yml:1: tls_server_config.client_allowed_sans: rankmon "
     "admits every certificate of client_ca_file; remove it, and give those clients their own authority"),
    (TLS.replace("}", ", certfile: x}"), "web.yml:1: tls_server_config.certfile: there is no such key; did you mean "
     "'cert_file'?"),
    (TLS + "http_server_config: {http2: true}", "web.yml:2: http_server_config: rankmon speaks HTTP/1.1 and sets its "
     "own headers; remove it"),
]  # fmt: skip


def test_a_mistake_in_the_users_does_not_hide_one_in_the_certificates(site: Site) -> None:
    told = site.problems(
        "tls_server_config: {cert_file: server.crt, key_file: none.key}\nbasic_auth_users: {ali: plain}"
    )
    assert len(told) == 2
    assert "there is no file" in told[0]
    assert "is not a bcrypt hash" in told[1]


@pytest.mark.parametrize("password", ["s3cret", "grüße, lang und mit Leerzeichen"])
def test_a_line_made_by_hash_password_lets_its_user_in(
    site: Site, password: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
    assert run(["hash-password", "ali"]) == 0
    with site.serving(f"basic_auth_users:\n{capsys.readouterr().out}") as app:
        assert get(app, "/metrics", password).status == 200
        assert get(app, "/metrics", "wrong").status == 401


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a:b", "x", "is not a user name"),
        ("ali", "", "there is no password"),
        ("ali", "x" * 73, "more than the 72 bytes"),
    ],
)
def test_hash_password_refuses_bad_names_and_passwords(
    name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert run(["hash-password", name]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_each_mistake_names_file_line_key_and_remedy(site: Site, text: str, expected: str) -> None:
    site.authority.issue("other")
    encrypt(site.folder / "server.key", site.folder / "encrypted.key")
    told = [problem.replace(str(site.folder), "FOLDER") for problem in site.problems(text)]
    assert told == [expected]
    assert not re.search(r"hunter|31337", told[0])


def encrypt(key: Path, to: Path) -> None:
    loaded = s.load_pem_private_key(key.read_bytes(), None)
    form, locked = s.PrivateFormat.TraditionalOpenSSL, s.BestAvailableEncryption(b"passphrase")
    to.write_bytes(loaded.private_bytes(s.Encoding.PEM, form, locked))


def test_a_key_that_is_too_short_is_reported(site: Site) -> None:
    weak = ["-newkey", "rsa:1024", "-nodes", "-subj", "/CN=x", "-keyout", "server.key", "-out", "server.crt"]
    subprocess.run([tool("openssl"), "req", "-x509", *weak], cwd=site.folder, check=True, capture_output=True)
    (told,) = site.problems(TLS)
    assert told.endswith("cert_file: the certificate is too weak for TLS; create one with a longer key")


def test_mistakes_in_both_files_are_reported_together(site: Site) -> None:
    site.path.write_text(site.path.read_text().replace("ndcg@10", "nothing@10"), encoding="utf-8")
    told = site.problems("basic_auth_users: {ali: x, bo: y}")
    assert [problem.partition(": ")[0] for problem in told] == ["web.yml:1", "web.yml:1", "rankmon.yaml:10"]


def test_a_missing_web_file_is_reported_at_the_key_that_names_it(site: Site) -> None:
    with pytest.raises(ConfigError, match=r"rankmon.yaml:2: web.config_file: there is no file .*web.yml; relative"):
        load(site.path, {})


def test_hashes_may_come_from_the_environment(site: Site) -> None:
    site.write("basic_auth_users: {ali: '${ALIS_HASH}'}")
    assert load(site.path, {"ALIS_HASH": HASH}).web.access.users == (("ali", HASH.encode()),)


# ---- Prometheus ------------------------------------------------------------------------------------------------------


def tool(name: str) -> str:
    found = which(name)
    if found is None:
        missing(f"no {name}: install Debian's {'openssl' if name == 'openssl' else 'prometheus'}")
    return found


def test_promtool_accepts_the_same_file(site: Site) -> None:
    site.write(TLS.replace("}", ", min_version: TLS12, client_auth_type: NoClientCert}") + USERS)
    load(site.path, {})
    subprocess.run([tool("promtool"), "check", "web-config", str(site.folder / "web.yml")], check=True)


SCRAPE = """\
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: rankmon
    scheme: https
    tls_config: {ca_file: FOLDER/ca.crt, cert_file: FOLDER/prometheus.crt, key_file: FOLDER/prometheus.key}
    basic_auth: {username: ali, password: "PASSWORD"}
    static_configs: [{targets: ["127.0.0.1:PORT"]}]
"""


def test_prometheus_scrapes_over_tls_with_a_certificate_and_a_password(site: Site) -> None:
    prometheus = tool("prometheus")
    site.authority.issue("prometheus")
    with site.serving(TLS.replace("}", f", {WITH_CA} ca.crt}}") + USERS) as app:
        words = {"FOLDER": str(site.folder), "PASSWORD": PASSWORD, "PORT": str(app.web.port)}
        path = site.folder / "prometheus.yml"
        path.write_text(re.sub("FOLDER|PASSWORD|PORT", lambda found: words[found[0]], SCRAPE))
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [prometheus, f"--config.file={path}", f"--web.listen-address={address}"]
        command += [f"--storage.tsdb.path={site.folder / 'tsdb'}", "--log.level=error"]
        process = subprocess.Popen(command)
        try:
            assert _query(address, "up{job='rankmon'}") == "1"
            assert _query(address, "count(rankmon_build_info)") == "1"
        finally:
            process.terminate()
            process.wait(20)


def _query(address: str, query: str) -> str:
    """The first value of a query; empty if there is none within 30 seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                if result := json.load(answer)["data"]["result"]:
                    return str(result[0]["value"][1])
        except OSError:
            pass
        time.sleep(0.2)
    return ""


def test_access_without_a_file_is_open() -> None:
    access = Access(WebConfig())
    assert (access.passwords, access.context(), access.is_restricted) == (None, None, False)


def test_the_example_files_in_the_docs_are_valid(site: Site) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "tls-and-passwords.md"
    web, scrape = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for name in ("clients-ca", "prometheus"):
        site.authority.issue(name)
    site.write(web)
    subprocess.run([tool("promtool"), "check", "web-config", str(site.folder / "web.yml")], check=True)
    assert [name for name, _ in load(site.path, {}).web.access.users] == ["prometheus"]
    (site.folder / "prometheus.yml").write_text(scrape, encoding="utf-8")
    (site.folder / "rankmon.password").write_text("x", encoding="utf-8")
    subprocess.run([tool("promtool"), "check", "config", str(site.folder / "prometheus.yml")], check=True)
