"""A store and a source behind a real pgbouncer in transaction mode, where no client owns a session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.cli import run
from monitor.clock import ReplayClock
from monitor.config import load
from monitor.demo.shop import Shop, create_schema
from monitor.service.app import App
from monitor.store import Store
from tests.cli.test_incidents_cli import CONFIG, STORY
from tests.support.dump import differences, dump
from tests.support.pgbouncer import find_pooler, pooled
from tests.support.requirements import missing

BEGIN, UNTIL = "2026-02-02", "2026-02-03"


@pytest.fixture
def pooler(postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """The URL, behind a pooler, of a database with a day of the shop's log."""
    if find_pooler() is None:
        missing("no pgbouncer: install Debian's pgbouncer")
    simulated, server = sa.create_engine(f"sqlite:///{tmp_path}/shop.db"), sa.create_engine(postgres_url)
    create_schema(simulated)
    Shop(story=STORY).fill(simulated, STORY.start, STORY.start.replace(day=3))
    tables = sa.MetaData()
    tables.reflect(simulated)
    tables.create_all(server)
    with simulated.connect() as log, server.begin() as connection:
        for table in tables.sorted_tables:
            connection.execute(table.insert(), [dict(row) for row in log.execute(sa.select(table)).mappings()])
    simulated.dispose()
    server.dispose()
    with pooled(postgres_url) as url:
        yield url


def configuration(folder: Path, store: str, source: str) -> Path:
    """Three monitors of the log, so that their runs share the connections."""
    folder.mkdir(exist_ok=True)
    text = CONFIG.format(folder=folder, url="http://127.0.0.1:9/")
    text = text.replace(f"sqlite:///{folder}/store.db", store).replace(f"sqlite:///{folder}/shop.db", source)
    head, one = text.split("monitors:\n")
    many = "".join(one.replace("- name: shop", f"- name: shop{number}") for number in range(3))
    (folder / "rankmon.yaml").write_text(f"{head}monitors:\n{many}", encoding="utf-8")
    return folder / "rankmon.yaml"


def test_a_store_and_a_source_work_the_same_behind_a_pooler(
    pooler: str, postgres_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    behind, plain = tmp_path / "behind", tmp_path / "plain"
    behind_config = configuration(behind, pooler, pooler)
    for path in (behind_config, configuration(plain, f"sqlite:///{plain}/store.db", postgres_url)):
        assert run(["backfill", "-c", str(path), "--from", BEGIN, "--to", UNTIL]) == 0, capfd.readouterr().err
    found, expected = (Store(load(folder / "rankmon.yaml", {}).store.url) for folder in (behind, plain))
    assert differences(dump(expected), dump(found)) == []
    for command in ("status", "incidents list", "series --monitor shop1", "check-config --connect"):
        assert run([*command.split(), "-c", str(behind_config)]) == 0, capfd.readouterr().err
    found.close()
    expected.close()


def test_concurrent_runs_share_the_poolers_connections(pooler: str, tmp_path: Path) -> None:
    app = App(load(configuration(tmp_path, pooler, pooler), {}), ReplayClock(STORY.start.timestamp() + 86_400))
    app.prepare()
    with ThreadPoolExecutor(6) as pool:
        for _ in range(4):
            runs = list(pool.map(lambda runner: runner.run(), app.runners.values()))
            assert [one.error for one in runs] == [None] * 3
            assert list(pool.map(lambda _: app.store.outbox.queues(), range(20))) == [{}] * 20
    app.close()


def test_a_run_blocked_by_a_lock_on_the_store_is_reported_as_not_ready(
    pooler: str, postgres_url: str, tmp_path: Path
) -> None:
    path = configuration(tmp_path, pooler, pooler)
    path.write_text(path.read_text(encoding="utf-8") + "scheduler: {lease: 5s}\n", encoding="utf-8")
    app, engine = App(load(path, {}), ReplayClock(STORY.start.timestamp() + 86_400)), sa.create_engine(postgres_url)
    app.prepare()
    runner = app.runners["shop0"]
    with engine.connect() as other:
        other.execute(sa.text("LOCK TABLE monitors IN SHARE MODE"))
        assert "lock timeout" in str(runner.run().error)
        assert app.readiness() == "another process has locked the store; waiting for it: shop0"
        assert app.telemetry.counts()["rankmon_evaluation_failures", ("shop0", "locked")] == 1
    assert runner.run().error is None
    assert "locked" not in app.readiness()
    engine.dispose()
    app.close()
