"""`make evaluate`: what takes too long for every run of the tests. Keeps a table of results in the repository.

- The kill drills with 400 kills instead of 50, of the daemon and of its alerts.
- Restarts of PostgreSQL, frozen processes, wrong clocks, poolers, audits of mutated SQL, better models.
- The property tests with 20 times as many examples.
- The benchmarks at full size, 20 million rows and 200 monitors among them.
- 20 fail-overs of two daemons instead of six, under a real Prometheus and Alertmanager.
- A log of 20 million rows, summed up by Spark's executors.
- The scorer of alert quality at full size, on seeds that nobody tuned on, where it lies next to the checkout.

Names of runs, or their beginnings, as arguments choose some of them; the others keep their lines.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tests" / "benchmarks" / "EVALUATION.md"
SHARED = ROOT.parent / "shared"
SEEDS = ("401", "402", "403")


@dataclass(frozen=True)
class Run:
    """One run: what it is called, what is set and called, and which of the lines that it prints are kept."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    keeps: str = ""


def tests(name: str, files: str, **environment: str) -> Run:
    """A run of some tests, those of further engines among them."""
    return Run(name, ("-m", "pytest", "-q", "-s", "-m", "not spark", *files.split()), environment)


PROPERTIES = "tests/measures/test_kernels.py tests/series/test_buckets.py tests/series/test_windows.py"
RESTARTS = "tests/service/test_kill.py::test_backfill_survives_a_restart_of_its_source_or_store"
FROZEN = "tests/store/test_leases.py::test_a_frozen_holder_is_replaced_within_two_leases_and_stores_nothing_on_waking"
DRILLS = (
    "tests/service/test_clock_live.py tests/service/test_clock.py tests/store/test_pooler.py "
    "tests/service/test_audit.py tests/source/test_stuck_source.py tests/evaluation/test_better_models.py"
)
EVERYTHING, TABLE = r".*", r"\|.*"
SCORER = ("-m", "tests.support.alert_quality", str(SHARED))
RUNS = (
    tests("kills: 400 of backfilling and running", "tests/service/test_kill.py", RANKMON_TEST_KILLS="400"),
    tests("kills: 400 with alerts", "tests/service/test_kill_alerts.py", RANKMON_TEST_KILLS="400"),
    tests("kills: 50 of each channel", "tests/service/test_kill_channels.py", RANKMON_TEST_KILLS="50"),
    tests("restarts: 20 of PostgreSQL during a backfill, as source and as store", RESTARTS, RANKMON_TEST_RESTARTS="20"),
    tests("frozen: 50 holders of a lease, and 50 behind a pooler", FROZEN, RANKMON_TEST_FREEZES="50"),
    tests("drills: clocks, poolers, audits, stuck sources, better models", DRILLS),
    replace(
        tests("fail-overs: 20 of two daemons", "tests/service/test_replicas.py", RANKMON_FAILOVERS="20"), keeps=TABLE
    ),
    tests("properties: 20 times the examples", PROPERTIES, RANKMON_TEST_EXAMPLES="20"),
    tests("parity: 20 times the examples", "tests/source/test_pushdown_engines.py", RANKMON_TEST_EXAMPLES="20"),
    Run("benchmarks at full size", ("-m", "tests.benchmarks", "--large", "--write")),
    Run("spark: 20 million rows", ("-m", "tests.benchmarks.spark_scale"), keeps=EVERYTHING),
    *([Run("alert quality", (*SCORER, *SEEDS), keeps=EVERYTHING)] if SHARED.is_dir() else []),
    *([Run("hard alert quality", (*SCORER, *SEEDS, "--hard"), keeps=EVERYTHING)] if SHARED.is_dir() else []),
)


def main(wanted: list[str]) -> int:
    """Make the runs that are wanted, all if none is named; how many failed. Ends the process if a name fits none."""
    if unknown := [name for name in wanted if not any(run.name.startswith(name) for run in RUNS)]:
        sys.exit(f"no such run: {', '.join(unknown)}; known are: {', '.join(run.name for run in RUNS)}")
    chosen = [run for run in RUNS if not wanted or run.name.startswith(tuple(wanted))]
    done, failed = _kept(), 0
    for run in chosen:
        began = time.monotonic()
        output = subprocess.PIPE if run.keeps else None
        environment = {**os.environ, **run.environment}
        ended = subprocess.run([sys.executable, *run.arguments], cwd=ROOT, env=environment, stdout=output, text=True)
        failed += ended.returncode != 0
        result = "passed" if ended.returncode == 0 else f"FAILED ({ended.returncode})"
        line = f"| {run.name} | {result} | {time.monotonic() - began:.0f} s | {datetime.now(UTC):%Y-%m-%d} |"
        if ended.returncode and ended.stdout:
            print(ended.stdout)
        kept = [said for said in (ended.stdout or "").splitlines() if re.fullmatch(run.keeps, said)]
        done[run.name] = line, "\n".join(kept).strip()
        RESULTS.write_text(_document(done), encoding="utf-8")
        print(line, flush=True)
    return failed


def _document(done: Mapping[str, tuple[str, str]]) -> str:
    known = [run.name for run in RUNS if run.name in done]
    facts = f"Python {platform.python_version()}, {os.cpu_count()} CPUs, a shared machine"
    head = ["# Long runs", "", f"By `make evaluate`: {facts}.", "", "| run | result | took | on |", "|---|---|---|---|"]
    lines = head + [done[name][0] for name in known]
    for name in known:
        if said := done[name][1]:
            lines += ["", f"## {name}", "", said]
    return "\n".join(lines) + "\n"


def _kept() -> dict[str, tuple[str, str]]:
    """Name -> line and output of the runs that are in the results already."""
    if not RESULTS.is_file():
        return {}
    head, *parts = re.split(r"^## ", RESULTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    said = {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}
    lines = [line for line in head.splitlines() if line.startswith("| ")][1:]
    return {(name := line.split("|")[1].strip()): (line, said.get(name, "")) for line in lines}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
