"""The daemon as a whole, in this process: outages, reloads, stopping."""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa

from monitor.clock import ReplayClock
from monitor.config import load
from monitor.errors import StoreError
from monitor.page import render, render_monitor
from monitor.service.app import App
from monitor.service.runner import Runner
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.store.alerts import Alerts
from tests.service.test_cycle import SETTLED, START, filled, log_searches, shop_url
from tests.support.dump import dump
from tests.support.postgres import PostgresServer
from tests.support.web import ask

__all__ = ["filled", "shop_url"]

SPEED = 5.0
"""A monitor with a refresh of one second runs five times in a real second."""

MONITOR = """
  - name: {name}
    source: {source}
    rankings: {{table: {table}, request: request_id, item: item_id, position: position, time: {served}}}
    slices: [device]
    relevance:
      events:
        table: events
        request: request_id
        item: item_id
        type: type
        time: {occurred}
        rules: [{{type: click, grade: 1}}]
        attribution: {attribution}
    measures: [{measures}]
    lookback: 4d
    refresh: {refresh}
"""


def text_time(column: str) -> str:
    return f'{{column: {column}, format: "%Y-%m-%dT%H:%M:%SZ"}}'


def of_shop(name: str, measures: str = "ndcg@10", refresh: str = "1s", table: str = "rankings") -> str:
    return MONITOR.format(
        name=name,
        source="shop",
        table=table,
        served=text_time("served_at"),
        occurred=text_time("occurred_at"),
        attribution="3h",
        measures=measures,
        refresh=refresh,
    )


def of_search(name: str, measures: str = "ndcg@10", refresh: str = "1s", table: str = "rankings") -> str:
    return MONITOR.format(
        name=name,
        source="search",
        table=table,
        served="served_at",
        occurred="occurred_at",
        attribution="1h",
        measures=measures,
        refresh=refresh,
    )


class Setting:
    """A configuration file and the daemons that use it."""

    def __init__(self, folder: Path, sources: dict[str, str]) -> None:
        self.path = folder / "rankmon.yaml"
        self.sources = sources
        self.store = f"sqlite:///{folder / 'store.db'}"
        self.head = 'web: {listen: "127.0.0.1:0"}'
        self.scheduler = "{lease: 3s}"
        self.limits = "statement_timeout: 50s"

    def write(self, *monitors: str) -> None:
        sources = "".join(f'\n  {n}: {{url: "{u}", {self.limits}}}' for n, u in self.sources.items())
        self.path.write_text(
            f'store: {{url: "{self.store}"}}\n{self.head}\nscheduler: {self.scheduler}\n'
            f"sources:{sources}\nmonitors:{''.join(monitors)}",
            encoding="utf-8",
        )

    @contextmanager
    def running(self, *monitors: str) -> Iterator[App]:
        self.write(*monitors)
        app = App(load(self.path, {}), ReplayClock(SETTLED, SPEED))
        try:
            app.prepare()
            app.start()
            yield app
        finally:
            app.stop()


@pytest.fixture
def setting(tmp_path: Path, shop_url: str) -> Setting:
    return Setting(tmp_path, {"shop": shop_url})


def eventually(holds: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.05)


def count(app: App, name: str, *labels: str) -> float:
    return app.telemetry.counts().get((f"rankmon_{name}", labels), 0)


def has_run(app: App, name: str, times: int = 1) -> Callable[[], bool]:
    before = count(app, "evaluations", name)
    return lambda: count(app, "evaluations", name) >= before + times


def exposed(app: App, *parts: str) -> list[str]:
    """The samples that contain all of these texts."""
    lines = app.metrics("")[0].decode().splitlines()
    return [line for line in lines if not line.startswith("#") and all(part in line for part in parts)]


# ---- many monitors -------------------------------------------------------------------------------------------------


