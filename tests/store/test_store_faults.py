"""A store that cannot be written, or is not a store: what the errors say, and that readers can still read."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

import monitor.cli as cli
from monitor.errors import StoreError
from monitor.store import Store, waiting
from monitor.store.engine import as_store_errors
from monitor.store.migrate import LOCK
from monitor.store.schema import drift_borders, incidents, outbox, transitions, verdicts
from tests.support.monitors import new_store
from tests.support.postgres import PostgresServer
from tests.support.proxy import proxy

CONFIG = """\
web: {{listen: "127.0.0.1:0"}}
store: {{url: "sqlite:///{store}"}}
sources:
  shop: {{url: "sqlite:///{folder}/shop.db"}}
monitors:
  - name: search
    source: shop
    rankings: {{table: log, request: request, item: item, position: position, time: {{column: at, format: epoch_s}}}}
    relevance:
      column: {{grade: grade}}
    measures: [ndcg@10]
"""
NOBODY = 65_534

Rankmon = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may read, with a source and a place for the store."""
    made = Path(tempfile.mkdtemp(prefix="rankmon-store-"))
    made.chmod(0o755)
    (made / "store").mkdir()
    engine = sa.create_engine(f"sqlite:///{made}/shop.db")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE log (request TEXT, item TEXT, position INTEGER, at INTEGER, grade REAL)"
        )
    engine.dispose()
    yield made
    shutil.rmtree(made)


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Run without root's rights, if this is root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


COMMANDS = (
    *("check-config --connect", "migrate", "once", "status", "incidents list", "incidents unsilence search"),
    "incidents silence search --for 2h",
)


@pytest.fixture(scope="module")
def warm() -> None:
    """Imports every command first, because somebody else may not be allowed to read Python's own files."""
    made = Path(tempfile.mkdtemp(prefix="rankmon-warm-"))
    (made / "rankmon.yaml").write_text(CONFIG.format(folder=made, store=made / "rankmon.db"), encoding="utf-8")
    for command in COMMANDS:
        cli.run([*command.split(), "-c", str(made / "rankmon.yaml")])
    shutil.rmtree(made)


