"""A real Spark with two executors behind its Thrift server: both ways of reading, query plans and failures."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import NoSuchModuleError

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.series.partials import to_partials
from monitor.source.choice import choose, explain_choice
from monitor.source.dialects import driver_help
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown, why_not
from monitor.types import Position, Relation, Slice
from tests.source import test_discovery as discovery
from tests.source.test_plans_by_size import LARGE, SMALL, assert_right
from tests.source.test_pushdown import assert_lists_are_read_as_rows, assert_odd_lists_are_refused, both, odd_lists
from tests.source.test_pushdown_engines import case
from tests.source.test_source import assert_same, measures, read, recipe_of
from tests.support import sized
from tests.support.dense import Dense
from tests.support.ending import raised_at_the_end
from tests.support.examples import times
from tests.support.large import HOUR, MONITOR
from tests.support.lists import LISTS
from tests.support.logs import END, START, Dirt, Log, Soiled, column, events, monitor
from tests.support.plans import aggregated_before_exchange
from tests.support.processes import ROOT
from tests.support.prometheus import eventually
from tests.support.requirements import missing
from tests.support.spark import SparkServer, lacks, of_session, spark_server
from tests.support.spark_logs import TEXTS, OnSpark, on_spark, table_of, write_large

pytestmark = pytest.mark.spark

MOST_SENT = 10_000
SLOW = sa.select(sa.func.count()).select_from(
    sa.text("range(3000000) a JOIN range(3000000) b ON pmod(a.id, 7) = pmod(b.id, 5)")
)
ORPHAN = """
import time
from tests.support.spark import spark_server
with spark_server() as server:
    print(server.pid, server.directory, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkServer]:
    """One server for this file."""
    if reason := lacks():
        missing(reason)
    with spark_server() as server:
        yield server


@pytest.fixture(scope="module")
def logs(spark: SparkServer) -> OnSpark:
    """A database for small logs."""
    return on_spark(spark)


def opened(url: str, timeout: float = 300) -> Database:
    """The source of that URL."""
    return Database("s", parse_url(url), timeout)


# ---- both ways -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["events", "column"])
def test_push_down_equals_the_pull_on_any_log(logs: OnSpark, kind: str) -> None:
    database, summed = opened(logs.url), 0
    for seed in range(times(2)):
        made, what = case(logs, kind, seed)
        made = replace(made, measures=made.measures[:3])  # Spark compiles each query, which is slow
        assert why_not(made, database.dialect) == ""
        one, other, buckets = both(made, database, START, END)
        assert_same(one, other, what)
        summed += buckets
    assert summed >= 4


@pytest.mark.parametrize("style", ["timestamp", "timestamp_ntz", "timestamp_ntz local", "epoch s"])
def test_push_down_works_with_every_time_format(logs: OnSpark, style: str) -> None:
    written = logs.styles[style]
    logs.write(Soiled(7, 1, Dirt()).make(), written, "whole", "number")
    one, other, _ = both(monitor(events(written), written, ("ndcg@3",)), opened(logs.url), START, END)
    assert_same(one, other, style)
    assert sum(t[0] for cell, t in one.traffic.items() if cell[1:] == ("", "")) > 0


@pytest.mark.parametrize("kind", ["events", "judgments", "column"])
def test_the_pull_equals_a_plain_loop_over_any_log(logs: OnSpark, kind: str) -> None:
    for seed in range(times(2)):
        chance = random.Random(f"{kind} {seed}")
        name, style = list((TEXTS | dict(logs.styles)).items())[seed * 5 % 8]
        first, boolean = seed % 2, kind != "events" and seed % 2 == 1
        time_of = (lambda micros, style=style: style.write(micros)[:18] + "?") if name in TEXTS else None
        log = Soiled(seed, first, Dirt(time=time_of), boolean=boolean).make()
        logs.write(log, style, "decimal", "truth" if boolean else "number")
        made = monitor(recipe_of(kind, style, chance), style, measures(kind, chance), first)
        found = read(Pull(made, opened(logs.url)), START, END)
        assert_same(found, Dense(log, made, style, START, END), f"{kind} {seed}: {name}")