def test_fifty_monitors_on_four_workers_all_run(setting: Setting) -> None:
    names = [f"shop-{i}" for i in range(50)]
    with setting.running(*(of_shop(n, refresh="1h") for n in names)) as app:
        assert app.config.scheduler.workers == 4
        eventually(lambda: all(count(app, "evaluations", n) for n in names), 60)
        # Twice if the hourly turn comes right after the first run.
        assert {count(app, "evaluations", n) for n in names} <= {1, 2}
        assert exposed(app, "rankmon_evaluation_failures_total", "} 1.0") == []


# ---- outages -------------------------------------------------------------------------------------------------------


def test_a_source_outage_harms_no_other_and_ends_without_a_restart(
    setting: Setting, postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.service.periodic.FIRST_RETRY", 0.2)
    monkeypatch.setattr("monitor.service.runner.LONGEST_RETRY", 1.0)
    log_searches(postgres_url, hours=70)
    setting.sources["search"] = postgres_url
    postgres.stop()
    with setting.running(of_shop("well"), of_search("ill")) as app:
        eventually(lambda: count(app, "evaluation_failures", "ill", "connect") >= 3)
        eventually(has_run(app, "well"))
        eventually(lambda: app.health() == app.readiness() == "")  # a moment later it is shown
        assert exposed(app, "rankmon_ndcg_ratio{", '"well"')
        assert not exposed(app, "rankmon_ndcg_ratio{", '"ill"')
        assert "is the database up" in app.board.snapshots["ill"].progress.last_error

        postgres.start()
        eventually(has_run(app, "ill"))
        eventually(lambda: exposed(app, "rankmon_ndcg_ratio{", '"ill"'))
        eventually(lambda: app.board.snapshots["ill"].progress.last_error == "")

        values = exposed(app, "rankmon_ndcg_ratio{", '"ill"')
        postgres.stop()
        failed = count(app, "evaluation_failures", "ill", "connect")
        eventually(lambda: count(app, "evaluation_failures", "ill", "connect") > failed)
        success, others = app.board.snapshots["ill"].progress.last_success_at, has_run(app, "well", 2)
        eventually(others)
        assert exposed(app, "rankmon_ndcg_ratio{", '"ill"') == values, "the last final values stay"
        assert app.board.snapshots["ill"].progress.last_success_at == success, "with their age"

        postgres.start()
        eventually(has_run(app, "ill"))


def test_the_daemon_survives_a_store_outage(
    setting: Setting, postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.service.periodic.FIRST_RETRY", 0.2)
    monkeypatch.setattr("monitor.service.runner.LONGEST_RETRY", 1.0)
    setting.store = postgres_url
    with setting.running(of_shop("shop")) as app:
        eventually(lambda: exposed(app, "rankmon_ndcg_ratio{") != [])  # shown a moment after the run has counted
        values = exposed(app, "rankmon_ndcg_ratio{")
        postgres.stop()
        eventually(lambda: count(app, "evaluation_failures", "shop", "store") >= 2)
        assert exposed(app, "rankmon_ndcg_ratio{") == values
        assert app.health() == ""
        postgres.start()
        eventually(has_run(app, "shop", 2))
        assert exposed(app, "rankmon_ndcg_ratio{") == values


def test_a_lease_held_by_another_process_counts_as_a_skipped_run(setting: Setting) -> None:
    with setting.running(of_shop("shop")) as app:
        eventually(has_run(app, "shop"))
        other = Store(app.config.store.url, 5)
        while (lease := other.leases.acquire("shop")) is None:
            time.sleep(0.01)
        eventually(lambda: count(app, "skipped_runs", "shop", "other_writer") >= 2)
        ran = count(app, "evaluations", "shop")
        other.leases.release(lease)
        eventually(lambda: count(app, "evaluations", "shop") > ran)
        other.close()


# ---- reloading -----------------------------------------------------------------------------------------------------


def test_a_reload_applies_changes_and_keeps_unchanged_monitors(setting: Setting) -> None:
    with setting.running(of_shop("kept"), of_shop("changed"), of_shop("removed")) as app:
        for name in ("kept", "changed", "removed"):
            eventually(has_run(app, name))
        kept, database = app.runners["kept"], app._databases["shop"]
        setting.write(of_shop("kept"), of_shop("changed", "ndcg@5"), of_shop("added"))
        assert app.reload({}) == []
        assert set(app.runners) == set(app.board.snapshots) == {"kept", "changed", "added"}
        assert app.runners["kept"] is kept
        assert app._databases["shop"] is database
        assert exposed(app, '"removed"') == []
        assert exposed(app, "rankmon_ndcg_ratio{", '"changed"') == [], "the old definition is no longer shown"
        for name in ("kept", "changed", "added"):
            eventually(has_run(app, name, 2))
        eventually(lambda: exposed(app, "rankmon_ndcg_ratio{", '"changed"', "ndcg@5"))
        assert exposed(app, "ndcg@10", '"changed"') == []
        assert exposed(app, '"removed"') == []
        assert app.next_run_at("removed") is None
        assert exposed(app, "rankmon_config_reloads_total", "applied") == [
            'rankmon_config_reloads_total{result="applied"} 1.0'
        ]


def test_a_reload_reads_files_not_named_before(setting: Setting, tmp_path: Path) -> None:
    for module in ("duckdb_engine", "pyarrow"):
        pytest.importorskip(module)
    log = sa.create_engine(setting.sources.pop("shop"))
    for table, names in {"rankings": ("r", "added", "elsewhere"), "events": ("events",)}.items():
        for name in names:
            pd.read_sql_table(table, log).to_parquet(tmp_path / f"{name}.parquet")
    log.dispose()

    def of_file(name: str, source: str) -> str:
        rankings, events = (f"select: \"SELECT * FROM '{tmp_path}/{file}.parquet'\"" for file in (name, "events"))
        written = of_shop(name).replace("table: rankings", rankings).replace("table: events", events)
        return written.replace("source: shop", f"source: {source}")

    setting.sources["files"] = "duckdb:///:memory:"
    with setting.running(of_file("r", "files")) as app:
        eventually(has_run(app, "r"))
        setting.sources["others"] = "duckdb:///:memory:"
        setting.write(of_file("r", "files"), of_file("added", "files"), of_file("elsewhere", "others"))
        assert app.reload({}) == []
        for name in ("added", "elsewhere"):
            eventually(lambda name=name: app.board.snapshots[name].progress.last_attempt_at)  # type: ignore[misc]
            assert app.board.snapshots[name].progress.last_error == ""
            eventually(has_run(app, name))


def test_an_invalid_reload_changes_nothing_and_names_the_line(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    with setting.running(of_shop("shop")) as app:
        eventually(has_run(app, "shop"))
        before = app.config
        setting.write(of_shop("shop").replace("refresh: 1s", "refersh: 1s"))
        problems = app.reload({})
        line = next(i for i, t in enumerate(setting.path.read_text().splitlines(), 1) if "refersh" in t)
        assert problems[0].startswith(f"{setting.path}:{line}: monitors[0].refersh")
        assert "did you mean" in problems[0] or "refresh" in problems[0]
        assert f"reload refused: {problems[0]}" in caplog.text
        assert app.config is before
        setting.path.unlink()
        assert str(setting.path) in app.reload({})[0]
        eventually(has_run(app, "shop"))
        assert count(app, "config_reloads", "refused") == 2


def test_page_and_metrics_report_a_refused_reload_until_one_succeeds(setting: Setting) -> None:
    said = "was refused; the old configuration stays in use. "

    def gauge(app: App) -> list[str]:
        return exposed(app, "rankmon_config_last_reload_successful")

    with setting.running(of_shop("shop")) as app:
        eventually(has_run(app, "shop"))
        assert "The reload at" not in render(app)
        assert gauge(app) == ["rankmon_config_last_reload_successful 1.0"]
        setting.write(of_shop("shop").replace("refresh: 1s", "refersh: 1s"))
        app.reload({})
        assert gauge(app) == ["rankmon_config_last_reload_successful 0.0"]
        assert said in render(app)
        assert said in (render_monitor(app, "shop") or "")
        assert "monitors[0].refersh: there is no such key; did you mean &#39;refresh&#39;?" in render(app)
        assert "more)" not in render(app)
        setting.write(of_shop("shop").replace("refresh: 1s", "refersh: 1s").replace("name: shop", "nam: '<b>'"))
        app.reload({})
        assert "(the log has" in render(app)
        assert "<b>" not in render(app)
        setting.write(of_shop("shop").replace("refresh: 1s", "refresh: ${SECRET}"))
        app.reload({"SECRET": "hunter-two"})
        assert said in render(app)
        assert "hunter" not in render(app)
        setting.write(of_shop("shop"))
        assert app.reload({}) == []
        assert "The reload at" not in render(app)
        assert gauge(app) == ["rankmon_config_last_reload_successful 1.0"]


def test_a_bug_in_a_reload_changes_nothing_and_the_daemon_goes_on(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with setting.running(of_shop("shop")) as app:
        before, runner = app.config, app.runners["shop"]
        setting.write(of_shop("more"))
        with monkeypatch.context() as patched:
            patched.setattr("monitor.service.app.Runner", lambda *_, **__: 1 / 0)
            assert app.reload({}) == ["a bug in rankmon; see the log"]
        assert "ZeroDivisionError" in caplog.text
        assert app.config is before
        assert app.runners == {"shop": runner}
        eventually(has_run(app, "shop", 2))
        assert app.reload({}) == []
        assert set(app.runners) == {"more"}


def test_a_reload_during_a_store_outage_is_applied_completely(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with setting.running(of_shop("kept"), of_shop("changed"), of_shop("removed")) as app:
        for name in ("kept", "changed", "removed"):
            eventually(has_run(app, name))
        setting.write(of_shop("kept"), of_shop("changed", "ndcg@5"), of_shop("added"))
        with monkeypatch.context() as away:
            for way in ("reading", "writing"):
                away.setattr(Store, way, unreachable)
                away.setattr(Alerts, way, unreachable)
            assert app.reload({}) == []
        for name in ("kept", "changed", "added"):
            eventually(has_run(app, name))
        eventually(lambda: exposed(app, "rankmon_ndcg_ratio{", '"changed"', "ndcg@5"))
        assert app.next_run_at("removed") is None


def test_a_failed_reload_keeps_the_old_web_access(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with setting.running(of_shop("shop")) as app:
        adopted: list[object] = []
        monkeypatch.setattr(app.access, "adopt", adopted.append)
        setting.write(of_shop("more"))
        monkeypatch.setattr("monitor.service.app.Runner", lambda *_, **__: 1 / 0)
        assert app.reload({}) == ["a bug in rankmon; see the log"]
        assert adopted == []


def unreachable(*_: object) -> Any:
    raise StoreError("the store is out of reach")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("store", {"store": "sqlite:///elsewhere.db"}),
        ("web.listen", {"head": 'web: {listen: "127.0.0.1:9999"}'}),
        ("scheduler", {"scheduler": "{lease: 4s}"}),
    ],
)
def test_a_change_that_needs_a_restart_is_refused(setting: Setting, part: str, change: dict[str, str]) -> None:
    setting.write(of_shop("shop"))
    app = App(load(setting.path, {}), ReplayClock(SETTLED))
    app.prepare()
    for attribute, value in change.items():
        setattr(setting, attribute, value)
    setting.write(of_shop("shop"), of_shop("more"))
    assert app.reload({}) == [f"{setting.path}: {part} changed, which needs a restart"]
    assert set(app.runners) == {"shop"}
    app.stop()


def test_a_reload_applies_a_changed_log_level(setting: Setting) -> None:
    setting.write(of_shop("shop"))
    app = App(load(setting.path, {}), ReplayClock(SETTLED))
    app.prepare()
    level, handlers = logging.getLogger("monitor").level, logging.getLogger().handlers[:]
    try:
        setting.head += "\nlog: {level: debug}"
        setting.write(of_shop("shop"))
        assert app.reload({}) == []
        assert logging.getLogger("monitor").level == logging.DEBUG
    finally:
        logging.getLogger("monitor").setLevel(level)
        logging.getLogger().handlers[:] = handlers
        app.stop()


class Gate:
    """Blocks the reads of some monitors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.reached, self.opened, self.names = threading.Event(), threading.Event(), names
        read = Pull.read

        def held_up(pull: Pull, since: int, until: int) -> Any:
            if pull.monitor.name in self.names and not self.opened.is_set():
                self.reached.set()
                assert self.opened.wait(30)
            return read(pull, since, until)

        monkeypatch.setattr(Pull, "read", held_up)


def test_a_run_of_a_removed_monitor_ends_and_shows_nothing(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "removed")
    with setting.running(of_shop("kept"), of_shop("removed")) as app:
        assert gate.reached.wait(20)
        removed = app.runners["removed"]
        setting.write(of_shop("kept"))
        assert app.reload({}) == []
        gate.opened.set()
        eventually(lambda: app.store.states(removed.monitor.traffic, 0))
        eventually(has_run(app, "kept", 2))
        assert exposed(app, '"removed"') == []
        assert set(app.board.snapshots) == {"kept"}
        assert len(app.store.states(removed.monitor.traffic, 0)) == 12, "it ended after its batch"


def test_a_changed_monitor_runs_as_soon_as_its_old_run_ends(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "shop")
    with setting.running(of_shop("shop", refresh="1h")) as app:
        assert gate.reached.wait(20)
        setting.write(of_shop("shop", "ndcg@5", refresh="1h"))
        assert app.reload({}) == []
        eventually(lambda: count(app, "skipped_runs", "shop", "still_running"))
        gate.opened.set()
        eventually(lambda: exposed(app, "rankmon_ndcg_ratio{", "ndcg@5"))
        assert exposed(app, "rankmon_ndcg_ratio{", "ndcg@10") == []


def test_a_reload_reads_a_moved_source_immediately(
    setting: Setting, postgres: PostgresServer, postgres_url: str
) -> None:
    log_searches(postgres_url, hours=70)
    setting.sources["search"] = postgres_url.replace("postgres@", "nobody@")
    setting.limits += ", max_concurrent: 1"
    with setting.running(of_search("search", refresh="1h"), of_shop("shop")) as app:
        eventually(lambda: count(app, "evaluation_failures", "search", "connect"))
        unmoved = app._databases["shop"]
        setting.sources["search"] = postgres_url
        setting.write(of_search("search", refresh="1h"), of_shop("shop"))
        assert app.reload({}) == []
        eventually(has_run(app, "search"))
        assert app._databases["shop"] is unmoved
        assert connections(postgres_url) == 1
        setting.sources.pop("search")
        setting.write(of_shop("shop"))
        assert app.reload({}) == []
        eventually(lambda: connections(postgres_url) == 0)


def connections(url: str) -> int:
    """The number of connections that source readers hold to a database."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        number = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name ~ '^rankmon( |$)'"
        ).scalar()
    engine.dispose()
    return int(number or 0)


# ---- stopping ------------------------------------------------------------------------------------------------------


def slow_postgres(setting: Setting, url: str) -> None:
    log_searches(url, hours=70)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE VIEW slow AS SELECT r.* FROM rankings r, LATERAL (SELECT pg_sleep(0.05 + 0 * r.p)) z"
        )
    engine.dispose()
    setting.sources["search"] = url


def slow_sqlite(url: str) -> None:
    engine = sa.create_engine(url)
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1e12) SELECT count(*) FROM c"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE VIEW slow AS SELECT * FROM rankings WHERE ({endless}) > 0")
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_stopping_during_a_slow_read_is_quick_and_writes_nothing(
    kind: str, setting: Setting, shop_url: str, postgres_url: str
) -> None:
    if kind == "sqlite":
        slow_sqlite(shop_url)
        slow = of_shop("slow", table="slow")
    else:
        slow_postgres(setting, postgres_url)
        slow = of_search("slow", table="slow")
    with setting.running(slow) as app:
        eventually(lambda: app.store.progress("slow").last_attempt_at)
        time.sleep(0.5)
        began = time.monotonic()
        app.stop()
        assert time.monotonic() - began < 5
        assert count(app, "evaluations", "slow") == 0
        assert sum(v for (n, _), v in app.telemetry.counts().items() if n.endswith("failures")) == 0
    store = Store(app.config.store.url, 5)
    assert {table: rows for table, rows in dump(store).items() if rows} == {}
    lease = store.leases.acquire("slow")
    assert lease is not None, "the lease was released"
    store.close()