@pytest.fixture
def rankmon(folder: Path, warm: None, capsys: pytest.CaptureFixture[str]) -> Rankmon:
    capsys.readouterr()
    path = folder / "rankmon.yaml"

    def run(*arguments: str, store: str = "store/rankmon.db") -> tuple[int, str, str]:
        path.write_text(CONFIG.format(folder=folder, store=folder / store), encoding="utf-8")
        with as_somebody_else():
            code = cli.run([*arguments, "-c", str(path)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def made(folder: Path) -> Store:
    return new_store(f"sqlite:///{folder}/store/rankmon.db", 30)


def closed_to_writing(folder: Path) -> None:
    for path in (folder / "store").iterdir():
        path.chmod(0o444)
    (folder / "store").chmod(0o555)


@pytest.mark.parametrize("command", [("check-config", "--connect"), ("once",), ("migrate",)])
def test_an_unwritable_folder_is_reported_with_the_user(
    command: tuple[str, ...], rankmon: Rankmon, folder: Path
) -> None:
    (folder / "store").chmod(0o555)
    code, out, err = rankmon(*command)
    assert code == 4
    assert f"may not write to the folder {folder}/store, where SQLite keeps the store and its journal" in err
    assert "user " in err
    assert "all is well" not in out
    assert "all databases answer\n" not in out


@pytest.mark.parametrize("command", [("check-config", "--connect"), ("once",), ("status",), ("migrate",)])
def test_a_folder_in_place_of_the_store_is_reported(command: tuple[str, ...], rankmon: Rankmon, folder: Path) -> None:
    code, _, err = rankmon(*command, store="store")
    assert code == 4
    assert f"{folder}/store is a folder; set store.url to a file in it, e.g. sqlite:///{folder}/store/rankmon.db" in err


def test_a_read_only_store_can_be_read_and_refuses_writers(rankmon: Rankmon, folder: Path) -> None:
    made(folder).close()
    closed_to_writing(folder)
    assert rankmon("status")[0] == 0
    assert rankmon("incidents", "list")[:2] == (0, "no incidents\n")
    for command in (("once",), ("check-config", "--connect")):
        code, _, err = rankmon(*command)
        assert code == 4
        assert "may not write" in err
        assert f"{folder}/store" in err
    assert [p.name for p in (folder / "store").iterdir()] == ["rankmon.db"], "readers leave no file"


def test_a_reader_without_rights_is_told_the_chmod_that_lets_it_read(rankmon: Rankmon, folder: Path) -> None:
    store = made(folder)
    store.alerts.silence("search", 0.0, 4e9, "ada", "a holiday")
    code, _, err = rankmon("status")
    assert (code, "may not read" in err, "chmod 640" in err) == (
        (4, True, True) if os.geteuid() == 0 else (0, False, False)
    )
    for path in (folder / "store").iterdir():
        path.chmod(0o640)  # readable by the group, which somebody else belongs to here
    (folder / "store").chmod(0o755)
    assert "by ada: a holiday" in rankmon("incidents", "list")[1]
    store.close()


def modes(folder: Path) -> dict[str, str]:
    return {path.name.removeprefix("rankmon.db"): oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_a_store_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path, before = tmp_path / "rankmon.db", os.umask(umask)
    try:
        store = Store(make_url(f"sqlite:///{path}"), 30)
        store.schema.migrate()
        assert modes(tmp_path) == {"": "0o600", "-wal": "0o600", "-shm": "0o600"}
        for one in tmp_path.iterdir():
            one.chmod(0o644)  # as an older version left them
        with Store(make_url(f"sqlite:///{path}"), 30).engine.connect():
            assert modes(tmp_path) == {"": "0o600", "-wal": "0o600", "-shm": "0o600"}
        for one in tmp_path.iterdir():
            one.chmod(0o640)
        with Store(make_url(f"sqlite:///{path}"), 30).engine.connect():
            assert set(modes(tmp_path).values()) == {"0o640"}, "a right given to the group is kept"
        store.close()
    finally:
        os.umask(before)


def test_silencing_in_a_read_only_store_is_an_error(rankmon: Rankmon, folder: Path) -> None:
    made(folder).close()
    closed_to_writing(folder)
    code, _, err = rankmon("incidents", "silence", "search", "--for", "2h")
    assert code == 4
    assert "may not write" in err


def test_a_missing_postgresql_database_error_says_to_create_it(postgres_url: str) -> None:
    url = make_url(postgres_url).set(database="nowhere")
    with pytest.raises(StoreError, match=r"create this database, .* or change store\.url"):
        Store(url).schema.migrate()


def test_a_read_only_server_error_says_to_use_the_primary(postgres_url: str) -> None:
    engine = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{engine.url.database}" SET default_transaction_read_only = on')
    engine.dispose()
    for ask in (lambda store: store.schema.migrate(), Store.check_writable):
        with pytest.raises(StoreError, match=r"this server is a standby or read-only; set store\.url to the primary"):
            ask(Store(make_url(postgres_url)))


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ('connection failed: FATAL:  role "rm" is not permitted to log in', "ALTER ROLE ... LOGIN"),
        ('connection failed: FATAL:  too many connections for role "rm"', "allow this user more connections"),
        ('connection failed: FATAL:  permission denied for database "store"', "GRANT CONNECT ON DATABASE"),
        ("permission denied for table outbox", "GRANT ALL ON ALL TABLES"),
        ("permission denied for schema public", "let this user create tables"),
        ("connection to server failed: Connection refused", "is the server up"),
    ],
)
def test_postgresql_errors_on_the_store_come_with_a_remedy(said: str, remedy: str) -> None:
    url = make_url("postgresql+psycopg://rm@localhost/store")
    with pytest.raises(StoreError, match=re.escape(remedy)), as_store_errors(url):
        raise SQLAlchemyError(said)


@contextmanager
def standing_still(server: PostgresServer) -> Iterator[None]:
    """Stop the server processes that serve stores, while their machine still answers for them."""
    engine = sa.create_engine(server.url())
    with engine.connect() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'rankmon-store'"
        pids = connection.scalars(sa.text(query)).all()
    engine.dispose()
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


LEASE = 1.0
"""Seconds. The store waits one and a half times as long for a response."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No minimum wait, however short the lease is."""
    monkeypatch.setattr(waiting, "SHORTEST_WAIT", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_store_that_hangs_mid_transaction_is_given_up_and_then_works(
    postgres: PostgresServer, postgres_url: str
) -> None:
    store = new_store(postgres_url, LEASE)

    def read() -> None:
        with store.reading() as connection:
            connection.execute(sa.text("SELECT 1"))
            with standing_still(postgres):
                connection.execute(sa.text("SELECT 2"))

    with pytest.raises(StoreError, match=r"has not answered for 1.5 s; is the server or its disk stopped"):
        read()
    store.record("m", newest_source_at=1.0)
    assert store.progress("m").newest_source_at == 1.0
    store.close()


@pytest.mark.usefixtures("impatient")
def test_a_connection_that_hangs_between_two_transactions_is_replaced(
    postgres: PostgresServer, postgres_url: str
) -> None:
    store = new_store(postgres_url, LEASE)
    store.record("m", newest_source_at=1.0)
    with standing_still(postgres):
        assert store.progress("m").newest_source_at == 1.0
    store.close()


@pytest.mark.usefixtures("impatient")
def test_a_statement_behind_a_silent_proxy_ends_within_two_leases(postgres_url: str) -> None:
    url = make_url(postgres_url)
    new_store(postgres_url).close()
    with proxy(url.port or 5432) as between:
        store = Store(url.set(host="127.0.0.1", port=between.port), LEASE)
        store.record("m", newest_source_at=1.0)
        between.fall_silent()
        between.speak()  # only to new connections
        began = time.monotonic()
        assert store.progress("m").newest_source_at == 1.0

        def write() -> None:
            with store.writing() as connection:
                connection.exec_driver_sql("SELECT 1")
                between.fall_silent()
                between.speak()
                connection.exec_driver_sql("SELECT 2")

        with pytest.raises(StoreError, match="has not answered"):
            write()
        assert time.monotonic() - began < 4 * LEASE, "one silence between two statements, one within a transaction"
        store.close()


@pytest.mark.usefixtures("impatient")
def test_a_migration_waits_for_another_however_long_it_takes(postgres_url: str) -> None:
    url, lease = make_url(postgres_url), 2 * LEASE  # a busy machine takes half of LEASE between two statements
    first, second = Store(url), Store(url, lease)
    with first.writing() as connection, ThreadPoolExecutor(1) as other:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        migrated = other.submit(second.schema.migrate)
        time.sleep(2.25 * lease)
        assert not migrated.done()
        connection.commit()
        assert migrated.result()[0] is None
    with pytest.raises(StoreError, match="has not answered"), second.writing() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(20)")
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("database or disk is full", "free disk space"),
        ("database is locked", "check which one has the file open"),
        ("database disk image is malformed", "restore a copy"),
        ("file is not a database", "change store.url"),
    ],
)
def test_sqlite_errors_on_the_store_come_with_a_remedy(tmp_path: Path, said: str, remedy: str) -> None:
    (tmp_path / "store.db").touch()
    with pytest.raises(StoreError, match=remedy), as_store_errors(make_url(f"sqlite:///{tmp_path}/store.db")):
        raise SQLAlchemyError(said)


