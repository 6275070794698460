"""Peak memory of a backfill in a process of its own: it must not grow with the log.

`python -m tests.benchmarks.memory LOG SINCE UNTIL STORE` prints the megabytes; with SINCE = UNTIL nothing is read.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.cycle import DENSITY, backfill
from tests.benchmarks.data import LENGTH, Log, write_log
from tests.benchmarks.report import Line, Section

ROOT = Path(__file__).parents[2]
SIZES = (0.2, 1.0, 4.0)
"""Of the logs, in parts of the one that the others are compared with."""
AIM = 1.2


def peak_megabytes() -> float:
    """The most that this process ever held.

    Not `getrusage`: its ru_maxrss begins with what the parent held when it started this process.
    """
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kilobytes.split()[1]) / 1024


def measured(log: Log, store: Path) -> float:
    """Megabytes that a backfill of `log` comes to in a fresh process."""
    return printed("tests.benchmarks.memory", log.path, log.since, log.until, store)


def printed(module: str, *arguments: object) -> float:
    """The number that a module prints, run in a fresh process."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return float(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


def section(folder: Path, requests: int, sizes: tuple[float, ...] = SIZES) -> Section:
    """A table over logs of more and more hours, and one of five times the requests an hour."""
    lines = list(_lines(folder, requests, sizes))
    return Section("Peak memory of a backfill", ("requests", "peak above idle", "times", "aim", "met"), lines, REMARKS)


REMARKS = f"""\
The job of the tables above in a process of its own, over more and more hours of {DENSITY} requests of {LENGTH} items,
and over a fifth of the hours with five times the requests; less what a process holds that has imported and opened the
same and reads nothing. Ratios are to the line of ratio 1. A log that is shorter than one read needs less."""


def _lines(folder: Path, requests: int, sizes: tuple[float, ...]) -> Iterator[Line]:
    if not Path("/proc/self/status").exists():
        yield Line("peak memory", "only measured on Linux")
        return
    logs = [(str(size), some, round(some / DENSITY)) for size in sizes if (some := int(requests * size))]
    logs.append(("dense", requests, round(requests / DENSITY / 5)))
    written = {name: write_log(folder / f"memory-{name}.db", some, long, "number") for name, some, long in logs}
    first = written[str(sizes[0])]
    idle = measured(replace(first, until=first.since), folder / "memory-idle-store.db")
    peaks = {name: measured(log, folder / f"memory-{name}-store.db") - idle for name, log in written.items()}
    base = peaks["1.0"]
    yield Line("idle", f"({idle:.0f} MB)")
    for name, log in written.items():
        what = f"{log.requests:,} in {(log.until - log.since) / 3600:.0f} hours"
        aim = AIM if peaks[name] is not base and log.requests >= requests else None
        yield Line(what, f"{peaks[name]:.0f} MB", peaks[name] / base, aim, "at most")


if __name__ == "__main__":
    path, since, until, store_path = sys.argv[1:]
    backfill(Log(Path(path), int(since), int(until), 0), Path(store_path))
    print(peak_megabytes())
