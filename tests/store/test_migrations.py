"""The scripts in `migrations/` create exactly the tables of `monitor.store.schema`, whoever else runs them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url

from monitor.errors import StoreError
from monitor.measures.measure import parse
from monitor.series.windows import points
from monitor.store import Store, migrate
from monitor.store.migrate import _alembic
from monitor.store.schema import buckets_view, metadata
from tests.support.postgres import PostgresServer
from tests.support.tallies import HOUR, let_on, line, python, rows, tally, watched, write

HEAD = "0100"
MONITOR = watched()


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store without tables."""
    opened = Store(make_url(database_url), lease_seconds=20)
    yield opened
    opened.close()


@pytest.fixture
def created(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Another store, with tables made from `monitor.store.schema` without scripts."""
    server: PostgresServer | None = None
    url = f"sqlite:///{tmp_path}/created.db"
    if store.dialect == "postgresql":
        server = request.getfixturevalue("postgres")
        assert server is not None
        url = server.create_database()
    opened = Store(make_url(url))
    with opened.writing() as connection:
        metadata.create_all(connection)
        connection.exec_driver_sql(buckets_view(opened.dialect))
    yield opened
    opened.close()
    if server is not None:
        server.drop_database(url)


def tables(store: Store) -> dict[str, Any]:
    """All that SQLAlchemy can see of the tables and the view; types as text."""
    with store.reading() as connection:
        seen = sa.inspect(connection)
        names = [*seen.get_table_names(), *seen.get_view_names()]
        return {
            name: {
                "columns": [{**c, "type": repr(c["type"])} for c in seen.get_columns(name)],
                "key": seen.get_pk_constraint(name),
                "foreign": sorted(map(repr, seen.get_foreign_keys(name))),
                "unique": sorted(map(repr, seen.get_unique_constraints(name))),
                "indexes": sorted(_plain(index) for index in seen.get_indexes(name)),
            }
            for name in names
            if name != "alembic_version"
        }


def _plain(index: Any) -> str:
    """An index as text, with its condition as text too, because the condition's repr says nothing."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return repr({**index, "dialect_options": options})


def statements(store: Store) -> dict[str, str]:
    """The CREATE statements that SQLite keeps for each table and view."""
    with store.reading() as connection:
        kept = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: re.sub(r"\s+", " ", text) for name, text in kept if name != "alembic_version"}


# ---- one schema ----------------------------------------------------------------------------------------------------


def test_alembic_finds_no_difference_between_scripts_and_schema(store: Store) -> None:
    assert store.schema.migrate() == (None, HEAD)
    with store.writing() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_scripts_create_the_columns_keys_and_view_of_the_schema(store: Store, created: Store) -> None:
    store.schema.migrate()
    migrated = tables(store)
    assert migrated == tables(created)
    assert migrated.keys() == {*metadata.tables, "rankmon_buckets"}
    assert [c["name"] for c in migrated["rankmon_buckets"]["columns"]][:6] == [
        "monitor", "measure", "definition", "dimension", "value", "time"
    ]  # fmt: skip
    if store.dialect == "sqlite":
        assert statements(store) == statements(created)


def test_scripts_and_schema_define_the_same_view_word_for_word(store: Store, created: Store) -> None:
    store.schema.migrate()
    query = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'rankmon_buckets'",
        "postgresql": "SELECT pg_get_viewdef('rankmon_buckets'::regclass)",
    }[store.dialect]
    found = []
    for each in (store, created):
        with each.reading() as connection:
            found.append(connection.exec_driver_sql(query).scalar())
    assert found[0] == found[1]


def test_downgrading_leaves_nothing_and_upgrading_works_again(store: Store) -> None:
    store.schema.migrate()
    with store.writing() as connection:
        command.downgrade(_alembic(connection), "base")
    assert tables(store) == {}
    assert store.schema.migrate() == (None, HEAD)
    store.schema.check()


