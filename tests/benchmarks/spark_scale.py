"""`python -m tests.benchmarks.spark_scale`: a large log on Spark, summed up by its executors, against a scan of it.

Fails unless the plan aggregates before it exchanges, few rows come back, all of the log is in them, and an hour of it
is the same to 1e-12 by the pull.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monitor.database_url import parse_url
from monitor.series.partials import to_partials
from monitor.series.readings import Aggregates
from monitor.source.choice import explain_choice
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from tests.benchmarks.report import duration
from tests.source.test_source import assert_same
from tests.support.large import HOUR, LENGTH, MONITOR
from tests.support.plans import aggregated_before_exchange
from tests.support.spark import MASTER, SparkServer, spark_server
from tests.support.spark_logs import Large, write_large

MOST_SENT = 10_000
MOST_SECONDS = 3600
SCAN = "SELECT max(request_id), sum(item_id), sum(position), max(served_at), max(device), count(*) FROM rankings"


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """(result, seconds)"""
    began = time.monotonic()
    return work(), time.monotonic() - began


def measure(server: SparkServer, log: Large) -> None:
    """Print the times. Raises AssertionError if a check of the plan or the results fails."""
    database, name = Database(MONITOR.source, parse_url(log.url), MOST_SECONDS), log.url.rpartition("/")[2]
    _, (statement, *_) = explain_choice(replace(MONITOR, engine="pushdown"), database, log.since, log.until)
    ((plan,),) = server.execute(f"EXPLAIN FORMATTED {statement}", database=name)
    found = aggregated_before_exchange(plan)
    assert any(node == "HashAggregate" and "partial_sum(" in functions for node, functions in found), plan
    assert any("partial_min(served_at" in functions for _, functions in found), plan
    _, scan = timed(lambda: server.execute(SCAN, database=name))
    summed, taken = timed(lambda: PushDown(MONITOR, database, is_bound=True).read(log.since, log.until))
    assert isinstance(summed, Aggregates)
    print(f"| one scan | {duration(scan)} | 1 | 1 |")
    print(f"| push-down | {duration(taken)} | {taken / scan:.1f} | {summed.rows:,} |", flush=True)
    assert not summed.read, "some of it was read row by row"
    assert summed.summed == log.rows, f"{summed.summed:,} of {log.rows:,} rows were summed up"
    assert summed.rows < MOST_SENT, f"{summed.rows:,} rows came back"
    hour = log.since + (log.until - log.since) // (2 * HOUR) * HOUR
    pulled, taken = timed(lambda: Pull(MONITOR, database).read(hour, hour + HOUR))
    print(f"| one hour of it by the pull | {duration(taken)} | {taken / scan:.1f} | {pulled.rows:,} |")
    again: Any = PushDown(MONITOR, database, is_bound=True).read(hour, hour + HOUR)
    kernels = dict.fromkeys(m.kernel for m in MONITOR.measures)
    one, other = (to_partials(a, MONITOR.bucket, kernels, MONITOR.slices, {}) for a in (again, pulled))
    assert_same(one, other, "one hour")


def main() -> int:
    """0 if all checks pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark_scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000, help="rankings, 20 a request")
    parser.add_argument("--hours", type=int, default=24 * 7, help="over which they are spread")
    chosen = parser.parse_args()
    with spark_server(is_brief=False) as server:
        log, taken = timed(lambda: write_large(server, chosen.rows // LENGTH, chosen.hours))
        print(f"Spark on {MASTER}: {log.rows:,} rows over {chosen.hours} h, made in {duration(taken)}\n")
        print("| what | time | ratio | rows sent |\n|---|---|---|---|", flush=True)
        measure(server, log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
