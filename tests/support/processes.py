"""The command line as processes of their own, which can be killed.

A zygote imports everything once and forks a child for each command, so that a kill falls into the work and not into
the imports, and fifty of them take seconds.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

_ZYGOTE = """
import gc, json, os, pkgutil, sys
import alembic.command, alembic.config, alembic.script, pandas, psycopg, rich.progress
import monitor.service.app, monitor.cli.commands.backfill, monitor.cli.commands.run
run = pkgutil.resolve_name(sys.argv[1])
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        _, status = os.waitpid(order["wait"], 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    child = os.fork()
    if child == 0:
        out = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(0)
        code = 1
        try:
            code = run(order["arguments"])
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(child, flush=True)
"""


@dataclass
class Child:
    """One command under way."""

    zygote: "Zygote"
    pid: int
    file: Path

    @property
    def output(self) -> str:
        """What it has written so far, to both streams."""
        return self.file.read_text(encoding="utf-8", errors="replace") if self.file.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def is_running(self) -> bool:
        """Whether it has not ended yet; one that has is kept as a zombie until `wait`."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"

    def wait(self, seconds: float = 120) -> int:
        """Its exit code, negative for a signal. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while self.is_running():
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise TimeoutError(self.output)
            time.sleep(0.01)
        return int(self.zygote.ask({"wait": self.pid}))

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """The output once `text` stands in it. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            if time.monotonic() > deadline or not self.is_running():
                raise TimeoutError(f"never said {text!r}: {self.output}")
            time.sleep(0.02)
        return self.output

    def kill(self) -> None:
        """SIGKILL: no handler, no farewell."""
        self.send(signal.SIGKILL)
        self.wait()


class Zygote:
    """Forks commands of a warmed-up interpreter."""

    def __init__(self, runs: str = "monitor.cli:run") -> None:
        """`runs`: what takes a command's arguments and returns its exit code."""
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._started: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE, runs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"},
        )

    def ask(self, order: dict[str, object]) -> str:
        """One order, one line of answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def start(self, *arguments: str | Path) -> Child:
        """Run `rankmon ARGUMENTS`."""
        self._count += 1
        file = Path(self._folder.name) / f"{self._count}.txt"
        pid = int(self.ask({"arguments": [str(a) for a in arguments], "output": str(file)}))
        self._started.append(pid)
        return Child(self, pid, file)

    def close(self) -> None:
        """End the zygote, and what a failed test left running."""
        for pid in self._started:
            with contextlib.suppress(ProcessLookupError):
                if f"PPid:\t{self._process.pid}\n" in _status(pid):
                    os.kill(pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
