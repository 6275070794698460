"""The test support itself: the PostgreSQL server and the real data that other tests rely on."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import fmean, stdev

import pytest
import sqlalchemy as sa

from tests.support import hackernews
from tests.support import postgres as support
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.requirements import missing

ROOT = Path(__file__).resolve().parents[2]
ORPHAN = """
import time
from tests.support.postgres import postgres_server
with postgres_server() as server:
    print(server.pid, server.port, server.directory, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def csv_path(shared: Path) -> Path:
    return shared / hackernews.FILE


@pytest.fixture
def own_server(postgres: PostgresServer) -> PostgresServer:
    """The session's server, restarted if an earlier test stopped it."""
    postgres.start()
    return postgres


def answer(url: str, query: str) -> object:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return connection.scalar(sa.text(query))


def write(url: str, statement: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(statement))


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_an_empty_database_answers(database_url: str) -> None:
    assert answer(database_url, "SELECT 6 * 7") == 42
    assert sa.inspect(sa.create_engine(database_url)).get_table_names() == []


def test_every_database_is_a_fresh_one(postgres: PostgresServer) -> None:
    first, second = postgres.create_database(), postgres.create_database()
    write(first, "CREATE TABLE seen (x int)")
    assert not sa.inspect(sa.create_engine(second)).has_table("seen")
    postgres.drop_database(first)
    postgres.drop_database(second)
    with pytest.raises(sa.exc.OperationalError, match="does not exist"):
        answer(first, "SELECT 1")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restarted_server_keeps_its_port_and_data(own_server: PostgresServer, postgres_url: str, how: str) -> None:
    write(postgres_url, "CREATE TABLE kept AS SELECT 7 AS x")
    port = own_server.port
    getattr(own_server, how)()
    assert own_server.pid is None
    assert not listens(port)
    with pytest.raises(sa.exc.OperationalError):
        answer(postgres_url, "SELECT 1")
    own_server.start()
    assert own_server.port == port
    assert answer(postgres_url, "SELECT x FROM kept") == 7


def test_starting_and_stopping_a_server_twice_is_harmless(own_server: PostgresServer) -> None:
    before = own_server.pid
    own_server.start()
    assert own_server.pid == before
    own_server.stop()
    own_server.stop()
    own_server.start()
    assert answer(own_server.url(), "SELECT 1") == 1


def test_a_server_that_cannot_start_says_why(own_server: PostgresServer) -> None:
    own_server.stop()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", own_server.port))
        taken.listen()
        with pytest.raises(RuntimeError, match="Address already in use"):
            own_server.start()
    own_server.start()


def test_the_server_listens_on_loopback_only_and_never_runs_as_root(own_server: PostgresServer) -> None:
    assert answer(own_server.url(), "SHOW listen_addresses") == "127.0.0.1"
    assert Path(f"/proc/{own_server.pid}").stat().st_uid != 0


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG exists only on Linux")
def test_the_server_dies_with_its_killed_parent(postgres: PostgresServer) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, port, directory = parent.stdout.readline().split()
        try:
            assert listens(int(port))
            parent.send_signal(signal.SIGKILL)
            assert eventually(lambda: not listens(int(port)))
            assert eventually(lambda: not is_running(int(pid)))
        finally:
            parent.kill()
            if is_running(int(pid)):
                os.kill(int(pid), signal.SIGQUIT)
            shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that other users cannot read")
def test_binaries_unreadable_to_other_users_are_copied(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "_open_to_all", lambda path: False)
    with postgres_server() as server:
        assert answer(server.url(), "SELECT 1") == 1
        binary = Path(f"/proc/{server.pid}/exe").readlink()
        assert binary.is_relative_to(server.directory)
    assert not server.directory.exists()


def test_missing_binaries_are_reported_as_no_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "find_binaries", lambda: None)
    with pytest.raises(FileNotFoundError, match="no PostgreSQL"), postgres_server():
        pass


def test_a_missing_part_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no promtool"):
        missing("no promtool")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no promtool"):
        missing("no promtool")


def test_both_databases_hold_the_same_rows(database_url: str, csv_path: Path) -> None:
    """The expected figures were counted with pandas merges, independently of the loader."""
    loaded = hackernews.load(sa.create_engine(database_url), csv_path)
    assert loaded == (59_100, 48_324)
    assert answer(database_url, "SELECT count(*) FROM rankings") == 59_100
    assert answer(database_url, "SELECT count(DISTINCT snapshot_id) FROM rankings") == 1_970
    assert answer(database_url, "SELECT count(*) FROM rankings WHERE item_id IS NULL") == 1_723
    assert answer(database_url, "SELECT count(*) FROM upvotes WHERE type = 'upvotes'") == 48_324
    assert answer(database_url, "SELECT sum(gained) FROM upvotes") == 855_838
    assert answer(database_url, "SELECT count(*) FROM upvotes WHERE gained = 0") == 320
    assert answer(database_url, "SELECT min(gained) FROM upvotes") == 0


def test_both_databases_hold_the_same_times_in_their_own_types(database_url: str, csv_path: Path) -> None:
    hackernews.load(sa.create_engine(database_url), csv_path)
    served = answer(database_url, "SELECT min(served_at) FROM rankings")
    occurred = answer(database_url, "SELECT min(occurred_at) FROM upvotes")
    if database_url.startswith("sqlite"):
        assert (served, occurred) == ("2022-01-31T00:35:21Z", "2022-01-31T01:50:28Z")
    else:
        assert served == datetime(2022, 1, 31, 0, 35, 21, tzinfo=UTC)
        assert occurred == datetime(2022, 1, 31, 1, 50, 28, tzinfo=UTC)


def test_every_upvote_falls_within_a_two_hour_attribution_window(csv_path: Path) -> None:
    shown = hackernews.read(csv_path)
    served = {row.snapshot_id: row.served_at for row in shown}
    ages = [label.occurred_at - served[label.snapshot_id] for label in hackernews.labels(shown)]
    assert timedelta(minutes=55) <= min(ages)
    assert max(ages) < timedelta(hours=2)


def test_daily_ndcg_levels_match_the_readme(csv_path: Path) -> None:
    daily = hackernews.daily_ndcg(csv_path)
    calm = [value for day, value in daily.items() if day <= date(2022, 2, 23)]
    war = [value for day, value in daily.items() if date(2022, 2, 24) <= day <= date(2022, 3, 1)]
    after = [value for day, value in daily.items() if date(2022, 3, 8) <= day]
    assert (len(calm), len(war), len(after)) == (24, 6, 6)
    assert fmean(calm) == pytest.approx(0.804, abs=5e-4)
    assert stdev(calm) == pytest.approx(0.034, abs=5e-4)
    assert fmean(war) == pytest.approx(0.715, abs=5e-4)
    assert fmean(after) == pytest.approx(0.800, abs=5e-4)
    assert daily[date(2022, 2, 24)] == pytest.approx(0.658, abs=5e-4)