def test_stopping_interrupts_the_read_of_a_removed_monitor(setting: Setting, postgres_url: str) -> None:
    slow_postgres(setting, postgres_url)
    with setting.running(of_shop("shop"), of_search("slow", table="slow")) as app:
        eventually(lambda: app.store.progress("slow").last_attempt_at)
        time.sleep(0.5)
        setting.sources.pop("search")
        setting.write(of_shop("shop"))
        assert app.reload({}) == []
        assert connections(postgres_url) == 1
        began = time.monotonic()
        app.stop()
        assert time.monotonic() - began < 5
        gc.collect()
        eventually(lambda: connections(postgres_url) == 0)


def test_runs_waiting_for_a_worker_do_not_start_after_stopping(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.scheduler = "{lease: 3s, workers: 1}"
    gate = Gate(monkeypatch, *(f"shop-{i}" for i in range(20)))
    with setting.running(*(of_shop(f"shop-{i}") for i in range(20))) as app:
        assert gate.reached.wait(20)
        time.sleep(1.5)
        app.stopping.set()
        gate.opened.set()
        began = time.monotonic()
        app.stop()
        assert time.monotonic() - began < 5
        attempted = [n for n in app.runners if app.store.progress(n).last_attempt_at is not None]
        assert len(attempted) == 1


def test_a_hanging_store_does_not_keep_a_daemon_from_stopping(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("monitor.service.app.STOP_WITHIN", 0.5)
    gate, hold = Gate(monkeypatch), Store.hold
    hangs = threading.Event()

    @contextmanager
    def hanging(store: Store, *of: Any, **more: Any) -> Iterator[Any]:
        hangs.set()
        gate.opened.wait(30)
        with hold(store, *of, **more) as lease:
            yield lease

    monkeypatch.setattr(Store, "hold", hanging)
    with setting.running(of_shop("shop")) as app:
        assert hangs.wait(20)
        began = time.monotonic()
        assert app.stop() is False
        assert time.monotonic() - began < 10
        assert "does the store answer?" in caplog.text
        gate.opened.set()
        eventually(app.stop)


def test_a_started_and_stopped_daemon_leaves_no_thread_behind(setting: Setting) -> None:
    before = set(threading.enumerate())
    with setting.running(of_shop("shop")) as app:
        eventually(has_run(app, "shop"))
    eventually(lambda: not {t for t in threading.enumerate() if t not in before and not t.daemon}, 10)
    eventually(lambda: not {t.name for t in threading.enumerate() if t not in before} - {"asyncio_0", "clock"}, 10)


def test_a_daemon_is_ready_after_its_first_run_and_hides_unknown_gauges_before(setting: Setting) -> None:
    setting.write(of_shop("shop"))
    fresh = App(load(setting.path, {}), ReplayClock(SETTLED))
    fresh.prepare()
    assert fresh.readiness() == "nothing to show yet for shop"
    unknown = ("rankmon_due_buckets{", "rankmon_source_future_rows{", "rankmon_unmatched_events{")
    assert [line for name in unknown for line in exposed(fresh, name)] == []
    fresh.runners["shop"].run()
    assert fresh.readiness() == ""
    assert [len(exposed(fresh, name)) for name in unknown] == [1, 1, 1]
    fresh.stop()


def test_a_daemon_is_ready_after_a_failed_first_run(setting: Setting, tmp_path: Path) -> None:
    setting.sources["shop"] = f"sqlite:///{tmp_path}/away.db"
    setting.write(of_shop("shop"))
    fresh = App(load(setting.path, {}), ReplayClock(SETTLED))
    fresh.prepare()
    assert fresh.runners["shop"].run().error is not None
    assert fresh.readiness() == ""
    assert exposed(fresh, "rankmon_due_buckets{") == []
    fresh.stop()


def test_a_restarted_daemon_shows_stored_values_before_its_first_run(setting: Setting) -> None:
    with setting.running(of_shop("shop")) as app:
        eventually(has_run(app, "shop"))
        eventually(lambda: exposed(app, "rankmon_ndcg_ratio{"))
        values = exposed(app, "rankmon_ndcg_ratio{")
    again = App(load(setting.path, {}), ReplayClock(SETTLED))
    assert again.readiness() == "the store is not ready"
    again.prepare()
    assert again.readiness() == "nothing to show yet for shop"
    again.show()
    assert exposed(again, "rankmon_ndcg_ratio{") == values
    assert again.readiness() == ""
    assert again.store.newest_bucket(again.runners["shop"].monitor.traffic) >= START  # type: ignore[operator]
    again.stop()


def test_a_daemon_answers_while_it_loads_stored_data(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, refresh = threading.Event(), Runner.refresh_snapshot

    def slow(runner: Runner, now: float) -> None:
        if runner.monitor.name == "b":
            assert looking.wait(30)
        refresh(runner, now)

    monkeypatch.setattr(Runner, "refresh_snapshot", slow)
    with setting.running(of_shop("a"), of_shop("b")) as app:
        eventually(lambda: "a" in app.board.snapshots)
        assert get(app, "/-/healthy") == (200, "ok\n")
        assert get(app, "/-/ready") == (503, "nothing to show yet for a, b\n")
        assert 'rankmon_monitor_info{monitor="a"}' in get(app, "/metrics")[1]
        assert 'rankmon_monitor_info{monitor="b"}' not in get(app, "/metrics")[1]
        assert "1 monitor of 2 not shown yet" in get(app, "/")[1]
        setting.write(of_shop("a", refresh="2s"), of_shop("b"), of_shop("c"))
        assert app.reload({}) == []
        eventually(has_run(app, "a"))
        eventually(has_run(app, "c"))
        assert count(app, "evaluations", "b") == 0
        looking.set()
        eventually(has_run(app, "b"))
        eventually(lambda: get(app, "/-/ready") == (200, "ok\n"))
        assert "not shown yet" not in get(app, "/")[1]


def test_a_daemon_stopped_while_loading_stored_data_runs_nothing(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, refresh = threading.Event(), Runner.refresh_snapshot

    def slow(runner: Runner, now: float) -> None:
        looking.set()
        assert runner._stopping.wait(30)
        refresh(runner, now)

    monkeypatch.setattr(Runner, "refresh_snapshot", slow)
    with setting.running(of_shop("a"), of_shop("b")) as app:
        assert looking.wait(30)
    assert [app.store.progress(name).last_attempt_at for name in ("a", "b")] == [None, None]
    assert not {t.name for t in threading.enumerate()} & {"begin"}


def test_a_hanging_store_does_not_delay_a_reload(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, refresh = threading.Event(), Runner.refresh_snapshot

    def slow(runner: Runner, now: float) -> None:
        if runner.monitor.name == "c":
            assert answers.wait(30)
        refresh(runner, now)

    monkeypatch.setattr("monitor.service.app.SHOW_WITHIN", 0.1)
    monkeypatch.setattr(Runner, "refresh_snapshot", slow)
    with setting.running(of_shop("a"), of_shop("b")) as app:
        eventually(has_run(app, "a"))
        eventually(has_run(app, "b"))
        setting.write(of_shop("a", refresh="2s"), of_shop("c"))
        assert app.reload({}) == []
        assert not answers.is_set(), "the reload returned while the store hangs"
        assert "b" not in app.board.snapshots, "a removed monitor disappears while another still loads"
        assert 'rankmon_config_reloads_total{result="applied"} 1.0' in get(app, "/metrics")[1]
        eventually(has_run(app, "a"))
        answers.set()
        eventually(has_run(app, "c"))
    assert not {t.name for t in threading.enumerate()} & {"begin"}


def get(app: App, path: str) -> tuple[int, str]:
    answer = ask(app.web.port, path)
    return answer.status, answer.body
