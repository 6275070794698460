"""A process killed at any moment and restarted leaves the store of an undisturbed run, row for row."""

import os
import random
import signal
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor.demo.shop import Shop, Story
from monitor.store import Store
from tests.support.dump import differences, dump
from tests.support.monitors import shop_database
from tests.support.postgres import PostgresServer
from tests.support.processes import Child, Zygote

START = datetime(2026, 2, 2, tzinfo=UTC)
DAYS = 6
END = START + timedelta(days=DAYS)
RESTARTS = int(os.environ.get("RANKMON_TEST_RESTARTS", "3"))
KILLS = int(os.environ.get("RANKMON_TEST_KILLS", "50"))

CONFIG = """\
store: {{url: "{store}"}}
web: {{listen: "127.0.0.1:0"}}
log: {{level: info}}
scheduler: {{lease: 3s}}
sources: {{shop: {{url: "sqlite:///{folder}/shop.db"}}}}
monitors:
  - name: shop
    source: shop
    rankings:
      table: rankings
      request: request_id
      item: item_id
      position: position
      time: {{column: served_at, format: "%Y-%m-%dT%H:%M:%SZ"}}
      model_version: model_version
    slices: [device, {{column: query, max_values: 5}}]
    relevance:
      events:
        table: events
        request: request_id
        item: item_id
        type: type
        time: {{column: occurred_at, format: "%Y-%m-%dT%H:%M:%SZ"}}
        rules: [{{type: click, grade: 1}}, {{type: purchase, grade: 3}}]
        attribution: 3h
    measures: [ndcg@10, "ndcg(gain=exp2)@5", mrr@10]
    lookback: 7d
    refresh: 1s
"""


@pytest.fixture(scope="module")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    story = Story(start=START, history_days=DAYS, degraded_days=2)
    shop_database(folder / "shop.db", Shop(story=story, peak=40), START, END)
    return folder


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def configuration(folder: Path, name: str, store_url: str = "") -> Path:
    path = folder / f"{name}.yaml"
    url = store_url or f"sqlite:///{folder}/{name}.db"
    path.write_text(CONFIG.format(folder=folder, store=url), encoding="utf-8")
    return path


def contents(path: Path) -> dict[str, dict[tuple[object, ...], tuple[object, ...]]]:
    from monitor.config import load

    store = Store(load(path, {}).store.url)
    try:
        return dump(store)
    finally:
        store.close()


def finely(path: Path) -> Path:
    """Adds more buckets, so that a backfill takes longer."""
    path.write_text(path.read_text(encoding="utf-8") + "    bucket: 15m\n", encoding="utf-8")
    return path


def copy_shop(folder: Path, url: str) -> None:
    """Copies the shop into another database, row for row."""
    one, other, tables = sa.create_engine(f"sqlite:///{folder}/shop.db"), sa.create_engine(url), sa.MetaData()
    tables.reflect(one)
    tables.create_all(other)
    with one.connect() as source, other.begin() as target:
        for table in tables.sorted_tables:
            target.execute(table.insert(), [dict(row) for row in source.execute(table.select()).mappings()])
    one.dispose()
    other.dispose()


def forget(path: Path, url: str) -> None:
    if url.startswith("sqlite"):
        for old in path.parent.glob(f"{path.stem}.db*"):
            old.unlink()
        return
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    engine.dispose()


def backfill(path: Path) -> list[str | Path]:
    return ["backfill", "-c", path, "--from", START.isoformat(), "--to", END.isoformat()]


def has_partials(store: Path) -> bool:
    """Whether a backfill has stored something, and not only started."""
    if not store.exists():
        return False
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute("SELECT 1 FROM partials LIMIT 1").fetchone() is not None
        except sqlite3.OperationalError:  # its tables do not exist yet
            return False


