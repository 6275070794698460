"""Both ways of reading over indexed, analysed tables of the sizes at which plans change, against plain loops."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.series.partials import to_partials
from monitor.series.readings import Aggregates
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.types import Relation
from tests.source.test_source import assert_same
from tests.support import sized
from tests.support.mariadb import MariaServer
from tests.support.requirements import missing

SMALL, MIDDLE, LARGE, HUGE = 1_000, 10_000, 100_000, 1_000_000
further = pytest.mark.engines
ENGINES = [
    "sqlite",
    "postgresql",
    "mariadb",
    pytest.param("duckdb", marks=further),
    pytest.param("clickhouse", marks=further),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> sized.Engine:
    """An empty database of each system."""
    if request.param == "postgresql":
        return sized.postgresql(request.getfixturevalue("postgres_url"))
    if request.param == "mariadb":
        server: MariaServer = request.getfixturevalue("maria")
        return sized.mariadb(server.create_database())
    module = {"duckdb": "duckdb_engine", "clickhouse": "chdb"}.get(request.param)
    if module is not None and importlib.util.find_spec(module) is None:
        missing(f"{module} is not installed")
    return {"sqlite": sized.sqlite, "duckdb": sized.duckdb, "clickhouse": sized.clickhouse}[request.param](tmp_path)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ("whole", SMALL),
        ("whole", MIDDLE),
        pytest.param("whole", LARGE, marks=further),
        pytest.param("whole", HUGE, marks=further),
        pytest.param("text", LARGE, marks=further),
        pytest.param("unsigned", LARGE, marks=further),
    ],
)
def test_sums_are_right_under_any_query_plan(engine: sized.Engine, ids: str, rows: int, tmp_path: Path) -> None:
    if ids not in engine.types:
        pytest.skip("it has no such type")
    engine.write(rows, ids, tmp_path)
    assert_right(engine, rows)


def assert_right(engine: sized.Engine, rows: int, shares: Sequence[tuple[int, int]] = sized.SHARES) -> None:
    """Assert it for the pull and push-down, on the whole table and on parts of it."""
    database = Database("s", parse_url(engine.url), 600)
    for kind in sized.RECIPES:
        made = sized.monitored(kind, engine.style)
        for since, until in shares:
            right = sized.within(sized.expected(rows, kind), since, until)
            for source in (
                Pull(made, database, 10 * HUGE),
                *([PushDown(made, database, True)] * (kind != "judgments")),
            ):
                answer = source.read(since, until)
                assert not isinstance(answer, Aggregates) or not answer.read, "all of it is summed up by the database"
                found = to_partials(
                    answer, made.bucket, dict.fromkeys(m.kernel for m in made.measures), made.slices, {}
                )
                assert_same(found, right, f"{kind}, {type(source).__name__}, {(until - since) // sized.HOUR} h")
    database.close()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("BIGINT UNSIGNED", r"events\.request is BIGINT, rankings\.request is text, .*floats.*; convert one of them"),
        ("DECIMAL(20)", r"events\.request is DECIMAL, rankings\.request is text, .*floats"),
        ("VARCHAR(60) COLLATE utf8mb4_general_ci", ""),  # a binary collation takes precedence
    ],
)
def test_ids_that_mariadb_would_compare_as_floats_are_refused(
    maria: MariaServer, kind: str, told: str, tmp_path: Path
) -> None:
    engine = sized.mariadb(maria.create_database())
    engine.write(SMALL, "text", tmp_path)
    fails(engine, f"UPDATE events SET request = 1; ALTER TABLE events MODIFY request {kind}", told)


def test_mismatched_collations_are_reported_with_a_remedy_that_works(maria: MariaServer, tmp_path: Path) -> None:
    engine = sized.mariadb(maria.create_database())
    engine.write(SMALL, "text", tmp_path)
    unlike = "; ".join(
        f"ALTER TABLE {table} MODIFY request VARCHAR(60) COLLATE utf8mb4_{collation}_ci"
        for table, collation in (("rankings", "general"), ("events", "unicode"))
    )
    told = r"rankings\.request is utf8mb4_general_ci, events\.request is utf8mb4_unicode_ci; .*`(CONVERT.*?)` in a"
    remedy = fails(engine, unlike, told)
    columns = [c if c != "request" else remedy for c in ("request", "item", "position", "at", "device", "country")]
    relation = Relation(select=f"SELECT {', '.join(columns)} FROM rankings")
    made = sized.monitored("events", engine.style)
    made = replace(made, rankings=replace(made.rankings, relation=relation, query=None))
    database = Database("s", parse_url(engine.url), 60)
    read = to_partials(Pull(made, database).read(*sized.WHOLE), made.bucket, [], made.slices, {})
    assert sum(t[4] for t in read.traffic.values()) == sum(
        t[4] for t in sized.expected(SMALL, "events").traffic.values()
    )
    database.close()


def fails(engine: sized.Engine, statements: str, told: str) -> str:
    """Run the statements, then expect both ways to fail as `told`, or to read if it is empty; return the matches."""
    writer, database = sa.create_engine(engine.url), Database("s", parse_url(engine.url), 60)
    with writer.begin() as connection:
        for statement in statements.split("; "):
            connection.exec_driver_sql(statement)
    writer.dispose()
    made, found = sized.monitored("events", engine.style), ""
    for source in (Pull(made, database), PushDown(made, database, is_bound=True)):
        if not told:
            source.read(*sized.WHOLE)
            continue
        with pytest.raises(SourceError, match=f"request of rankings and labels cannot be compared: {told}") as caught:
            source.read(*sized.WHOLE)
        found = "".join(re.findall(told, str(caught.value)))
        assert caught.value.reason == "data"
    database.close()
    return found