@pytest.mark.parametrize(("ids", "rows"), [("whole", SMALL), ("text", LARGE)])
def test_sums_are_right_under_any_query_plan(spark: SparkServer, ids: str, rows: int) -> None:
    engine = sized.spark(spark.create_database())
    engine.write(rows, ids, spark.directory / "local")
    assert_right(engine, rows, [sized.WHOLE, sized.SHARES[-1]])


def test_lists_in_a_column_are_read_like_rows_and_other_values_are_refused(spark: SparkServer) -> None:
    url, lists, more = spark.create_database(), LISTS["hive"], ["junk"]
    name, database = url.rpartition("/")[2], opened(url)
    spark.execute(*lists.of_log(1), database=name)
    assert assert_lists_are_read_as_rows(database, lists, "spark")
    spark.execute(*odd_lists(lists, more), database=name)
    assert_odd_lists_are_refused(database, lists, more)
    database.close()


def test_odd_names_and_values_are_read_literally(spark: SparkServer) -> None:
    names = ("order", "it`em", "50%", "a:b", 'say "x"', "grade")
    url, style = spark.create_database(), on_spark(spark).styles["epoch s"]
    odd = ("O'Brien\\", "100 %s", "new\nline", "naïve")
    rows = [(f"r{i % 3}", i, 1 + i // 3, START + 60 * (i % 3), odd[i % 3], i % 2) for i in range(12)]
    kinds = ("STRING", "BIGINT", "INT", "DOUBLE", "STRING", "DOUBLE")
    spark.execute(table_of("`select`", names, kinds, rows), database=url.rpartition("/")[2])
    plain = monitor(column(), style, ("ndcg@3", "mrr"))
    r = replace(plain.rankings, request=names[0], item=names[1], position=Position(names[2]), query=None)
    r = replace(r, time=replace(r.time, column=names[3]), relation=Relation((url.rpartition("/")[2], "select")))
    made = replace(plain, rankings=r, slices=(Slice("odd", names[4]),))
    one, other, buckets = both(made, opened(url), START, END)
    assert_same(one, other, "names")
    assert buckets == 4
    assert {cell[2] for cell in one.traffic if cell[1] == "odd"} == set(odd[:3])
    chosen, (statement,) = explain_choice(replace(made, engine="pushdown"), opened(url), START, END)
    assert chosen.way == "pushdown"
    assert len(spark.execute(statement)) == 3


def test_a_session_sees_later_writes_by_others(logs: OnSpark) -> None:
    log, style = Log(), logs.styles["timestamp"]
    log.show("r1", [1, 2], START)
    logs.write(log, style, "whole", "number")
    source = PushDown(monitor(column(), style), opened(logs.url), is_bound=True)
    assert source.freshness(START - 5, END).newest == START
    rows = "SELECT request, item, position, at + INTERVAL '60' SECOND, query, device, country, grade FROM rankings"
    assert logs.server is not None
    logs.server.execute(f"INSERT INTO rankings {rows}", database=logs.url.rpartition("/")[2])
    assert source.freshness(START - 5, END).newest == START + 60
    log.rankings.clear()
    logs.write(log, style, "whole", "number")
    assert source.freshness(START - 5, END).newest is None


# ---- work that Spark does --------------------------------------------------------------------------------------------


def test_the_executors_sum_a_million_rows_and_return_few(spark: SparkServer) -> None:
    log = write_large(spark, 50_000, 24, as_text=True)
    database, made = opened(log.url), replace(MONITOR, source="s")
    assert choose(made, database.dialect).way == "pushdown"
    answers = (
        PushDown(made, database, is_bound=True).read(log.since, log.until),
        Pull(made, database).read(log.since, log.until),
    )
    assert answers[0].rows < MOST_SENT < answers[1].rows
    assert answers[0].summed == log.rows == 1_000_000
    kernels = dict.fromkeys(m.kernel for m in made.measures)
    one, other = (to_partials(a, made.bucket, kernels, made.slices, {}) for a in answers)
    assert_same(one, other, "a million rows")
    assert sum(t[0] for cell, t in one.traffic.items() if cell[1:] == ("", "")) == log.requests
    _, (statement, *_) = explain_choice(made, database, log.since, log.until)
    ((plan,),) = spark.execute(f"EXPLAIN FORMATTED {statement}", database=log.url.rpartition("/")[2])
    found = aggregated_before_exchange(plan)
    assert any(node == "HashAggregate" and "partial_sum(" in functions for node, functions in found), plan[:4000]
    assert any("partial_min(served_at" in functions for _, functions in found), plan[:4000]


def test_two_executor_processes_do_the_work(spark: SparkServer) -> None:
    found = spark.execute(
        "SELECT DISTINCT java_method('java.lang.System', 'getProperty', 'user.dir') FROM range(0, 8, 1, 8)"
    )
    folders = {Path(folder) for (folder,) in found}
    assert {folder.name for folder in folders} == {"0", "1"}
    assert all(folder.is_relative_to(spark.directory) for folder in folders)
    executors = set(spark.processes()) - {spark.pid}
    assert {Path(f"/proc/{pid}/cwd").readlink() for pid in executors} == folders


def test_spark_accepts_the_sql_for_databricks(spark: SparkServer) -> None:
    """Databricks itself is not available here, so Spark's parser and analyser check the SQL of its dialect."""
    python = ROOT / ".venv-spark" / "bin" / "python"
    command = [python, "-m", "tests.support.databricks_sql"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    log = write_large(spark, 10, 1)
    statements = json.loads(done.stdout)
    assert len(statements) == 8
    for statement in statements:
        ((plan,),) = spark.execute(f"EXPLAIN {statement}", database=log.url.rpartition("/")[2])
        assert plan.startswith("== Physical Plan =="), (plan[:500], statement)


# ---- failures --------------------------------------------------------------------------------------------------------


def failing(url: str, timeout: float = 60) -> SourceError:
    """The error that a read of clicks fails with."""
    style = TEXTS["text Z"]
    with pytest.raises(SourceError) as caught:
        Pull(monitor(events(style), style), opened(url, timeout)).read(START, START + HOUR)
    return caught.value


def test_spark_errors_name_the_reason_and_remedy(spark: SparkServer) -> None:
    url = spark.create_database()
    error = failing(url)
    assert (error.reason, "compare the table" in str(error)) == ("missing", True), error
    assert "TABLE_OR_VIEW_NOT_FOUND" in str(error)
    assert "org.apache" not in str(error)
    error = failing(url.replace(str(spark.port), "1"))
    assert (error.reason, "is the database up" in str(error)) == ("connect", True), error
    error = failing(f"{url}_that_is_not_there")
    assert (error.reason, "SCHEMA_NOT_FOUND" in str(error)) == ("missing", True), error


@pytest.mark.parametrize(
    ("query", "reason"),
    [("SELECT no_such_function(1)", "data"), ("SELECT array(1) + 1", "data"), ("SELECT FROM WHERE (", "query")],
)
def test_queries_that_spark_can_never_run_are_lasting_errors(spark: SparkServer, query: str, reason: str) -> None:
    with pytest.raises(SourceError) as caught, opened(spark.url()).reading() as reader:
        reader.one(sa.text(query))  # type: ignore[arg-type]
    assert (caught.value.reason, caught.value.lasting) == (reason, True), caught.value


def test_spark_sees_which_monitor_reads(spark: SparkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.source.dialects.thrift._brief", str)  # the full error repeats the statement
    with pytest.raises(SourceError) as caught, opened(spark.url()).reading("search") as reader:
        reader.one(sa.text("SELECT FROM WHERE ("))  # type: ignore[arg-type]
    assert "/* rankmon search */ SELECT FROM WHERE (" in str(caught.value)


def test_a_statement_that_takes_too_long_is_cancelled(spark: SparkServer) -> None:
    began = time.monotonic()
    with pytest.raises(SourceError) as caught, opened(spark.url(), 2).reading() as reader:
        reader.one(SLOW)
    assert (caught.value.reason, "statement_timeout" in str(caught.value)) == ("timeout", True), caught.value
    assert time.monotonic() - began < 30
    assert is_idle(spark)


def test_stopping_does_not_wait_for_spark(spark: SparkServer) -> None:
    ending = threading.Event()
    database, before = Database("s", parse_url(spark.url()), 300, ending.is_set), tasks(spark)

    def read() -> None:
        with database.reading() as reader:
            reader.one(SLOW)

    assert raised_at_the_end(read, database, ending, lambda: tasks(spark) > before, within=60) == ["Stopped"]
    assert is_idle(spark)


def value_of(database: Database, query: sa.Select[Any]) -> Any:
    """The single value of an answer."""
    with database.reading() as reader:
        return reader.one(query)


def tasks(spark: SparkServer) -> int:
    """How many tasks the executors got so far. A session that begins gives them none."""
    return (spark.directory / "server.log").read_text(errors="replace").count(" Starting task ")


def is_idle(spark: SparkServer, seconds: float = 30) -> bool:
    """Whether an executor is free for another statement soon."""
    began = time.monotonic()
    spark.execute("SELECT sum(id) FROM range(0, 100, 1, 2)")
    return time.monotonic() - began < seconds


def test_the_missing_driver_is_named_with_the_extra_to_install() -> None:
    url = parse_url("hive://host:10000/default")
    error = NoSuchModuleError("Can't load plugin: sqlalchemy.dialects:hive")
    assert "rankmon[spark]" in driver_help(url, error)


def test_a_restarted_server_is_read_again(spark: SparkServer, logs: OnSpark) -> None:
    style = logs.styles["timestamp"]
    logs.write(Soiled(3, 1, Dirt()).make(), style, "whole", "number")
    made, database = monitor(column(), style, ("ndcg@3",)), opened(logs.url)
    before = read(Pull(made, database), START, END)
    processes = spark.processes()
    assert len(processes) == 3
    spark.kill()
    with pytest.raises(SourceError) as caught:
        Pull(made, database).read(START, END)
    assert caught.value.reason == "connect"
    spark.start()
    assert_same(read(Pull(made, database), START, END), before, "after a restart")
    assert not set(processes) & set(spark.processes())


def test_a_server_that_dies_mid_statement_is_reported_in_one_line(
    spark: SparkServer, caplog: pytest.LogCaptureFixture
) -> None:
    database, before = opened(spark.url()), tasks(spark)

    def kill() -> None:
        eventually(lambda: tasks(spark) > before, 60, "a task")
        spark.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(SourceError, match=r"connection lost or refused: .*; is the database up") as caught:
        value_of(database, SLOW)
    killer.join()
    spark.start()
    assert caught.value.reason == "connect"
    assert [record.getMessage() for record in caplog.records] == []
    assert value_of(database, sa.select(sa.literal(1))) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_the_server_and_its_executors_die_with_their_killed_parent() -> None:
    if reason := lacks():
        missing(reason)
    with subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        name, directory = parent.stdout.readline().split()
        pid = int(name)
        try:
            assert len(of_session(pid)) == 3
            parent.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + 30
            while of_session(pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert of_session(pid) == []
        finally:
            parent.kill()
            for left in of_session(pid):
                os.kill(left, signal.SIGKILL)
            shutil.rmtree(directory, ignore_errors=True)


def test_lists_and_objects_in_a_column_are_read_as_on_other_engines(spark: SparkServer) -> None:
    url = spark.create_database()
    discovery.fill("hive", url)
    database = opened(url)
    discovery.test_a_list_gives_a_row_per_item_and_one_if_it_is_empty(database)
    discovery.test_an_object_gives_a_column_per_value(database)
    database.close()