def has_tables(url: str) -> bool:
    """Whether a backfill has started to store on PostgreSQL."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return bool(connection.exec_driver_sql("SELECT EXISTS (SELECT FROM partials)").scalar())
    except sa.exc.SQLAlchemyError:
        return False
    finally:
        engine.dispose()


def finish(child: Child) -> str:
    assert child.wait() == 0, child.output
    return child.output


def test_backfilling_survives_being_killed_at_random_moments(
    zygote: Zygote, shop_folder: Path, database_url: str
) -> None:
    engine = make_url(database_url).get_backend_name()
    calm = configuration(shop_folder, f"calm-{engine}")
    began = time.monotonic()
    finish(zygote.start(*backfill(calm)))
    length = time.monotonic() - began
    expected = contents(calm)
    assert expected["partials"]
    url = "" if engine == "sqlite" else database_url
    hit = configuration(shop_folder, f"hit-{engine}", url)
    rng, kills = random.Random(1), 0
    while kills < KILLS // 2:
        child, began = zygote.start(*backfill(hit)), time.monotonic()
        time.sleep(rng.uniform(0, 0.7 * length))
        if child.is_running():
            child.kill()
            kills += 1
            continue
        finish(child)
        length = min(length, time.monotonic() - began)
        assert differences(expected, contents(hit)) == []
        forget(hit, database_url)
    finish(zygote.start(*backfill(hit)))
    assert differences(expected, contents(hit)) == []


@pytest.mark.parametrize("what", ["store", "source"])
def test_backfill_survives_a_restart_of_its_source_or_store(
    zygote: Zygote, shop_folder: Path, postgres: PostgresServer, what: str
) -> None:
    calm = finely(configuration(shop_folder, f"whole-{what}"))
    began = time.monotonic()
    finish(zygote.start(*backfill(calm)))
    length, expected = time.monotonic() - began, contents(calm)
    rng, restarts, waited = random.Random(2), 0, 0
    with postgres.database() as url:
        hit = finely(configuration(shop_folder, f"restarted-{what}", url if what == "store" else ""))
        if what == "source":
            copy_shop(shop_folder, url)
            shop = f"sqlite:///{shop_folder}/shop.db"
            hit.write_text(hit.read_text(encoding="utf-8").replace(shop, url), encoding="utf-8")
        for _ in range(5 * RESTARTS):
            if restarts >= RESTARTS:
                break
            forget(hit, url if what == "store" else "sqlite")
            child, store = zygote.start(*backfill(hit)), shop_folder / f"{hit.stem}.db"
            while child.is_running() and not (has_tables(url) if what == "store" else has_partials(store)):
                time.sleep(0.02)  # a backfill does not wait for a database that it has not reached yet
            while child.is_running() and restarts < RESTARTS:
                time.sleep(rng.uniform(0, 0.4 * length))
                if child.is_running():
                    (postgres.kill if rng.random() < 0.5 else postgres.stop)()
                    time.sleep(rng.uniform(0, 1))
                    postgres.start()
                    restarts += 1
            waited += finish(child).count("; trying again in ")
            assert differences(expected, contents(hit)) == []
    assert restarts == RESTARTS
    assert waited, "some restarts came while it worked"


def test_running_survives_being_killed_at_random_moments(zygote: Zygote, shop_folder: Path) -> None:
    # By then the attribution window of every bucket has closed.
    when = (END + timedelta(hours=3)).isoformat()
    calm, hit = configuration(shop_folder, "run-calm"), configuration(shop_folder, "run-hit")
    run_until_caught_up(zygote, calm, when)
    expected = contents(calm)
    rng, kills = random.Random(2), 0
    while kills < KILLS // 2:
        child = zygote.start("run", "-c", hit, "--replay-from", when)
        time.sleep(rng.uniform(0, 1))
        child.kill()
        kills += 1
        if kills % 8 == 0:
            run_until_caught_up(zygote, hit, when)
            assert differences(expected, contents(hit)) == []
            forget(hit, "sqlite")
    run_until_caught_up(zygote, hit, when)
    assert differences(expected, contents(hit)) == []


def run_until_caught_up(zygote: Zygote, path: Path, when: str) -> None:
    child = zygote.start("run", "-c", path, "--replay-from", when)
    said = child.wait_for("serving on")
    port = int(said.split("127.0.0.1:")[1].split("/")[0])
    deadline = time.monotonic() + 60
    while not caught_up(port):
        assert time.monotonic() < deadline, child.output
        time.sleep(0.1)
    child.send(signal.SIGTERM)
    finish(child)


def caught_up(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    evaluated = 'rankmon_evaluations_total{monitor="shop"} 0.0' not in text
    return evaluated and 'rankmon_due_buckets{monitor="shop"} 0.0' in text


def test_two_backfills_at_the_same_time_do_not_write_twice(zygote: Zygote, shop_folder: Path) -> None:
    calm, both = configuration(shop_folder, "alone"), configuration(shop_folder, "both")
    finish(zygote.start(*backfill(calm)))
    finish(zygote.start("migrate", "-c", both))
    children = [zygote.start(*backfill(both)) for _ in range(2)]
    codes = sorted(child.wait() for child in children)
    texts = [child.output for child in children]
    assert codes in ([0, 0], [0, 5]), texts  # the second may start after the first is done
    if codes == [0, 5]:
        assert any("this one yields" in t for t in texts), texts
    assert differences(contents(calm), contents(both)) == []


def test_sigterm_stops_a_backfill_quickly_and_a_rerun_completes_it(zygote: Zygote, shop_folder: Path) -> None:
    calm, ended = configuration(shop_folder, "calm-term"), configuration(shop_folder, "ended")
    finish(zygote.start(*backfill(calm)))
    child = zygote.start(*backfill(ended))
    deadline = time.monotonic() + 30
    while not has_partials(shop_folder / "ended.db"):
        assert time.monotonic() < deadline, child.output
        time.sleep(0.005)
    began = time.monotonic()
    child.send(signal.SIGTERM)
    code = child.wait(30)
    assert time.monotonic() - began < 5
    assert code in (0, 130), child.output
    if code == 130:
        assert "run the same command to resume" in child.output or "stopped" in child.output
    finish(zygote.start(*backfill(ended)))
    assert differences(contents(calm), contents(ended)) == []


def test_sigterm_stops_a_daemon_and_sighup_reloads_its_configuration(zygote: Zygote, shop_folder: Path) -> None:
    path = configuration(shop_folder, "signals")
    child = zygote.start("run", "-c", path, "--replay-from", END.isoformat())
    child.wait_for("due buckets in")
    path.write_text(path.read_text().replace("measures: [ndcg@10,", "measures: [ndcg@7,"))
    child.send(signal.SIGHUP)
    child.wait_for("reload applied: 1 monitor")
    path.write_text(path.read_text().replace("request: request_id", "reqest: request_id", 1))
    child.send(signal.SIGHUP)
    child.wait_for("reqest")
    child.wait_for("reload refused")
    began = time.monotonic()
    child.send(signal.SIGTERM)
    assert child.wait(30) == 0, child.output
    assert time.monotonic() - began < 10
    assert child.output.rstrip().endswith("stopped")
