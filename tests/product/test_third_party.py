"""A third-party package adds a channel and a measure: once its wheel is installed, the commands know both."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.product.test_add_measure import START, TOY

ROOT = Path(__file__).parents[2]
CHANNEL = '''"""A channel of somebody else: it writes titles into a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from monitor.fields import Text
from monitor.notify import ChannelConfig, OnlyReceiver
from monitor.section import key


@dataclass(frozen=True, slots=True)
class PrinterConfig(ChannelConfig):
    """A printer."""

    kind: ClassVar[str] = "printer"

    file: Annotated[Text, key("File to print into.")]

    def receivers(self):
        return [Printer(self)]


class Printer(OnlyReceiver):
    def __init__(self, config):
        super().__init__(config.name, 60)
        self._file = config.file

    def send(self, notification, now, prior=None):
        with Path(self._file).open("a") as paper:
            paper.write(notification.title + "\\n")
'''
ENTRIES = """[rankmon.channels]
printer = somebody.printer
[rankmon.measures]
misses = somebody.misses:MISSES
"""
CONFIG = """
store: {url: "sqlite:///store.db"}
sources: {shop: {url: "sqlite:///shop.db"}}
channels: {office: {printer: {file: paper.txt}}}
monitors:
  - name: shop
    source: shop
    rankings:
      {table: rankings, request: request, item: item, position: position, time: {column: time, format: epoch_s}}
    relevance: {column: {grade: grade, max_grade: 1}}
    measures: [misses@3]
    windows: [1h]
    notify: [office]
"""


def wheel(folder: Path) -> Path:
    """Writes the wheel of `somebody` 1.0, as a build would."""
    path, info = folder / "somebody-1.0-py3-none-any.whl", "somebody-1.0.dist-info"
    files = {
        "somebody/__init__.py": "",
        "somebody/printer.py": CHANNEL,
        "somebody/misses.py": TOY,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": ENTRIES,
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def install(package: Path, into: Path) -> None:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", into, package], check=True)


@pytest.fixture
def rankmon(tmp_path: Path) -> Callable[..., str]:
    """Runs a command where that package is installed, next to a log of one request; returns the output."""
    install(wheel(tmp_path), tmp_path / "site")
    (tmp_path / "rankmon.yaml").write_text(CONFIG, encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as log, log:
        log.execute("CREATE TABLE rankings (request TEXT, item TEXT, position INTEGER, time INTEGER, grade INTEGER)")
        rows = [("a", f"i{n}", n + 1, START + 60, grade) for n, grade in enumerate((0, 1, 0))]
        log.executemany("INSERT INTO rankings VALUES (?, ?, ?, ?, ?)", rows)

    def run(*arguments: str) -> str:
        paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
        called = [sys.executable, "-c", "from monitor.cli import main; main()", *arguments]
        done = subprocess.run(
            called, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_an_installed_packages_channel_and_measure_work(rankmon: Callable[..., str], tmp_path: Path) -> None:
    rankmon("check-config")
    assert "office: delivered" in rankmon("test-alert")
    assert "test" in (tmp_path / "paper.txt").read_text(encoding="utf-8")
    rankmon("backfill", "--from", "2026-01-01", "--to", "2026-01-01T01:00Z")
    assert "misses@3 = misses = 2.0" in rankmon("inspect", "a")
