#!/usr/bin/env python3
"""Takes rankmon's requests to retrain and starts a run for each: a GitHub Actions workflow, or an Airflow DAG.

It needs only Python's standard library. README.md explains its environment variables.

    rankmon --POST--> signature? -> seen before? -> start the run -> note the key -> 200

A request is accepted only once the run was started and its key recorded; on any other answer rankmon tries again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import logging
import os
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

log = logging.getLogger("retrain")

LARGEST = 1_000_000
"""Bytes of a body; rankmon's are less than a tenth of that."""

TOLERANCE = 300
"""How old a signature may be, or how far clocks may differ, in seconds."""

TIMEOUT = 20
"""Seconds within which the other side must answer; set the channel's `timeout` in rankmon higher."""

Json = dict[str, Any]


class Refused(Exception):
    """A request not answered with 2xx: `status`, and a text without secrets."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


# ---- what came in --------------------------------------------------------------------------------------------------


def verified(headers: Mapping[str, str], body: bytes, secret: str, now: float) -> Json:
    """The notification in a body, if it was signed with the secret just now. Raises Refused."""
    timestamp, signature = headers.get("X-Rankmon-Timestamp", ""), headers.get("X-Rankmon-Signature", "")
    expected = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(f"sha256={expected}".encode(), signature.encode()):
        raise Refused(401, "the signature is wrong: check that rankmon's channel has the same secret")
    if not timestamp.isdecimal() or abs(now - int(timestamp)) > TOLERANCE:
        raise Refused(401, f"the signature is more than {TOLERANCE} s old: check that the clocks agree")
    try:
        notification = json.loads(body)
    except ValueError as error:
        raise Refused(400, "the body is not JSON") from error
    if not isinstance(notification, dict) or not isinstance(notification.get("key"), str):
        raise Refused(400, "the body is not a rankmon notification")
    if headers.get("Idempotency-Key") != notification["key"]:
        raise Refused(400, "Idempotency-Key is not the key in the body")
    return notification


class Started:
    """The keys of requests with a started run, in a file that survives restarts."""

    def __init__(self, path: str) -> None:
        self._path = path
        with closing(self._open()) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS started (key TEXT PRIMARY KEY, at REAL NOT NULL)")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)

    def holds(self, key: str) -> bool:
        """Whether a run was started for this key."""
        with closing(self._open()) as database:
            return database.execute("SELECT 1 FROM started WHERE key = ?", (key,)).fetchone() is not None

    def note(self, key: str, now: float) -> None:
        """Record that a run was started for this key."""
        with closing(self._open()) as database, database:
            database.execute("INSERT OR IGNORE INTO started VALUES (?, ?)", (key, now))


# ---- what goes out -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One request to the training system; `done` are the statuses that mean the run exists."""

    url: str
    headers: Mapping[str, str]
    body: Json
    done: tuple[int, ...] = (200, 201, 202, 204)


Target = Callable[[Json], Call]
"""From a notification to the call that starts a run."""


def summary(notification: Json) -> Json:
    """What a run needs to know about its reason; `evidence` stays below 60 KB."""
    names = ("key", "monitor", "incident", "severity", "began_at", "opened_at", "title", "url")
    return {name: notification.get(name) for name in names} | {"evidence": notification.get("evidence")}


def github_dispatch(environ: Mapping[str, str]) -> Target:
    """`repository_dispatch`: workflows with `on: repository_dispatch: types: [retrain]`; everything as payload."""
    url = f"{_github(environ)}/dispatches"

    def call(notification: Json) -> Call:
        payload = summary(notification)
        return Call(url, _github_headers(environ), {"event_type": "retrain", "client_payload": payload})

    return call


def github_workflow(environ: Mapping[str, str]) -> Target:
    """`workflow_dispatch` of one workflow, with inputs that it must declare; inputs are short text."""
    workflow = urllib.parse.quote(_needed(environ, "GITHUB_WORKFLOW"), safe="")
    url = f"{_github(environ)}/actions/workflows/{workflow}/dispatches"

    def call(notification: Json) -> Call:
        inputs = {name: str(notification.get(name) or "") for name in ("key", "monitor", "incident", "title")}
        return Call(url, _github_headers(environ), {"ref": environ.get("GITHUB_REF", "main"), "inputs": inputs})

    return call


def _github(environ: Mapping[str, str]) -> str:
    repository = urllib.parse.quote(_needed(environ, "GITHUB_REPOSITORY"), safe="/")
    return f"{environ.get('GITHUB_API', 'https://api.github.com').rstrip('/')}/repos/{repository}"


def _github_headers(environ: Mapping[str, str]) -> Mapping[str, str]:
    return {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {_needed(environ, 'GITHUB_TOKEN')}",
        "X-GitHub-Api-Version": "2022-11-28",
    }


def airflow(environ: Mapping[str, str], version: int) -> Target:
    """A DAG run. Its id contains the key, so Airflow itself refuses a second one (409), which is fine."""
    dag = urllib.parse.quote(_needed(environ, "AIRFLOW_DAG"), safe="")
    url = f"{_needed(environ, 'AIRFLOW_URL').rstrip('/')}/api/v{version}/dags/{dag}/dagRuns"

    def call(notification: Json) -> Call:
        body: Json = {"dag_run_id": f"rankmon__{notification['key']}", "conf": summary(notification)}
        if version == 2:
            body["logical_date"] = None  # has to be there
        return Call(url, _airflow_headers(environ), body, (200, 201, 409))

    return call