# ---- any number of times, by anybody -------------------------------------------------------------------------------


def test_migrating_again_changes_nothing_and_keeps_the_data(store: Store) -> None:
    assert store.schema.migrate() == (None, HEAD)
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {0: {"mobile": 3}}))
    before, shape = rows(store), tables(store)
    assert store.schema.migrate() == (HEAD, HEAD)
    assert (rows(store), tables(store)) == (before, shape)


MIGRATING = """
import sys
import alembic.command
from sqlalchemy.engine import make_url
from monitor.store import Store

store = Store(make_url(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(store.schema.migrate(), flush=True)
store.schema.check()
"""


def test_one_of_several_concurrent_migrations_runs_and_the_others_wait(store: Store, database_url: str) -> None:
    processes = [python(MIGRATING, database_url) for _ in range(4)]
    for process in processes:
        assert line(process) == "ready"
    for process in processes:
        let_on(process)
    done = [process.communicate(timeout=60) for process in processes]
    assert [p.returncode for p in processes] == [0] * 4, done
    said = sorted(output.strip() for output, _ in done)
    assert said == [f"('{HEAD}', '{HEAD}')"] * 3 + [f"(None, '{HEAD}')"]
    store.schema.check()


def test_a_failed_script_leaves_the_store_unchanged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path / "100 % scripts"
    shutil.copytree(migrate.migrations_folder(), scripts)
    (scripts / "versions" / "9999_broken.py").write_text(
        f'from alembic import op\nrevision, down_revision = "9999", "{HEAD}"\n\n'
        'def upgrade():\n    op.execute("CREATE TABLE half (x INTEGER)")\n    op.execute("SELECT * FROM nowhere")\n'
    )
    assert store.schema.migrate() == (None, HEAD)
    before = tables(store)
    monkeypatch.setattr(migrate, "migrations_folder", lambda: scripts)
    with pytest.raises(StoreError, match="nowhere"):
        store.schema.migrate()
    with pytest.raises(StoreError, match=f"the store is at schema {HEAD}, but 9999 is required; run rankmon migrate"):
        store.schema.check()
    monkeypatch.undo()
    assert tables(store) == before
    store.schema.check()


def test_scripts_form_one_line_and_match_their_file_names(store: Store) -> None:
    with store.reading() as connection:
        scripts = ScriptDirectory.from_config(_alembic(connection))
    assert [script.revision for script in scripts.walk_revisions()] == migrate._known()[::-1]
    assert scripts.get_heads() == [HEAD]


# ---- the wrong version ---------------------------------------------------------------------------------------------


def test_a_store_without_tables_says_to_run_migrate(store: Store) -> None:
    with pytest.raises(StoreError) as caught:
        store.schema.check()
    assert str(caught.value) == f"the store is at schema none, but {HEAD} is required; run rankmon migrate"


def test_a_newer_store_is_refused_and_left_alone(store: Store) -> None:
    store.schema.migrate()
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '2048'")
    before = tables(store)
    for use in (store.schema.check, store.schema.migrate):
        with pytest.raises(StoreError) as caught:
            use()
        assert str(caught.value) == (
            "the store is at schema 2048, written by a newer rankmon: upgrade this one; "
            "unless store.url names the database of another program"
        )
    assert tables(store) == before


@pytest.mark.parametrize("revision", ["0001", "0014", "0015"])
def test_a_store_from_before_the_first_release_is_refused_with_a_remedy(store: Store, revision: str) -> None:
    store.schema.migrate()
    with store.writing() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    before = tables(store)
    for use in (store.schema.check, store.schema.migrate):
        with pytest.raises(StoreError) as caught:
            use()
        assert str(caught.value) == (
            f"the store is at schema {revision}, from before the first release, and cannot be migrated: set store.url "
            "to a new store, and fill it with rankmon backfill"
        )
    assert tables(store) == before


