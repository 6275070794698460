"""`make evaluate`: what takes too long for every run of the tests. Prints a table and keeps it in the repository.

- The kill drills with 400 kills instead of 50.
- The property tests of the measures, partials and tallies with 20 times as many examples.
- The benchmarks at full size.
- A log of 20 million rows, summed up by Spark's executors.
"""

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tests" / "benchmarks" / "EVALUATION.md"

RUNS: tuple[tuple[str, dict[str, str], list[str]], ...] = (
    (
        "400 kills of backfilling and running",
        {"RANKMON_TEST_KILLS": "400"},
        ["-m", "pytest", "-q", "tests/test_kill.py"],
    ),
    (
        "property tests, 20 times the examples",
        {"RANKMON_TEST_EXAMPLES": "20"},
        [
            "-m",
            "pytest",
            "-q",
            "tests/core/test_kernels.py",
            "tests/core/test_buckets.py",
            "tests/core/test_windows.py",
        ],
    ),
    ("benchmarks at full size", {}, ["-m", "tests.benchmarks", "--large", "--write"]),
    ("20 million rows on Spark", {}, ["-m", "tests.benchmarks.spark_scale"]),
)


def main() -> int:
    """Run all of it; the number of runs that failed."""
    lines, failed = [], 0
    for name, environment, arguments in RUNS:
        began = time.monotonic()
        code = subprocess.run([sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environment}).returncode
        failed += code != 0
        lines.append(f"| {name} | {'passed' if code == 0 else f'FAILED ({code})'} | {time.monotonic() - began:.0f} s |")
    table = "\n".join(["| run | result | took |", "|---|---|---|", *lines])
    facts = f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} CPUs"
    RESULTS.write_text(f"# Long runs\n\nBy `make evaluate`: {facts}.\n\n{table}\n", encoding="utf-8")
    print(table)
    return failed


if __name__ == "__main__":
    sys.exit(main())
