"""A store is copied into another database, from SQLite to PostgreSQL and back."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor import cli
from monitor.errors import StoreError
from monitor.store import Store
from monitor.store.copying import copy
from monitor.store.schema import leases, metadata
from tests.cli.test_incidents_cli import filled, run, write

__all__ = ["filled"]


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A backfilled shop with an open incident that is acknowledged, and a silence."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    write(tmp_path, "http://127.0.0.1:9/")
    with opened(f"sqlite:///{tmp_path}/store.db") as store:
        (incident,) = store.alerts.incidents("shop", most=5)
    assert run(tmp_path, "incidents ack", incident.incident.id, "--by", "ada", "--note", "seen") == 0
    assert run(tmp_path, "incidents silence", "shop", "--for", "30d", "--by", "ada") == 0
    return tmp_path


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """A store, closed at the end."""
    store = Store(make_url(url))
    try:
        yield store
    finally:
        store.close()


def rows(url: str) -> dict[str, list[dict[str, Any]]]:
    """Table -> its rows in order, without leases, which are momentary."""
    with opened(url) as store, store.reading() as connection:
        return {
            table.name: [
                dict(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            ]
            for table in metadata.sorted_tables
            if table is not leases
        }


def copied(folder: Path, url: str) -> int:
    """The exit code of copying the folder's store to a URL, which its configuration names from then on."""
    config = folder / "rankmon.yaml"
    config.rename(folder / "former.yaml")
    text = (folder / "former.yaml").read_text(encoding="utf-8")
    start = text.index("store: ")
    config.write_text(f'store: {{url: "{url}"}}\n{text[text.index("sources:", start) :]}', encoding="utf-8")
    return cli.run(["copy-store", str(folder / "former.yaml"), "-c", str(config)])


def test_a_store_copied_to_postgresql_and_back_is_unchanged(
    folder: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rows(f"sqlite:///{folder}/store.db")
    assert before["silences"]
    assert before["incidents"][0]["acknowledged_by"] == "ada"
    assert copied(folder, postgres_url) == 0, capsys.readouterr().err
    assert rows(postgres_url) == before
    assert f"{len(before['partials']):,} of partials" in capsys.readouterr().out
    assert copied(folder, f"sqlite:///{folder}/back.db") == 0, capsys.readouterr().err
    assert rows(f"sqlite:///{folder}/back.db") == before


def test_a_copy_continues_where_the_store_was_without_reusing_ids(folder: Path, postgres_url: str) -> None:
    assert copied(folder, postgres_url) == 0
    before = rows(postgres_url)
    assert run(folder, "backfill", "--from", "2026-02-02", "--to", "2026-02-11") == 0
    after = rows(postgres_url)
    assert [i["id"] for i in after["incidents"]] == [i["id"] for i in before["incidents"]]
    assert after["incidents"][0]["acknowledged_by"] == "ada"
    assert len(after["buckets"]) > len(before["buckets"])
    assert len({one["id"] for one in after["buckets"]}) == len(after["buckets"])


def test_a_store_with_rows_is_not_copied_into(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{folder}/new.db"
    assert copied(folder, url) == 0
    (folder / "former.yaml").replace(folder / "rankmon.yaml")
    before = rows(url)
    assert copied(folder, url) == 2
    assert "new.db already has rows in " in capsys.readouterr().err
    assert rows(url) == before


def test_nothing_is_copied_while_somebody_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(f"sqlite:///{folder}/store.db") as other, other.hold("shop"):
        assert copied(folder, f"sqlite:///{folder}/new.db") == 5
    assert "is writing it" in capsys.readouterr().err
    assert not any(rows(f"sqlite:///{folder}/new.db").values())


@pytest.mark.parametrize(
    ("holder", "ago", "is_refused"),
    [
        ("elsewhere|1|2|7|3|4", 60, True),
        ("elsewhere|1|2|7|3|4", 3 * 300, False),  # three missed runs: it is gone
        ("", 60, False),  # it left when it was stopped
    ],
)
def test_nothing_is_copied_while_a_daemon_waits_for_its_next_run(
    folder: Path, holder: str, ago: float, is_refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(f"sqlite:///{folder}/store.db") as store:
        store.record("shop", judged_by=holder, last_attempt_at=time.time() - ago, refresh=300.0)
    assert copied(folder, f"sqlite:///{folder}/new.db") == (2 if is_refused else 0)
    said = re.search(r"process 7 on elsewhere ran shop \d+ s ago; stop it first", capsys.readouterr().err)
    assert bool(said) is is_refused
    assert (folder / "new.db").exists() is not is_refused


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_copy_that_fails_half_way_leaves_nothing(folder: Path, database: str, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{folder}/new.db" if database == "sqlite" else request.getfixturevalue("postgres_url")

    def failing(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("INSERT INTO traffic"):
            raise sa.exc.OperationalError(statement, {}, Exception("the disk is full"))

    with opened(f"sqlite:///{folder}/store.db") as source, opened(url) as target:
        sa.event.listen(target.engine, "before_cursor_execute", failing)
        with pytest.raises(StoreError, match="disk is full"):
            copy(source, target)
        sa.event.remove(target.engine, "before_cursor_execute", failing)
        assert not any(rows(url).values())
        copy(source, target)
    assert rows(url) == rows(f"sqlite:///{folder}/store.db")
