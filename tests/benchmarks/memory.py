"""Peak memory of a backfill in its own process: it must not grow with the log.

`python -m tests.benchmarks.memory LOG SINCE UNTIL STORE` prints the megabytes; with SINCE = UNTIL nothing is read.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

from tests.benchmarks.cycle import DENSITY, backfill
from tests.benchmarks.data import LENGTH, Log, write_log
from tests.benchmarks.report import Line, Section
from tests.support.postgres import free_port

ROOT = Path(__file__).parents[2]
SIZES = (0.2, 1.0, 4.0)
"""Sizes of the logs, as multiples of the one that the others are compared with."""
AIM = 1.2


def peak_megabytes() -> float:
    """The most that this process ever held.

    Not `getrusage`: its ru_maxrss begins with what the parent held when it started this process.
    """
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kilobytes.split()[1]) / 1024


def measured(log: Log, store: Path) -> float:
    """Peak megabytes of a backfill of `log` in a fresh process."""
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
The job of the tables above in its own process, over more and more hours of {DENSITY} requests of {LENGTH} items, and
over a fifth of the hours with five times the requests. Memory is the peak less that of a process that imports and opens
the same but reads nothing. Ratios are to the line of ratio 1. A log shorter than one read needs less."""


RESTING = """\
store: {{url: "sqlite:///{folder}/resting.db"}}
web: {{listen: "127.0.0.1:{port}"}}
sources: {{shop: {{url: "sqlite:///{log}"}}}}
monitors:
  - name: shop
    source: shop
    rankings: {{table: rankings, request: request_id, item: item_id, position: position,
               time: {{column: served_at, format: "%Y-%m-%dT%H:%M:%SZ"}}}}
    relevance: {{events: {{table: events, request: request_id, item: item_id, type: type, attribution: 30m,
                time: {{column: occurred_at, format: "%Y-%m-%dT%H:%M:%SZ"}}, rules: [{{type: click, grade: 1}}]}}}}
    measures: [ndcg@10]
    drift: {{}}
"""
RANKMON = """
import sys
from monitor.cli import run
code = run(sys.argv[1:])
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
sys.exit(code)
"""
RESTS = 5.0
"""Seconds after which a daemon that answers has finished its first run."""


def resting(folder: Path, rounds: int) -> Section:
    """A table of frequent commands and of an idle daemon."""
    log = write_log(folder / "resting-log.db", 100, 1, "number")
    path, port = folder / "resting.yaml", free_port()
    path.write_text(RESTING.format(folder=folder, log=log.path, port=port), encoding="utf-8")
    rankmon = [sys.executable, "-c", RANKMON]
    subprocess.run([*rankmon, "migrate", "-c", path], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    daemon = subprocess.Popen([*rankmon, "run", "-c", path], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        check, help_ = [[*rankmon, "healthcheck", "-c", path], [*rankmon, "--help"]]
        deadline = time.monotonic() + 60
        while subprocess.run(check, cwd=ROOT, capture_output=True).returncode and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(RESTS)
        taken = {"check": list[tuple[float, float]](), "help": list[tuple[float, float]]()}
        for _ in range(rounds):
            taken["check"].append(_used(check))
            taken["help"].append(_used(help_))
        status = Path(f"/proc/{daemon.pid}/status").read_text()
    finally:
        daemon.terminate()
        daemon.wait(60)
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
    check_time, help_time = (median(seconds for seconds, _ in taken[name]) for name in ("check", "help"))
    size = median(megabytes for _, megabytes in taken["check"])
    lines = [
        Line("rankmon healthcheck: processor", f"{check_time * 1000:.0f} ms", check_time, 0.15, "at most"),
        Line("rankmon healthcheck: memory", f"{size:.0f} MB", size, 30, "at most"),
        Line("rankmon --help: processor", f"{help_time * 1000:.0f} ms", help_time, 0.15, "at most"),
        Line("a daemon that waits: memory", f"{resident:.0f} MB", resident, 110, "at most"),
    ]
    return Section("Frequent commands and an idle daemon", ("what", "figure", "s or MB", "aim", "met"), lines, WAITING)


WAITING = "Medians, each command in its own process; a daemon of one monitor on SQLite, idle after its first run."


def _used(command: Sequence[str | Path]) -> tuple[float, float]:
    """(seconds of the processor, megabytes) of a command in its own process, which must succeed."""
    before = getrusage(RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(done.stdout.split()[-1]) / 1024


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