DAMAGES = {
    "the schema": lambda data, spot: data[:110] + b"\xff" * 3990 + data[4100:],
    "text that is none": lambda data, spot: data.replace(b"silences", b"silenc\xff\x80", 3),
    "a page": lambda data, spot: data[: spot * 4096] + b"\x81" * 4096 + data[(spot + 1) * 4096 :],
    "the end": lambda data, spot: data[: len(data) // 2],
    "the head": lambda data, spot: b"\0" * 100 + data[100:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_store_is_reported_wherever_the_damage_is(
    damage: Callable[[bytes, int], bytes], rankmon: Rankmon, folder: Path
) -> None:
    path = folder / "store" / "rankmon.db"
    made(folder).close()
    whole = path.read_bytes()
    for spot in range(1, len(whole) // 4096, 9):
        path.write_bytes(damage(whole, spot))
        path.chmod(0o644)
        (folder / "store").chmod(0o777)
        for command in (("status",), ("incidents", "list"), ("once",)):
            code, out, err = rankmon(*command)
            assert code in (0, 3, 4), err  # 3: the source has no requests
            assert "Traceback" not in out + err
            if code == 4 and "may not write" not in err:
                assert "restore a copy" in err or "another program wrote this file" in err


def test_an_error_over_stored_data_is_blamed_on_a_damaged_file(tmp_path: Path) -> None:
    url = make_url(f"sqlite:///{tmp_path / 'rankmon.db'}")
    store = new_store(url)
    with pytest.raises(KeyError), store.blaming_damage():
        raise KeyError("requests")
    with pytest.raises(StoreError, match=r"no longer valid JSON.*restore a copy"), store.blaming_damage():
        json.loads('{"requests": 1')  # to SQLite, changed bytes in a text are not damage
    store.alerts.silence("search", 0.0, 4e9, "ada", "a holiday")
    store.close()
    path = Path(str(url.database))
    path.write_bytes(path.read_bytes().replace(b"search", b"s\xe9arch", 1))  # in the index or in the table, not in both
    with pytest.raises(StoreError, match="restore a copy"), Store(url).blaming_damage():
        raise KeyError("requests")


def test_a_damaged_value_that_fails_only_when_shown_is_blamed_on_the_file(rankmon: Rankmon, folder: Path) -> None:
    store, path = made(folder), folder / "store" / "rankmon.db"
    store.alerts.silence("search", 0.0, 4e9, "ada", "a holiday")
    store.change(sa.text("UPDATE silences SET until = 'never'"))  # as if the page belonged to another table
    store.close()
    (folder / "store").chmod(0o777)
    path.chmod(0o666)
    with pytest.raises(ValueError, match="never"):
        rankmon("incidents", "list")  # the file is intact, so rankmon is at fault
    path.write_bytes(path.read_bytes().replace(b"search", b"s\xe9arch", 1))
    path.chmod(0o666)
    code, _, err = rankmon("incidents", "list")
    assert (code, "restore a copy" in err) == (4, True)


RENAMED = (
    ("incidents", "summary", '"firing"', '"fires"', lambda s: s.alerts.incidents()),
    ("transitions", "evidence", '{"', '{"not ', lambda s: s.alerts.transitions("shop")),
    ("outbox", "document", '"severity"', '"gravity"', lambda s: s.alerts.notices("0123456789")),
    ("verdicts", "document", '"kind"', '"sort"', lambda s: s.verdicts.newest("shop")),
    ("drift_borders", "conditions", "[", "[0, ", lambda s: s.verdicts.oldest_checkpoint("shop")),
)


@pytest.mark.parametrize(("table", "column", "was", "became", "read"), RENAMED, ids=[row[0] for row in RENAMED])
def test_a_document_in_another_format_is_reported_with_a_remedy(
    tmp_path: Path, table: str, column: str, was: str, became: str, read: Callable[[Store], object]
) -> None:
    store = new_store(make_url(f"sqlite:///{tmp_path}/rankmon.db"))
    rows = {
        "incidents": incidents.insert().values(
            id="0123456789", monitor="shop", state="firing", severity="warning", retrain=False, began_at=0, opened_at=0,
            told=True, summary='{"firing": [], "findings": []}',
        ),
        "transitions": transitions.insert().values(
            monitor="shop", rule="r", dimension="", value="", was="ok", became="firing", at=1, recorded_at=1.0,
            reason="", evidence='{"kind": "threshold"}',
        ),
        "outbox": outbox.insert().values(
            target="log", incident="0123456789", kind="firing", key="k", document='{"severity": "warning"}',
            created_at=1.0, attempts=0, next_at=0.0, last_error="",
        ),
        "verdicts": verdicts.insert().values(
            monitor="shop", at=3600, kind="healthy", requests=1, document='{"end": 3600, "kind": "healthy"}'
        ),
        "drift_borders": drift_borders.insert().values(
            monitor="shop", identity="i", series="", until=1, state="", conditions='[[["r", "", ""], ["ok", null]]]'
        ),
    }  # fmt: skip
    store.change(rows[table])
    renamed = sa.text(f"UPDATE {table} SET {column} = replace({column}, :was, :became)")
    store.change(renamed, {"was": was, "became": became})
    with pytest.raises(StoreError, match=r"not in rankmon's format \(.*restore a copy of the store"):
        read(store)
    store.close()


def test_a_daemon_with_a_read_only_store_does_not_start(rankmon: Rankmon, folder: Path) -> None:
    made(folder).close()
    closed_to_writing(folder)
    code, _, err = rankmon("run")
    assert code == 4
    assert "may not write" in err
    assert "serving on" not in err
