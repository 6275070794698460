"""Outside text cannot control a terminal, hide text or reverse it, wherever the program prints it."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli import run
from monitor.logs import JsonFormatter, TextFormatter
from monitor.messages.words import plain
from monitor.service.app import App
from tests.support.monitors import config, shop
from tests.support.web import ask

HOSTILE = "mo\x1b[2J\x1b]0;x\x07\x9b31m\u202ebile\u2066\u200b\x85\u2028\r"
SEEN = "mo\\u001b[2J\\u001b]0;x\\u0007\\u009b31m\\u202ebile\\u2066\\u200b\\u0085\\u2028\\u000d"


def is_clean(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def test_control_and_invisible_characters_are_escaped_and_other_text_stays() -> None:
    assert plain(HOSTILE) == SEEN
    assert plain("a\nb\tc", one_line=True) == "a\\u000ab\\u0009c"
    for text in ("naïve – 日本 עברית فارسی می\u200cخواهم 👩\u200d💻\u00a0!\n\t", "", SEEN):
        assert plain(text) == text
    assert json.loads(plain(json.dumps({"a": HOSTILE}, ensure_ascii=False))) == {"a": HOSTILE}


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_log_line_escapes_hostile_text(formatter: logging.Formatter) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        fault = sys.exc_info()
    said = formatter.format(logging.LogRecord("monitor", logging.INFO, "", 0, "slice %s", (HOSTILE,), fault))
    assert is_clean(said)
    assert "\\u202e" in said


def test_the_page_escapes_hostile_text(tmp_path: Path) -> None:
    app = App(config(tmp_path, {"shop": f"sqlite:///{tmp_path / 'x.db'}"}, [shop(labels=(("team", HOSTILE),))]))
    app.prepare()
    app.show()
    app.web.start()
    try:
        for path in ("/", "/monitors/shop"):
            body = ask(app.web.port, path).body
            assert SEEN in body
            assert is_clean(body)
    finally:
        app.stop()


def test_an_error_message_escapes_a_hostile_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People type a path and read it back in an error."""
    assert run(["check-config", "-c", str(tmp_path / HOSTILE.replace("/", ""))]) == 2
    said = capsys.readouterr()
    assert SEEN.replace("\\u001b[2J", "") in said.err, "click strips escape codes if there is no terminal"
    assert is_clean(said.out + said.err)


def test_a_terminal_receives_no_escape_codes_from_outside(tmp_path: Path) -> None:
    """On a real terminal click keeps escape codes and rich draws tables."""
    (tmp_path / "a.csv").write_text(f"request,position,grade\n{HOSTILE.rstrip()},1,1\n", encoding="utf-8", newline="")
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-c",
        "from monitor.cli import main; main()",
        "score",
        str(tmp_path / "a.csv"),
        "--per-request",
    ]
    environment = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 10_000):
            said += part
    except OSError:  # Linux, when the other end is closed
        pass
    assert process.wait(60) == 0, said
    text = said.decode()
    assert "\\u001b[2J" in text
    assert not any(c in text for c in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e", "\u2066"))
