"""Daemons on a machine whose clock is wrong at their start or while they run: they lose no incident and no verdict."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cli.test_incidents_cli import CONFIG, STORY, filled
from tests.support.clock_shift import ShiftedClock, has_compiler
from tests.support.postgres import _die_with
from tests.support.processes import ROOT
from tests.support.receiver import Receiver
from tests.support.requirements import missing

__all__ = ["filled"]

DAY = 86_400
OFFS = [-365 * DAY, -40 * DAY, -DAY, DAY, 40 * DAY, 365 * DAY]
YEAR_2000 = 946_684_800
END = int(STORY.history_end.timestamp())


class Machine:
    """A folder with a shop whose level has fallen, a store, and a clock."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.folder, self.clock = folder, ShiftedClock(folder)
        text = CONFIG.format(folder=folder, url=receiver.url)
        text += '    drift: {}\n    refresh: 1s\nweb: {listen: "127.0.0.1:0"}\n'
        (folder / "rankmon.yaml").write_text(text, encoding="utf-8")

    def set(self, instant: int) -> None:
        self.clock.set(instant - int(time.time()))

    @contextmanager
    def daemon(self) -> Iterator[None]:
        code = "from monitor.cli import main; main()"
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, "run", "-c", self.folder / "rankmon.yaml"],
                env=self.clock.environment | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
                preexec_fn=_die_with(os.getpid()),
            )  # fmt: skip
        try:
            yield
            process.terminate()
            assert process.wait(30) == 0, (self.folder / "log").read_text()
        finally:
            process.kill()
            process.wait()

    def ask(self, query: str) -> list[tuple[int | str, ...]]:
        with closing(sqlite3.connect(f"file:{self.folder}/store.db?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()

    def after_runs(self, instant: int, number: int = 3) -> None:
        """Waits until `number` runs have started by a clock near `instant`; all but the last have ended."""
        seen, until = set[object](), time.monotonic() + 60
        while len(seen) < number:
            assert time.monotonic() < until, (self.folder / "log").read_text()[-3000:]
            ((at,),) = self.ask("SELECT last_attempt_at FROM monitors")
            seen |= {at} if abs(float(at) - instant) < 1800 else set()
            time.sleep(0.1)

    @property
    def quality(self) -> list[tuple[int | str, ...]]:
        return self.ask("SELECT id, state, told FROM incidents WHERE matter = 'quality'")

    @property
    def judged(self) -> dict[object, object]:
        """Hour -> kind of verdict, for all hours of the shop's past."""
        return dict(self.ask(f"SELECT at, kind FROM verdicts WHERE at <= {END}"))  # type: ignore[arg-type]


@pytest.fixture
def machine(filled: Path, tmp_path: Path) -> Iterator[Machine]:
    if not has_compiler():
        missing("no C compiler: install Debian's gcc and libc6-dev")
    for name in ("shop.db", "store.db"):
        (tmp_path / name).write_bytes((filled / name).read_bytes())
    with Receiver() as receiver:
        made = Machine(tmp_path, receiver)
        made.set(END + 600)
        with made.daemon():
            until = time.monotonic() + 60
            while not receiver.taken:
                assert time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.1)
        yield made
        assert "withdrawn" not in [
            str(g.document["kind"]) for g in receiver.taken if g.document["incident"] == made.quality[0][0]
        ]


@pytest.mark.parametrize("off", [*OFFS, YEAR_2000 - END])
def test_a_daemon_started_with_a_wrong_clock_withdraws_nothing(machine: Machine, off: int) -> None:
    quality, judged = machine.quality, machine.judged
    assert [row[1:] for row in quality] == [("firing", 1)]
    machine.set(END + 700 + off)
    with machine.daemon():
        machine.after_runs(END + 700 + off)
        assert machine.quality == quality
        machine.set(END + 900)
        machine.after_runs(END + 900)
        assert machine.quality == quality
        assert judged.items() <= machine.judged.items()


def test_a_clock_jump_under_a_running_daemon_withdraws_nothing(machine: Machine) -> None:
    quality, judged = machine.quality, machine.judged
    now = END + 700
    machine.set(now)
    with machine.daemon():
        machine.after_runs(now)
        for off in [*OFFS, YEAR_2000 - END]:
            machine.set(now + off)
            machine.after_runs(now + off)
            assert machine.quality == quality, off
            now += 60
            machine.set(now)
            machine.after_runs(now)
            assert machine.quality == quality, off
            assert judged.items() <= machine.judged.items(), off
