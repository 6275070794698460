"""A headless Chromium, driven over a pipe in the DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.requirements import missing

NAMES = ("chromium", "chromium-browser", "google-chrome")
FOCUSABLE = "a[href], summary, button, input, [tabindex='0']"

PATIENCE = 120.0
"""Seconds for which a browser may say nothing at all."""

_STARTING = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
"""The browser takes commands on descriptor 3 and answers on 4."""


class Browser:
    """One tab. What the page asks of the network and what it complains of is kept."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = os.fdopen(answers, "rb")
        self._buffer = b""
        self._number = 0
        self._loaded = False
        self._session: dict[str, str] = {}
        self.requested: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for part in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{part}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        number, command = self._number, {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != number:
            self._note(message)
        assert "error" not in message, message
        return dict(message["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._answers], [], [], PATIENCE)[0], "the browser does not answer"
            chunk = self._answers.read1(1 << 20)
            assert chunk, "the browser has gone"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))

    def open(self, url: str, width: int = 1100, height: int = 900, dark: bool = False) -> None:
        """Load a page at a width in CSS pixels."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        if "loaderId" not in self.ask("Page.navigate", url=url):
            return  # another place of the page that is open already
        while not self._loaded:
            self._note(self._next())

    def see(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press a key and let it go; `code` as Windows numbers them."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def tabbed(self, most: int = 500) -> list[str]:
        """What the tab key reaches, one after the other: the number of each among the visible FOCUSABLE ones."""
        seen = f"[...document.querySelectorAll(`{FOCUSABLE}`)].filter(e => e.checkVisibility())"
        found: list[str] = []
        for _ in range(most):
            self.press("Tab", 9)
            at = str(self.see(f"{seen}.indexOf(document.activeElement)"))
            if at in found:
                break
            found.append(at)
        return found

    def photograph(self, path: Path) -> None:
        """The whole page as PNG."""
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))


@contextmanager
def browser(arguments: Sequence[str] = ()) -> Iterator[Browser]:
    """A browser of its own profile, which ends with the block."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        missing("no chromium on this machine")
    reading, commands = os.pipe()
    answers, writing = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        flags += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}", *arguments]
        process = subprocess.Popen(
            ["bash", "-c", _STARTING, "bash", str(reading), str(writing), program, *flags],
            pass_fds=(reading, writing),
            stderr=subprocess.DEVNULL,
        )
        os.close(reading)
        os.close(writing)
        try:
            yield Browser(commands, answers)
        finally:
            process.terminate()
            process.wait(10)
            os.close(commands)