def _airflow_headers(environ: Mapping[str, str]) -> Mapping[str, str]:
    if environ.get("AIRFLOW_TOKEN") or environ.get("AIRFLOW_TOKEN_FILE"):
        return {"Authorization": f"Bearer {_needed(environ, 'AIRFLOW_TOKEN')}"}
    plain = f"{_needed(environ, 'AIRFLOW_USER')}:{_needed(environ, 'AIRFLOW_PASSWORD')}"
    return {"Authorization": f"Basic {base64.b64encode(plain.encode()).decode()}"}


TARGETS: Mapping[str, Callable[[Mapping[str, str]], Target]] = {
    "github-dispatch": github_dispatch,
    "github-workflow": github_workflow,
    "airflow-v1": lambda environ: airflow(environ, 1),
    "airflow-v2": lambda environ: airflow(environ, 2),
}


def start(call: Call) -> None:
    """Make the call. Raises Refused if no run was started."""
    headers = {"Content-Type": "application/json", "User-Agent": "rankmon-retrain", **call.headers}
    try:
        request = urllib.request.Request(call.url, json.dumps(call.body).encode(), headers, method="POST")
        with _opener().open(request, timeout=TIMEOUT) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    except OSError as error:
        raise Refused(502, f"the other side cannot be reached: {type(error).__name__}") from error
    except http.client.HTTPException as error:
        raise Refused(502, f"the other side's answer is not HTTP: {type(error).__name__}; check its address") from error
    except ValueError:  # its text quotes what is wrong, and that may be a token
        raise Refused(502, "the call cannot be made: check address and token for invalid characters") from None
    if status not in call.done:
        raise Refused(502, f"the other side answered {status}; no run was started")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A token is only for the address it was given for."""


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirect)


# ---- the server ----------------------------------------------------------------------------------------------------


class Receiver(ThreadingHTTPServer):
    """Answers rankmon."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], secret: str, target: Target, started: Started, now: Callable[[], float]
    ) -> None:
        super().__init__(address, _Handler)
        self._secret = secret
        self._target = target
        self._started = started
        self._now = now
        self._one_at_a_time = threading.Lock()

    def take(self, headers: Mapping[str, str], body: bytes) -> str:
        """Start the requested run, once; returns what was done, in words. Raises Refused."""
        notification = verified(headers, body, self._secret, self._now())
        if notification.get("kind") != "retrain":
            return f"{notification.get('kind')}: nothing to do"
        key = notification["key"]
        with self._one_at_a_time:
            if self._started.holds(key):
                return f"{key}: was already started"
            start(self._target(notification))
            self._started.note(key, self._now())
        return f"{key}: started for {notification.get('monitor')}, incident {notification.get('incident')}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    timeout = 30

    def do_POST(self) -> None:
        try:
            headers = {name.title(): value for name, value in self.headers.items()}
            status, text = 200, self.server.take(headers, self._body())
        except Refused as refused:
            status, text = refused.status, str(refused)
        except sqlite3.Error as error:
            status, text = 500, f"the file of started runs: {error}"
        log.log(logging.INFO if status == 200 else logging.WARNING, "%d %s", status, text)
        answer = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refused(411, "Content-Length is missing")
        if int(length) > LARGEST:
            raise Refused(413, f"more than {LARGEST} bytes")
        return self.rfile.read(int(length))

    def log_message(self, *_: object) -> None:
        """One log line per request is enough, and we write it."""


# ---- from the environment ------------------------------------------------------------------------------------------


def _needed(environ: Mapping[str, str], name: str) -> str:
    """A setting; files are read for each request, because tokens get renewed. Raises Refused if it is missing."""
    if environ.get(name):
        return environ[name]
    path = environ.get(f"{name}_FILE")
    if not path:
        raise Refused(502, f"{name} is not set; see README.md")
    try:
        found = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not text" if isinstance(error, ValueError) else error.strerror
        raise Refused(502, f"{path} cannot be read: {why}; put the value of {name} there") from error
    if not found:
        raise Refused(502, f"{path} is empty; put the value of {name} there")
    return found


def build(environ: Mapping[str, str]) -> Receiver:
    """The receiver configured by the environment. Raises SystemExit with what is missing."""
    try:
        return _built(environ)
    except Refused as missing:
        raise SystemExit(f"retrain: {missing}") from missing


def _built(environ: Mapping[str, str]) -> Receiver:
    kind = environ.get("TARGET", "")
    if kind not in TARGETS:
        raise SystemExit(f"retrain: TARGET is {kind!r}; it must be one of {', '.join(TARGETS)}")
    listen = environ.get("LISTEN", "127.0.0.1:9185")
    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise SystemExit(f"retrain: LISTEN is {listen!r}; write e.g. 127.0.0.1:9185")
    target = TARGETS[kind](environ)
    target({"key": "none"})  # so that whatever is missing is missed now
    address = (host, int(port))
    return Receiver(address, _needed(environ, "SECRET"), target, Started(environ.get("STATE", "started.db")), time.time)


def main() -> None:
    """Serve until the process is stopped."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    with build(os.environ) as server:
        log.info("waiting at %s:%s", *server.server_address[:2])
        server.serve_forever()


if __name__ == "__main__":
    main()
