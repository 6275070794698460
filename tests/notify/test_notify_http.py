"""Posting to receivers that work, are slow, broken or impostors, over real sockets and real TLS."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from monitor.errors import Undelivered
from monitor.notify.http import Poster, place
from monitor.notify.webhook import WebhookConfig
from tests.support.notices import notice
from tests.support.postgres import free_port
from tests.support.receiver import HANGS, Mute, Receiver, Reply
from tests.support.web import Authority

PATH = "/services/T0SECRETS/B1HOOKPATH?token=quite-secret"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def refusal(url: str, timeout: float = 5, ca_file: Path | None = None, **headers: str) -> str:
    """The error message of a failed post to this URL."""
    with pytest.raises(Undelivered) as caught:
        Poster(url, timeout, None if ca_file is None else str(ca_file)).post(b"{}", headers)
    return str(caught.value)


# ---- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_2xx_is_a_delivery(receiver: Receiver, status: int) -> None:
    receiver.behave = lambda _: Reply(status)
    Poster(receiver.url + PATH, 5).post(b'{"a": 1}', {"X-Other": "header"})
    (got,) = receiver.got
    assert (got.path, got.document) == (PATH, {"a": 1})
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["Host"] == receiver.url.removeprefix("http://")
    assert got.headers["X-Other"] == "header"


@pytest.mark.parametrize("status", [301, 400, 401, 404, 429, 500, 503])
def test_any_other_status_fails_and_quotes_the_answer(receiver: Receiver, status: int) -> None:
    receiver.behave = lambda _: Reply(status, b"no\n such \x1b[31m\x00 thing " + b"x" * 1000)
    said = refusal(receiver.url)
    assert said.startswith(f"{receiver.url}: answered {status}: no such \\u001b[31m\\u0000 thing xxx")
    assert len(said) < 300
    assert said.isprintable()


def test_an_empty_answer_is_reported_by_its_status(receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(500, b" \n")
    assert refusal(receiver.url) == f"{receiver.url}: answered 500"


def test_a_huge_answer_is_not_read() -> None:
    whole, sent = 200_000_000, 0

    def answer() -> None:
        nonlocal sent
        line, _ = listening.accept()
        with line, suppress(OSError):
            line.recv(65_536)
            line.sendall(f"HTTP/1.1 500 No\r\nContent-Length: {whole}\r\n\r\n".encode())
            while sent < whole:
                sent += line.send(b"x" * 65_536)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        assert "answered 500: xxx" in refusal(f"http://127.0.0.1:{listening.getsockname()[1]}", 60)
        answering.join(60)
    assert not answering.is_alive()
    assert 0 < sent < whole / 10, "only as much as fits into the buffers on the way"


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    with Receiver() as elsewhere:
        receiver.behave = lambda _: Reply(307, headers={"Location": elsewhere.url + "/x"})
        assert "answered 307" in refusal(receiver.url, Authorization="Bearer abc")
        assert elsewhere.got == []


def test_environment_proxies_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        Poster(receiver.url, 5).post(b"{}", {})
        assert len(receiver.taken) == 1
        assert proxy.got == []


def test_credentials_in_the_address_become_basic_authentication(receiver: Receiver) -> None:
    Poster(receiver.url.replace("//", "//me:p%40ss@"), 5).post(b"{}", {})
    assert receiver.got[0].headers["Authorization"] == "Basic bWU6cEBzcw=="


def test_no_thread_is_left_after_the_answer(receiver: Receiver) -> None:
    before, poster = threading.active_count(), Poster(receiver.url, 5)
    for _ in range(20):
        poster.post(b"{}", {})
    deadline = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.02)


# ---- timeouts ------------------------------------------------------------------------------------------------------


def timed(url: str, seconds: float = 0.5, ca_file: Path | None = None) -> str:
    began = time.monotonic()
    said = refusal(url, seconds, ca_file)
    assert time.monotonic() - began < seconds + 2
    return said


def test_a_hanging_receiver_times_out(receiver: Receiver) -> None:
    receiver.behave = lambda _: HANGS
    assert timed(receiver.url) == f"{receiver.url}: did not answer in time"


def test_a_receiver_that_drips_its_answer_times_out(receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(drips=0.1)
    assert timed(receiver.url) == f"{receiver.url}: did not answer in time"


def test_a_status_counts_although_the_body_drips(receiver: Receiver) -> None:
    answer = b"HTTP/1.1 %d said\r\nContent-Length: 1000\r\n\r\nbusy"
    with Mute(answer % 200) as taking:
        Poster(f"http://127.0.0.1:{taking.port}", 0.5).post(b"{}", {})
    with Mute(answer % 503) as refusing:
        assert timed(f"http://127.0.0.1:{refusing.port}").endswith("answered 503: busy")


def test_endless_interim_answers_time_out() -> None:
    with Receiver(lambda _: Reply(100, drips=0.03, headers={f"X-{n}": "x" for n in range(50)})) as receiver:
        assert timed(receiver.url).endswith("did not answer in time")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_silent_port_times_out(scheme: str) -> None:
    with Mute() as mute:
        assert timed(f"{scheme}://127.0.0.1:{mute.port}").endswith("did not answer in time")


def test_a_slow_receiver_over_tls_times_out(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Receiver(lambda _: Reply(drips=0.1), authority.issue()) as receiver:
        assert timed(receiver.url, ca_file=authority.path).endswith("did not answer in time")


def test_a_slow_name_resolution_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(6) and [])
    said = timed("http://slow.example/x")
    answered.set()
    assert said == "http://slow.example: its name was not resolved in time"


# ---- unreachable and untrusted receivers ---------------------------------------------------------------------------


def test_a_closed_port_is_reported_immediately() -> None:
    assert timed(f"http://127.0.0.1:{free_port()}").endswith("cannot be reached (Connection refused)")


def test_an_unknown_host_name_is_reported() -> None:
    assert refusal("http://no-such-host.invalid/x") == "http://no-such-host.invalid: its name cannot be resolved"


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "its answer is not HTTP (BadStatusLine)"),
        (b"HTTP/1.1 200 said\r\n" + b"X: y\r\n" * 20_000, "its answer is not HTTP (HTTPException)"),
    ],
)
def test_an_answer_that_is_not_http_is_not_a_delivery(greeting: bytes, said: str) -> None:
    with Mute(greeting) as mute:
        url = f"http://127.0.0.1:{mute.port}"
        assert refusal(url) == f"{url}: {said}"


@pytest.mark.parametrize("path", ["/größe", "/a b", "/?token=h\x7fx"])
def test_an_address_invalid_in_http_is_reported_without_sending(receiver: Receiver, path: str) -> None:
    assert "cannot be called: its address or a token has characters not allowed in HTTP" in refusal(receiver.url + path)
    assert "größe" not in refusal(receiver.url + path)
    assert receiver.got == []


@pytest.mark.parametrize("token", ["se\rcret", "s€cret"])
def test_a_token_invalid_in_http_is_reported_without_the_token(receiver: Receiver, token: str) -> None:
    said = refusal(receiver.url, Authorization=f"Bearer {token}")
    assert said.startswith(
        f"{receiver.url}: cannot be called: its address or a token has characters not allowed in HTTP"
    )
    assert "cret" not in said


def test_a_certificate_of_the_configured_issuer_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Receiver(certificate=authority.issue()) as receiver:
        Poster(receiver.url, 5, str(authority.path)).post(b"{}", {})
        assert len(receiver.taken) == 1


def test_a_certificate_of_another_issuer_is_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    with Receiver(certificate=authority.issue()) as receiver:
        for trusted in (None, other.path):
            said = refusal(receiver.url, ca_file=trusted)
            assert said.startswith(f"{receiver.url}: its certificate is not trusted (")
            assert said.endswith("; give its issuer's certificate as ca_file")
        assert receiver.got == [], "nothing was sent to it"


def test_a_certificate_of_another_host_is_refused_without_ca_file_advice(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Receiver(certificate=authority.issue(host="elsewhere.test")) as receiver:
        said = refusal(receiver.url, ca_file=authority.path)
        assert "IP address mismatch" in said
        assert "ca_file" not in said
        assert receiver.got == []


def test_tls_to_a_plain_receiver_is_reported(receiver: Receiver) -> None:
    assert "the TLS handshake failed (" in refusal(receiver.url.replace("http", "https"))


def test_a_missing_ca_file_fails_only_that_attempt(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Receiver(certificate=authority.issue()) as receiver:
        poster = Poster(receiver.url, 5, str(authority.path))
        text = authority.path.read_bytes()
        authority.path.unlink()
        with pytest.raises(Undelivered, match="holds no certificates"):
            poster.post(b"{}", {})
        authority.path.write_bytes(text)
        poster.post(b"{}", {})


# ---- secrets -------------------------------------------------------------------------------------------------------


def test_errors_contain_no_secrets(receiver: Receiver, tmp_path: Path) -> None:
    certificate = Authority(tmp_path).issue()
    echo = b"cannot POST " + PATH.encode() + b" B1HOOKPATH with Bearer tok-en-tok-en"
    receiver.behave = lambda _: Reply(403, echo)
    closed = f"http://127.0.0.1:{free_port()}"
    with Mute(b"garbage " + PATH.encode() + b"\r\n") as mute, Receiver(certificate=certificate) as untrusted:
        urls = [receiver.url, closed, f"http://127.0.0.1:{mute.port}", untrusted.url, "http://no-such-host.invalid"]
        for url in urls:
            said = refusal(url + PATH, Authorization="Bearer tok-en-tok-en")
            for secret in ("T0SECRETS", "B1HOOKPATH", "quite-secret", "tok-en-tok-en"):
                assert secret not in said, said
    assert "answered 403: cannot POST /***/***/***?token=*** *** with Bearer ***" in refusal(
        receiver.url + PATH, Authorization="Bearer tok-en-tok-en"
    )


@pytest.mark.parametrize("secret", ["x", "pw", "abc12", "hunter2", "p@ss w", "sesame", "open-sesame-1"])
def test_a_password_of_any_length_is_masked_and_other_words_stay(receiver: Receiver, secret: str) -> None:
    receiver.behave = lambda _: Reply(401, f"unexpected axis: {secret} or '{secret}' of example".encode())
    for url in (receiver.url.replace("//", f"//me:{quote(secret)}@"), receiver.url):
        more = {} if url != receiver.url else {"Authorization": f"Bearer {secret}"}
        assert refusal(url, **more).endswith("401: unexpected axis: *** or '***' of example")


@pytest.mark.parametrize(
    "path",
    ["/hooks/hunter2", "/hooks/a-b-c", "/v1/T0K?x=1", "/api/x?token=sesame", "/api?key=s%20s%21", "/h/LONGTOKEN"],
)
def test_a_short_secret_in_an_address_is_masked_and_path_words_stay(receiver: Receiver, path: str) -> None:
    (secret,) = re.findall(r"hunter2|a-b-c|T0K|sesame|s%20s%21|LONGTOKEN", path)
    receiver.behave = lambda _: Reply(403, f"no such api, hooks or key: {path} {unquote(secret)}".encode())
    said = refusal(receiver.url + path)
    assert secret not in said
    assert unquote(secret) not in said
    assert "no such api, hooks or key: /" in said


def test_an_echoed_signing_key_is_masked(receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(403, b"no signature by k3y")
    webhook = WebhookConfig("hook", url=receiver.url, secret="k3y").receivers()[0]
    with pytest.raises(Undelivered, match=r"no signature by \*\*\*"):
        webhook.send(notice(), 0.0)


def test_a_truncated_answer_leaves_no_part_of_a_secret(receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(403, b"." * 195 + b"B1HOOKPATH")
    assert refusal(receiver.url + PATH).endswith("..***")


def test_a_place_is_scheme_host_and_port_only() -> None:
    assert place("https://me:secret@[::1]:8443/T0?key=2") == "https://[::1]:8443"
