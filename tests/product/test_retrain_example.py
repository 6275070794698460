"""deploy/retrain: a signed retrain request starts a run. A local server plays GitHub and Airflow."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from monitor.errors import Undelivered
from monitor.messages.notification import Notification
from monitor.notify.webhook import Webhook, WebhookConfig, headers
from tests.support.notices import notice
from tests.support.processes import ROOT
from tests.support.receiver import Receiver, Reply

FOLDER = ROOT / "deploy" / "retrain"
SECRET = "hunter2"
GITHUB = {"TARGET": "github-dispatch", "GITHUB_REPOSITORY": "acme/ranker", "GITHUB_TOKEN": "ghs_secret"}
AIRFLOW = {"TARGET": "airflow-v2", "AIRFLOW_DAG": "retrain ranker", "AIRFLOW_TOKEN": "jwt_secret"}


def _loaded() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("retrain_receiver", FOLDER / "receiver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["retrain_receiver"] = module
    spec.loader.exec_module(module)
    return module


receiver = _loaded()
ASKED = replace(notice("retrain"), evidence={"version": 1, "series": [{"end": 1, "value": 0.5, "requests": 7}]})


@pytest.fixture
def api() -> Iterator[Receiver]:
    """Plays GitHub and Airflow; answers 201 by default."""
    with Receiver(lambda _: Reply(201)) as made:
        yield made


@dataclass
class Hook:
    """A running receiver."""

    url: str
    close: Callable[[], None]

    def send(self, notification: Notification, secret: str = SECRET) -> None:
        """Sends as rankmon does. Raises Undelivered."""
        Webhook(WebhookConfig("pipeline", self.url, secret, timeout=10)).send(notification, time.time())


Opened = Callable[[Mapping[str, str]], Hook]


@pytest.fixture
def opened(api: Receiver, tmp_path: Path) -> Iterator[Opened]:
    hooks = []

    def start(environ: Mapping[str, str]) -> Hook:
        known = {"SECRET": SECRET, "LISTEN": "127.0.0.1:0", "STATE": str(tmp_path / "started.db")}
        made = receiver.build(known | {"GITHUB_API": api.url, "AIRFLOW_URL": api.url} | dict(environ))
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()

        def close() -> None:
            made.shutdown()
            made.server_close()

        hook = Hook(f"http://127.0.0.1:{made.server_address[1]}/", close)
        hooks.append(hook)
        return hook

    yield start
    for hook in hooks:
        hook.close()


# ---- calls ---------------------------------------------------------------------------------------------------------


def test_a_repository_dispatch_carries_the_evidence(api: Receiver, opened: Opened) -> None:
    opened(GITHUB).send(ASKED)
    (call,) = api.taken
    assert call.path == "/repos/acme/ranker/dispatches"
    assert call.headers["Authorization"] == "Bearer ghs_secret"
    assert call.headers["Accept"] == "application/vnd.github+json"
    assert call.document["event_type"] == "retrain"
    payload = call.document["client_payload"]
    assert (payload["key"], payload["monitor"], payload["evidence"]) == (ASKED.key, ASKED.monitor, ASKED.evidence)
    assert len(payload) <= 10, "GitHub accepts at most 10 fields"


def test_a_workflow_dispatch_has_text_inputs(api: Receiver, opened: Opened) -> None:
    opened(GITHUB | {"TARGET": "github-workflow", "GITHUB_WORKFLOW": "retrain.yml", "GITHUB_REF": "v2"}).send(ASKED)
    (call,) = api.taken
    assert call.path == "/repos/acme/ranker/actions/workflows/retrain.yml/dispatches"
    assert call.document["ref"] == "v2"
    assert call.document["inputs"]["incident"] == ASKED.incident
    assert {type(value) for value in call.document["inputs"].values()} == {str}


def test_a_dag_run_has_the_key_in_its_id(api: Receiver, opened: Opened) -> None:
    opened(AIRFLOW).send(ASKED)
    (call,) = api.taken
    assert call.path == "/api/v2/dags/retrain%20ranker/dagRuns"
    assert call.headers["Authorization"] == "Bearer jwt_secret"
    assert call.document["dag_run_id"] == f"rankmon__{ASKED.key}"
    assert call.document["logical_date"] is None
    assert call.document["conf"]["evidence"] == ASKED.evidence


def test_airflow_v1_gets_a_password_and_no_logical_date(api: Receiver, opened: Opened) -> None:
    user = {"AIRFLOW_TOKEN": "", "AIRFLOW_USER": "ada", "AIRFLOW_PASSWORD": "pw"}
    opened(AIRFLOW | {"TARGET": "airflow-v1"} | user).send(ASKED)
    (call,) = api.taken
    assert call.path.startswith("/api/v1/")
    assert call.headers["Authorization"] == f"Basic {b64encode(b'ada:pw').decode()}"
    assert "logical_date" not in call.document


def test_a_secret_can_come_from_a_file(api: Receiver, opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n", encoding="utf-8")
    opened(GITHUB | {"GITHUB_TOKEN": "", "GITHUB_TOKEN_FILE": str(tmp_path / "token")}).send(ASKED)
    assert api.taken[0].headers["Authorization"] == "Bearer from a file"


@pytest.mark.parametrize("written", [None, b"", b"\xff\xfe"])
def test_an_unreadable_token_file_is_reported_and_retried(
    written: bytes | None, api: Receiver, opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("first", encoding="utf-8")
    hook = opened(GITHUB | {"GITHUB_TOKEN": "", "GITHUB_TOKEN_FILE": str(token)})
    token.unlink()
    if written is not None:
        token.write_bytes(written)
    with pytest.raises(Undelivered, match=rf"502: {token} .*; put the value of GITHUB_TOKEN there"):
        hook.send(ASKED)
    assert f"502 {token} " in caplog.text
    token.write_text("second", encoding="utf-8")
    hook.send(ASKED)
    assert [got.headers["Authorization"] for got in api.got] == ["Bearer second"]


# ---- one run per request, retries ----------------------------------------------------------------------------------


def test_a_repeated_request_starts_no_second_run_even_after_a_restart(api: Receiver, opened: Opened) -> None:
    hook = opened(GITHUB)
    for _ in range(2):
        hook.send(ASKED)
    opened(GITHUB).send(ASKED)
    assert len(api.got) == 1
    hook.send(replace(ASKED, key="another"))
    assert len(api.got) == 2


@pytest.mark.parametrize("kind", ["firing", "resolved", "test"])
def test_other_notifications_are_accepted_and_start_no_run(kind: str, api: Receiver, opened: Opened) -> None:
    opened(GITHUB).send(notice(kind))
    assert api.got == []


def test_a_run_already_in_airflow_counts_as_started(api: Receiver, opened: Opened, tmp_path: Path) -> None:
    api.behave = lambda _: Reply(409)
    opened(AIRFLOW).send(ASKED)
    with pytest.raises(Undelivered):
        opened(GITHUB | {"STATE": str(tmp_path / "another.db")}).send(ASKED)


def test_a_request_is_retried_until_the_target_accepts_it(api: Receiver, opened: Opened) -> None:
    hook = opened(GITHUB)
    api.behave = lambda got: Reply(503 if len(api.got) < 3 else 204)
    for _ in range(2):
        with pytest.raises(Undelivered):
            hook.send(ASKED)
    hook.send(ASKED)
    hook.send(ASKED)
    assert [g.path for g in api.got] == ["/repos/acme/ranker/dispatches"] * 3


def test_a_request_is_not_accepted_while_the_target_is_down(api: Receiver, opened: Opened) -> None:
    api.close()
    with pytest.raises(Undelivered):
        opened(GITHUB).send(ASKED)


def test_an_answer_that_is_not_http_is_reported_as_undelivered(api: Receiver, opened: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def speak() -> None:
            line = other.accept()[0]
            with line:
                line.recv(65_536)
                line.sendall(b"\x15\x03\x01\x00\x02\x02\x46 TLS is spoken here\r\n")

        threading.Thread(target=speak, daemon=True).start()
        hook = opened(GITHUB | {"GITHUB_API": f"http://127.0.0.1:{other.getsockname()[1]}"})
        with pytest.raises(
            Undelivered, match="502: the other side's answer is not HTTP: BadStatusLine; check its address"
        ):
            hook.send(ASKED)


@pytest.mark.parametrize(
    "wrong", [{"GITHUB_TOKEN": "ghs_secret\r"}, {"GITHUB_TOKEN": "ghs_s€cret"}, {"GITHUB_API": "acme"}]
)
def test_a_call_that_cannot_be_made_is_reported_without_its_token(
    wrong: dict[str, str], opened: Opened, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    hook = opened(GITHUB | wrong)
    with pytest.raises(Undelivered, match="502: the call cannot be made: check address and token") as told:
        hook.send(ASKED)
    assert "ghs_" not in str(told.value) + caplog.text + capfd.readouterr().err


def test_a_token_does_not_follow_a_redirect(api: Receiver, opened: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.5)
        location = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/stolen"
        api.behave = lambda _: Reply(302, headers={"Location": location})
        with pytest.raises(Undelivered, match="502"):
            opened(GITHUB).send(ASKED)
        with pytest.raises(TimeoutError):
            elsewhere.accept()


# ---- authentication ------------------------------------------------------------------------------------------------


def posted(url: str, body: bytes, sent: Mapping[str, str]) -> tuple[int, str]:
    request = urllib.request.Request(url, body, dict(sent), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


BODY = json.dumps(ASKED.plain()).encode()


def test_only_a_correctly_signed_request_starts_a_run(api: Receiver, opened: Opened) -> None:
    url, now = opened(GITHUB).url, time.time()
    right = headers(ASKED, BODY, SECRET, now)
    wrong = [
        ({}, BODY),
        ({name: v for name, v in right.items() if name != "X-Rankmon-Signature"}, BODY),
        (headers(ASKED, BODY, "guessed", now), BODY),
        (right, BODY.replace(b'"retrain"', b'"RETRAIN"')),
        (right | {"X-Rankmon-Timestamp": str(int(now) + 1)}, BODY),
        (headers(ASKED, BODY, SECRET, now - 301), BODY),
        (right | {"X-Rankmon-Signature": "sha256=ü"}, BODY),
    ]
    assert [posted(url, body, sent)[0] for sent, body in wrong] == [401] * len(wrong)
    assert posted(url, BODY, right | {"Idempotency-Key": "another"})[0] == 400
    assert posted(url, b"[]", headers(ASKED, b"[]", SECRET, now))[0] == 400
    assert posted(url, b"no json", headers(ASKED, b"no json", SECRET, now))[0] == 400
    assert api.got == []
    assert posted(url, BODY, right)[0] == 200
    assert len(api.got) == 1


def test_a_non_numeric_content_length_is_refused(opened: Opened) -> None:
    host, port = opened(GITHUB).url.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \xb2\r\nConnection: close\r\n\r\n")
        assert line.makefile("rb").readline().split()[1] == b"411"


def test_error_answers_contain_no_secret(api: Receiver, opened: Opened) -> None:
    api.behave = lambda _: Reply(401, b"Bad credentials ghs_secret")
    status, text = posted(opened(GITHUB).url, BODY, headers(ASKED, BODY, SECRET, time.time()))
    assert (status, text) == (502, "the other side answered 401; no run was started")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"TARGET": "jenkins"},
            "TARGET is 'jenkins'; it must be one of github-dispatch, github-workflow, airflow-v1, airflow-v2",
        ),
        (GITHUB | {"SECRET": ""}, "SECRET is not set"),
        (GITHUB | {"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        (GITHUB | {"GITHUB_TOKEN": "", "GITHUB_TOKEN_FILE": "/nowhere"}, "/nowhere cannot be read"),
        (AIRFLOW | {"AIRFLOW_TOKEN": ""}, "AIRFLOW_USER is not set"),
        (GITHUB | {"LISTEN": "localhost"}, "LISTEN is 'localhost'; write e.g. 127.0.0.1:9185"),
    ],
)
def test_missing_settings_are_reported_at_start(environ: dict[str, str], message: str, opened: Opened) -> None:
    with pytest.raises(SystemExit, match=message):
        opened(environ)


def test_the_readme_names_every_variable_and_its_examples_are_valid() -> None:
    import re

    import yaml

    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    code = (FOLDER / "receiver.py").read_text(encoding="utf-8")
    variables = set(re.findall(r'(?:_needed\(environ, |environ\.get\()[\'"]([A-Z_]+)[\'"]', code))
    assert len(variables) > 10
    assert {v for v in variables if f"`{v}`" not in text and not v.endswith("_FILE")} == set()
    assert set(receiver.TARGETS) == {t for t in re.findall(r"`([a-z]+-[a-z0-9]+)`", text) if t in receiver.TARGETS}
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    assert all(yaml.safe_load(block) for block in blocks)
