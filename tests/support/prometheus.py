"""Real Prometheus and Alertmanager from Debian's packages, a receiver of what they send, and the daemon beside them.

Each runs in a session of its own on loopback, with its data in a folder, and ends with the thread that started it.
Alert rules are those that are shipped, with minutes made to seconds.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.support.postgres import _die_with, free_port
from tests.support.processes import ROOT

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules" / "rankmon.yml"
RESOLVE_TIMEOUT = 3
"""Seconds after which Alertmanager forgets an alert that came without its end."""


def missing_programs() -> list[str]:
    """Those of the programs that are not installed."""
    return [p for p in ("prometheus", "promtool", "prometheus-alertmanager", "amtool") if shutil.which(p) is None]


def eventually(holds: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until it holds. Raises AssertionError with `what` if that takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


class Server:
    """A program that serves HTTP on `port`; its output is in `log`."""

    def __init__(self, folder: Path, name: str, ready: str, command: list[str | Path], port: int) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._command = command
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready. Raises AssertionError with its output."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        try:
            eventually(self._is_ready, 30, "it is ready")
        except AssertionError:
            raise AssertionError(f"{self._command[0]} did not start:\n{self.log.read_text()[-4000:]}") from None

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "it has ended"
        try:
            with urllib.request.urlopen(self.url + self._ready, timeout=2):
                return True
        except OSError:
            return False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, at once unless another signal is given."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON answer to a GET, also if it is an error."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)


class Daemon(Server):
    """`rankmon run`, on a clock of its own where `clock` gives the options for it."""

    def __init__(self, folder: Path, configuration: Path, port: int, *clock: str) -> None:
        code = "from monitor.cli import main; main()"
        command: list[str | Path] = [sys.executable, "-c", code, "run", "--config", configuration, *clock]
        super().__init__(folder, "rankmon", "/-/ready", command, port)


class Alertmanager(Server):
    """Alertmanager with a configuration file."""

    def __init__(self, folder: Path, configuration: Path) -> None:
        port = free_port()
        options = [f"--config.file={configuration}", f"--storage.path={folder}/alertmanager"]
        options += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        super().__init__(folder, "alertmanager", "/-/ready", ["prometheus-alertmanager", *options], port)

    def active(self) -> set[str]:
        """Names of the alerts that are active."""
        return {alert["labels"]["alertname"] for alert in self.get("/api/v2/alerts", active="true")}


class Prometheus(Server):
    """Prometheus that scrapes `targets` (job -> addresses, by commas) each second and judges the shipped rules."""

    def __init__(self, folder: Path, targets: dict[str, str], alertmanager: str) -> None:
        port = free_port()
        (folder / "rules.yml").write_text(hurried(RULES.read_text(encoding="utf-8")), encoding="utf-8")
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": addresses.split(",")}]}
                for job, addresses in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/prometheus"]
        options += [f"--web.listen-address=127.0.0.1:{port}", "--rules.alert.resend-delay=1s"]
        super().__init__(folder, "prometheus", "/-/ready", ["prometheus", *options], port)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that a query gives now. Raises AssertionError if Prometheus refuses it."""
        answer = self.get("/api/v1/query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        alerts = self.get("/api/v1/alerts")["data"]["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}


def hurried(rules: str) -> str:
    """The rules at the speed of a test: evaluated each second, minutes made to seconds, days and hours left alone.

    A quarter of an hour that is written in seconds becomes 20 of them.
    """
    text = re.sub(r"^( *)interval: 1m$", r"\1interval: 1s", rules, flags=re.MULTILINE)
    text = re.sub(r"^( *)for: (\d+)m$", r"\1for: \2s", text, flags=re.MULTILINE)
    text = re.sub(r"\b900\b", "20", text)
    return re.sub(r"\[(\d+)m\]", r"[\1s]", text)


class Receiver:
    """Takes webhooks, and keeps them in the order in which they came."""

    def __init__(self) -> None:
        self.groups: list[dict[str, Any]] = []
        groups = self.groups

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                groups.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()

    def told(self, name: str, status: str) -> list[dict[str, Any]]:
        """The alerts of a name that came from Alertmanager as `firing` or `resolved`."""
        alerts = (alert for group in list(self.groups) for alert in group.get("alerts", []))
        return [a for a in alerts if a["labels"]["alertname"] == name and a["status"] == status]


def alertmanager_configuration(folder: Path, receiver: str) -> Path:
    """The shipped configuration with one webhook for everybody, and no time to wait."""
    found = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"))
    found["global"] = {"resolve_timeout": f"{RESOLVE_TIMEOUT}s"}
    found["route"] |= {"group_wait": "0s", "group_interval": "1s"}
    for someone in found["receivers"]:
        someone["webhook_configs"] = [{"url": receiver, "send_resolved": True}]
    path = folder / "alertmanager.yml"
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    return path
