"""The self-audit: the faults it finds, the changes it tolerates, and when it runs."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from monitor.cli import run
from monitor.database_url import parse_url
from monitor.errors import Stopped
from monitor.measures.measure import parse
from monitor.service.audit import PULL, PUSHDOWN, RESULTS, STORED, Audit, Auditor, Readers, audit, finals, is_due, pick
from monitor.service.cycle import BatchSize, run_backfill
from monitor.service.runner import Runner
from monitor.source.choice import open_both
from monitor.source.engine import Database
from monitor.source.inspect import inspect
from monitor.store import Store
from monitor.types import Drift, Monitor
from monitor.units import DAY
from tests.service.test_cycle import filled, shop_url
from tests.service.test_runner import Bench, Faulty
from tests.source.test_pushdown import Mild, measures, recipe_of
from tests.support import sized
from tests.support.logs import END as LOG_END
from tests.support.logs import START as LOG_START
from tests.support.logs import Dirt, Soiled, monitor, styles, write
from tests.support.monitors import pull, shop

__all__ = ["filled", "shop_url"]

NOW = sized.WHOLE[1] + 5 * DAY
START = sized.WHOLE[0] + 3 * sized.HOUR
ROWS = 3_000


@dataclass
class Watched:
    """A log of 300 requests in ten buckets, all of it stored and final."""

    url: str
    monitor: Monitor
    store: Store
    ways: Readers

    def audited(self, start: int = START) -> Audit:
        return audit(self.monitor, start, self.store, self.ways)

    def run(self, statement: str) -> None:
        """Change the source."""
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            assert connection.exec_driver_sql(statement).rowcount > 0
        engine.dispose()


def watched(store: Store, folder: Path, kind: str = "events", *changes: str, measures: Sequence[str] = ()) -> Watched:
    engine = sized.sqlite(folder)
    engine.write(ROWS, "whole", folder)
    made = replace(sized.monitored(kind, engine.style), engine="pull")
    made = replace(made, measures=(*made.measures, *map(parse, measures)))
    writer = sa.create_engine(engine.url)
    with writer.begin() as connection:
        for change in changes:
            connection.exec_driver_sql(change)
    writer.dispose()
    database = Database("s", parse_url(engine.url), 60)
    pull, pushdown = open_both(made, database)
    with store.hold(made.name) as lease:
        list(run_backfill(made, NOW, sized.WHOLE, pull, store, lease, BatchSize()))
    return Watched(engine.url, made, store, Readers(pull, pushdown, lambda *which: inspect(made, database, *which)))


@pytest.fixture
def log(store: Store, tmp_path: Path) -> Watched:
    return watched(store, tmp_path)


@contextmanager
def broken(*faults: tuple[str, str]) -> Iterator[list[str]]:
    """Replaces text in each SQL statement that has it; yields the changed statements."""
    changed: list[str] = []

    def change(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        for old, new in faults:
            if old in statement:
                statement = statement.replace(old, new)
                changed.append(statement)
        return statement, parameters

    sa.event.listen(sa.Engine, "before_cursor_execute", change, retval=True)
    try:
        yield changed
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", change)


NO_MATCH = ('AS r ON n."request"', 'AS r ON 1 = 0 AND n."request"')
NO_MATCH_SUMMED = ("AS i ON worthy.request", "AS i ON 1 = 0 AND worthy.request")
FAULTS = {
    "pull: the join finds nothing": [NO_MATCH],
    "pull: the join forgets the item": [(' AND n."item" = r."item"', "")],
    "pull: ranks are one too high": [('r."position", n.rankmon_number', 'r."position" + 1, n.rankmon_number')],
    "pull: types of events are confused": [("THEN 2 END AS anon_1", "THEN 0 END AS anon_1")],
    "pull: shown items are not counted": [("THEN 0 ELSE CASE", "THEN 4 ELSE CASE")],
    "pull: requests are some seconds late": [('min(r."at") AS min_1', 'min(r."at") + 5000000 AS min_1')],
    "pull: values of events are lost": [('n."value", r."at"', 'NULL, r."at"')],
    "push-down: the join finds nothing": [NO_MATCH_SUMMED],
    "push-down: the attribution is cut": [("first_at + 900000000) THEN 1", "first_at + 200000000) THEN 1")],
    "push-down: a grade is another": [("3.0000000000000000e+00", "2.0000000000000000e+00")],
    "push-down: ranks are one too high": [("+ 0) - 0 END) AS item_rank", "+ 0) + 1 END) AS item_rank")],
    "push-down: requests stand for items": [("sum(v.impressions)", "sum(v.requests)")],
    "push-down: a slice is another": [('min(r."device") AS slice_0, max(r."device")', "'tv' AS slice_0, 'tv'")],
    "push-down: sums of squares are not of squares": [("sum(v.m0_total * v.m0_total)", "sum(v.m0_total * 1.5)")],
    "both: the joins find nothing": [NO_MATCH, NO_MATCH_SUMMED],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_audit_finds_a_fault_in_the_sql_of_either_reader(log: Watched, fault: str) -> None:
    with broken(*FAULTS[fault]) as changed:
        found = log.audited()
    assert changed
    assert found.result == "differs", found
    assert found.difference is not None
    assert found.difference.figures[0] != found.difference.figures[1]
    assert "rankmon reads the source wrongly" in str(found)


@pytest.mark.parametrize("kind", sized.RECIPES)
def test_correct_reads_agree_in_every_way(store: Store, tmp_path: Path, kind: str) -> None:
    log = watched(store, tmp_path, kind)
    for start in finals(log.monitor, store, *sized.WHOLE):
        found = log.audited(start)
        assert found.result == "agrees", found
        assert 1 <= found.requests <= 30
        assert found.ways == ((PULL,) if kind == "judgments" else (PULL, PUSHDOWN))


@pytest.mark.parametrize("kind", sized.RECIPES)
def test_lists_without_results_agree_in_every_way(store: Store, tmp_path: Path, kind: str) -> None:
    emptied = (
        "UPDATE rankings SET item = NULL, position = NULL WHERE request % 3 = 0 AND position = 1",
        "DELETE FROM rankings WHERE request % 3 = 0 AND position IS NOT NULL",
    )
    log = watched(store, tmp_path, kind, *emptied, measures=("no_results", "ndcg(empty=zero)@10"))
    for start in finals(log.monitor, store, *sized.WHOLE):
        assert log.audited(start).result == "agrees"


@pytest.mark.parametrize("seed", [4, 8, 27, 30])
def test_dirty_data_is_not_a_fault(store: Store, tmp_path: Path, seed: int) -> None:
    """With these seeds, requests read one by one were once taken differently than by the pull."""
    url, chance = f"sqlite:///{tmp_path}/dirty.db", random.Random(f"column{seed}")
    first, style = chance.choice((0, 1)), styles(url)["epoch us"]
    write(url, chance.choice((Mild, Soiled))(seed, first, Dirt()).make(), style)
    made = monitor(recipe_of("column", style, chance), style, measures(chance), first, engine="pull")
    database = Database("s", parse_url(url), 60)
    pull, pushdown = open_both(made, database)
    with store.hold(made.name) as lease:
        list(run_backfill(made, LOG_END + 9 * DAY, (LOG_START, LOG_END), pull, store, lease, BatchSize()))
    ways = Readers(pull, pushdown, lambda *which: inspect(made, database, *which))
    found = [audit(made, start, store, ways) for start in finals(made, store, LOG_START, LOG_END)]
    assert [one for one in found if one.result != "agrees"] == []
    assert any(one.requests for one in found)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("events", "DELETE FROM rankings WHERE request = 105"),
        ("events", "DELETE FROM events WHERE request BETWEEN 91 AND 120"),
        ("events", "UPDATE rankings SET device = 'pad' WHERE request = 105"),
        ("column", "UPDATE rankings SET grade = 2 WHERE request = 105"),
        ("judgments", "UPDATE judgments SET grade = 3 - grade"),
    ],
)
def test_a_source_changed_since_is_not_a_fault(store: Store, tmp_path: Path, kind: str, change: str) -> None:
    log = watched(store, tmp_path, kind)
    log.run(change)
    found = log.audited()
    assert found.result == "changed", found
    assert found.difference is not None
    assert found.difference.ways == (STORED, PULL)
    assert "rows or labels have changed in the source" in str(found)


def test_a_source_written_during_an_audit_is_read_once_more(log: Watched) -> None:
    assert log.ways.pushdown is not None
    real, reads = log.ways.pushdown.read, list[int]()

    class Written:
        def read(self, since: int, until: int) -> Any:
            reads.append(since)
            if len(reads) == 1:
                log.run("DELETE FROM rankings WHERE request = 105")
            return real(since, until)

    found = audit(log.monitor, START, log.store, replace(log.ways, pushdown=Written()))
    assert (found.result, len(reads)) == ("changed", 2)


def test_an_audit_runs_once_a_day_even_after_a_restart(log: Watched) -> None:
    first = Auditor(log.monitor, log.store, log.ways).advance(NOW, 1.0, lambda: False)
    assert first is not None
    assert first.start == pick(log.monitor, log.store, NOW)
    assert Auditor(log.monitor, log.store, log.ways).advance(NOW + 60, 1.0, lambda: False) is None
    days = [Auditor(log.monitor, log.store, log.ways).advance(NOW + n * DAY, 1.0, lambda: False) for n in (1, 2, 3)]
    assert len({one.start for one in days if one is not None} | {first.start}) > 1
    moments = range(int(NOW), int(NOW + 10 * DAY), 600)
    progress, due = log.store.progress(log.monitor.name), 0
    for moment in moments:
        if is_due(log.monitor, progress, moment):
            progress, due = replace(progress, audited_at=float(moment)), due + 1
    assert due in (7, 8)  # of ten days, of which three were audited above


def test_audits_take_at_most_a_fiftieth_of_the_reading_time_and_can_be_stopped(log: Watched) -> None:
    auditor = Auditor(log.monitor, log.store, log.ways)
    with pytest.raises(Stopped):
        auditor.advance(NOW, 1.0, lambda: True)
    assert auditor.advance(NOW, 1.0, lambda: False) is not None  # the stopped audit is made up for
    took = auditor.spent
    assert took > 0
    assert auditor.advance(NOW + DAY, 49 * took, lambda: False) is None
    assert auditor.advance(NOW + DAY, 51 * took, lambda: False) is not None


# ---- the daemon and the command --------------------------------------------------------------------------------------


def test_a_run_audits_once_a_day_and_counts_and_logs_the_result(
    shop_url: str, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    made = replace(shop(["ndcg@10"], drift=Drift(parse("ndcg@10"))), engine="pull")
    bench = Bench(made, Faulty(pull(made, shop_url)), store)
    database = bench.source.source.database
    ways = Readers(*open_both(made, database), lambda *which: inspect(made, database, *which))
    more = bench.source, store, bench.board, bench.telemetry, bench.clock, bench.stopping, bench
    bench.runner = Runner(made, *more, readers=ways)
    assert bench.run() is None
    assert bench.run() is None
    assert [bench.count("audits", result) for result in RESULTS] == [1, 0, 0]
    bench.clock.time += DAY
    assert bench.runner._auditor is not None
    bench.runner._auditor.spent = 0.0  # else the few reads of a test would have to go on for days
    with broken(('AS r ON n."request_id"', 'AS r ON 1 = 0 AND n."request_id"')) as changed:
        assert bench.run() is None
    assert changed
    assert [bench.count("audits", result) for result in RESULTS] == [1, 0, 1]
    assert "rankmon reads the source wrongly" in caplog.text
    assert "by push-down; please report it" in caplog.text
    (incident,) = store.alerts.incidents("shop")
    told = {found.rule: found for found in incident.findings}
    assert incident.incident.matter == "data"
    assert " by pull, " in told["misread"].compared_with


CONFIG = """\
store: {{url: "sqlite:///{folder}/stored.db"}}
sources: {{s: {{url: "sqlite:///{folder}/log.db"}}}}
monitors:
  - name: m
    source: s
    rankings:
      table: rankings
      request: request
      item: item
      position: position
      time: {{column: at, format: epoch_us}}
    relevance:
      events:
        table: events
        request: request
        item: item
        type: type
        time: {{column: at, format: epoch_us}}
        rules: [{{type: click, grade: 1}}]
        attribution: 15m
    measures: [ndcg@5]