def test_using_a_store_without_tables_is_a_store_error(store: Store) -> None:
    for use in (
        lambda: store.progress("m"),
        lambda: store.record("m", last_error=""),
        lambda: store.leases.acquire("m"),
    ):
        with pytest.raises(StoreError, match=r"monitors|leases"):
            use()


# ---- the view ------------------------------------------------------------------------------------------------------

BY_DAY = """
SELECT (bucket_start / 86400) * 86400 AS day, SUM(total) / SUM(requests - empty) AS ndcg
FROM rankmon_buckets
WHERE monitor = 'search' AND measure = 'ndcg@10' AND definition = '{definition}'
  AND dimension = '{dimension}' AND value = '{value}'
GROUP BY day ORDER BY day
"""


def filled(store: Store) -> None:
    """Two days of two devices, and the same for another definition of the monitor."""
    store.schema.migrate()
    other = watched(grade="another")
    counts = {n * HOUR: {"mobile": 1 + n % 5, "desktop": n % 3} for n in range(48)}
    tallied = tally(MONITOR, counts)
    for cell, sums in tallied.measures["ndcg@10"].items():
        sums[1] = sums[0] // 3
        sums[2] *= 1 + cell[0] % 7 / 10
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tallied, finals=range(0, 40 * HOUR, HOUR))
        write(store, lease, other, tally(other, counts))


@pytest.mark.parametrize("key", [("", ""), ("device", "mobile")], ids=["overall", "a slice"])
def test_daily_sums_of_the_view_equal_the_daily_points(store: Store, key: tuple[str, str]) -> None:
    filled(store)
    definition = MONITOR.definition(parse("ndcg@10"))
    with store.reading() as connection:
        query = BY_DAY.format(definition=definition.id, dimension=key[0], value=key[1])
        found = {int(day): ndcg for day, ndcg in connection.exec_driver_sql(query)}
    history, traffic = store.history(definition, 0, 10**9), store.history(MONITOR.traffic, 0, 10**9)
    for day in (0, 86_400):
        (point,) = points(parse("ndcg@10"), history, traffic, HOUR, 86_400, day + 86_400, [key])
        assert found.pop(day) == pytest.approx(point.value, rel=1e-14)
    assert found == {}


def test_rows_of_the_view_equal_the_hourly_points(store: Store) -> None:
    filled(store)
    definition = MONITOR.definition(parse("ndcg@10"))
    history, traffic = store.history(definition, 0, 10**9), store.history(MONITOR.traffic, 0, 10**9)
    query = sa.text("SELECT * FROM rankmon_buckets WHERE definition = :d AND dimension = '' AND bucket_start = :s")
    for start in (0, 7 * HOUR, 47 * HOUR):
        with store.reading() as connection:
            row = connection.execute(query, {"d": definition.id, "s": start}).mappings().one()
        for column, text in (
            ("mean_skip", "ndcg@10"),
            ("mean_zero", "ndcg(empty=zero)@10"),
            ("pooled", "ndcg(aggregate=pooled)@10"),
        ):
            (point,) = points(parse(text), history, traffic, HOUR, HOUR, start + HOUR, [("", "")])
            assert row[column] == pytest.approx(point.value, rel=1e-14)
        when = datetime.fromtimestamp(start, UTC)
        assert row["time"] == (when if store.dialect == "postgresql" else f"{when:%Y-%m-%dT%H:%M:%SZ}")
        assert (row["requests"], row["bucket_seconds"]) == (point.requests, HOUR)
        assert bool(row["final"]) is (start < 40 * HOUR)


def test_buckets_without_requests_have_no_value_in_the_view(store: Store) -> None:
    store.schema.migrate()
    with store.hold(MONITOR.name) as lease:
        write(store, lease, MONITOR, tally(MONITOR, {0: {}}))
    with store.reading() as connection:
        found = connection.exec_driver_sql("SELECT mean_skip, mean_zero, pooled FROM rankmon_buckets").all()
    assert [tuple(r) for r in found] == [(None, None, None)] * 2
