"""A database that is stuck holds up the monitors on it, and no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.clock import ReplayClock
from monitor.config import load
from monitor.demo.shop import create_schema
from monitor.service.app import App
from monitor.service.scheduler import JobScheduler
from monitor.service.telemetry import Telemetry
from tests.cli.test_incidents_cli import CONFIG, STORY, filled

__all__ = ["filled"]


@pytest.fixture
def locked(postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database whose rankings are locked."""
    engine, simulated, tables = sa.create_engine(postgres_url), sa.create_engine("sqlite://"), sa.MetaData()
    create_schema(simulated)
    tables.reflect(simulated)
    tables.create_all(engine)
    with engine.connect() as connection:
        connection.execute(sa.text("LOCK TABLE rankings IN ACCESS EXCLUSIVE MODE"))
        yield postgres_url
    engine.dispose()
    simulated.dispose()


def test_six_monitors_behind_a_lock_do_not_delay_another_database(filled: Path, tmp_path: Path, locked: str) -> None:
    text = CONFIG.format(folder=filled, url="http://127.0.0.1:9/").replace(f"{filled}/store.db", f"{tmp_path}/store.db")
    text = text.replace("sources: {", f'sources: {{stuck: {{url: "{locked}"}}, ')
    head, one = text.split("monitors:\n")
    stuck = one.replace("source: shop", "source: stuck")
    monitors = [stuck.replace("- name: shop", f"- name: stuck{number}") for number in range(6)] + [one]
    text = f"{head}monitors:\n" + "".join(f"{monitor}    refresh: 1s\n" for monitor in monitors)
    (tmp_path / "rankmon.yaml").write_text(text + 'web: {listen: "127.0.0.1:0"}\n', encoding="utf-8")
    app = App(load(tmp_path / "rankmon.yaml", {}), ReplayClock(STORY.history_end.timestamp()))
    app.prepare()
    app.start()
    try:
        until = time.monotonic() + 60
        while app.telemetry.counts()["rankmon_evaluations", ("shop",)] < 5:
            assert time.monotonic() < until, "the healthy one is held up"
            time.sleep(0.1)
        assert app.telemetry.counts()["rankmon_evaluations", ("stuck0",)] == 0
    finally:
        assert app.stop()


def test_a_healthy_pool_runs_next_to_many_stuck_ones() -> None:
    scheduler, stuck, ran = JobScheduler(2, Telemetry()), threading.Event(), threading.Semaphore(0)
    for source in range(5):
        for number in range(4):
            scheduler.put(f"stuck {source} {number}", 0.2, lambda: bool(stuck.wait(60)) or None, f"stuck {source}")
    scheduler.put("healthy", 0.2, ran.release, "healthy")
    scheduler.start()
    try:
        assert all(ran.acquire(timeout=20) for _ in range(5))
    finally:
        stuck.set()
        scheduler.stop()