"""


def test_verify_checks_each_final_bucket_and_exits_with_1_only_on_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = sized.sqlite(tmp_path)
    engine.write(ROWS, "whole", tmp_path)
    (tmp_path / "rankmon.yaml").write_text(CONFIG.format(folder=tmp_path))
    span = ["-m", "m", "--from", "2026-01-01", "--to", "2026-01-02", "-c", str(tmp_path / "rankmon.yaml")]
    assert run(["backfill", *span]) == 0
    capsys.readouterr()
    assert run(["verify", *span]) == 0
    left = "m: 14 buckets not compared between 2026-01-01 00:00 and 2026-01-02 00:00 UTC: without requests"
    assert capsys.readouterr().out.splitlines() == [
        "m: 10 final buckets read again: 10 agree, 0 changed in the source since, 0 differ",
        left,
    ]
    writer = sa.create_engine(engine.url)
    with writer.begin() as connection:
        connection.exec_driver_sql("DELETE FROM events WHERE request BETWEEN 91 AND 120")
    writer.dispose()
    assert run(["verify", *span]) == 0
    told, counts, again = capsys.readouterr().out.splitlines()
    assert again == left
    assert told.startswith("m: bucket 2026-01-01 15:00 UTC read again (pull, push-down; ")
    assert "rows or labels have changed in the source: " in told
    assert counts == "m: 10 final buckets read again: 9 agree, 1 changed in the source since, 0 differ"
    with broken(NO_MATCH):
        assert run(["verify", *span, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert Counter(one["result"] for one in found) == {"differs": 10, "not compared": 14}
    assert found[0]["difference"][PULL] == 0 < found[0]["difference"][PUSHDOWN]


def test_verify_names_the_hour_it_cannot_compare_after_clocks_went_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Berlin, 01:00 UTC reads 02:00 again, so the requests of both hours count at 00:00 UTC and in no measure."""
    local = "{column: at, format: '%Y-%m-%d %H:%M:%S', timezone: Europe/Berlin}"
    written = CONFIG.format(folder=tmp_path).replace("{column: at, format: epoch_us}", local)
    (tmp_path / "rankmon.yaml").write_text(written)
    shown = [datetime.fromtimestamp(1_792_879_200 + 600 * n, ZoneInfo("Europe/Berlin")) for n in range(24)]
    with sqlite3.connect(tmp_path / "log.db") as log:
        log.execute("CREATE TABLE rankings (request TEXT, item TEXT, position INT, at TEXT)")
        log.execute("CREATE TABLE events (request TEXT, item TEXT, type TEXT, at TEXT)")
        for n, at in enumerate(shown):
            log.execute("INSERT INTO rankings VALUES (?, 'a', 1, ?)", (f"r{n}", at.strftime("%Y-%m-%d %H:%M:%S")))
    span = ["--from", "2026-10-24T22:00", "--to", "2026-10-25T03:00", "-c", str(tmp_path / "rankmon.yaml")]
    assert run(["backfill", *span]) == 0
    capsys.readouterr()
    assert run(["verify", *span]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "m: 3 final buckets read again: 3 agree, 0 changed in the source since, 0 differ",
        "m: 1 bucket not compared between 2026-10-25 01:00 and 02:00 UTC: without requests, as clocks changed: those "
        "of the hour that occurs twice count in the bucket before",
        "m: 1 bucket not compared between 2026-10-25 02:00 and 03:00 UTC: without requests",
    ]
